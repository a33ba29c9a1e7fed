#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>

#include "tessera/collectives/listening_socket.h"
#include "tessera/collectives/world.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;

/// Two processes' worlds in this process, a rank each. They share memory.
std::array<std::unique_ptr<World>, 2> two_worlds(milliseconds first_timeout,
                                                 milliseconds second_timeout) {
  const int listener = listening_socket(0);
  const int port = port_of_listener(listener);
  const auto process = [&](int number, int own_listener, milliseconds timeout) {
    return make_socket_world({.process = number,
                              .processes = 2,
                              .address = "127.0.0.1",
                              .port = port,
                              .listener = own_listener},
                             {.local_ranks = 1, .timeout = timeout});
  };
  std::array<std::unique_ptr<World>, 2> worlds;
  std::thread first([&] { worlds[0] = process(0, listener, first_timeout); });
  worlds[1] = process(1, -1, second_timeout);
  first.join();
  return worlds;
}

bool succeeds(Stream& stream) {
  try {
    stream.synchronize();
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST(LateReader, DoesNotSucceedOnceTheOwnerOfTheBufferHasGivenUp) {
  // Copying takes longer than the root waits; it then writes over what is being read. Where memory
  // is so fast that the root succeeds, so must the reader.
  const auto worlds = two_worlds(milliseconds(10), milliseconds(60000));
  constexpr std::int64_t kBytes = std::int64_t{256} << 20;
  const auto root = worlds[0]->make_device();
  const auto reader = worlds[1]->make_device();
  auto* const sent = static_cast<std::byte*>(root->allocate(kBytes));
  auto* const received = static_cast<std::byte*>(reader->allocate(kBytes));
  std::memset(sent, 1, kBytes);
  const auto root_stream = root->create_stream({});
  const auto reader_stream = reader->create_stream({});
  const Shape shape{kBytes};
  worlds[1]->groups()[0]->broadcast(TensorView(received, DType::kUInt8, shape), 0, *reader_stream);
  worlds[0]->groups()[0]->broadcast(TensorView(sent, DType::kUInt8, shape), 0, *root_stream);
  const bool root_succeeds = succeeds(*root_stream);
  if (!root_succeeds) std::memset(sent, 2, kBytes);
  EXPECT_EQ(succeeds(*reader_stream), root_succeeds);
  root->deallocate(sent, kBytes);
  reader->deallocate(received, kBytes);
}

}  // namespace
}  // namespace tessera

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>

#include "mpi/two_sides.h"
#include "tessera/collectives/world.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;

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
  const auto worlds = test::meet<World>([](const SocketRendezvous& rendezvous) {
    const milliseconds timeout(rendezvous.process == 0 ? 10 : 60000);
    return make_socket_world(rendezvous, {.local_ranks = 1, .timeout = timeout});
  });
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

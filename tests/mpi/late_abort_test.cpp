#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <thread>

#include "mpi/two_sides.h"
#include "tessera/collectives/world.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

/// Two ranks of two processes exchange a number; as soon as the one has got it, it aborts the run.
void abort_after_an_exchange(bool apart) {
  const auto worlds = test::meet<World>([&](const SocketRendezvous& rendezvous) {
    return make_socket_world(rendezvous,
                             {.timeout = std::chrono::milliseconds(60000), .apart = apart});
  });
  const auto exchange = [&](int process, std::int64_t(&all)[2]) {
    World& world = *worlds[static_cast<std::size_t>(process)];
    const auto stream = world.make_device()->create_stream({});
    std::int64_t own = 10 + process;
    world.groups()[0]->all_gather(TensorView(&own, DType::kInt64, Shape{1}),
                                  TensorView(all, DType::kInt64, Shape{2}), *stream);
    stream->synchronize();
  };
  std::int64_t first[2]{}, second[2]{};
  std::thread failing([&] {
    EXPECT_NO_THROW(exchange(1, second));
    worlds[1]->groups()[0]->abort("something that came later");
  });
  EXPECT_NO_THROW(exchange(0, first));
  failing.join();
  EXPECT_EQ(first[0], 10);
  EXPECT_EQ(first[1], 11);
}

TEST(LateAbort, FailsNoOperationThatAllHaveEndedOnOneMachine) {
  for (int round = 0; round < 100; ++round) abort_after_an_exchange(false);
}

TEST(LateAbort, FailsNoOperationThatAllHaveEndedOnTwoMachines) {
  for (int round = 0; round < 100; ++round) abort_after_an_exchange(true);
}

}  // namespace
}  // namespace tessera

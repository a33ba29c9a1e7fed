#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "mpi/two_sides.h"
#include "tessera/collectives/world.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"
#include "world/messenger.h"

// How the end of one side reaches the other one while messages are on their way. Both sides are in
// this process.
namespace tessera::world_end_test {
namespace {

using test::meet;
using test::Two;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using Transfers = std::vector<std::shared_ptr<Messenger::Transfer>>;

constexpr std::chrono::seconds kPatience{120};

Two<Messenger> messengers() { return meet<Messenger>(make_socket_messenger); }

Two<World> worlds(const WorldOptions& options) {
  return meet<World>(
      [&](const SocketRendezvous& rendezvous) { return make_socket_world(rendezvous, options); });
}

bool soon(const std::function<bool()>& is_so) {
  const Clock::time_point deadline = Clock::now() + kPatience;
  while (!is_so()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// What `messenger` is told, "" if nothing soon.
std::string told(Messenger& messenger) {
  soon([&] { return !messenger.failure().empty(); });
  return messenger.failure();
}

std::string failure_of(Stream& stream) {
  try {
    stream.synchronize();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(MessengerEndTest, LongMessagesArriveWhole) {
  Two<Messenger> both = messengers();
  std::vector<int> out(10'000'019);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int>(i * 7);
  std::vector<int> asked(out.size());
  std::vector<int> unasked(out.size());
  const std::size_t bytes = out.size() * sizeof(int);
  Transfers transfers{both[1]->receive(0, 1, asked.data(), bytes)};
  for (const std::uint32_t tag : {1U, 2U}) {
    transfers.push_back(both[0]->send(1, tag, out.data(), bytes));
  }
  // This one may be on its way when it is asked for.
  ASSERT_TRUE(soon([&] { return transfers[0]->done(); }));
  transfers.push_back(both[1]->receive(0, 2, unasked.data(), bytes));
  for (const auto& transfer : transfers) ASSERT_TRUE(soon([&] { return transfer->done(); }));
  EXPECT_EQ(asked, out);
  EXPECT_EQ(unasked, out);
  both[0]->leave();
  both[1]->leave();
}

TEST(MessengerEndTest, AnAbortOvertakesMessages) {
  constexpr std::size_t kBytes = std::size_t{32} << 20U;
  constexpr int kMessages = 2000;  // minutes of them
  Two<Messenger> both = messengers();
  std::vector<std::byte> in(kBytes);
  auto out = std::make_unique<std::vector<std::byte>>(kBytes);
  Transfers receives;
  Transfers sends;
  for (int i = 0; i < kMessages; ++i) {
    receives.push_back(both[1]->receive(0, 1, in.data(), kBytes));
    sends.push_back(both[0]->send(1, 1, out->data(), kBytes));
  }
  ASSERT_TRUE(soon([&] { return receives[0]->done(); }));
  both[0]->abort("the disk is full");
  while (!sends.empty()) sends.pop_back();  // as failing operations do, and their memory goes
  out.reset();
  EXPECT_EQ(told(*both[1]), "the disk is full");
  EXPECT_FALSE(receives.back()->done());
  receives.clear();
}

TEST(MessengerEndTest, AMessageThatDoesNotFitLeavesTheWayForAnAbort) {
  Two<Messenger> both = messengers();
  std::vector<std::byte> in(200);
  const std::vector<std::byte> out(100);
  const auto receive = both[1]->receive(0, 1, in.data(), in.size());
  const auto send = both[0]->send(1, 1, out.data(), out.size());
  EXPECT_EQ(told(*both[1]), "process 0 sent 100 bytes where 200 were expected");
  EXPECT_FALSE(receive->done());
  both[1]->abort("sizes differ");
  EXPECT_EQ(told(*both[0]), "sizes differ");
}

TEST(MessengerEndTest, AnAbortIsOutBeforeItsMessengerEnds) {
  for (int round = 0; round < 50; ++round) {
    Two<Messenger> both = messengers();
    both[0]->abort("the disk is full");
    both[0].reset();
    ASSERT_EQ(told(*both[1]), "the disk is full") << "in round " << round;
  }
}

class WorldEndTest : public ::testing::TestWithParam<bool> {};

TEST_P(WorldEndTest, AnExceptionThatEndsAWorldIsAFailure) {
  Two<World> both = worlds({.local_ranks = 1, .apart = GetParam()});
  const auto device = make_cpu_device();
  const auto stream = device->create_stream({});
  both[1]->groups()[0]->barrier(*stream);
  const Clock::time_point begin = Clock::now();
  try {
    const std::unique_ptr<World> ending = std::move(both[0]);
    throw std::runtime_error("no disk");
  } catch (const std::runtime_error&) {
  }
  EXPECT_THAT(failure_of(*stream), HasSubstr("rank 0 (process 0"));
  EXPECT_LT(Clock::now() - begin, kPatience);
}

INSTANTIATE_TEST_SUITE_P(Near, WorldEndTest, ::testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Far, WorldEndTest, ::testing::Values(true));

}  // namespace
}  // namespace tessera::world_end_test

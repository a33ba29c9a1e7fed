#include "tessera/core/sim_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

TEST(SimDeviceTest, AddressesAreUniqueAlignedAndNotNull) {
  SimDevice device;
  std::set<void*> seen;
  for (std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{64}, std::size_t{65},
                            std::size_t{1} << 45U, std::size_t{3}}) {
    void* const address = device.allocate(bytes);
    EXPECT_NE(address, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(address) % 64, 0U);
    EXPECT_TRUE(seen.insert(address).second);
    device.deallocate(address, bytes);
  }
}

TEST(SimStreamTest, ClocksAdvanceAloneAndMeetAtEvents) {
  SimDevice device;
  const auto compute = device.create_stream({.name = "compute"});
  const auto gather = device.create_stream({.name = "gather"});
  int order = 0;
  gather->submit({.name = "unshard", .action = 0, .seconds = 3.0}, [&] { EXPECT_EQ(order++, 0); });
  const Event unsharded = gather->record();
  gather->submit({.name = "unshard", .action = 1, .seconds = 4.0}, [&] { EXPECT_EQ(order++, 1); });
  compute->submit({.name = "data", .seconds = 1.0}, nullptr);
  compute->wait(unsharded);
  compute->wait(Event{});
  compute->submit({.name = "forward", .action = 2, .seconds = 2.0}, [&] { EXPECT_EQ(order++, 2); });
  EXPECT_EQ(order, 3);
  EXPECT_TRUE(device.spans().empty()) << "what is submitted later may disturb it";
  compute->synchronize();

  ASSERT_EQ(device.spans().size(), 4U);
  const SimSpan& second = device.spans()[3];
  EXPECT_EQ(second.stream, "gather");
  EXPECT_EQ(second.begin, 3.0);
  EXPECT_EQ(second.end, 7.0);
  const SimSpan& forward = device.spans()[2];
  EXPECT_EQ(forward.name, "forward");
  EXPECT_EQ(forward.action, 2);
  EXPECT_EQ(forward.begin, 3.0);  // not 1.0: it waited
  EXPECT_EQ(forward.end, 5.0);
}

TEST(SimStreamTest, AFailureStopsTheStreamAndIsRethrown) {
  SimDevice device;
  std::string reported;
  const auto stream = device.create_stream(
      {.name = "compute", .on_error = [&](std::string_view what) { reported += what; }});
  bool ran = false;
  stream->submit({.name = "bad", .seconds = 1.0}, [] { fail(ErrorCode::kIo, "first"); });
  stream->submit({.name = "later", .seconds = 1.0}, [&] { ran = true; });
  EXPECT_FALSE(ran);
  EXPECT_EQ(reported, "first");
  EXPECT_TRUE(device.spans().empty());
  for (int i = 0; i < 2; ++i) {
    try {
      stream->synchronize();
      FAIL() << "did not throw";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo);
    }
  }
}

TEST(SimStreamTest, ATaskMayNotSubmitToItsOwnStream) {
  SimDevice device;
  const auto stream = device.create_stream({.name = "compute"});
  const auto other = device.create_stream({.name = "copy"});
  bool ran = false;
  stream->submit({}, [&] { other->submit({}, [] {}); });
  stream->synchronize();
  stream->submit({}, [&] { stream->submit({}, [&] { ran = true; }); });
  EXPECT_THROW(stream->synchronize(), Error);
  EXPECT_FALSE(ran);
}

TEST(SimStreamTest, HooksSeeTasksAndVirtualTime) {
  SimDevice device;
  int before = 0;
  double end = 0.0;
  const auto stream = device.create_stream(
      {.before_task = [&] { ++before; },
       .on_span = [&](const Work&, double, double end_seconds) { end = end_seconds; }});
  stream->submit({.name = "a", .seconds = 1.5}, nullptr);
  stream->submit({.name = "b", .seconds = 1.5}, nullptr);
  EXPECT_EQ(before, 2);
  stream->synchronize();
  EXPECT_EQ(end, 3.0);
}

TEST(SimStreamTest, TasksThatRunAtTheSameTimeSlowEachOtherDown) {
  // Alone at full speed; two share one core.
  SimDevice device(DeviceKind::kCpu, [](std::span<const Work> running, std::span<double> speeds) {
    for (double& speed : speeds) speed = 1.0 / static_cast<double>(running.size());
  });
  const auto compute = device.create_stream({.name = "compute"});
  const auto gather = device.create_stream({.name = "gather"});
  compute->submit({.name = "a", .seconds = 2.0}, nullptr);
  const Event after_a = compute->record();
  compute->submit({.name = "b", .seconds = 3.0}, nullptr);
  gather->wait(after_a);
  gather->submit({.name = "g", .seconds = 1.0}, nullptr);
  gather->synchronize();
  ASSERT_EQ(device.spans().size(), 3U);
  const auto span = [&](const char* name) {
    return *std::ranges::find(device.spans(), name, &SimSpan::name);
  };
  EXPECT_EQ(span("a").end, 2.0);
  EXPECT_EQ(span("g").begin, 2.0);
  EXPECT_EQ(span("g").end, 4.0) << "half as fast beside b";
  EXPECT_EQ(span("b").begin, 2.0);
  EXPECT_EQ(span("b").end, 6.0) << "1 of its 3 seconds done when g ends";
}

TEST(SimStreamTest, AnEventOfAnEmptyStreamIsPast) {
  SimDevice device;
  const auto compute = device.create_stream({.name = "compute"});
  const auto gather = device.create_stream({.name = "gather"});
  const Event event = gather->record();
  compute->wait(event);
  compute->submit({.name = "a", .seconds = 1.0}, nullptr);
  compute->synchronize();
  EXPECT_EQ(device.spans().size(), 1U);
}

TEST(SimStreamTest, ForeignEventsAreRefused) {
  const auto cpu = make_cpu_device();
  SimDevice sim;
  const auto cpu_stream = cpu->create_stream({.name = "cpu"});
  const auto sim_stream = sim.create_stream({.name = "sim"});
  EXPECT_THROW(sim_stream->wait(cpu_stream->record()), Error);
  EXPECT_THROW(cpu_stream->wait(sim_stream->record()), Error);
}

}  // namespace
}  // namespace tessera

#include "tessera/core/sim_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

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

/// What `synchronize` throws.
Error failure_of(Stream& stream) {
  try {
    stream.synchronize();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "did not throw";
  return {ErrorCode::kInternal, ""};
}

SimStream& as_sim(const std::unique_ptr<Stream>& stream) {
  return dynamic_cast<SimStream&>(*stream);
}

Error nobody_came() { return {ErrorCode::kUnavailable, "nobody came"}; }

TEST(SimClockTest, DevicesWaitForEachOthersEventsAndHaveTheirOwnSpansAndMemory) {
  SimDevice first;
  SimDevice second(DeviceKind::kCuda, {}, first);
  const auto a = first.create_stream({.name = "a"});
  double end_of_b = 0.0;
  const auto b = second.create_stream(
      {.name = "b", .on_span = [&](const Work&, double, double end) { end_of_b = end; }});
  a->submit({.name = "long", .seconds = 3.0}, nullptr);
  const Event after_a = a->record();
  b->wait(after_a);
  b->submit({.name = "after", .seconds = 0.5}, nullptr);
  a->synchronize();  // runs the other device's streams, too
  EXPECT_EQ(end_of_b, 3.5);
  b->synchronize();
  ASSERT_EQ(first.spans().size(), 1U);
  ASSERT_EQ(second.spans().size(), 1U);
  EXPECT_EQ(first.spans()[0].stream, "a");
  EXPECT_EQ(second.spans()[0].begin, 3.0);
  EXPECT_EQ(first.reserved_bytes(), 0);
  second.deallocate(second.allocate(100), 100);
  EXPECT_GT(second.reserved_bytes(), 0);
  EXPECT_EQ(first.reserved_bytes(), 0);
}

TEST(SimClockTest, ADeviceBesideOneBesideAnotherIsOnTheSameClock) {
  SimDevice first;
  SimDevice second(DeviceKind::kCpu, {}, first);
  SimDevice third(DeviceKind::kCpu, {}, second);
  const auto a = first.create_stream({.name = "a"});
  const auto c = third.create_stream({.name = "c"});
  a->submit({.name = "task", .seconds = 2.0}, nullptr);
  c->wait(a->record());
  c->submit({.name = "task", .seconds = 1.0}, nullptr);
  c->synchronize();
  EXPECT_EQ(third.spans().at(0).end, 3.0);
}

TEST(SimClockTest, TasksSlowEachOtherDownOnTheirOwnDeviceOnly) {
  const SimSpeeds shared = [](std::span<const Work> running, std::span<double> speeds) {
    for (double& speed : speeds) speed = 1.0 / static_cast<double>(running.size());
  };
  SimDevice first(DeviceKind::kCpu, shared);
  SimDevice second(DeviceKind::kCpu, shared, first);
  SimDevice undisturbed(DeviceKind::kCpu, {}, first);
  std::vector<std::unique_ptr<Stream>> streams;
  const auto submit = [&](SimDevice& device, double seconds) {
    streams.push_back(device.create_stream({.name = "s"}));
    streams.back()->submit({.name = "task", .seconds = seconds}, nullptr);
  };
  submit(first, 1.0);
  submit(first, 2.0);
  submit(second, 1.5);
  submit(undisturbed, 1.0);
  submit(undisturbed, 1.0);
  for (const auto& stream : streams) stream->synchronize();
  EXPECT_EQ(first.spans().at(0).end, 2.0) << "half as fast beside the other";
  EXPECT_EQ(first.spans().at(1).end, 3.0);
  EXPECT_EQ(second.spans().at(0).end, 1.5) << "alone on its device";
  EXPECT_EQ(undisturbed.spans().at(0).end, 1.0);
  EXPECT_EQ(undisturbed.spans().at(1).end, 1.0);
}

TEST(SimClockTest, EventsOfAnotherClockAreRefused) {
  SimDevice first;
  SimDevice second;
  const auto a = first.create_stream({.name = "a"});
  const auto b = second.create_stream({.name = "b"});
  const auto refused = [&](const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << "did not throw";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("'b'"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("another clock"), std::string::npos) << error.what();
    }
  };
  const Event recorded = a->record();
  const Event announced = as_sim(a).announce(1, nobody_came);
  refused([&] { b->wait(recorded); });
  refused([&] { as_sim(b).arrive(announced); });
  b->synchronize();  // nothing was put on it
}

TEST(SimStreamTest, AnAnnouncedEventIsOverWhenAllHaveArrived) {
  SimDevice first;
  SimDevice second(DeviceKind::kCpu, {}, first);
  const auto a = first.create_stream({.name = "a"});
  const auto b = second.create_stream({.name = "b"});
  const auto c = second.create_stream({.name = "c"});
  const Event both = as_sim(a).announce(2, nobody_came);
  c->wait(both);  // before anybody is to arrive
  c->submit({.name = "after", .seconds = 1.0}, nullptr);
  a->submit({.name = "short", .seconds = 1.0}, nullptr);
  as_sim(a).arrive(both);
  b->submit({.name = "long", .seconds = 4.0}, nullptr);
  as_sim(b).arrive(both);
  EXPECT_THROW(as_sim(b).arrive(both), Error) << "two were announced";
  c->synchronize();
  EXPECT_EQ(second.spans().back().name, "after");
  EXPECT_EQ(second.spans().back().begin, 4.0);
  EXPECT_THROW(as_sim(a).announce(0, nobody_came), Error);
  EXPECT_THROW(as_sim(a).announce(1, nullptr), Error);
}

TEST(SimStreamTest, WhoWaitsInVainIsToldAndMayGoOn) {
  SimDevice first;
  SimDevice second(DeviceKind::kCpu, {}, first);
  const auto a = first.create_stream({.name = "compute0"});
  const auto b = first.create_stream({.name = "recv0"});
  const auto peer = second.create_stream({.name = "send1"});
  const auto idle = second.create_stream({.name = "compute1"});
  const Event message = as_sim(b).announce(1, nobody_came);
  b->wait(message);
  const Event received = b->record();
  a->submit({.name = "data", .seconds = 1.0}, nullptr);
  a->wait(received);
  a->submit({.name = "forward", .seconds = 1.0}, nullptr);

  idle->synchronize();  // what it has is done
  const Error own = failure_of(*b);
  EXPECT_EQ(own.code(), ErrorCode::kUnavailable);
  EXPECT_STREQ(own.what(), "sim stream 'recv0' cannot end: it waits for nobody came");
  const Error behind = failure_of(*a);
  EXPECT_EQ(behind.code(), ErrorCode::kUnavailable);
  EXPECT_STREQ(behind.what(),
               "sim stream 'compute0' cannot begin 'forward': it waits for an event of stream "
               "'recv0', which waits for nobody came");

  peer->submit({.name = "send", .seconds = 0.5}, nullptr);
  as_sim(peer).arrive(message);
  a->synchronize();
  b->synchronize();
  EXPECT_EQ(second.spans().back().begin, 1.0) << "the clock has run meanwhile";
  EXPECT_EQ(first.spans().back().begin, 1.5);
}

TEST(SimStreamTest, StreamsThatWaitForEachOtherAreNamed) {
  SimDevice first;
  SimDevice second(DeviceKind::kCpu, {}, first);
  const auto a = first.create_stream({.name = "a"});
  const auto b = second.create_stream({.name = "b"});
  const Event of_a = as_sim(a).announce(1, nobody_came);
  const Event of_b = as_sim(b).announce(1, nobody_came);
  a->wait(of_b);
  as_sim(a).arrive(of_a);
  b->wait(of_a);
  as_sim(b).arrive(of_b);
  b->submit({.name = "later", .seconds = 1.0}, nullptr);
  const Error error = failure_of(*b);
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_STREQ(error.what(),
               "sim stream 'b' cannot begin 'later': it waits for an event of stream 'a', which "
               "waits for an event of stream 'b', which waits for the same again: none of them can "
               "go on");
}

TEST(SimStreamTest, AFailureIsRethrownBeforeAWaitInVain) {
  SimDevice device;
  const auto stream = device.create_stream({.name = "s"});
  const Event never = as_sim(stream).announce(1, nobody_came);
  stream->wait(never);
  stream->submit({.name = "bad"}, [] { fail(ErrorCode::kIo, "first"); });
  EXPECT_EQ(failure_of(*stream).code(), ErrorCode::kIo);
}

TEST(SimClockTest, DevicesStreamsAndEventsMayBeDestroyedInAnyOrder) {
  auto first = std::make_unique<SimDevice>(
      DeviceKind::kCpu, [](std::span<const Work> running, std::span<double> speeds) {
        for (double& speed : speeds) speed = 1.0 / static_cast<double>(running.size());
      });
  auto second = std::make_unique<SimDevice>(DeviceKind::kCpu, SimSpeeds{}, *first);
  int reported = 0;
  const auto count = [&](const Work&, double, double) { ++reported; };
  auto name = std::make_unique<std::string>("a task whose name is gone when it runs");
  auto a = first->create_stream({.name = "a", .on_span = count});
  auto also_a = first->create_stream({.name = "also a", .on_span = count});
  auto b = second->create_stream({.name = "b", .on_span = count});
  const Event gate = as_sim(b).announce(1, nobody_came);
  a->wait(gate);
  a->submit({.name = *name, .seconds = 2.0}, nullptr);
  also_a->wait(gate);
  also_a->submit({.name = "beside it", .seconds = 2.0}, nullptr);
  Event after_a = a->record();
  a.reset();  // before what it waits for
  also_a.reset();
  name.reset();
  first.reset();
  as_sim(b).arrive(gate);
  b->wait(after_a);
  after_a = Event();
  b->submit({.name = "b", .seconds = 1.0}, nullptr);
  b->synchronize();
  EXPECT_EQ(second->spans().at(0).begin, 2.0) << "as fast as alone without its device";
  EXPECT_EQ(reported, 1) << "nobody listens to a stream that is gone";

  SimDevice third(DeviceKind::kCpu, {}, *second);
  second.reset();
  const auto c = third.create_stream({.name = "c"});
  b->submit({.name = "b", .seconds = 1.0}, nullptr);  // a stream may outlive its device
  c->wait(b->record());
  c->submit({.name = "c", .seconds = 1.0}, nullptr);
  c->synchronize();
  EXPECT_EQ(third.spans().at(0).end, 5.0);
  EXPECT_EQ(reported, 2);
}

}  // namespace
}  // namespace tessera

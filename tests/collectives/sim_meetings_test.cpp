#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/collectives/sim_group.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"
#include "tessera/core/sim_device.h"
#include "tessera/core/tensor.h"

// Simulated ranks on one clock: their calls meet, and time passes as if each had a device.
namespace tessera {
namespace {

/// A view of memory that nobody touches, apart from all others.
TensorView numbers(std::int64_t numel, DType dtype = DType::kFloat32) {
  static std::uintptr_t next = std::uintptr_t{1} << 30U;
  next += 4096;
  return TensorView(reinterpret_cast<std::byte*>(next), dtype, Shape{numel});
}

/// The devices of `count` ranks on one clock.
std::vector<std::unique_ptr<SimDevice>> devices_on_a_clock(int count) {
  std::vector<std::unique_ptr<SimDevice>> devices;
  devices.push_back(std::make_unique<SimDevice>());
  for (int rank = 1; rank < count; ++rank) {
    devices.push_back(std::make_unique<SimDevice>(DeviceKind::kCpu, SimSpeeds{}, *devices.front()));
  }
  return devices;
}

/// What a call throws.
Error failure_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "did not throw";
  return {ErrorCode::kInternal, ""};
}

const SimSpan& span_of(const SimDevice& device, const std::string& name) {
  const auto found = std::ranges::find(device.spans(), name, &SimSpan::name);
  if (found == device.spans().end()) fail(ErrorCode::kNotFound, "no span of '", name, "'");
  return *found;
}

/// A task that costs something and then the call, as an executor issues a collective.
void charge(Stream& stream, double seconds) {
  stream.submit({.name = "cost", .seconds = seconds}, nullptr);
}

TEST(SimMeetingsTest, AMessageArrivesWhenBothEndsAreReady) {
  const auto devices = devices_on_a_clock(3);
  SimMeetings meetings;
  std::vector<std::unique_ptr<Stream>> streams;
  for (const auto& device : devices) streams.push_back(device->create_stream({.name = "s"}));
  const auto a_to_b = make_sim_group(0, 2, meetings, "a-b", 2);
  const auto b_from_a = make_sim_group(1, 2, meetings, "a-b", 2);
  const auto b_to_c = make_sim_group(0, 2, meetings, "b-c", 2);
  const auto c_from_b = make_sim_group(1, 2, meetings, "b-c", 2);

  // From the last to the first: who waits is submitted before what it waits for.
  charge(*streams[2], 0.25);
  c_from_b->recv(numbers(8), 0, *streams[2]);
  streams[2]->submit({.name = "work of c", .seconds = 1.0}, nullptr);
  charge(*streams[1], 0.25);
  b_from_a->recv(numbers(8), 0, *streams[1]);
  streams[1]->submit({.name = "work of b", .seconds = 2.0}, nullptr);
  charge(*streams[1], 0.25);
  b_to_c->send(numbers(8), 1, *streams[1]);
  streams[0]->submit({.name = "work of a", .seconds = 1.0}, nullptr);
  charge(*streams[0], 0.25);
  a_to_b->send(numbers(8), 1, *streams[0]);
  streams[0]->submit({.name = "more work of a", .seconds = 0.5}, nullptr);
  for (const auto& stream : streams) stream->synchronize();

  EXPECT_EQ(span_of(*devices[0], "send").end, 1.25);
  EXPECT_EQ(span_of(*devices[0], "more work of a").begin, 1.25);
  EXPECT_EQ(span_of(*devices[1], "recv").end, 1.25);
  EXPECT_EQ(span_of(*devices[1], "work of b").begin, 1.25);
  EXPECT_EQ(span_of(*devices[1], "work of b").end, 3.25);
  EXPECT_EQ(span_of(*devices[2], "recv").end, 3.5);
  EXPECT_EQ(span_of(*devices[2], "work of c").end, 4.5);
  EXPECT_EQ(a_to_b->traffic().sent_of(CollectiveKind::kSend), 32);
  EXPECT_EQ(b_from_a->traffic().calls_of(CollectiveKind::kRecv), 1);
  EXPECT_EQ(b_from_a->traffic().sent_of(CollectiveKind::kRecv), 0);
}

TEST(SimMeetingsTest, ASenderWaitsForALateReceiver) {
  const auto devices = devices_on_a_clock(2);
  SimMeetings meetings;
  const auto sender = devices[0]->create_stream({.name = "send"});
  const auto receiver = devices[1]->create_stream({.name = "recv"});
  const auto from = make_sim_group(0, 2, meetings, "pair", 2);
  const auto to = make_sim_group(1, 2, meetings, "pair", 2);
  for (int message = 0; message < 2; ++message) {
    from->send(numbers(1), 1, *sender);
    receiver->submit({.name = "busy", .seconds = 2.0}, nullptr);
    to->recv(numbers(1), 0, *receiver);
  }
  sender->synchronize();
  receiver->synchronize();
  ASSERT_EQ(devices[0]->spans().size(), 2U);
  EXPECT_EQ(devices[0]->spans()[0].end, 2.0);
  EXPECT_EQ(devices[0]->spans()[1].end, 4.0);
}

TEST(SimMeetingsTest, AllGoOnWhenTheLastOfACollectiveHasArrived) {
  const auto devices = devices_on_a_clock(3);
  SimMeetings meetings;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<ProcessGroup>> groups;
  for (int rank = 0; rank < 3; ++rank) {
    SimDevice& device = *devices[static_cast<std::size_t>(rank)];
    streams.push_back(device.create_stream({.name = "reduce"}));
    groups.push_back(make_sim_group(rank, 3, meetings, "gradients", 3));
    Stream& stream = *streams.back();
    stream.submit({.name = "backward", .seconds = 1.0 + rank}, nullptr);
    charge(stream, 0.5);
    groups.back()->all_reduce(numbers(6), stream);
    stream.submit({.name = "update", .seconds = 1.0}, nullptr);
    groups.back()->all_gather(numbers(2), numbers(6), stream);
    groups.back()->barrier(stream);
  }
  for (const auto& stream : streams) stream->synchronize();
  for (const auto& device : devices) {
    EXPECT_EQ(span_of(*device, "all_reduce").begin, 3.5);
    EXPECT_EQ(span_of(*device, "update").begin, 3.5);
    EXPECT_EQ(span_of(*device, "barrier").end, 4.5);
  }
  EXPECT_EQ(groups[2]->traffic().sent_of(CollectiveKind::kAllReduce), 2 * 24 / 3 * 2);
}

TEST(SimMeetingsTest, RanksThatAreNotSimulatedKeepNobodyWaiting) {
  const auto devices = devices_on_a_clock(2);
  SimMeetings meetings;
  const auto a = devices[0]->create_stream({.name = "a"});
  const auto b = devices[1]->create_stream({.name = "b"});
  // Of four ranks 1 and 3 are simulated; of the other groups one each.
  const auto one = make_sim_group(1, 4, meetings, "four", 2);
  const auto three = make_sim_group(3, 4, meetings, "four", 2);
  const auto alone = make_sim_group(0, 2, meetings, "other pair", 1);
  a->submit({.name = "work", .seconds = 1.0}, nullptr);
  one->all_reduce(numbers(4), *a);
  one->send(numbers(4), 0, *a);
  alone->send(numbers(4), 1, *a);
  alone->all_reduce(numbers(4), *a);
  b->submit({.name = "work", .seconds = 2.0}, nullptr);
  three->all_reduce(numbers(4), *b);
  a->synchronize();
  b->synchronize();
  EXPECT_EQ(span_of(*devices[0], "all_reduce").end, 2.0);
  EXPECT_EQ(span_of(*devices[1], "all_reduce").end, 2.0);
}

TEST(SimMeetingsTest, CallsOfTwoRanksOfMoreMeetByThemselves) {
  const auto devices = devices_on_a_clock(3);
  SimMeetings meetings;
  std::vector<std::unique_ptr<Stream>> streams;
  for (const auto& device : devices) streams.push_back(device->create_stream({.name = "s"}));
  const auto first = make_sim_group(0, 3, meetings, "three", 3);
  first->recv(numbers(1), 2, *streams[0]);  // the other end need not be there yet
  const auto second = make_sim_group(1, 3, meetings, "three", 3);
  const auto third = make_sim_group(2, 3, meetings, "three", 3);
  first->barrier(*streams[0]);
  second->barrier(*streams[1]);
  streams[2]->submit({.name = "work", .seconds = 1.0}, nullptr);
  third->send(numbers(1), 0, *streams[2]);
  streams[2]->submit({.name = "work", .seconds = 1.0}, nullptr);
  third->barrier(*streams[2]);
  for (const auto& stream : streams) stream->synchronize();
  EXPECT_EQ(span_of(*devices[0], "recv").end, 1.0);
  EXPECT_EQ(span_of(*devices[1], "barrier").end, 2.0);

  // Whether rank 2 is simulated is not known while one of the two that are is missing.
  const auto early = make_sim_group(0, 3, meetings, "two of three", 2);
  const Error error = failure_of([&] { early->send(numbers(1), 2, *streams[0]); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(std::string(error.what()).find("make all ends before"), std::string::npos);
  EXPECT_EQ(early->traffic(), Traffic{});
}

// ---- A pipeline ---------------------------------------------------------------------------------

/// One rank of a pipeline: a lane for its work and one for each direction of messages, each with a
/// communicator of its own.
class PipelineRank {
 public:
  PipelineRank(int rank, int ranks, double message, SimDevice& device, SimMeetings& meetings)
      : message_(message),
        device_(device),
        compute_(device.create_stream({.name = concat("compute", rank)})) {
    const auto open = [&](const char* lane, const char* direction, int low, int own) {
      if (low < 0 || low + 1 >= ranks) return Lane{};
      return Lane{device.create_stream({.name = concat(lane, rank)}),
                  make_sim_group(own, 2, meetings, concat(direction, low), 2)};
    };
    from_previous_ = open("recv-forward", "forward", rank - 1, 1);
    to_next_ = open("send-forward", "forward", rank, 0);
    from_next_ = open("recv-backward", "backward", rank, 0);
    to_previous_ = open("send-backward", "backward", rank - 1, 1);
  }

  /// The whole step is submitted before another rank's is.
  void gpipe(int micro_batches, double forward, double backward) {
    for (int m = 0; m < micro_batches; ++m) pass("forward", forward, from_previous_, to_next_);
    for (int m = 0; m < micro_batches; ++m) pass("backward", backward, from_next_, to_previous_);
  }

  void synchronize() {
    for (Stream* const stream : {compute_.get(), from_previous_.stream.get(), to_next_.stream.get(),
                                 from_next_.stream.get(), to_previous_.stream.get()}) {
      if (stream != nullptr) stream->synchronize();
    }
  }
  double end() const { return device_.spans().back().end; }
  double busy() const {
    double sum = 0.0;
    for (const SimSpan& span : device_.spans()) {
      if (span.name == "forward" || span.name == "backward") sum += span.end - span.begin;
    }
    return sum;
  }

 private:
  struct Lane {
    std::unique_ptr<Stream> stream{};
    std::unique_ptr<ProcessGroup> group{};
  };

  void pass(const char* name, double seconds, Lane& from, Lane& to) {
    if (from.group != nullptr) {
      charge(*from.stream, message_);
      from.group->recv(numbers(16), 1 - from.group->rank(), *from.stream);
      compute_->wait(from.stream->record());
    }
    compute_->submit({.name = name, .seconds = seconds}, nullptr);
    if (to.group == nullptr) return;
    to.stream->wait(compute_->record());
    charge(*to.stream, message_);
    to.group->send(numbers(16), 1 - to.group->rank(), *to.stream);
  }

  const double message_;
  SimDevice& device_;
  const std::unique_ptr<Stream> compute_;
  Lane from_previous_, to_next_, from_next_, to_previous_;
};

/// The seconds of a GPipe step; ranks are submitted from the first to the last, or backwards.
double gpipe_seconds(int ranks, int micro_batches, double message, bool backwards = false) {
  const auto devices = devices_on_a_clock(ranks);
  SimMeetings meetings;
  std::vector<std::unique_ptr<PipelineRank>> pipeline;
  for (int rank = 0; rank < ranks; ++rank) {
    pipeline.push_back(std::make_unique<PipelineRank>(
        rank, ranks, message, *devices[static_cast<std::size_t>(rank)], meetings));
  }
  if (backwards) std::ranges::reverse(pipeline);
  for (const auto& rank : pipeline) rank->gpipe(micro_batches, 1.0, 2.0);
  double end = 0.0;
  for (const auto& rank : pipeline) {
    rank->synchronize();
    end = std::max(end, rank->end());
    EXPECT_NEAR(rank->busy(), 3.0 * micro_batches, 1e-9);
  }
  return end;
}

TEST(SimPipelineTest, AGPipeStepTakesMicroBatchesAndRanksLessOne) {
  EXPECT_EQ(gpipe_seconds(3, 4, 0.0), (4 + 3 - 1) * (1.0 + 2.0));
  EXPECT_EQ(gpipe_seconds(3, 4, 0.0, true), (4 + 3 - 1) * (1.0 + 2.0));
  EXPECT_EQ(gpipe_seconds(1, 4, 0.0), 4 * (1.0 + 2.0));
  EXPECT_EQ(gpipe_seconds(2, 1, 0.0), 2 * (1.0 + 2.0));
}

TEST(SimPipelineTest, MessagesThatAreShorterThanPassesAddOnceForEachRankAndDirection) {
  // While a pass runs the message before it is under way.
  EXPECT_NEAR(gpipe_seconds(3, 4, 0.1), 18.0 + 2 * (3 - 1) * 0.1, 1e-9);
  EXPECT_EQ(gpipe_seconds(3, 4, 0.125, true), 18.0 + 2 * (3 - 1) * 0.125);
}

// ---- Faults -------------------------------------------------------------------------------------

class SimFaultTest : public ::testing::Test {
 protected:
  using Issue = std::function<void(ProcessGroup&, Stream&)>;

  static Issue send(std::int64_t numel, DType dtype = DType::kFloat32) {
    return [=](ProcessGroup& group, Stream& stream) {
      group.send(numbers(numel, dtype), 1 - group.rank(), stream);
    };
  }
  static Issue recv(std::int64_t numel, DType dtype = DType::kFloat32) {
    return [=](ProcessGroup& group, Stream& stream) {
      group.recv(numbers(numel, dtype), 1 - group.rank(), stream);
    };
  }
  static Issue all_reduce(std::int64_t numel, DType dtype = DType::kFloat32) {
    return [=](ProcessGroup& group, Stream& stream) {
      group.all_reduce(numbers(numel, dtype), stream);
    };
  }
  static Issue broadcast(int root) {
    return [=](ProcessGroup& group, Stream& stream) { group.broadcast(numbers(4), root, stream); };
  }
  static void all_gather(ProcessGroup& group, Stream& stream) {
    group.all_gather(numbers(4), numbers(8), stream);
  }

  std::vector<std::unique_ptr<SimDevice>> devices_ = devices_on_a_clock(2);
  SimMeetings meetings_;
  std::unique_ptr<Stream> a_ = devices_[0]->create_stream({.name = "a"});
  std::unique_ptr<Stream> b_ = devices_[1]->create_stream({.name = "b"});
  std::unique_ptr<ProcessGroup> zero_ = make_sim_group(0, 2, meetings_, "edge", 2);
  std::unique_ptr<ProcessGroup> one_ = make_sim_group(1, 2, meetings_, "edge", 2);
};

TEST_F(SimFaultTest, CallsThatDoNotFitAreNamedWhenTheSecondIsIssued) {
  struct Case {
    Issue first, second;
    const char* first_text;
    const char* second_text;
  };
  const Case cases[] = {
      {send(4), send(4), "send of 4 fp32 to rank 1", "send of 4 fp32 to rank 0"},
      {recv(4), recv(4), "recv of 4 fp32 from rank 1", "recv of 4 fp32 from rank 0"},
      {send(4), recv(5), "send of 4 fp32 to rank 1", "recv of 5 fp32 from rank 0"},
      {send(4, DType::kBFloat16), recv(4), "send of 4 bf16 to rank 1",
       "recv of 4 fp32 from rank 0"},
      {recv(4), all_reduce(4), "recv of 4 fp32 from rank 1", "all_reduce of 4 fp32"},
      {all_reduce(4), all_gather, "all_reduce of 4 fp32", "all_gather of 4 fp32"},
      {all_reduce(4), all_reduce(6), "all_reduce of 4 fp32", "all_reduce of 6 fp32"},
      {all_reduce(4), all_reduce(4, DType::kFloat64), "all_reduce of 4 fp32",
       "all_reduce of 4 fp64"},
      {broadcast(0), broadcast(1), "broadcast of 4 fp32 from rank 0",
       "broadcast of 4 fp32 from rank 1"},
  };
  for (const Case& c : cases) {
    const std::string name = concat(c.first_text, " and ", c.second_text);
    const auto zero = make_sim_group(0, 2, meetings_, name, 2);
    const auto one = make_sim_group(1, 2, meetings_, name, 2);
    zero->barrier(*a_);
    one->barrier(*b_);
    c.first(*zero, *a_);
    const Error error = failure_of([&] { c.second(*one, *b_); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.what(), concat("call #1 of communicator '", name, "': rank 0 issued ",
                                   c.first_text, " but rank 1 issues ", c.second_text,
                                   "; all ranks must issue the same operations in the same order"));
  }
}

TEST_F(SimFaultTest, ACallThatDoesNotFitCountsForNothing) {
  send(4)(*zero_, *a_);
  EXPECT_THROW(recv(5)(*one_, *b_), Error);
  EXPECT_EQ(one_->traffic(), Traffic{});
  b_->submit({.name = "work", .seconds = 1.0}, nullptr);
  recv(4)(*one_, *b_);
  a_->synchronize();
  b_->synchronize();
  EXPECT_EQ(span_of(*devices_[0], "send").end, 1.0);
}

TEST_F(SimFaultTest, ATaskMayNotCallTheGroupOnItsOwnStream) {
  a_->submit({.name = "task"}, [&] { send(4)(*zero_, *a_); });
  EXPECT_EQ(failure_of([&] { a_->synchronize(); }).code(), ErrorCode::kInvalidArgument);
  const auto other = devices_[0]->create_stream({.name = "other"});
  recv(4)(*one_, *b_);
  send(4)(*zero_, *other);  // the first that counts
  b_->synchronize();
}

TEST_F(SimFaultTest, WhoDidNotArriveIsNamed) {
  zero_->barrier(*a_);
  one_->barrier(*b_);
  charge(*a_, 1.0);
  recv(4)(*zero_, *a_);
  b_->synchronize();  // has all that it waits for
  const Error error = failure_of([&] { a_->synchronize(); });
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_STREQ(error.what(),
               "sim stream 'a' cannot begin 'recv': it waits for call #1 of communicator 'edge', "
               "where rank 0 of 2 issued recv of 4 fp32 from rank 1: rank 1 did not arrive");
  send(4)(*one_, *b_);  // it may still come
  a_->synchronize();
  EXPECT_EQ(span_of(*devices_[0], "recv").end, 1.0);
}

TEST_F(SimFaultTest, WhoWaitsBehindOneThatWaitsIsToldOfBoth) {
  const auto compute = devices_[0]->create_stream({.name = "compute"});
  recv(4)(*zero_, *a_);
  compute->wait(a_->record());
  compute->submit({.name = "forward", .seconds = 1.0}, nullptr);
  const Error error = failure_of([&] { compute->synchronize(); });
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_STREQ(error.what(),
               "sim stream 'compute' cannot begin 'forward': it waits for an event of stream 'a', "
               "which waits for call #0 of communicator 'edge', where rank 0 of 2 issued recv of 4 "
               "fp32 from rank 1: rank 1 did not arrive");
}

TEST_F(SimFaultTest, ARankThatNeverMadeItsEndIsMissed) {
  const auto early = make_sim_group(0, 3, meetings_, "three", 3);
  const auto other = make_sim_group(2, 3, meetings_, "three", 3);
  early->barrier(*a_);
  other->barrier(*b_);
  const Error error = failure_of([&] { a_->synchronize(); });
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_NE(std::string(error.what()).find("only 2 of the 3 simulated ranks have made their end"),
            std::string::npos)
      << error.what();
}

TEST_F(SimFaultTest, MessagesInOppositeOrdersAreADeadlock) {
  const auto other_zero = make_sim_group(0, 2, meetings_, "back", 2);
  const auto other_one = make_sim_group(1, 2, meetings_, "back", 2);
  send(4)(*zero_, *a_);  // each sends before it receives, and a send waits for its recv
  recv(4)(*other_zero, *a_);
  send(4)(*other_one, *b_);
  recv(4)(*one_, *b_);
  const Error error = failure_of([&] { b_->synchronize(); });
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_STREQ(error.what(),
               "sim stream 'b' cannot begin 'send': it waits for an event of stream 'a', which "
               "waits for an event of stream 'b', which waits for the same again: none of them can "
               "go on");
}

TEST_F(SimFaultTest, AnAbortReachesTheWholeFamily) {
  const auto other_zero = make_sim_group(0, 2, meetings_, "back", 2);
  const auto other_one = make_sim_group(1, 2, meetings_, "back", 2);
  const auto apart = make_sim_group(0, 2);
  const auto later = devices_[1]->create_stream({.name = "later"});
  const auto unaffected = devices_[1]->create_stream({.name = "unaffected"});
  recv(4)(*one_, *b_);
  zero_->abort("first");
  other_one->abort("second");
  recv(4)(*other_one, *later);
  const Event after = later->record();
  unaffected->wait(after);
  apart->barrier(*unaffected);
  for (Stream* const stream : {b_.get(), later.get()}) {  // pending, and future
    const Error error = failure_of([&] { stream->synchronize(); });
    EXPECT_EQ(error.code(), ErrorCode::kAborted);
    EXPECT_NE(std::string(error.what()).find("first"), std::string::npos) << error.what();
  }
  unaffected->synchronize();  // nobody hangs behind a call that was aborted before it was issued
}

TEST_F(SimFaultTest, EndsThatContradictEachOtherAreRefused) {
  const auto refused = [&](int rank, int size, const char* name, int present,
                           const std::string& text) {
    const Error error = failure_of([&] { make_sim_group(rank, size, meetings_, name, present); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  };
  refused(1, 2, "edge", 2, "rank 1 of communicator 'edge' is there already");
  refused(1, 3, "edge", 2, "of 3 ranks with 2 simulated, but it was made of 2 with 2");
  refused(0, 2, "new", 3, "communicator 'new' of 2 ranks cannot have 3 simulated ones");
  refused(0, 2, "new", 0, "cannot have 0");
  refused(2, 2, "new", 2, "rank 2 is outside");
  const auto one = make_sim_group(1, 4, meetings_, "one of four", 1);
  refused(2, 4, "one of four", 1, "one more than the 1 that are simulated");
  EXPECT_THROW(zero_->split(0, 0), Error);
  EXPECT_THROW(zero_->broadcast(numbers(4), 2, *a_), Error);
}

TEST_F(SimFaultTest, StreamsOfAnotherClockOrDeviceAreRefused) {
  SimDevice other;
  const auto elsewhere = other.create_stream({.name = "elsewhere"});
  send(4)(*zero_, *a_);
  const Error error = failure_of([&] { recv(4)(*one_, *elsewhere); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(std::string(error.what()).find("another clock"), std::string::npos) << error.what();
  elsewhere->synchronize();
  const auto cpu = make_cpu_device();
  const auto thread = cpu->create_stream({.name = "thread"});
  EXPECT_THROW(recv(4)(*one_, *thread), Error);
  recv(4)(*one_, *b_);
  a_->synchronize();
  b_->synchronize();
}

TEST_F(SimFaultTest, AllMayBeDestroyedInAnyOrder) {
  enum What { kMeetings, kGroups, kStreams, kDevices };
  std::vector<What> order{kMeetings, kGroups, kStreams, kDevices};
  do {
    auto devices = devices_on_a_clock(2);
    auto meetings = std::make_unique<SimMeetings>();
    auto zero = make_sim_group(0, 2, *meetings, "pair", 2);
    auto one = make_sim_group(1, 2, *meetings, "pair", 2);
    auto a = devices[0]->create_stream({.name = "a"});
    auto b = devices[1]->create_stream({.name = "b"});
    send(4)(*zero, *a);
    recv(4)(*one, *b);
    send(4)(*one, *b);  // which meets nothing
    const Event last = b->record();
    for (const What what : order) {
      if (what == kMeetings) meetings.reset();
      if (what == kGroups) {
        zero.reset();
        one.reset();
      }
      if (what == kStreams) {
        a->synchronize();
        a.reset();
        const Error error = failure_of([&] { b->synchronize(); });
        EXPECT_EQ(error.code(), ErrorCode::kTimeout);
        b.reset();
      }
      if (what == kDevices) devices.clear();
    }
  } while (std::ranges::next_permutation(order).found);
}

}  // namespace
}  // namespace tessera

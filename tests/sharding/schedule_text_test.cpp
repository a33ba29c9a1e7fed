#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "sharding/schedule_edits.h"

namespace tessera {
namespace {

using namespace test;  // NOLINT: plans
using ::testing::HasSubstr;

// Two units on two ranks, as full_shard would train them; not a complete step.
Schedule small_schedule() {
  Schedule s;
  s.mesh = {.replicate = 1, .shard = 2};
  s.placement = {{Axis::kShard}, {Axis::kShard}, {Axis::kShard}};
  s.parameter_dtype = DType::kBFloat16;
  s.recompute = Recompute::kSelective;
  s.units = {{"embedding", 1280, 0}, {"h.0", 128, 256}};
  s.layers = {{"embedding", {0}, {}, {0}}, {"h.0", {1}, {1}, {1}}, {"head", {0}, {0}, {0}}};
  s.parameter_slots = {1280, 384};
  s.gradient_slots = {1280};
  s.gradient_targets = {{0, 0, 0}, {1, 0, -1}};
  s.actions = {
      {.kind = ActionKind::kCountItems},
      {.kind = ActionKind::kUnshard, .unit = 0, .micro_step = 0, .slot = 0, .axes = {Axis::kShard}},
      {.kind = ActionKind::kForward, .layer = 0, .micro_step = 0, .waits = {1}},
      {.kind = ActionKind::kLoss, .layer = 2, .micro_step = 0, .waits = {0}},
      {.kind = ActionKind::kBackward, .layer = 1, .micro_step = 0},
      {.kind = ActionKind::kReshard, .unit = 1, .micro_step = 0, .slot = 1},
      {.kind = ActionKind::kAccumulate, .unit = 0, .micro_step = 0, .slot = 0},
      {.kind = ActionKind::kReduceScatter,
       .unit = 0,
       .micro_step = 0,
       .slot = 0,
       .axes = {Axis::kShard},
       .accumulate = true,
       .waits = {4, 6}},
      {.kind = ActionKind::kReduceScatter, .unit = 1, .micro_step = 0, .axes = {Axis::kShard}},
      {.kind = ActionKind::kAllReduce, .unit = 1, .micro_step = 0, .axes = {Axis::kReplicate}},
      {.kind = ActionKind::kGatherGradient, .unit = 1, .micro_step = 0, .axes = {Axis::kReplicate}},
      {.kind = ActionKind::kSquares, .unit = 1},
      {.kind = ActionKind::kExchange, .waits = {3}},
      {.kind = ActionKind::kUpdate, .unit = 1, .waits = {12}},
      {.kind = ActionKind::kGatherParameter, .unit = 1, .axes = {Axis::kShard}, .waits = {13}},
  };
  return s;
}

constexpr std::string_view kSmallText = R"(schedule 1

mesh                  replicate 1 shard 2
parameter             over shard in bf16
gradient              over shard in fp32
optimizer             over shard
reduction_order       rank
micro_steps           1
accumulate_unsharded  no
recompute             selective
first_backward_layer  0

# What is gathered and released together, in elements with padding.
# unit  name       trainable  frozen
unit    embedding       1280       0
unit    h.0              128     256

# Layers in order, and the units that they touch.
# layer  name          forward reads     backward reads     backward writes gradients
layer    embedding  |  embedding      |  -               |  embedding
layer    h.0        |  h.0            |  h.0             |  h.0
layer    head       |  embedding      |  embedding       |  embedding

# Buffers for whole units, p: parameters, g: gradients; in elements.
slot  p0  1280
slot  p1   384
slot  g0  1280

# Where backward writes a unit's gradient in a micro-step.
target  embedding  m0  -> g0
target  h.0        m0  -> buffer

# Actions in the order of issue: number, lane, kind, unit or layer, micro-step, slot
# written (->), read (<-) or released (free), axes, and the actions that must have
# finished before.
 0  reduce   count-items
 1  gather   unshard           embedding  m0  -> p0      over shard
 2  compute  forward           embedding  m0                                         after 1
 3  compute  loss              head       m0                                         after 0
 4  compute  backward          h.0        m0
 5  compute  reshard           h.0        m0  free p1
 6  compute  accumulate        embedding  m0  <- g0
 7  reduce   reduce-scatter    embedding  m0  <- g0      over shard      accumulate  after 4 6
 8  reduce   reduce-scatter    h.0        m0  <- buffer  over shard
 9  reduce   all-reduce        h.0        m0             over replicate
10  reduce   gather-gradient   h.0        m0             over replicate
11  reduce   squares           h.0
12  reduce   exchange                                                                after 3
13  compute  update            h.0                                                   after 12
14  gather   gather-parameter  h.0                       over shard                  after 13
)";

TEST(ScheduleText, IsReadable) { EXPECT_EQ(to_string(small_schedule()), kSmallText); }

TEST(ScheduleText, ReadsBack) { EXPECT_EQ(parse_schedule(kSmallText), small_schedule()); }

TEST(ScheduleText, ReadsBackEveryPlan) {
  for_each_plan(
      [](const Schedule& s, const std::string& what) {
        const std::string text = to_string(s);
        const Schedule parsed = parse_schedule(text);
        ASSERT_EQ(parsed, s) << what << '\n' << text;
        ASSERT_EQ(to_string(parsed), text) << what;
      },
      5);
}

TEST(ScheduleText, HeadersReadBack) {
  Schedule s;
  s.mesh = {.replicate = 3, .shard = 5};
  s.placement = {{}, {Axis::kShard}, {Axis::kReplicate, Axis::kShard}};
  s.reduction_order = ReductionOrder::kHierarchical;
  s.reduce_dtype = DType::kBFloat16;
  s.micro_steps = 7;
  s.accumulate_unsharded = true;
  s.first_backward_layer = 2;
  for (const Recompute r : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    s.recompute = r;
    EXPECT_EQ(parse_schedule(to_string(s)), s) << to_string(s);
  }
}

TEST(ScheduleText, AnyNameReadsBack) {
  Schedule s;
  for (const char* name : {"-", "|", "?3", "?", "#", "->", "over", "after", "m0", "0", "\\", "\\2d",
                           "two words", "", "\t\n", "h.0/attn,c:x", "größe", "\x01\x7f", " "}) {
    const int unit = static_cast<int>(s.units.size());
    s.units.push_back({name, 64, 0});
    s.layers.push_back({name, {unit}, {unit}, {unit}});
    s.actions.push_back({.kind = ActionKind::kForward, .layer = unit, .micro_step = 0});
    s.actions.push_back({.kind = ActionKind::kUpdate, .unit = unit, .waits = {0}});
    s.gradient_targets.push_back({unit, 0, -1});
  }
  s.layers.push_back({"everything", {}, {}, {}});
  for (int unit = 0; unit < static_cast<int>(s.units.size()); ++unit) {
    s.layers.back().forward_reads.push_back(unit);
    s.layers.back().gradients.push_back(unit);
  }
  EXPECT_EQ(parse_schedule(to_string(s)), s) << to_string(s);
}

TEST(ScheduleText, BlanksAndCommentsDoNotMatter) {
  std::string text = "# written by hand\n\n";
  for (const char c : kSmallText) {
    if (c == '\n') {
      text += " \t\r\n   \n  # comment\n";
    } else if (c == ' ') {
      text += " \t ";
    } else {
      text += c;
    }
  }
  EXPECT_EQ(parse_schedule(text), small_schedule());
}

TEST(ScheduleText, PrintsBrokenSchedules) {
  Schedule s;
  s.actions = {{.kind = ActionKind::kForward, .layer = 4, .micro_step = 0},
               {.kind = ActionKind::kUpdate, .unit = -1}};
  EXPECT_THAT(to_string(s), HasSubstr("forward  ?4"));
  EXPECT_THAT(to_string(s), HasSubstr("update   ?-1"));
  EXPECT_THROW(parse_schedule(to_string(s)), Error);
}

// `replaced` with `by` in the small text must be refused, in the line where it stands.
void expect_refused(const std::string& replaced, const std::string& by, const std::string& says) {
  std::string text(kSmallText);
  const std::size_t at = text.find(replaced);
  ASSERT_NE(at, text.npos) << replaced;
  const auto line =
      1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  text.replace(at, replaced.size(), by);
  try {
    parse_schedule(text);
    ADD_FAILURE() << "accepted: " << by;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_THAT(error.what(), HasSubstr(concat("line ", line, " of the schedule: ")));
    EXPECT_THAT(error.what(), HasSubstr(says));
  }
}

TEST(ScheduleText, RefusesBadHeaders) {
  expect_refused("schedule 1", "schedule 2", "'2' where '1' belongs");
  expect_refused("schedule 1", "mesh", "'mesh' where 'schedule' belongs");
  expect_refused("mesh  ", "mush  ", "unknown keyword 'mush'");
  expect_refused("replicate 1 shard 2", "replicate 1", "'shard' is missing at the end");
  expect_refused("replicate 1 shard 2", "replicate x shard 2", "'x' is not a number");
  expect_refused("replicate 1 shard 2", "replicate -1 shard 2", "'-1' is not a number");
  expect_refused("replicate 1 shard 2", "replicate 99999999999 shard 2", "is not a number");
  expect_refused("replicate 1 shard 2", "replicate 1000000000 shard 4",
                 "a mesh of 1000000000 x 4 ranks is too large");
  expect_refused("over shard in bf16", "over shards in bf16", "unknown axis 'shards'");
  expect_refused("over shard in bf16", "over shard in bf17", "unknown dtype 'bf17'");
  expect_refused("reduction_order       rank", "reduction_order chaos", "'chaos'");
  expect_refused("accumulate_unsharded  no", "accumulate_unsharded perhaps", "'perhaps'");
  expect_refused("selective", "some", "unknown recomputation 'some'");
  expect_refused("micro_steps           1", "micro_steps 1 2", "'2' is one word too many");
  expect_refused("recompute   ", "micro_steps 1\nmesh ", "'micro_steps' is given twice");
}

TEST(ScheduleText, RefusesTextsThatEndEarly) {
  const std::string text(kSmallText);
  EXPECT_THROW(parse_schedule(""), Error);
  EXPECT_THROW(parse_schedule("# nothing\n"), Error);
  try {
    parse_schedule(text.substr(0, text.find("recompute")));
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("line 10 of the schedule: the text ends without 'recompute'"));
  }
}

TEST(ScheduleText, RefusesBadItems) {
  expect_refused("unit    h.0  ", "unit embedding  ", "the name 'embedding' is taken");
  expect_refused("   128     256", "   128", "the number of frozen elements is missing");
  expect_refused("unit    h.0 ", "unit h\\zz ", "must be followed by two of 0-9 and a-f");
  expect_refused("|  -  ", "|  h.1  ", "there is no unit 'h.1'");
  expect_refused("|  -               |  embedding", "|  -", "'|' is missing at the end");
  expect_refused("|  -  ", "|  - h.0  ", "'h.0' where '|' belongs");
  expect_refused("|  -  ", "|  ", "there is no unit '|'");
  expect_refused("slot  p1", "slot  p2", "slot p2 is out of order: 1 is next");
  expect_refused("slot  p1", "slot  q1", "'q1' is not 'g' and a number");
  expect_refused("-> buffer", "-> p0", "'p0' is not 'g' and a number");
  expect_refused("-> buffer", "buffer", "'buffer' where '->' belongs");
}

TEST(ScheduleText, RefusesBadActions) {
  expect_refused(" 2  compute  forward", " 3  compute  forward",
                 "action 3 is out of order: 2 is next");
  expect_refused(" 2  compute  forward", " 2  gather  forward", "forward runs on lane compute");
  expect_refused(" 2  compute  forward", " 2  compute  fwd", "unknown kind of action 'fwd'");
  expect_refused("backward          h.0", "backward          h.9", "there is no layer 'h.9'");
  expect_refused("update            h.0", "update            head", "there is no unit 'head'");
  expect_refused("-> p0      over shard", "-> g0      over shard", "'g0' is not 'p' and a number");
  expect_refused("free p1", "free", "a slot is missing at the end");
  expect_refused("after 4 6", "after 4 x", "'x' is not a number");
  expect_refused("after 4 6", "after", "an action is missing at the end");
  expect_refused("after 4 6", "before 4 6", "'before' is one word too many");
}

TEST(ScheduleText, DescribesActions) {
  const Schedule s = small_schedule();
  std::vector<std::string> lines;
  for (const Action& action : s.actions) lines.push_back(describe(s, action));
  EXPECT_THAT(lines,
              ::testing::ElementsAre(
                  "count-items", "unshard embedding over shard -> p0, m0", "forward embedding, m0",
                  "loss head, m0", "backward h.0, m0", "reshard h.0, slot p1, m0",
                  "accumulate embedding, slot g0 -> gradient, m0",
                  "reduce-scatter embedding over shard, slot g0 added to gradient, m0",
                  "reduce-scatter h.0 over shard, in the gradient buffer, m0",
                  "all-reduce h.0 over replicate, m0", "gather-gradient h.0 over replicate, m0",
                  "squares h.0", "exchange", "update h.0", "gather-parameter h.0 over shard"));
}

TEST(ScheduleText, DescribesHowSumsAreSent) {
  const Schedule s = small_schedule();
  const auto text = [&](const Action& action) { return describe(s, action); };
  EXPECT_EQ(text({.kind = ActionKind::kAccumulate, .unit = 1, .micro_step = 2, .slot = 0}),
            "accumulate h.0, slot g0 added to gradient, m2");
  EXPECT_EQ(text({.kind = ActionKind::kRound, .unit = 1, .micro_step = 2, .slot = 0}),
            "round h.0, gradient -> slot g0, m2");
}

TEST(Schedule, KnowsWhereGradientsGo) {
  Schedule s = small_schedule();
  EXPECT_EQ(s.gradient_slot(0, 0), 0);
  EXPECT_EQ(s.gradient_slot(1, 0), -1);
  EXPECT_THROW(s.gradient_slot(1, 1), Error);
}

TEST(Schedule, CutsGradientBuffersAsTheReductionDemands) {
  Schedule s;
  const AxisSet shard{Axis::kShard};
  const AxisSet both{Axis::kReplicate, Axis::kShard};
  s.placement = {shard, shard, both};
  EXPECT_EQ(s.gradient_buffer_axes(), both);
  s.reduction_order = ReductionOrder::kHierarchical;
  EXPECT_EQ(s.gradient_buffer_axes(), shard);
  s.accumulate_unsharded = true;
  EXPECT_EQ(s.gradient_buffer_axes(), AxisSet{});
  s.accumulate_unsharded = false;
  s.placement = {{}, {}, shard};
  EXPECT_EQ(s.gradient_buffer_axes(), AxisSet{});
}

// Buffers are fp32: what is written in bf16 goes to a slot, and what is sent in bf16 leaves one.
TEST(Schedule, KeepsGradientsInBf16InSlots) {
  Schedule s;
  s.mesh = {.replicate = 1, .shard = 2};
  s.micro_steps = 2;
  EXPECT_FALSE(s.writes_to_slots(0));
  EXPECT_TRUE(s.writes_to_slots(1));
  EXPECT_FALSE(s.sends_from_slots(1));
  s.reduce_dtype = DType::kBFloat16;
  EXPECT_TRUE(s.writes_to_slots(0));
  EXPECT_FALSE(s.sends_from_slots(0));
  EXPECT_TRUE(s.sends_from_slots(1));
  s.mesh.shard = 1;  // there is nobody to send to
  EXPECT_TRUE(s.writes_to_slots(0));
  EXPECT_FALSE(s.sends_from_slots(1));
}

}  // namespace
}  // namespace tessera

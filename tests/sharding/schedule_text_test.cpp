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
  using namespace operations;  // NOLINT: rows of the table
  constexpr AxisSet kShard{Axis::kShard};
  constexpr DType kBf16 = DType::kBFloat16;
  constexpr DType kFp32 = DType::kFloat32;
  constexpr DType kInt64 = DType::kInt64;
  Schedule s;
  s.mesh = grid(1, 2);
  s.placement = {kShard, kShard, kShard};
  s.parameter_dtype = kBf16;
  s.policy.recompute = Recompute::kSelective;
  s.optimizer_tensors = {{"momentum"}};
  s.units = {{"embedding",
              {{.format = kBf16, .numel = 1280, .parts = {{"wte", 1, {2, 0}}, {"wpe", 1, {0}}}}}},
             {"h.0",
              {{.format = kBf16, .numel = 128, .parts = {{"h.0.weight", 4, {1}}}},
               {.name = "frozen", .trainable = false, .format = kBf16, .numel = 256}}}};
  s.layers = {{"embedding", {0}, {}, {{0, 0}}, true},
              {"h.0", {1}, {1}, {{1, 0}}},
              {"head", {0}, {0}, {{0, 0}}, true}};
  const auto state = [&](const char* name, Role role, int unit, DType format, std::int64_t numel,
                         const char* tensor = "") {
    s.buffers.push_back({.name = name,
                         .kind = BufferKind::kState,
                         .role = role,
                         .tensor = tensor,
                         .unit = unit,
                         .format = format,
                         .sharded = kShard,
                         .numel = numel,
                         .persistent = true});
  };
  state("embedding.parameter", Role::kParameter, 0, kBf16, 640);
  state("h.0.parameter", Role::kParameter, 1, kBf16, 64);
  state("h.0.frozen", Role::kParameter, 1, kBf16, 128);
  s.buffers.back().flat = 1;
  state("h.0.master", Role::kMaster, 1, kFp32, 64);
  state("h.0.momentum", Role::kOptimizer, 1, kFp32, 64, "momentum");
  const auto add = [&](const char* name, BufferKind kind, Role role, DType format,
                       std::int64_t numel) {
    s.buffers.push_back(
        {.name = name, .kind = kind, .role = role, .format = format, .numel = numel});
  };
  add("h.0.gradient", BufferKind::kGradient, Role::kGradient, kFp32, 64);
  s.buffers.back().unit = 1;
  s.buffers.back().sharded = kShard;
  add("p0", BufferKind::kWholeSlot, Role::kParameter, kBf16, 1280);
  add("g0", BufferKind::kWholeSlot, Role::kGradient, kBf16, 1280);
  add("tokens", BufferKind::kTokens, Role::kScalars, kInt64, 1);
  add("loss", BufferKind::kLoss, Role::kScalars, kInt64, 28);
  add("norm", BufferKind::kNorm, Role::kScalars, kInt64, 28);
  add("results", BufferKind::kResults, Role::kScalars, DType::kFloat64, 2);
  for (const BufferKind kind : {BufferKind::kActivation, BufferKind::kActivationGradient}) {
    const bool gradient = kind == BufferKind::kActivationGradient;
    for (const int layer : {0, 1}) {
      add("", kind, gradient ? Role::kActivationGradient : Role::kActivation, kBf16, 0);
      s.buffers.back().name =
          concat(gradient ? "d." : "x.", s.layers[static_cast<std::size_t>(layer)].name, ".m0");
      s.buffers.back().layer = layer;
      s.buffers.back().micro_step = 0;
    }
  }
  add("batch.m0", BufferKind::kBatch, Role::kBatch, DType::kUInt8, 0);
  s.buffers.back().micro_step = 0;
  enum : int { kEmbedding, kParameter, kFrozen, kMaster, kMomentum, kGradient };
  enum : int {
    kP0 = kGradient + 1,
    kG0,
    kTokens,
    kLossSum,
    kNorm,
    kMeans,
    kX,
    kD = kX + 2,
    kBatch = kD + 2
  };
  const auto x = [](int layer) { return Operand{.buffer = kX + layer}; };
  const auto d = [](int layer) { return Operand{.buffer = kD + layer}; };
  const auto scalar = [](int buffer, bool adds = false) { return Operand{buffer, -1, {}, adds}; };
  const Operand gradient{kGradient, 1, kShard};
  s.actions = {
      {.operation = &kCountTokens,
       .lane = Lane::kReduce,
       .writes = {scalar(kTokens), scalar(kLossSum), scalar(kNorm)}},
      {.operation = &kAllGather,
       .lane = Lane::kGather,
       .reads = {{kParameter, 1, kShard}, {kFrozen, 1, kShard}},
       .writes = {{kP0, 1}},
       .axes = kShard},
      {.operation = &kForward,
       .reads = {{kP0, 1}, x(0)},
       .writes = {x(1)},
       .layer = 1,
       .micro_step = 0,
       .waits = {1}},
      {.operation = &kForwardLoss,
       .reads = {{kEmbedding, 0}, scalar(kBatch), x(1)},
       .writes = {scalar(kLossSum, true)},
       .layer = 2,
       .micro_step = 0,
       .waits = {0}},
      {.operation = &kBackward,
       .reads = {{kP0, 1}, x(1), d(1)},
       .writes = {{kG0, 1, {}, true}, d(0)},
       .layer = 1,
       .micro_step = 0},
      {.operation = &kReshard, .writes = {{kP0, 1}}},
      {.operation = &kCast, .reads = {{kG0, 1}}, .writes = {{kGradient, 1, {}, true}}},
      {.operation = &kReduceScatter,
       .lane = Lane::kReduce,
       .reads = {{kG0, 1}},
       .writes = {{kGradient, 1, kShard, true}},
       .axes = kShard,
       .waits = {4, 6}},
      {.operation = &kAllReduce,
       .lane = Lane::kReduce,
       .reads = {gradient},
       .writes = {gradient},
       .axes = {Axis::kReplicate}},
      {.operation = &kNormPartial,
       .lane = Lane::kReduce,
       .reads = {gradient},
       .writes = {scalar(kNorm, true)}},
      {.operation = &kResults,
       .lane = Lane::kReduce,
       .reads = {scalar(kTokens), scalar(kLossSum), scalar(kNorm)},
       .writes = {scalar(kMeans)},
       .waits = {3}},
      {.operation = &kOptimizerStep,
       .reads = {gradient, scalar(kMeans), {kMaster, 1, kShard}, {kMomentum, 1, kShard}},
       .writes = {{kParameter, 1, kShard}, {kMaster, 1, kShard}, {kMomentum, 1, kShard}},
       .waits = {10},
       .previous_waits = {2, 7}},
  };
  return s;
}

constexpr std::string_view kSmallText = R"(schedule 5

purpose               train
mesh                  replicate 1 shard 2
parameter             over shard in bf16
gradient              over shard in fp32
optimizer             over shard
micro_steps           1
recompute             selective
first_backward_layer  0
policy                prefetch_forward      1
policy                prefetch_backward     1
policy                prefetch_host         1
policy                prefetch_disk         2
policy                reshard_after_forward yes
policy                accumulate_unsharded  no
policy                overlap_optimizer     no
policy                reduction_order       rank
policy                optimizer_tensors     momentum fp32 1

# What is gathered and released together.
# unit  name
unit    embedding
unit    h.0

# Flat parameters of units, in elements with padding.
# flat  unit       name       format  numel           decoded
flat    embedding  parameter  bf16     1280  trained
flat    h.0        parameter  bf16      128  trained
flat    h.0        frozen     bf16      256  frozen

# Layers in order, and the units that they touch; of some, all passes read the batch, or backward
# is two passes ('split').
# layer  name          forward reads     backward reads     backward writes gradients     all read
layer    embedding  |  embedding      |  -               |  embedding                  |  batch
layer    h.0        |  h.0            |  h.0             |  h.0                        |  -
layer    head       |  embedding      |  embedding       |  embedding                  |  batch

# Tensors of a unit whose gradients come from the same layers, in order of backward.
# part  unit       first tensor  tensors     layers
part    embedding  wte                 1  |  head embedding
part    embedding  wpe                 1  |  embedding
part    h.0        h.0.weight          4  |  h.0

# Buffers of one rank, in elements: of a unit, or of a layer at a micro-step. The memory of
# activations, x.LAYER.mN, and of their gradients, d.LAYER.mN, comes and goes; batches, batch.mN,
# are there when the step begins.
# buffer  name                 kind                 role                 of          at  format  sharded  numel  tier    kept
buffer    embedding.parameter  state                parameter            embedding   -   bf16    shard      640  device  persistent
buffer    h.0.parameter        state                parameter            h.0         -   bf16    shard       64  device  persistent
buffer    h.0.frozen           state                parameter            h.0+frozen  -   bf16    shard      128  device  persistent
buffer    h.0.master           state                master               h.0         -   fp32    shard       64  device  persistent
buffer    h.0.momentum         state                optimizer:momentum   h.0         -   fp32    shard       64  device  persistent
buffer    h.0.gradient         gradient             gradient             h.0         -   fp32    shard       64  device  step
buffer    p0                   slot                 parameter            -           -   bf16    none      1280  device  step
buffer    g0                   slot                 gradient             -           -   bf16    none      1280  device  step
buffer    tokens               tokens               scalars              -           -   int64   none         1  device  step
buffer    loss                 loss                 scalars              -           -   int64   none        28  device  step
buffer    norm                 norm                 scalars              -           -   int64   none        28  device  step
buffer    results              results              scalars              -           -   fp64    none         2  device  step
buffer    x.embedding.m0       activation           activation           embedding   m0  bf16    none         0  device  step
buffer    x.h.0.m0             activation           activation           h.0         m0  bf16    none         0  device  step
buffer    d.embedding.m0       activation-gradient  activation-gradient  embedding   m0  bf16    none         0  device  step
buffer    d.h.0.m0             activation-gradient  activation-gradient  h.0         m0  bf16    none         0  device  step
buffer    batch.m0             batch                batch                -           m0  uint8   none         0  device  step

# Actions in the order of issue: number, lane, operation, layer and micro-step or axes, buffers
# read -> written, and the actions that must have finished before: 'after' of this step, 'previous'
# of the one before. p0=h.1: slot p0, with h.1; a/shard: this rank's part of a over that axis;
# a/none: all of a; +a: added to a; *a: read as well.
 0  reduce   count-tokens                    -> tokens loss norm
 1  gather   all-gather      over shard      h.0.parameter h.0.frozen -> p0=h.0
 2  compute  forward         h.0 m0          p0=h.0 x.embedding.m0 -> x.h.0.m0   after 1
 3  compute  forward-loss    head m0         embedding.parameter/none batch.m0 x.h.0.m0 -> +loss  after 0
 4  compute  backward        h.0 m0          p0=h.0 x.h.0.m0 d.h.0.m0 -> +g0=h.0 d.embedding.m0
 5  compute  reshard                         -> p0=h.0
 6  compute  cast                            g0=h.0 -> +h.0.gradient/none
 7  reduce   reduce-scatter  over shard      g0=h.0 -> +h.0.gradient             after 4 6
 8  reduce   all-reduce      over replicate  -> *h.0.gradient
 9  reduce   norm-partial                    h.0.gradient -> +norm
10  reduce   results                         tokens loss norm -> results         after 3
11  compute  optimizer-step                  h.0.gradient results -> h.0.parameter *h.0.master *h.0.momentum  after 10 previous 2 7
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
  s.mesh = grid(3, 5);
  s.placement = {{}, {Axis::kShard}, {Axis::kReplicate, Axis::kShard}};
  s.purpose = Purpose::kEvaluate;
  s.parameter_dtype = DType::kBFloat16;
  s.micro_steps = 7;
  s.first_backward_layer = 2;
  s.policy.prefetch_disk = 7;
  s.reshard_after_forward = false;
  s.reduction_order = ReductionOrder::kHierarchical;
  s.optimizer_tensors = {{"a moment", DType::kUInt8, 256}, {"-", DType::kFloat32, 1}};
  s.offload_parameters = 1.0 / 3.0;
  s.offload_activations = {0, 4096, 17};
  for (const Recompute r : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    s.policy.recompute = r;
    EXPECT_EQ(parse_schedule(to_string(s)), s) << to_string(s);
    s.parameter_dtype = s.reduce_dtype = DType::kFloat16;
  }
}

Schedule with_odd_names() {
  Schedule s;
  for (const char* name :
       {"-", "|",  "?3",         "?",         "#",  "->",   "over",         "after", "m0",
        "0", "\\", "\\2d",       "two words", "",   "\t\n", "h.0/attn,c:x", "größe", "\x01\x7f",
        " ", "+",  "+a=b/shard", "*",         "*x", "x.",   "d.m0",         "x..m0"}) {
    const int unit = static_cast<int>(s.units.size());
    s.units.push_back({name, {{.numel = 64, .parts = {{name, 1, {unit}}}}}});
    s.units.back().flats.push_back({.name = name, .format = DType::kBFloat16, .numel = 64});
    s.layers.push_back({name, {unit}, {unit}, {{unit, unit % 2}}});
    s.buffers.push_back({.name = name, .role = Role::kParameter, .unit = unit, .numel = 64});
  }
  s.buffers.push_back({.name = "p0", .role = Role::kParameter, .numel = 64});
  const int slot = s.find("p0");
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    s.buffers.push_back({.name = concat("output of ", s.layers[layer].name),
                         .kind = BufferKind::kActivation,
                         .role = Role::kActivation,
                         .layer = static_cast<int>(layer),
                         .micro_step = 0});
  }
  for (int unit = 0; unit < static_cast<int>(s.units.size()); ++unit) {
    s.actions.push_back({.operation = &operations::kForward,
                         .reads = {{unit, unit}, {.buffer = slot, .unit = unit, .flats = {0, 1}}},
                         .writes = {{.buffer = slot + 1 + unit}},
                         .layer = unit,
                         .micro_step = 0});
    s.actions.push_back({.operation = &operations::kOptimizerStep,
                         .writes = {{unit, unit, {Axis::kShard}, true}},
                         .waits = {0}});
  }
  s.layers.push_back({"everything", {}, {}, {}});
  for (int unit = 0; unit < static_cast<int>(s.units.size()); ++unit) {
    s.layers.back().forward_reads.push_back(unit);
    s.layers.back().gradients.push_back({unit, 0});
  }
  return s;
}

TEST(ScheduleText, AnyNameReadsBack) {
  const Schedule s = with_odd_names();
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
  s.buffers = {{.name = "p0", .role = Role::kParameter}};
  s.actions = {{.operation = &operations::kForward, .layer = 4, .micro_step = 0},
               {.operation = &operations::kReshard, .writes = {{0, 3}}},
               {.operation = &operations::kReshard, .writes = {{.buffer = 8}}},
               {}};
  EXPECT_THAT(to_string(s), HasSubstr("forward  ?4 m0  ->"));
  EXPECT_THAT(to_string(s), HasSubstr("reshard         -> p0=?3"));
  EXPECT_THAT(to_string(s), HasSubstr("reshard         -> ?8"));
  EXPECT_THAT(to_string(s), HasSubstr("3  compute  nothing         ->"));
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
  expect_refused("schedule 5", "schedule 2", "'2' where '5' belongs");
  expect_refused("schedule 5", "mesh", "'mesh' where 'schedule' belongs");
  expect_refused("mesh  ", "mush  ", "unknown keyword 'mush'");
  expect_refused("purpose               train", "purpose pleasure", "unknown purpose 'pleasure'");
  expect_refused("replicate 1 shard 2", "replicate 1", "'shard' is missing at the end");
  expect_refused("replicate 1 shard 2", "replicate x shard 2", "'x' is not a number");
  expect_refused("replicate 1 shard 2", "replicate -1 shard 2", "'-1' is not a number");
  expect_refused("replicate 1 shard 2", "replicate 99999999999 shard 2", "is not a number");
  expect_refused("replicate 1 shard 2", "replicate 1000000000 shard 4",
                 "a mesh of replicate 1000000000, shard 4 is too large");
  expect_refused("over shard in bf16", "over shards in bf16", "unknown axis 'shards'");
  expect_refused("over shard in bf16", "over shard in bf17", "unknown dtype 'bf17'");
  expect_refused("selective", "some", "unknown recomputation 'some'");
  expect_refused("micro_steps           1", "micro_steps 1 2", "'2' is one word too many");
  expect_refused("recompute   ", "micro_steps 1\nmesh ", "'micro_steps' is given twice");
  expect_refused("prefetch_disk   ", "prefetch_tape   ", "a policy has no 'prefetch_tape'");
  expect_refused("prefetch_disk   ", "prefetch_host   ", "'prefetch_host' is given twice");
  expect_refused("prefetch_disk         2", "prefetch_disk", "one word belongs here, not 0");
  expect_refused("reshard_after_forward yes", "reshard_after_forward maybe",
                 "'maybe' is neither yes nor no");
  expect_refused("momentum fp32 1", "momentum fp32", "has a name, a format and a block");
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
                HasSubstr("line 9 of the schedule: the text ends without 'recompute'"));
  }
}

TEST(ScheduleText, RefusesBadItems) {
  expect_refused("unit    h.0\n", "unit embedding\n", "the name 'embedding' is taken");
  expect_refused("     128  trained", "     128", "'frozen' is missing at the end");
  expect_refused("h.0        frozen     bf16 ", "h.0 parameter bf16 ",
                 "the name 'parameter' is taken");
  expect_refused("h.0+frozen", "h.0+thawed", "unit 'h.0' has no flat parameter 'thawed'");
  expect_refused("unit    h.0\n", "unit h\\zz\n", "must be followed by two of 0-9 and a-f");
  expect_refused("|  -  ", "|  h.1  ", "there is no unit 'h.1'");
  expect_refused("|  -               |  embedding                  |  batch", "|  -",
                 "'|' is missing at the end");
  expect_refused("|  embedding                  |  batch", "|  embedding",
                 "'|' is missing at the end");
  expect_refused("|  batch", "|  targets", "'targets' where '-' belongs");
  expect_refused("|  -  ", "|  - h.0  ", "'h.0' where '|' belongs");
  expect_refused("|  -  ", "|  ", "there is no unit '|'");
  expect_refused("part    h.0  ", "part    h.9  ", "there is no unit 'h.9'");
  expect_refused("|  head embedding", "|  head tail", "there is no layer 'tail'");
  expect_refused("buffer    p0 ", "buffer  h.0.frozen ", "the name 'h.0.frozen' is taken");
  expect_refused("state                master", "status               master",
                 "unknown kind 'status'");
  expect_refused("state                master", "state                mistress",
                 "unknown role 'mistress'");
  expect_refused("state                master", "state   activation-gradients",
                 "unknown role 'activation-gradients'");
  expect_refused("h.0         -   fp32    shard       64  device  persistent",
                 "h.1        -   fp32    shard       64  device  persistent",
                 "there is no unit 'h.1'");
  expect_refused("h.0         m0  bf16", "h.1 m0 bf16", "there is no layer 'h.1'");
  expect_refused("h.0         m0  bf16", "h.0 n0 bf16", "'n0' is not 'm' and a number");
  expect_refused("1280  device  step", "1280  device  now", "'now' where 'step' belongs");
  expect_refused("1280  device  step", "1280  device", "'step' is missing at the end");
}

TEST(ScheduleText, RefusesBadActions) {
  expect_refused(" 2  compute  forward", " 3  compute  forward",
                 "action 3 is out of order: 2 is next");
  expect_refused(" 2  compute  forward", " 2  passing  forward", "unknown lane 'passing'");
  expect_refused(" 2  compute  forward", " 2  compute  fwd", "unknown operation 'fwd'");
  expect_refused("backward        h.0", "backward        h.9", "there is no layer 'h.9'");
  expect_refused("backward        h.0 m0", "backward        h.0",
                 "'p0=h.0' is not 'm' and a number");
  expect_refused("backward        h.0 m0", "backward        h.0 m", "'m' is not 'm' and a number");
  expect_refused("over replicate  ", "over roads  ", "unknown axis 'roads'");
  expect_refused("over replicate  ", "over  ", "unknown axis '->'");
  expect_refused("h.0.frozen -> p0=h.0", "h.0.frozen -> p1=h.0", "there is no buffer 'p1'");
  expect_refused("h.0.frozen -> p0=h.0", "h.0.frozen -> p0=h.9", "there is no unit 'h.9'");
  expect_refused("h.0.frozen -> p0=h.0", "h.0.frozen -> p0=h.0/beam", "unknown axis 'beam'");
  expect_refused("h.0.frozen -> p0=h.0", "h.0.frozen -> x.h.9.m0", "there is no buffer 'x.h.9.m0'");
  expect_refused("h.0.frozen -> p0=h.0", "h.0.frozen p0=h.0", "'->' is missing at the end");
  expect_refused("after 4 6", "after 4 x", "'x' is not a number");
  expect_refused("after 4 6", "after", "an action is missing at the end");
  expect_refused("after 4 6", "before 4 6", "there is no buffer 'before'");
  const std::size_t first = kSmallText.find(" 0  reduce");
  const std::string late = std::string(kSmallText) + "buffer late scalars - fp32 none 1 step\n";
  ASSERT_NE(first, kSmallText.npos);
  EXPECT_THROW(parse_schedule(late), Error);
}

TEST(ScheduleText, DescribesActions) {
  const Schedule s = small_schedule();
  std::vector<std::string> lines;
  for (const Action& action : s.actions) lines.push_back(describe(s, action));
  EXPECT_THAT(
      lines,
      ::testing::ElementsAre(
          "count-tokens -> tokens loss norm",
          "all-gather over shard h.0.parameter h.0.frozen -> p0=h.0",
          "forward h.0 m0 p0=h.0 x.embedding.m0 -> x.h.0.m0",
          "forward-loss head m0 embedding.parameter/none batch.m0 x.h.0.m0 -> +loss",
          "backward h.0 m0 p0=h.0 x.h.0.m0 d.h.0.m0 -> +g0=h.0 d.embedding.m0", "reshard -> p0=h.0",
          "cast g0=h.0 -> +h.0.gradient/none", "reduce-scatter over shard g0=h.0 -> +h.0.gradient",
          "all-reduce over replicate -> *h.0.gradient", "norm-partial h.0.gradient -> +norm",
          "results tokens loss norm -> results",
          "optimizer-step h.0.gradient results -> h.0.parameter *h.0.master *h.0.momentum"));
}

}  // namespace
}  // namespace tessera

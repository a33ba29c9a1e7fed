#include <gtest/gtest.h>

#include "small_run.h"
#include "tessera/autograd/ops.h"

// Step time and exposed communication in virtual time, in closed form. The model is a chain of
// equal layers, each a unit; the last one's forward and backward are one action.
namespace tessera::test {
namespace {

constexpr int kLayers = 6;  // the loss layer included
constexpr double kForward = 3.0;
constexpr double kBackward = 6.0;
constexpr double kLoss = kForward + kBackward;
constexpr double kChain = (kLayers - 1) * (kForward + kBackward) + kLoss;

class Block : public Layer {
 public:
  Block(int index, bool last) : Layer("block." + std::to_string(index), "Block"), last_(last) {
    parameters_ = {{.name = name() + ".weight", .shape = {16, 16}, .initializer = {}}};
  }
  Value forward(Tape& tape, const Value& input, std::span<Parameter> parameters) const override {
    Value x = input;
    if (!x.tensor) x.tensor = tape.batch().inputs;
    Value y = ops::linear(tape, x, parameters[0], nullptr);
    return last_ ? ops::cross_entropy(tape, y, tape.batch().targets) : y;
  }

 private:
  bool last_;
};

class Vectors : public BatchSource {
 public:
  Shape input_shape(std::int64_t n) const override { return Shape{n, 16}; }
  DType input_dtype() const override { return DType::kFloat32; }
  Shape target_shape(std::int64_t n) const override { return Shape{n}; }
  DType target_dtype() const override { return DType::kInt32; }
  std::int64_t fill(std::int64_t, std::int64_t n, TensorView, TensorView) const override {
    return n;
  }
};

struct Costs {
  double unshard = 0.0;
  double reduce = 0.0;
  double update = 0.0;
  double regather = 0.0;
};

struct Case {
  std::string strategy = "full_shard";
  int depth = 1;
  int micro_steps = 1;
  Recompute recompute = Recompute::kNone;
};

TimelineSummary run(const Case& c, const Costs& costs) {
  Model model{.name = "chain", .layers = {}};
  for (int l = 0; l < kLayers; ++l) {
    model.layers.push_back(std::make_unique<Block>(l, l == kLayers - 1));
  }
  SmallRun small{.ranks = 4,
                 .strategy = c.strategy,
                 .micro_steps = c.micro_steps,
                 .prefetch_forward = c.depth,
                 .prefetch_backward = c.depth,
                 .recompute = c.recompute};
  const ModelLayout layout = make_layout(model, {}, small.ranks);
  const Schedule schedule = plan(layout, plan_options(small));
  require_valid(schedule);
  ExecutorOptions options;
  options.cost = [&](const Schedule& s, const Action& action) {
    switch (action.kind) {
      case ActionKind::kForward:
        return kForward;
      case ActionKind::kLoss:
        return kLoss;
      case ActionKind::kBackward:
        return kBackward + (s.recompute == Recompute::kFull ? kForward : 0.0);
      case ActionKind::kUnshard:
        return costs.unshard;
      case ActionKind::kReduceScatter:
      case ActionKind::kAllReduce:
        return costs.reduce;
      case ActionKind::kUpdate:
        return costs.update;
      case ActionKind::kGatherParameter:
        return costs.regather;
      default:
        return 0.0;
    }
  };
  return summarize(simulate(schedule, layout, model, Vectors(), options).spans);
}

TEST(Simulate, WithoutCommunicationAStepIsItsComputation) {
  for (const Strategy& strategy : strategies()) {
    for (const int depth : {0, 1, 2}) {
      const TimelineSummary t = run({.strategy = strategy.name, .depth = depth}, {});
      EXPECT_DOUBLE_EQ(t.step_seconds, kChain) << strategy.name;
      EXPECT_DOUBLE_EQ(t.exposed_seconds, 0.0) << strategy.name;
    }
  }
}

// full_shard gathers every layer for forward, and again for backward all but the last two: the loss
// layer's backward follows its forward, and the layer before it is kept over that one action.
constexpr int kGathers = kLayers + (kLayers - 2);

TEST(Simulate, DepthZeroExposesEveryCollective) {
  const TimelineSummary t = run({.depth = 0}, {.unshard = 2.0, .reduce = 1.5});
  const double communication = kGathers * 2.0 + kLayers * 1.5;
  // In backward a gather runs beside the reduction before it: both wait for the same backward. And
  // the loss layer's gather finds a second slot, since the layer before it keeps its own, and runs
  // beside that layer's forward.
  const double hidden = (kLayers - 2) * std::min(2.0, 1.5) + 2.0;
  EXPECT_DOUBLE_EQ(t.step_seconds, kChain + communication - hidden);
  EXPECT_DOUBLE_EQ(t.exposed_seconds, communication - hidden);
}

TEST(Simulate, DepthOneExposesTheFirstGatherAndTheLastReduction) {
  for (const int depth : {1, 2}) {
    const TimelineSummary t = run({.depth = depth}, {.unshard = 2.0, .reduce = 1.5});
    EXPECT_DOUBLE_EQ(t.step_seconds, 2.0 + kChain + 1.5);
    EXPECT_DOUBLE_EQ(t.exposed_seconds, 2.0 + 1.5);
  }
}

TEST(Simulate, GathersSlowerThanForwardSetItsPace) {
  constexpr double kSlow = 5.0;  // slower than a forward, faster than a backward
  const TimelineSummary t = run({.depth = 1}, {.unshard = kSlow});
  // Forward: every layer waits for its gather, the last gather is followed by the loss.
  EXPECT_DOUBLE_EQ(t.step_seconds, kLayers * kSlow + kLoss + (kLayers - 1) * kBackward);
}

TEST(Simulate, ReductionsSlowerThanBackwardSetItsPace) {
  constexpr double kSlow = 10.0;
  const TimelineSummary t = run({.strategy = "zero2", .depth = 1}, {.reduce = kSlow});
  EXPECT_DOUBLE_EQ(t.step_seconds, (kLayers - 1) * kForward + kLoss + kLayers * kSlow);
}

TEST(Simulate, ParametersKeptUntilBackwardAreGatheredOnce) {
  const TimelineSummary t = run({.strategy = "shard_grad_op", .depth = 1}, {.unshard = 2.0});
  EXPECT_DOUBLE_EQ(t.step_seconds, 2.0 + kChain);
  EXPECT_DOUBLE_EQ(t.communication_seconds, kLayers * 2.0);
}

TEST(Simulate, ReducingOncePerStepHidesAllButTheLast) {
  for (const char* strategy : {"no_shard", "zero1", "zero2"}) {
    for (const int depth : {0, 1, 2}) {
      // Whole gradients need no slot: depth 0 serialises backward and reduction only for zero2.
      const bool serial = depth == 0 && std::string(strategy) == "zero2";
      const TimelineSummary t = run({.strategy = strategy, .depth = depth}, {.reduce = 4.0});
      EXPECT_DOUBLE_EQ(t.exposed_seconds, serial ? kLayers * 4.0 : 4.0) << strategy << depth;
      EXPECT_DOUBLE_EQ(t.step_seconds, kChain + t.exposed_seconds) << strategy << depth;
    }
  }
}

TEST(Simulate, UpdatedParametersAreGatheredBehindTheNextUpdate) {
  const TimelineSummary fast = run({.strategy = "zero1"}, {.update = 2.0, .regather = 1.0});
  EXPECT_DOUBLE_EQ(fast.step_seconds, kChain + kLayers * 2.0 + 1.0);
  const TimelineSummary slow = run({.strategy = "zero1"}, {.update = 1.0, .regather = 2.0});
  EXPECT_DOUBLE_EQ(slow.step_seconds, kChain + 1.0 + kLayers * 2.0);
}

TEST(Simulate, MicroStepsPrefetchAcrossTheirBorder) {
  const TimelineSummary t = run({.depth = 1, .micro_steps = 3}, {.unshard = 2.0, .reduce = 1.5});
  EXPECT_DOUBLE_EQ(t.step_seconds, 2.0 + 3 * kChain + 1.5);
}

TEST(Simulate, FullRecomputationRunsForwardAgain) {
  const TimelineSummary t = run({.recompute = Recompute::kFull}, {.unshard = 2.0, .reduce = 1.5});
  EXPECT_DOUBLE_EQ(t.step_seconds, 2.0 + kChain + (kLayers - 1) * kForward + 1.5);
}

TEST(Simulate, SixteenThousandRanksNeedNoMemory) {
  Model model = make_gpt(gpt_preset("gpt2-1558m"));
  const RandomTokens source(1024, 50257, false);
  SmallRun small{.ranks = 16384};
  const ModelLayout layout = make_layout(model, {}, small.ranks);
  const Schedule schedule = plan(layout, plan_options(small));
  ExecutorOptions options;
  const MemoryPeak peak = predict_memory(schedule, layout, model, source, options);
  EXPECT_GT(peak.total, std::int64_t{1} << 30);
  EXPECT_EQ(peak.by_category[MemoryCategory::kOptimizer],
            account_memory(schedule)[MemoryCategory::kOptimizer]);
}

}  // namespace
}  // namespace tessera::test

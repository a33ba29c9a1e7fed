#include <gtest/gtest.h>

#include <map>

#include "support/action_uses.h"
#include "support/chain_run.h"

// Step time and exposed communication in virtual time, in closed form. The model is a chain of
// equal layers, each a unit; the last one's forward and backward are one action.
namespace tessera::test::simulate_test {
namespace {

constexpr int kLayers = 6;  // the loss layer included
constexpr double kForwardSeconds = 3.0;
constexpr double kBackwardSeconds = 6.0;
constexpr double kLossSeconds = kForwardSeconds + kBackwardSeconds;
constexpr double kChain = (kLayers - 1) * (kForwardSeconds + kBackwardSeconds) + kLossSeconds;

/// Seconds of virtual time.
struct Costs {
  double unshard = 0.0;
  double unshard_odd = -1.0;  ///< of odd layers; below 0: as of even ones
  double reduce = 0.0;
  double gather_gradient = 0.0;
  double update = 0.0;
  double regather = 0.0;

  double of(const Schedule& schedule, const Action& action) const {
    if (action.operation == &operations::kForward) return kForwardSeconds;
    if (action.operation == &operations::kLoss) return kLossSeconds;
    if (action.operation == &operations::kBackward) {
      return kBackwardSeconds +
             (schedule.policy.recompute == Recompute::kFull ? kForwardSeconds : 0.0);
    }
    if (unshards(schedule, action)) {
      return unit_of(action) % 2 == 1 && unshard_odd >= 0.0 ? unshard_odd : unshard;
    }
    if (gathers_gradient(schedule, action)) return gather_gradient;
    if (gathers_updated(schedule, action)) return regather;
    if (action.operation == &operations::kReduceScatter ||
        action.operation == &operations::kAllReduce)
      return reduce;
    return action.operation == &operations::kOptimizerStep ? update : 0.0;
  }
};

struct Case {
  std::string strategy = "full_shard";
  int depth = 1;
  int micro_steps = 1;
  ReductionOrder order = ReductionOrder::kRank;
  Recompute recompute = Recompute::kNone;
};

/// Of four ranks; hybrids are two replicas of two.
TimelineSummary run(const Case& c, const Costs& costs) {
  const Model model = make_chain({.layers = kLayers});
  const SmallRun small{.ranks = 4,
                       .strategy = c.strategy,
                       .micro_steps = c.micro_steps,
                       .policy = {c.depth, c.depth, c.recompute},
                       .reduction_order = c.order};
  const ModelLayout layout = make_layout(model, {}, small.ranks);
  const Schedule schedule = plan(layout, plan_options(small));
  require_valid(schedule);
  ExecutorOptions options;
  options.cost = [&costs](const Schedule& s, const Action& action) { return costs.of(s, action); };
  return summarize(
      simulate(schedule, layout, model, RandomVectors(DType::kFloat32), options).spans);
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

// --- Every preset at every depth ---
//
// An unshard takes U, a reduction R, the all-gather of a gradient across replicas G (on the same
// lane, behind the reduction), an update O, the all-gather of updated parameters P. If U <=
// forward, U and R + G <= backward, and P <= O, then with a depth of 1 or more the compute lane
// idles only
//   U      before the first forward, if parameters are sharded;
//   R + G  before the exchange, for the gradient that is complete last (G only where replicas hold
//          the same optimizer shard, reduced in order of rank);
//   P      after the last update, if parameters are cut less than the optimizer.
// At depth 0 it idles besides
//   U          before every other forward but the loss layer's, if parameters are gathered into one
//              slot after the other. (The layer before the loss keeps its slot for its backward, so
//              the loss layer has another. Parameters that stay until backward have a slot each.)
//   R          before every backward, if gradients go through a slot: it must be drained first;
//   max(U, R)  instead, where parameters are gathered again: all backwards but the first. Both wait
//              for the same backward and run side by side.

/// Exposed communication.
double exposed(const std::string& strategy, int depth, const Costs& c) {
  const double U = c.unshard;
  const double R = c.reduce;
  const double G = c.gather_gradient;
  const double P = c.regather;
  const bool ahead = depth > 0;
  const double drained = ahead ? 0.0 : (kLayers - 1) * R;
  const double gathered_again =
      ahead ? 0.0 : (kLayers - 2) * U + R + (kLayers - 2) * std::max(U, R);
  const std::map<std::string, double> table{
      {"no_shard", R},
      {"zero1", R + P},
      {"zero2", drained + R + P},
      {"shard_grad_op", U + drained + R},
      {"full_shard", U + gathered_again + R},
      {"hybrid_shard", U + gathered_again + R + G},
      {"hybrid_shard_zero2", U + drained + R + G},
      {"hybrid_full_optimizer", U + gathered_again + R + P},
  };
  return table.at(strategy);
}

TEST(Simulate, EveryPresetAtEveryDepthTakesWhatItsFormulaSays) {
  Costs slower_unshards{.unshard = 2.0, .reduce = 1.5, .update = 1.0, .regather = 0.5};
  slower_unshards.gather_gradient = 0.75;
  Costs slower_reductions{.unshard = 1.0, .reduce = 3.25, .update = 0.5, .regather = 0.25};
  slower_reductions.gather_gradient = 2.5;
  for (const Costs& costs : {slower_unshards, slower_reductions}) {
    for (const Strategy& strategy : strategies()) {
      for (const int depth : {0, 1, 2}) {
        SCOPED_TRACE(concat(strategy.name, " depth ", depth, ", U = ", costs.unshard));
        const TimelineSummary t = run({.strategy = strategy.name, .depth = depth}, costs);
        const double expected = exposed(strategy.name, depth, costs);
        EXPECT_DOUBLE_EQ(t.exposed_seconds, expected);
        EXPECT_DOUBLE_EQ(t.step_seconds, kChain + kLayers * costs.update + expected);
      }
    }
  }
}

// Odd layers take b to gather, more than a forward F; even ones a, so little that a + b <= 2 F. One
// layer ahead, the gather of an odd layer starts with the forward before it and is late by b - F
// every time, and the lane is idle during the next forward. Two ahead, both gathers of a pair fit
// behind the pair's forwards; only the first odd layer has nothing before it to hide behind.
TEST(Simulate, DepthTwoHidesUnevenGathersThatDepthOneCannot) {
  constexpr double kEven = 1.0;  // a
  constexpr double kOdd = 5.0;   // b, and no more than a backward
  const Costs costs{.unshard = kEven, .unshard_odd = kOdd};
  const double late = kOdd - kForwardSeconds;
  const TimelineSummary one = run({.depth = 1}, costs);
  const TimelineSummary two = run({.depth = 2}, costs);
  EXPECT_DOUBLE_EQ(one.exposed_seconds, kEven + kLayers / 2 * late);
  EXPECT_DOUBLE_EQ(two.exposed_seconds, kEven + late);
  EXPECT_DOUBLE_EQ(one.step_seconds, kChain + one.exposed_seconds);
  EXPECT_DOUBLE_EQ(two.step_seconds, kChain + two.exposed_seconds);
  EXPECT_LT(two.step_seconds, one.step_seconds);
}

// --- Communication that does not fit ---

TEST(Simulate, GathersSlowerThanForwardSetItsPace) {
  constexpr double kSlow = 5.0;  // slower than a forward, faster than a backward
  const TimelineSummary t = run({.depth = 1}, {.unshard = kSlow});
  // Forward: every layer waits for its gather, the last gather is followed by the loss.
  EXPECT_DOUBLE_EQ(t.step_seconds,
                   kLayers * kSlow + kLossSeconds + (kLayers - 1) * kBackwardSeconds);
}

TEST(Simulate, ReductionsSlowerThanBackwardSetItsPace) {
  constexpr double kSlow = 10.0;
  const TimelineSummary t = run({.strategy = "zero2", .depth = 1}, {.reduce = kSlow});
  EXPECT_DOUBLE_EQ(t.step_seconds,
                   (kLayers - 1) * kForwardSeconds + kLossSeconds + kLayers * kSlow);
}

// The gather of a gradient runs behind its reduction, on the same lane.
TEST(Simulate, GathersOfGradientsSlowerThanBackwardSetItsPace) {
  const TimelineSummary t = run({.strategy = "hybrid_shard_zero2", .depth = 1},
                                {.unshard = 2.0, .reduce = 4.0, .gather_gradient = 5.0});
  EXPECT_DOUBLE_EQ(t.step_seconds,
                   2.0 + (kLayers - 1) * kForwardSeconds + kLossSeconds + kLayers * (4.0 + 5.0));
}

TEST(Simulate, UpdatedParametersSlowerThanUpdatesSetTheirPace) {
  for (const char* strategy : {"zero1", "zero2", "hybrid_full_optimizer"}) {
    const TimelineSummary t = run({.strategy = strategy}, {.update = 1.0, .regather = 2.0});
    EXPECT_DOUBLE_EQ(t.step_seconds, kChain + 1.0 + kLayers * 2.0) << strategy;
  }
}

// --- Other choices ---

TEST(Simulate, ReducingInsideReplicasFirstExposesBothReductionsOfTheLastGradient) {
  for (const char* strategy : {"hybrid_shard", "hybrid_shard_zero2", "hybrid_full_optimizer"}) {
    const TimelineSummary t = run({.strategy = strategy, .order = ReductionOrder::kHierarchical},
                                  {.unshard = 2.0, .reduce = 1.5});
    EXPECT_DOUBLE_EQ(t.exposed_seconds, 2.0 + 1.5 + 1.5) << strategy;
    EXPECT_DOUBLE_EQ(t.step_seconds, kChain + t.exposed_seconds) << strategy;
  }
}

TEST(Simulate, ParametersKeptUntilBackwardAreGatheredOnce) {
  const TimelineSummary t = run({.strategy = "shard_grad_op", .depth = 1}, {.unshard = 2.0});
  EXPECT_DOUBLE_EQ(t.step_seconds, 2.0 + kChain);
  EXPECT_DOUBLE_EQ(t.communication_seconds, kLayers * 2.0);
}

TEST(Simulate, MicroStepsPrefetchAcrossTheirBorder) {
  const Costs costs{.unshard = 2.0, .reduce = 1.5, .gather_gradient = 0.5};
  const TimelineSummary full = run({.depth = 1, .micro_steps = 3}, costs);
  EXPECT_DOUBLE_EQ(full.step_seconds, 2.0 + 3 * kChain + 1.5);
  // Replicas exchange their sums once per step.
  const TimelineSummary hybrid = run({.strategy = "hybrid_shard", .micro_steps = 3}, costs);
  EXPECT_DOUBLE_EQ(hybrid.step_seconds, 2.0 + 3 * kChain + 1.5 + 0.5);
}

TEST(Simulate, FullRecomputationRunsForwardAgain) {
  const TimelineSummary t = run({.recompute = Recompute::kFull}, {.unshard = 2.0, .reduce = 1.5});
  EXPECT_DOUBLE_EQ(t.step_seconds, 2.0 + kChain + (kLayers - 1) * kForwardSeconds + 1.5);
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

/// The threads of a CPU have some each, a GPU has one.
TEST(Simulate, OnlyTheCpusAttentionNeedsScratchForItsThreads) {
  const SmallRun run{.ranks = 1};
  const Model model = make_gpt(small_gpt());
  const RandomTokens source(11, 61, false);
  const ModelLayout layout = make_layout(model, run.wrap, run.ranks);
  const Schedule schedule = plan(layout, plan_options(run));
  const auto workspace = [&](DeviceKind device, int threads) {
    ExecutorOptions options;
    options.micro_batch = 2;
    options.threads = threads;
    options.device = device;
    return predict_memory(schedule, layout, model, source, options)
        .by_category[MemoryCategory::kWorkspace];
  };
  EXPECT_LT(workspace(DeviceKind::kCpu, 1), workspace(DeviceKind::kCpu, 64));
  EXPECT_EQ(workspace(DeviceKind::kCuda, 1), workspace(DeviceKind::kCuda, 64));
}

// Parameters of 16 TiB, and a batch of 64 GiB: counted, not made.
TEST(Simulate, NothingOfALargeRunIsMade) {
  const Model model = make_gpt({.vocab_size = 1 << 20,
                                .context_length = 1 << 20,
                                .layers = 1,
                                .heads = 1,
                                .width = 1 << 19});
  const RandomTokens source(1 << 20, 1 << 20, false);
  const ModelLayout layout = make_layout(model, {}, 1);
  const Schedule schedule = plan(layout, plan_options({.strategy = "no_shard"}));
  const MemoryPeak parameters = predict_memory(schedule, layout, model, source, {});
  EXPECT_GT(parameters.by_category[MemoryCategory::kParameters], std::int64_t{1} << 43);

  const Model narrow =
      make_gpt({.vocab_size = 61, .context_length = 1 << 20, .layers = 1, .heads = 1, .width = 8});
  const ModelLayout narrow_layout = make_layout(narrow, {}, 1);
  const Schedule narrow_schedule = plan(narrow_layout, plan_options({.strategy = "no_shard"}));
  ExecutorOptions options;
  options.micro_batch = 1 << 13;
  const MemoryPeak batches =
      predict_memory(narrow_schedule, narrow_layout, narrow, source, options);
  EXPECT_EQ(batches.by_category[MemoryCategory::kData], std::int64_t{1} << 36);  // 2 of int32
}

}  // namespace
}  // namespace tessera::test::simulate_test

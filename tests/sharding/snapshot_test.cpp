#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "support/chain_run.h"
#include "support/extent.h"
#include "support/small_layout.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/schedule_json.h"

// Steps that copy the state to host memory beside their work.
namespace tessera::test::snapshot_test {
namespace {

using ::testing::HasSubstr;

std::vector<SmallRun> runs() {
  std::vector<SmallRun> all;
  for (const Strategy& strategy : strategies()) {
    for (const int ranks : {1, 3, 4}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        all.push_back({.ranks = ranks,
                       .replicas = ranks == 4 ? 2 : 1,
                       .strategy = strategy.name,
                       .dtype = dtype,
                       .stochastic_rounding = dtype == DType::kBFloat16});
      }
    }
  }
  return all;
}

std::string name_of(const SmallRun& run) {
  return concat(run.strategy, ", ", run.ranks, " ranks, ", to_string(run.dtype));
}

ChainRun with_snapshots(const SmallRun& run, bool overlap_optimizer = false) {
  ChainRun chain{.run = run};
  PlanOptions options = plan_options(run);
  options.overlap_optimizer = overlap_optimizer;
  chain.schedule = with_snapshot(plan(chain.layout, options), run.stochastic_rounding);
  return chain;
}

TEST(Snapshot, PlansAreValidAndReadBackWithAndWithoutAnOptimizerLane) {
  for (const SmallRun& run : runs()) {
    for (const bool overlap : {false, true}) {
      SCOPED_TRACE(concat(name_of(run), overlap ? ", overlapping" : ""));
      const Schedule schedule = with_snapshots(run, overlap).schedule;
      for (const Violation& violation : validate(schedule)) ADD_FAILURE() << violation.message;
      EXPECT_EQ(parse_schedule(to_string(schedule)), schedule);
      EXPECT_EQ(schedule_from_json(to_json(schedule)), schedule);
    }
  }
}

// Parameters or master weights and two moments, in fp32; bf16 parameters that were rounded at
// random; frozen ones in the parameters' dtype.
TEST(Snapshot, HoldsEveryStateTensorOnceOverAllRanks) {
  for (const SmallRun& run : runs()) {
    SCOPED_TRACE(name_of(run));
    const ChainRun chain = with_snapshots(run);
    std::int64_t trainable = 0, frozen = 0;
    for (const Unit& unit : chain.layout.units) {
      trainable += flat_named(unit, "parameter").padded_numel;
      frozen += flat_named(unit, "frozen").padded_numel;
    }
    const std::int64_t width = run.dtype == DType::kFloat32 ? 4 : 2;
    const std::int64_t rounded = run.stochastic_rounding ? 2 : 0;
    EXPECT_EQ(account_snapshot(chain.schedule) * run.ranks,
              trainable * (12 + rounded) + frozen * width);
    const Schedule without = plan(chain.layout, plan_options(run));
    EXPECT_EQ(account_memory(chain.schedule), account_memory(without));
    Traffic traffic = account_traffic(without);
    traffic.to_host_bytes = account_snapshot(chain.schedule);
    EXPECT_EQ(account_traffic(chain.schedule), traffic);
    EXPECT_EQ(state_options(chain.schedule).optimizer_tensors,
              state_options(without).optimizer_tensors);
  }
}

/// This rank's part of a state tensor if all axes shard it.
std::string own_part(const TrainingState& state, const StateTensor& tensor) {
  const FlatParameter& flat = state.flat(tensor);
  const Range own =
      state.nesting().range(flat.padded_numel, state.nesting().all_axes(), state.rank());
  const TensorView view = tensor.view.narrow(0, own.begin - tensor.range.begin, own.numel);
  return {reinterpret_cast<const char*>(view.data), static_cast<std::size_t>(view.bytes())};
}

std::map<std::string, std::string> parts(const TrainingState& state, const Schedule& schedule) {
  std::map<std::string, std::string> all;
  for (const StateTensor& tensor : state) {
    if (schedule.find(tensor.name + "@snapshot") >= 0) {
      all[tensor.name] = own_part(state, tensor);
    }
  }
  return all;
}

std::map<std::string, std::string> copies(const ChainRank& member, const Schedule& schedule) {
  std::map<std::string, std::string> all;
  for (const StateTensor& tensor : *member.state) {
    if (schedule.find(tensor.name + "@snapshot") < 0) continue;
    const TensorView view = member.executor->snapshot(0, tensor.name);
    all[tensor.name] = {reinterpret_cast<const char*>(view.data),
                        static_cast<std::size_t>(view.bytes())};
  }
  return all;
}

TEST(Snapshot, IsTheStateBeforeTheStepAndChangesNoBitOfIt) {
  for (SmallRun run : fewer_if_sanitized(runs(), 5)) {
    SCOPED_TRACE(name_of(run));
    run.steps = 3;
    const ChainResult expected = train(ChainRun{.run = run});
    run.delay_seed = 5;
    const ChainRun chain = with_snapshots(run);
    launch_ranks(make_thread_group(run.ranks), [&](int rank, ProcessGroup& group) {
      ExecutorOptions options = chain.options;
      options.before_task = random_delays(*run.delay_seed, rank);
      ChainRank member(chain, group, std::move(options));
      EXPECT_THROW(member.executor->snapshot(0, "l0.parameter"), Error);
      for (int step = 0; step < run.steps; ++step) {
        const auto before = parts(*member.state, chain.schedule);
        const StepResult result = member.executor->run_step(step, kRate);
        EXPECT_EQ(result.loss, expected.losses[static_cast<std::size_t>(step)]);
        EXPECT_TRUE(copies(member, chain.schedule) == before);
      }
      EXPECT_TRUE(same_bits(expected.parameters, member.executor->gather_parameters()));
      member.executor->take_snapshot(0, 7);
      EXPECT_TRUE(copies(member, chain.schedule) == parts(*member.state, chain.schedule));
    });
  }
}

// --- In virtual time ---

constexpr int kLayers = 6;  // equal units; the last one's forward and backward are one action
constexpr double kForward = 3.0, kBackward = 6.0;
constexpr double kPasses = kLayers * (kForward + kBackward);
constexpr int kCopiesOfAUnit = 3;  // parameters and two moments, in the order of the updates

double seconds_of_step(const std::string& strategy, double copy, double update) {
  const Model model = make_chain({.layers = kLayers});
  const SmallRun run{.ranks = 4, .strategy = strategy};
  const ModelLayout layout = make_layout(model, run.wrap, run.ranks);
  const RandomVectors source(run.dtype);
  const ExecutorOptions options{.cost = [&](const Schedule&, const Action& action) {
    if (action.operation == &operations::kCopy) return copy;
    if (action.operation == &operations::kForward) return kForward;
    if (action.operation == &operations::kBackward) return kBackward;
    if (action.operation == &operations::kLoss) return kForward + kBackward;
    return action.operation == &operations::kOptimizerStep ? update : 0.0;
  }};
  const Schedule schedule = with_snapshot(plan(layout, plan_options(run)), false);
  return summarize(simulate(schedule, layout, model, source, options).spans).step_seconds;
}

TEST(Snapshot, CostsAStepNothingUnlessCopiesTakeLongerThanItsPasses) {
  for (const char* strategy : {"no_shard", "zero1", "zero2", "full_shard"}) {
    SCOPED_TRACE(strategy);
    // All copies, those of the frozen parameters included, are over when the first update begins.
    const double hidden = kPasses / (kLayers * (kCopiesOfAUnit + 1));
    EXPECT_DOUBLE_EQ(seconds_of_step(strategy, 0.0, 1.0), kPasses + kLayers);
    EXPECT_DOUBLE_EQ(seconds_of_step(strategy, hidden, 1.0), kPasses + kLayers);
    // Slow updates hide those behind the first unit's, too.
    const double late = kPasses / kCopiesOfAUnit;
    const double slow = (kCopiesOfAUnit + 1) * late;
    EXPECT_DOUBLE_EQ(seconds_of_step(strategy, late, slow), kPasses + kLayers * slow);
    // Each unit's update follows its copies, and then come those of the frozen parameters.
    EXPECT_DOUBLE_EQ(seconds_of_step(strategy, 100.0, 1.0), 100.0 * kLayers * (kCopiesOfAUnit + 1));
  }
}

// --- What validate() refuses ---

class ABrokenSnapshot : public testing::Test {
 protected:
  Action& copy_of(const std::string& name) {
    return *std::ranges::find_if(schedule_.actions, [&](const Action& action) {
      return action.operation == &operations::kCopy &&
             schedule_.buffer(action.reads.front()).name == name;
    });
  }
  std::string refusal() const {
    std::string all;
    for (const Violation& violation : validate(schedule_)) all += violation.message + "\n";
    return all;
  }
  Schedule schedule_ = with_snapshots({.ranks = 2, .strategy = "no_shard"}).schedule;
};

TEST_F(ABrokenSnapshot, WhoseCopyAnUpdateDoesNotWaitForIsRefused) {
  for (Action& action : schedule_.actions) {
    if (action.operation != &operations::kOptimizerStep) continue;
    std::erase_if(action.waits, [&](int wait) {
      return schedule_.actions[static_cast<std::size_t>(wait)].lane == Lane::kCopyOut;
    });
  }
  EXPECT_THAT(refusal(), HasSubstr("without waiting until"));
}

TEST_F(ABrokenSnapshot, ThatCopiesAnotherTensorIsRefused) {
  std::swap(copy_of("l0.first-moment").reads, copy_of("l0.second-moment").reads);
  EXPECT_THAT(refusal(), HasSubstr("is for a copy of another buffer"));
}

TEST_F(ABrokenSnapshot, ThatLeavesATensorOutIsRefused) {
  copy_of("l1.frozen") = copy_of("l0.frozen");
  EXPECT_THAT(refusal(), HasSubstr("l1.frozen@snapshot is never filled"));
}

TEST_F(ABrokenSnapshot, ThatCopiesAllOfWhatRanksShareIsRefused) {
  copy_of("l1.frozen").reads.front().sharded = {};
  copy_of("l1.frozen").writes.front().sharded = {};
  EXPECT_THAT(refusal(), HasSubstr("has room for what is sharded over shard only"));
}

TEST_F(ABrokenSnapshot, ThatCopiesAfterTheUpdateIsRefused) {
  Action late = copy_of("l0.first-moment");
  late.lane = Lane::kCompute;
  schedule_.actions.push_back(late);
  EXPECT_THAT(refusal(), HasSubstr("which this step has updated already"));
}

TEST_F(ABrokenSnapshot, ThatIsKeptAsStateIsRefused) {
  schedule_.buffers[static_cast<std::size_t>(schedule_.find("l0.frozen@snapshot"))].persistent =
      true;
  EXPECT_THAT(refusal(), HasSubstr("l0.frozen@snapshot is the second parameter buffer"));
}

TEST(Snapshot, IsTakenBesideStepsThatTrainOnly) {
  const ChainRun chain{.run = {.ranks = 2}};
  PlanOptions options = plan_options(chain.run);
  options.purpose = Purpose::kEvaluate;
  EXPECT_THROW(with_snapshot(plan(chain.layout, options), false), Error);
  launch_ranks(make_thread_group(2), [&](int, ProcessGroup& group) {
    ChainRank member(chain, group);
    EXPECT_THROW(member.executor->take_snapshot(0, 7), Error);
  });
}

}  // namespace
}  // namespace tessera::test::snapshot_test

#include "tessera/sharding/executor.h"
#include "support/extent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "support/chain_run.h"
#include "support/grid.h"
#include "tessera/collectives/checked_group.h"
#include "tessera/sharding/operation.h"

// What an executor does beside training well (parity_test.cpp) and failing (executor_failure_test).
namespace tessera::test::executor_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

void expect_same(const ChainResult& expected, const ChainResult& actual) {
  EXPECT_EQ(expected.losses, actual.losses);
  EXPECT_EQ(expected.norms, actual.norms);
  EXPECT_EQ(expected.items, actual.items);
  EXPECT_TRUE(same_bits(expected.parameters, actual.parameters));
}

/// One rank with a micro-step per rank of the others.
ChainRun alone(int ranks) { return {.run = {.strategy = "no_shard", .micro_steps = ranks}}; }

// Presets are points; here is the whole space of placements of two axes.
TEST(Executor, EveryValidPlacementGivesTheSameBits) {
  const ChainResult expected = train(alone(4));
  const std::vector<AxisSet> sets = every_axis_set();
  std::size_t number = 0;
  for (const AxisSet p : sets) {
    for (const AxisSet g : sets) {
      for (const AxisSet o : sets) {
        if (!g.contains(p) || !o.contains(g)) continue;
        if (kSanitized && number++ % 3 != 0) continue;
        SCOPED_TRACE(concat(to_string(p), " / ", to_string(g), " / ", to_string(o)));
        ChainRun chain{.run = {.ranks = 4}};
        chain.schedule = plan(chain.layout, {.mesh = grid(2, 2), .placement = {p, g, o}});
        require_valid(chain.schedule);
        expect_same(expected, train(chain));
      }
    }
  }
}

// --- Data ---

TEST(Executor, WithAllTargetsIgnoredNothingButWeightDecayHappens) {
  for (const int ranks : {1, 3}) {
    for (const char* strategy : {"no_shard", "zero2", "full_shard"}) {
      SCOPED_TRACE(concat(strategy, " on ", ranks));
      ChainRun chain{.run = {.ranks = ranks, .strategy = strategy, .steps = 0}};
      const ChainResult before = train(chain);
      chain.source.ignored_from = 0;
      chain.run.steps = 2;
      const ChainResult after = train(chain);
      EXPECT_THAT(after.losses, Each(0.0));
      EXPECT_THAT(after.norms, Each(0.0));
      EXPECT_THAT(after.items, Each(0));
      const double decay = 1.0 - kRate * 0.1;
      for (const FullParameter& parameter : after.parameters) {
        const auto& initial = named(before.parameters, parameter.name).values;
        const bool decays = parameter.name.ends_with("weight") || parameter.name.ends_with("extra");
        for (std::size_t i = 0; i < initial.size(); ++i) {
          const double factor = decays ? decay * decay : 1.0;
          ASSERT_FLOAT_EQ(parameter.values[i], static_cast<float>(initial[i] * factor))
              << parameter.name;
        }
      }
    }
  }
}

TEST(Executor, RanksWithoutItemsAddNothing) {
  ChainRun one = alone(3);
  ChainRun three{.run = {.ranks = 3, .strategy = "full_shard"}};
  // In step 0, the last rank has none of its samples counted, the second half of them.
  one.source.ignored_from = three.source.ignored_from = kMicroBatch + 1;
  const ChainResult expected = train(one);
  EXPECT_EQ(expected.items, (std::vector<std::int64_t>{kMicroBatch + 1, 0, 0}));
  expect_same(expected, train(three));
}

TEST(Executor, NanPassesThrough) {
  for (const char* strategy : {"no_shard", "zero1", "full_shard", "hybrid_shard"}) {
    SCOPED_TRACE(strategy);
    ChainRun chain{.run = {.ranks = 4, .strategy = strategy}};
    chain.source.nan_from = 2 * 4 * kMicroBatch - 1;  // the last sample of step 1, on one rank
    launch_ranks(make_thread_group(4), [&](int rank, ProcessGroup& group) {
      ChainRank member(chain, group);
      for (int step = 0; step < 3; ++step) {
        const StepResult r = member.executor->run_step(step, kRate);
        EXPECT_EQ(std::isnan(r.loss), step > 0) << rank << ' ' << step;
        EXPECT_EQ(std::isnan(r.gradient_norm), step > 0) << rank << ' ' << step;
        EXPECT_EQ(r.items, 4 * kMicroBatch);
      }
    });
  }
}

// --- Parameters that no operation uses ---

TEST(Executor, AnUnusedParameterOnlyDecays) {
  ChainRun initial{.run = {.steps = 0}, .model = make_chain({.unused_from = 0})};
  const ChainResult before = train(initial);
  ChainRun one{.run = {.strategy = "no_shard", .steps = 3, .micro_steps = 4},
               .model = make_chain({.unused_from = 0})};
  const ChainResult expected = train(one);
  const double factor = std::pow(1.0 - kRate * 0.1, 3);
  const auto& start = named(before.parameters, "l1.extra").values;
  const auto& end = named(expected.parameters, "l1.extra").values;
  for (std::size_t i = 0; i < start.size(); ++i) {
    EXPECT_FLOAT_EQ(end[i], static_cast<float>(start[i] * factor));
  }
  for (const Strategy& strategy : strategies()) {
    SCOPED_TRACE(strategy.name);
    expect_same(expected, train(ChainRun{.run = {.ranks = 4, .strategy = strategy.name},
                                         .model = make_chain({.unused_from = 0})}));
  }
}

// Used in the first step only (and, when one rank accumulates, in some of its micro-steps only):
// what is left in a slot by others must not become its gradient.
TEST(Executor, AParameterNoLongerUsedCoastsOnItsMomentum) {
  for (const std::int64_t unused_from : fewer_if_sanitized(std::vector{4, 2, 5}, 3)) {
    ChainRun one = alone(4);
    one.model = make_chain({.unused_from = unused_from});
    const ChainResult expected = train(one);
    ChainRun first_step = alone(4);
    first_step.model = make_chain({.unused_from = unused_from});
    first_step.run.steps = 1;
    const ChainResult early = train(first_step);
    EXPECT_NE(named(early.parameters, "l1.extra").values,
              named(expected.parameters, "l1.extra").values);
    for (const Strategy& strategy : strategies()) {
      for (const int depth : {0, 2}) {
        SCOPED_TRACE(concat(strategy.name, " depth ", depth, " until ", unused_from));
        expect_same(
            expected,
            train(ChainRun{.run = {.ranks = 4, .strategy = strategy.name, .policy = {depth, depth}},
                           .model = make_chain({.unused_from = unused_from})}));
      }
    }
  }
}

// --- Parameters from and to the outside ---

std::map<std::string, std::vector<float>> random_parameters(const Model& model, bool round_frozen) {
  std::map<std::string, std::vector<float>> values;
  for (const auto& layer : model.layers) {
    for (const ParameterSpec& spec : layer->parameters()) {
      std::vector<float>& list = values[spec.name];
      for (std::int64_t i = 0; i < spec.shape.numel(); ++i) {
        const float value = random_normal({11, stream_of(spec.name)}, i);
        const bool rounds = round_frozen && !spec.trainable;  // they have no master weights
        list.push_back(rounds ? std::round(value * 8.0F) / 8.0F : value);
      }
    }
  }
  return values;
}

TEST(Executor, GivesBackTheParametersThatWereSet) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int ranks : {1, 3, 4}) {
      for (const Strategy& strategy : strategies()) {
        SCOPED_TRACE(concat(strategy.name, " on ", ranks, " in ", to_string(dtype)));
        const ChainRun chain{.run = {.ranks = ranks, .strategy = strategy.name, .dtype = dtype}};
        const auto values = random_parameters(chain.model, dtype == DType::kBFloat16);
        launch_ranks(make_thread_group(ranks), [&](int, ProcessGroup& group) {
          ChainRank member(chain, group);
          member.executor->set_parameters(
              [&](const std::string& name) -> std::span<const float> { return values.at(name); });
          const auto parameters = member.executor->gather_parameters();
          ASSERT_EQ(parameters.size(), values.size());
          std::size_t next = 0;
          for (const auto& layer : chain.model.layers) {
            for (const ParameterSpec& spec : layer->parameters()) {
              const FullParameter& parameter = parameters[next++];
              EXPECT_EQ(parameter.name, spec.name);
              EXPECT_EQ(parameter.shape, spec.shape);
              EXPECT_EQ(parameter.values, values.at(spec.name)) << spec.name;
            }
          }
        });
      }
    }
  }
}

// The compute copy of the parameters must follow the master weights.
TEST(Executor, TrainsWithTheParametersThatWereSet) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    ChainRun source{.run = {.ranks = 3, .strategy = "zero1", .steps = 3, .dtype = dtype}};
    const double expected = train(source).losses[2];
    source.run.steps = 2;
    const auto parameters = train(source).parameters;
    for (const Strategy& strategy : strategies()) {
      SCOPED_TRACE(concat(strategy.name, " in ", to_string(dtype)));
      const ChainRun chain{.run = {.ranks = 3, .strategy = strategy.name, .dtype = dtype}};
      launch_ranks(make_thread_group(3), [&](int, ProcessGroup& group) {
        ChainRank member(chain, group);
        member.executor->run_step(7, kRate);  // slots and copies hold something else by now
        member.executor->set_parameters([&](const std::string& name) -> std::span<const float> {
          return named(parameters, name).values;
        });
        EXPECT_EQ(member.executor->run_step(2, kRate).loss, expected);
      });
    }
  }
}

TEST(Executor, RefusesParametersOfAnotherSize) {
  const ChainRun chain{};
  const auto world = make_thread_group(1);
  ChainRank member(chain, *world[0]);
  auto values = random_parameters(chain.model, false);
  values["l2.bias"].push_back(1.0F);
  try {
    member.executor->set_parameters(
        [&](const std::string& name) -> std::span<const float> { return values.at(name); });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("'l2.bias' has 9 elements, but 10 were given"));
  }
}

TEST(Executor, RefusesAScheduleOfAnotherLayout) {
  ChainRun chain{.run = {.ranks = 1}};
  chain.schedule = plan(make_layout(chain.model, {WrapPolicy::Kind::kNone}, 1), plan_options({}));
  const auto world = make_thread_group(1);
  try {
    const ChainRank member(chain, *world[0]);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("planned for another state"));
  }
}

// --- Company ---

TEST(Executor, TwoInOneProcessDoNotInfluenceEachOther) {
  const ChainRun a{.run = {.ranks = 2, .strategy = "full_shard", .steps = 5}};
  ChainRun b{.run = {.ranks = 3, .strategy = "zero1", .steps = 5, .dtype = DType::kBFloat16}};
  b.options.seed = 43;
  const ChainResult expected_a = train(a);
  const ChainResult expected_b = train(b);
  ChainResult actual_b;
  std::thread other([&] { actual_b = train(b); });
  const ChainResult actual_a = train(a);
  other.join();
  expect_same(expected_a, actual_a);
  expect_same(expected_b, actual_b);
}

TEST(Executor, LeavesNothingInMemory) {
  for (const Strategy& strategy : strategies()) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      const ChainRun chain{
          .run = {.ranks = 2, .strategy = strategy.name, .policy = {.recompute = recompute}}};
      launch_ranks(make_thread_group(2), [&](int, ProcessGroup& group) {
        ChainRank member(chain, group);
        const MemoryUse at_rest = member.memory.current();
        EXPECT_EQ(at_rest[MemoryCategory::kActivations], 0);
        for (int step = 0; step < 2; ++step) {
          member.executor->run_step(step, kRate);
          EXPECT_EQ(member.memory.current(), at_rest) << strategy.name;
        }
        member.executor.reset();
        for (const MemoryCategory category :
             {MemoryCategory::kParameters, MemoryCategory::kOptimizer}) {
          EXPECT_EQ(member.memory.current()[category], at_rest[category]) << strategy.name;
        }
        member.state.reset();
        EXPECT_EQ(member.memory.current(), MemoryUse{}) << strategy.name;
      });
    }
  }
}

TEST(Executor, DelaysOnCheckedGroupsChangeNothing) {
  std::uint32_t seed = 0;
  for (const char* strategy : {"no_shard", "zero2", "full_shard", "hybrid_full_optimizer"}) {
    SCOPED_TRACE(concat(strategy, ", delay_seed ", ++seed));
    ChainRun chain{.run = {.ranks = 4, .strategy = strategy, .micro_steps = 2}};
    const ChainResult expected = train(chain);
    chain.run.delay_seed = seed;
    std::vector<std::unique_ptr<ProcessGroup>> checked;
    for (auto& end : make_thread_group(4)) checked.push_back(make_checked_group(std::move(end)));
    expect_same(expected, train(chain, checked));
  }
}

// --- Spans ---

/// Per action, from the first begin to the last end of its tasks.
std::vector<ActionSpan> whole_actions(const std::vector<ActionSpan>& spans, std::size_t actions) {
  std::vector<ActionSpan> out(actions);
  for (const ActionSpan& span : spans) {
    ActionSpan& whole = out.at(static_cast<std::size_t>(span.action));
    if (whole.action < 0) {
      whole = span;
    } else {
      EXPECT_EQ(span.lane, whole.lane);
      EXPECT_GE(span.begin, whole.end);
      whole.end = span.end;
    }
  }
  return out;
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void expect_spans(const Schedule& schedule, const std::vector<ActionSpan>& spans, double begin,
                  double end) {
  const auto whole = whole_actions(spans, schedule.actions.size());
  const bool alone = schedule.mesh.world_size() == 1;  // then all lanes are one
  std::array<double, kLanes> lane_end{};
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const Action& action = schedule.actions[i];
    if (action.operation == &operations::kReshard) continue;  // only an event
    SCOPED_TRACE(describe(schedule, action));
    ASSERT_EQ(whole[i].action, static_cast<int>(i)) << "no span";
    EXPECT_EQ(whole[i].lane, alone ? Lane::kCompute : action.lane);
    EXPECT_GE(whole[i].begin, begin);
    EXPECT_LE(whole[i].begin, whole[i].end);
    EXPECT_LE(whole[i].end, end);
    double& before = lane_end[static_cast<std::size_t>(action.lane)];
    EXPECT_GE(whole[i].begin, before);
    before = whole[i].end;
    for (const int wait : action.waits) {
      EXPECT_GE(whole[i].begin, whole[static_cast<std::size_t>(wait)].end) << "waits for " << wait;
    }
  }
}

TEST(Executor, SpansCoverTheStepAndFollowItsWaits) {
  for (const Strategy& strategy : strategies()) {
    for (const int ranks : {1, 4}) {
      SCOPED_TRACE(concat(strategy.name, " on ", ranks));
      ChainRun chain{.run = {.ranks = ranks, .strategy = strategy.name, .micro_steps = 2}};
      chain.options.trace = true;
      launch_ranks(make_thread_group(ranks), [&](int, ProcessGroup& group) {
        ChainRank member(chain, group);
        for (int step = 0; step < 2; ++step) {
          const double begin = steady_seconds();
          member.executor->run_step(step, kRate);
          expect_spans(chain.schedule, member.executor->spans(), begin, steady_seconds());
          // What happens between steps belongs to none of them.
          member.executor->gather_parameters();
        }
      });
    }
  }
}

TEST(Executor, KeepsNoSpansUnlessAsked) {
  const ChainRun chain{};
  const auto world = make_thread_group(1);
  ChainRank member(chain, *world[0]);
  member.executor->run_step(0, kRate);
  EXPECT_TRUE(member.executor->spans().empty());
}

}  // namespace
}  // namespace tessera::test::executor_test

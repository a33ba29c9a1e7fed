#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "support/chain_run.h"
#include "support/extent.h"
#include "tessera/sharding/operation.h"

// Steps that begin before the one before them is finished.
namespace tessera::test::steps_in_flight_test {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 5;

ChainRun overlapping(SmallRun run) {
  run.steps = kSteps;
  ChainRun chain{.run = run};
  PlanOptions options = plan_options(run);
  options.overlap_optimizer = true;
  chain.schedule = plan(chain.layout, options);
  chain.options.steps_in_flight = 2;
  return chain;
}

/// As train(), but each step begins before the results of the one before it are read.
ChainResult train_ahead(const ChainRun& chain) {
  std::vector<ChainResult> results(static_cast<std::size_t>(chain.run.ranks));
  launch_ranks(make_thread_group(chain.run.ranks), [&](int rank, ProcessGroup& group) {
    ExecutorOptions options = chain.options;
    if (chain.run.delay_seed) options.before_task = random_delays(*chain.run.delay_seed, rank);
    ChainRank member(chain, group, std::move(options));
    ChainResult& result = results[static_cast<std::size_t>(rank)];
    member.executor->begin_step(0, kRate);
    for (int step = 0; step < kSteps; ++step) {
      if (step + 1 < kSteps) member.executor->begin_step(step + 1, kRate);
      const StepResult r = member.executor->finish_step();
      result.losses.push_back(r.loss);
      result.norms.push_back(r.gradient_norm);
      result.items.push_back(r.items);
    }
    result.parameters = member.executor->gather_parameters();
  });
  return results[0];
}

TEST(StepsInFlight, GiveTheBitsOfStepsInTurn) {
  std::size_t number = 0;
  for (const Strategy& strategy : strategies()) {
    for (const int micro_steps : {1, 2}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        if (kSanitized && number++ % 3 != 0) continue;
        SCOPED_TRACE(concat(strategy.name, ", ", micro_steps, " micro-steps, ", to_string(dtype)));
        const SmallRun run{.ranks = 4,
                           .strategy = strategy.name,
                           .steps = kSteps,
                           .micro_steps = micro_steps,
                           .dtype = dtype,
                           .stochastic_rounding = dtype == DType::kBFloat16};
        const ChainResult expected = train(ChainRun{.run = run});
        SmallRun delayed = run;
        delayed.delay_seed = 3;
        for (const SmallRun& ahead : {run, delayed}) {
          const ChainResult actual = train_ahead(overlapping(ahead));
          EXPECT_EQ(expected.losses, actual.losses);
          EXPECT_EQ(expected.norms, actual.norms);
          EXPECT_EQ(expected.items, actual.items);
          EXPECT_TRUE(same_bits(expected.parameters, actual.parameters));
        }
      }
    }
  }
}

/// The lane of the optimizer is slow: the next step's first passes run before its last updates end.
TEST(StepsInFlight, ForwardRunsBesideTheUpdatesBeforeIt) {
  ChainRun chain = overlapping({.ranks = 2, .strategy = "no_shard"});
  chain.options.trace = true;
  chain.options.before_task = [](Lane lane) {
    if (lane == Lane::kOptimizer) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  launch_ranks(make_thread_group(2), [&](int /*rank*/, ProcessGroup& group) {
    ChainRank member(chain, group);
    for (const int step : {0, 1}) member.executor->begin_step(step, kRate);
    member.executor->finish_step();
    member.executor->finish_step();
    double last_update = 0.0, first_forward = 1e300;
    for (const ActionSpan& span : member.executor->spans()) {
      const Action& action = chain.schedule.actions[static_cast<std::size_t>(span.action)];
      if (action.operation == &operations::kOptimizerStep && span.step == 0) {
        last_update = std::max(last_update, span.end);
      }
      if (action.operation == &operations::kForward && span.step == 1) {
        first_forward = std::min(first_forward, span.begin);
      }
    }
    EXPECT_LT(first_forward, last_update);
  });
}

TEST(StepsInFlight, AreAsManyAsTheExecutorWasMadeFor) {
  const ChainRun chain = overlapping({.ranks = 1});
  launch_ranks(make_thread_group(1), [&](int /*rank*/, ProcessGroup& group) {
    ChainRank member(chain, group);
    Executor& executor = *member.executor;
    const auto refusal = [](const auto& call) -> std::string {
      try {
        call();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        return error.what();
      }
      return "nothing";
    };
    EXPECT_THAT(refusal([&] { executor.finish_step(); }), HasSubstr("no step has begun"));
    executor.begin_step(0, kRate);
    EXPECT_THAT(refusal([&] { executor.gather_parameters(); }), HasSubstr("a step has begun"));
    EXPECT_THAT(
        refusal([&] {
          executor.set_parameters([](const std::string&) { return std::span<const float>(); });
        }),
        HasSubstr("a step has begun"));
    executor.begin_step(1, kRate);
    EXPECT_THAT(refusal([&] { executor.begin_step(2, kRate); }),
                HasSubstr("2 steps have begun, and this executor has 2 in flight at most"));
    const double first = executor.finish_step().loss;
    EXPECT_NE(executor.finish_step().loss, first);
    EXPECT_FALSE(executor.gather_parameters().empty());
  });
}

TEST(StepsInFlight, ASourceThatThrowsStopsEveryRank) {
  ChainRun chain = overlapping({.ranks = 3});
  chain.source.before_fill = [](std::int64_t first) {
    if (first >= 2 * 3 * kMicroBatch) throw Error(ErrorCode::kIo, "no more samples");
  };
  try {
    train_ahead(chain);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no more samples"));
  }
}

TEST(StepsInFlight, ALayerThatThrowsStopsEveryRank) {
  ChainRun chain = overlapping({.ranks = 2, .strategy = "zero2"});
  chain.model = make_chain({.hook = [](Moment moment, int layer, std::int64_t micro_batch) {
    if (moment == Moment::kBackward && layer == 1 && micro_batch == 5) {
      throw Error(ErrorCode::kIo, "the third step");
    }
  }});
  try {
    train_ahead(chain);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the third step"));
  }
}

}  // namespace
}  // namespace tessera::test::steps_in_flight_test

#include "tessera/lab/step_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <numeric>
#include <set>

#include "support/small_run.h"
#include "tessera/core/error.h"
#include "tessera/lab/kernel_calls.h"
#include "tessera/lab/simulate_step.h"
#include "tessera/sharding/operation.h"

namespace tessera::step_times_test {
namespace {

using test::RandomTokens;
using ::testing::Contains;

constexpr std::int64_t kLength = 16;

/// A CPU that does a byte and a FLOP in a nanosecond.
HardwareProfile some_machine() {
  HardwareProfile profile;
  profile.name = "some";
  profile.device = "cpu";
  profile.memory_bandwidth = profile.copy_out = {1e9, ""};
  profile.under_gather = profile.under_reduce = {1.0, ""};
  profile.kernels = {{"gemm", "fp32", 1, "", {{{8.0, 8.0, 8.0}, 1e9}}},
                     {"attention_forward", "fp32", 1, "", {{{8.0, 8.0, 8.0}, 1e9}}},
                     {"attention_backward", "fp32", 1, "", {{{8.0, 8.0, 8.0}, 1e9}}}};
  return profile;
}

struct Subject {
  explicit Subject(int ranks = 1)
      : model(make_gpt(
            {.vocab_size = 64, .context_length = kLength, .layers = 2, .heads = 2, .width = 16})),
        source(kLength, 64, false),
        layout(make_layout(model, {}, ranks)),
        schedule(plan(layout, {.mesh = make_mesh(ranks, 1),
                               .placement = find_strategy("no_shard").placement})) {
    options.micro_batch = 2;
  }
  TimedStep timed(int copies = 1) const {
    return {.program = {&schedule, &source},
            .layout = layout,
            .model = model,
            .options = options,
            .copies = copies,
            .seconds = 0.0};
  }

  Model model;
  RandomTokens source;
  ModelLayout layout;
  Schedule schedule;
  ExecutorOptions options;
};

TEST(StepTimes, HaveEveryKernelOfAStepAsOftenAsItIsCalled) {
  const Subject subject;
  const StepTimes times = time_steps(subject.timed(), some_machine());
  std::map<std::tuple<std::string, std::string, std::vector<double>>, double> expected, seen;
  const auto recorded = record_kernels({&subject.schedule, &subject.source}, subject.layout,
                                       subject.model, subject.options);
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    const std::string operation(subject.schedule.actions[i].operation->name);
    for (const KernelCall& call : recorded[i]) {
      expected[{operation, step_name(call), rates_size(call)}] += 1.0;
    }
  }
  double inside = 0.0;
  for (const StepTimes::Kernel& kernel : times.kernels) {
    seen[{kernel.operation, kernel.kernel, kernel.size}] += kernel.calls;
    EXPECT_EQ(kernel.dtype, "fp32");
    EXPECT_GT(kernel.seconds, 0.0) << kernel.kernel;
    EXPECT_GT(kernel.alone, 0.0) << kernel.kernel;
    inside += kernel.calls * kernel.seconds;
  }
  EXPECT_EQ(seen, expected);
  EXPECT_GT(times.step, 0.0);
  EXPECT_LT(inside, 2.0 * times.step) << "two lanes of one rank";
  EXPECT_GT(times.gap, 0.0);
  EXPECT_EQ(times.threads, 1);
}

// A profile with these times predicts the step that they were taken from: nothing is left out.
TEST(StepTimes, PredictTheStepThatTheyAreOf) {
  const Subject subject;
  Cluster cluster{some_machine(), 1, 1};
  const double alone = simulate_step({&subject.schedule, &subject.source}, subject.layout,
                                     subject.model, subject.options, cluster)
                           .seconds;
  StepTimes times = time_steps(subject.timed(), cluster.profile);
  // Chosen, not measured: the test must not depend on how busy the machine is.
  double inside = 0.0;
  for (StepTimes::Kernel& kernel : times.kernels) {
    kernel.seconds = 3.0 * kernel.alone;
    inside += kernel.calls * kernel.seconds;
  }
  times.beside = times.gap = times.between = 0.0;
  cluster.profile.steps = {times};
  const SimulatedStep step = simulate_step({&subject.schedule, &subject.source}, subject.layout,
                                           subject.model, subject.options, cluster);
  EXPECT_NEAR(step.seconds, 3.0 * alone, 1e-9 * alone);
  EXPECT_NEAR(step.kernels.by[0], inside, 1e-9 * inside) << "all are measured";
  EXPECT_EQ(step.kernels.most(), Evidence::kMeasured);

  cluster.profile.steps[0].between = 1.0;
  EXPECT_NEAR(simulate_step({&subject.schedule, &subject.source}, subject.layout, subject.model,
                            subject.options, cluster)
                  .seconds,
              step.seconds + 1.0, 1e-9);
  cluster.profile.steps[0].between = 0.0;
  cluster.profile.steps[0].beside = 1.0;
  EXPECT_GT(simulate_step({&subject.schedule, &subject.source}, subject.layout, subject.model,
                          subject.options, cluster)
                .seconds,
            step.seconds + 20.0)
      << "for each kernel of a pass";
}

TEST(StepTimes, OfCopiesAreOfAllOfThem) {
  const Subject subject;
  std::mutex mutex;
  std::set<std::thread::id> threads;
  TimedStep timed = subject.timed(3);
  timed.goes_on = [&] {
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
    return true;
  };
  EXPECT_FALSE(time_steps(timed, some_machine()).kernels.empty());
  EXPECT_EQ(threads.size(), 3U);
}

TEST(StepTimes, OfRepeatsAreMeansOfTheMiddleHalf) {
  const auto repeat = [](double seconds) {
    StepTimes steps{.model = "a model", .threads = 2, .source = "here", .step = 10.0 * seconds};
    steps.gap = seconds / 8.0;
    steps.kernels = {{.operation = "forward",
                      .kernel = "gemm nt",
                      .dtype = "fp32",
                      .size = {8, 8, 8},
                      .seconds = seconds,
                      .spread = 0.03,
                      .alone = 1.0,
                      .calls = 4.0}};
    return steps;
  };
  StepTimes with_more = repeat(4.0);
  with_more.kernels.push_back(with_more.kernels.front());
  with_more.kernels.back().kernel = "fill";
  const StepTimes joined = joined_repeats({repeat(70.0), with_more, repeat(2.0), repeat(3.0)});
  EXPECT_EQ(joined.model, "a model");
  EXPECT_EQ(joined.threads, 2);
  EXPECT_EQ(joined.source, "here; means of the middle 2 of 4 calibrations");
  EXPECT_EQ(joined.step, 35.0);
  EXPECT_EQ(joined.gap, 3.5 / 8.0);
  ASSERT_EQ(joined.kernels.size(), 2U);
  EXPECT_EQ(joined.kernels[0].kernel, "fill");
  EXPECT_EQ(joined.kernels[0].spread, 0.03) << "one repeat has it";
  EXPECT_EQ(joined.kernels[1].seconds, 3.5);
  EXPECT_EQ(joined.kernels[1].calls, 4.0);
  // The quartiles of both repeats are 3.25 and 3.75.
  EXPECT_DOUBLE_EQ(joined.kernels[1].spread, std::hypot(0.03, 0.5 / 3.5));
  EXPECT_EQ(joined_repeats({repeat(2.0)}).source, "here");
  EXPECT_EQ(joined_repeats({repeat(2.0), repeat(3.0)}).step, 25.0);
  EXPECT_EQ(joined_repeats({repeat(2.0), repeat(90.0), repeat(3.0)}).step, 30.0);
  StepTimes of_another = repeat(2.0);
  of_another.threads = 1;
  EXPECT_THROW(joined_repeats({repeat(2.0), of_another}), Error);
  EXPECT_THROW(joined_repeats({}), Error);
}

TEST(StepTimes, AreStoppedAndRefusedWithTheReason) {
  const Subject subject;
  TimedStep timed = subject.timed(2);
  std::atomic<int> asked = 0;
  timed.goes_on = [&] { return ++asked < 5; };
  try {
    time_steps(timed, some_machine());
    ADD_FAILURE() << "not stopped";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kAborted);
  }
  const Subject two(2);
  try {
    time_steps(two.timed(), some_machine());
    ADD_FAILURE() << "two ranks are not alone";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("a step of 2 ranks"));
  }
}

TEST(SimulatedStep, TakesAsMuchLongerAsCheckedOnesOfItsKindDid) {
  const Subject subject;
  Cluster cluster{some_machine(), 1, 1};
  const auto simulated = [&] {
    return simulate_step({&subject.schedule, &subject.source}, subject.layout, subject.model,
                         subject.options, cluster);
  };
  const SimulatedStep before = simulated();
  cluster.profile.residuals = {{.evidence = Evidence::kMeasured, .ratio = 2.0},
                               {.evidence = Evidence::kInterpolated, .meets = true, .ratio = 2.0}};
  EXPECT_EQ(simulated().seconds, before.seconds);
  cluster.profile.residuals.push_back({.evidence = Evidence::kInterpolated, .ratio = 1.25});
  const SimulatedStep after = simulated();
  EXPECT_NEAR(after.seconds, 1.25 * before.seconds, 1e-9 * before.seconds);
  EXPECT_NEAR(after.spans[0].back().end, 1.25 * before.spans[0].back().end, 1e-9 * before.seconds);
  EXPECT_NEAR(after.of(Lane::kCompute).busy, 1.25 * before.of(Lane::kCompute).busy,
              1e-9 * before.seconds);
}

TEST(SimulatedStep, HasTheIntervalOfWhatItsKernelsRestOn) {
  const Subject subject;
  Cluster cluster{some_machine(), 1, 1};
  const auto half_width = [&] {
    return simulate_step({&subject.schedule, &subject.source}, subject.layout, subject.model,
                         subject.options, cluster)
        .half_width;
  };
  const double assumed = half_width();
  EXPECT_GT(assumed, 0.0);
  cluster.profile.residuals = {
      {.evidence = Evidence::kMeasured, .half_width = 0.01},
      {.evidence = Evidence::kInterpolated, .half_width = 0.2},
      {.evidence = Evidence::kInterpolated, .meets = true, .half_width = 0.3}};
  EXPECT_EQ(half_width(), 0.2);
  cluster.profile.steps = {time_steps(subject.timed(), cluster.profile)};
  const auto set_spread = [&](double spread) {
    for (StepTimes::Kernel& kernel : cluster.profile.steps.front().kernels) kernel.spread = spread;
  };
  set_spread(0.0);
  EXPECT_EQ(half_width(), 0.01);
  set_spread(0.04);
  EXPECT_EQ(half_width(), 0.01) << "what was checked was off by that, too";
  EXPECT_FALSE(simulate_step({&subject.schedule, &subject.source}, subject.layout, subject.model,
                             subject.options, cluster)
                   .assumes_half_width);
  cluster.profile.residuals.erase(cluster.profile.residuals.begin());
  EXPECT_EQ(half_width(), 0.2) << "of predictions that rested on less";
  cluster.profile.residuals.clear();
  // 1.645 standard deviations, of which the quartiles are 1.349 apart.
  EXPECT_NEAR(half_width(), std::hypot(0.10, 0.04 * 1.645 / 1.349), 1e-12);
  EXPECT_LT(half_width(), assumed) << "what was measured is known better";
  cluster.profile.device = "cuda";
  EXPECT_GT(half_width(), 0.0);
  cluster.profile.steps.clear();
  EXPECT_EQ(half_width(), 0.0) << "a limit has no interval";
}

}  // namespace
}  // namespace tessera::step_times_test

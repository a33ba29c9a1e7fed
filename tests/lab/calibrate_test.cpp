#include "tessera/lab/calibrate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <set>

#include "support/small_run.h"
#include "tessera/core/error.h"
#include "tessera/lab/simulate_step.h"

namespace tessera::calibrate_test {
namespace {

CalibrationOptions brief() {
  return {.name = "here",
          .machine = "a machine of tests",
          .cores = 2,
          .memory_bytes = 1e9,
          .seconds = 1e-5,
          .coarseness = 8};
}

TEST(Calibrate, MakesAProfileThatReadsBackAndPredictsSteps) {
  int done = 0, all = 0;
  CalibrationOptions options = brief();
  options.waiting = 0.5;
  options.progress = [&](const CalibrationProgress& progress) {
    EXPECT_FALSE(progress.what.empty());
    EXPECT_GE(progress.done, done);
    EXPECT_LE(progress.done, progress.all);
    EXPECT_GE(progress.used, 0.0);
    EXPECT_EQ(progress.budget, options.budget);
    done = progress.done;
    all = progress.all;
    return true;
  };
  const auto begin = std::chrono::steady_clock::now();
  const std::clock_t cpu_begin = std::clock();
  const HardwareProfile profile = calibrate_cpu(options);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const double cpu_seconds = static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC;
  // Where other programs have the cores, all that is timed takes longer.
  const double slowdown = std::max(1.0, took.count() / cpu_seconds);
  ASSERT_TRUE(profile.noise);
  EXPECT_EQ(profile.noise->points + profile.noise->left_out, all);
  EXPECT_EQ(profile.noise->waiting, 0.5);
  EXPECT_EQ(to_text(parse_profile(to_text(profile), "here.json")), to_text(profile));
  EXPECT_EQ(profile.device, "cpu");
  EXPECT_EQ(profile.cores.value, 2.0);
  for (const Quantity& factor : {profile.under_gather, profile.under_reduce,
                                 profile.memory_under_gather.value_or(profile.under_gather),
                                 profile.memory_under_reduce.value_or(profile.under_reduce)}) {
    EXPECT_GE(factor.value, 1.0);
    EXPECT_NE(factor.source.find(" on 2 ranks"), std::string::npos) << factor.source;
  }

  // Every kernel of a step has a rate of its own, in every dtype and for one thread and for two.
  const test::RandomTokens source(16, 64, false);
  const Model model =
      make_gpt({.vocab_size = 64, .context_length = 16, .layers = 2, .heads = 2, .width = 32});
  const ModelLayout layout = make_layout(model, {}, 2);
  std::set<std::string> kernels;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const Strategy& strategy = find_strategy("full_shard");
    const Schedule schedule = plan(layout, {.mesh = make_mesh(2, 1),
                                            .placement = strategy.placement,
                                            .reshard_after_forward = strategy.reshard_after_forward,
                                            .parameter_dtype = dtype});
    for (const int threads : {1, 2}) {
      const ExecutorOptions executor{.micro_batch = 2, .threads = threads};
      const Program program{&schedule, &source};
      for (const auto& calls : record_kernels(program, layout, model, executor)) {
        for (const KernelCall& call : calls) {
          for (const KernelCall& part : cpu_kernels_of(call)) {
            const std::string name = rates_name(part);
            if (name == "loss" || name == "count-tokens" || name == "results") continue;
            kernels.insert(name);
            const KernelRates* const rates = profile.find(name, to_string(part.dtype), threads);
            ASSERT_NE(rates, nullptr) << name << " in " << to_string(part.dtype);
            EXPECT_EQ(rates->threads, threads) << name;
            EXPECT_EQ(rates->points.front().size.size(), rates_size(part).size()) << name;
          }
        }
      }
      const SimulatedStep step = simulate_step(program, layout, model, executor,
                                               {.profile = profile, .ranks_per_process = 8});
      EXPECT_GT(step.seconds, 0.0);
      EXPECT_LT(step.seconds, 10.0 * slowdown);
      EXPECT_GT(step.of(Lane::kGather).busy, 0.0);
    }
  }
  EXPECT_TRUE(kernels.contains("gemm nt") && kernels.contains("gemm tn") &&
              kernels.contains("adamw") && kernels.contains("gelu_forward"));
}

TEST(Calibrate, StopsWhenItIsTold) {
  CalibrationOptions options = brief();
  int calls = 0;
  options.progress = [&](const CalibrationProgress&) { return ++calls < 3; };
  try {
    calibrate_cpu(options);
    FAIL() << "it went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kAborted);
  }
  EXPECT_EQ(calls, 3);
}

/// What comes of a calibration with these readings, and how often something was said and measured.
struct Outcome {
  bool is_written = false;
  int said = 0, measured = 0;
};

Outcome calibrate_with(const MachineLoad& before, const MeasurementNoise& noise, bool anyway) {
  Outcome outcome;
  const auto profile = calibrate_if_quiet({.watch = [&] { return before; },
                                           .measure =
                                               [&](const MachineLoad& load) {
                                                 ++outcome.measured;
                                                 EXPECT_EQ(load.others, before.others);
                                                 HardwareProfile measured;
                                                 measured.noise = noise;
                                                 return measured;
                                               },
                                           .say =
                                               [&](const std::vector<std::string>& disturbances) {
                                                 ++outcome.said;
                                                 EXPECT_FALSE(disturbances.empty());
                                               },
                                           .anyway = anyway});
  outcome.is_written = profile.has_value();
  return outcome;
}

TEST(Calibrate, WritesAProfileOfAQuietMachineOnly) {
  const MachineLoad quiet{.others = 0.01}, busy{.others = 0.6};
  const MeasurementNoise low{.others = 0.02}, high{.others = 0.3};
  const auto equals = [](const Outcome& outcome, bool is_written, int said, int measured) {
    return outcome.is_written == is_written && outcome.said == said && outcome.measured == measured;
  };
  EXPECT_TRUE(equals(calibrate_with(quiet, low, false), true, 0, 1));
  EXPECT_TRUE(equals(calibrate_with(busy, low, false), false, 1, 0)) << "nothing is measured";
  EXPECT_TRUE(equals(calibrate_with(quiet, high, false), false, 1, 1)) << "busy only later";
  EXPECT_TRUE(equals(calibrate_with(busy, low, true), true, 1, 1));
  EXPECT_TRUE(equals(calibrate_with(busy, high, true), true, 2, 1));
}

TEST(CpuKernels, OfAGemmAreTheProductAndWhatAccompaniesIt) {
  const auto view = [](Shape shape, DType dtype = DType::kFloat32) {
    return TensorView(reinterpret_cast<void*>(64), dtype, shape);
  };
  GemmArgs args{.a = view({8, 4}), .b = view({16, 4}), .c = view({8, 16}), .bias = view({16})};
  args.transpose_b = true;
  args.gelu = true;
  args.gelu_input = view({8, 16});
  const KernelCall call{.kernel = "gemm",
                        .dims = {8, 16, 4},
                        .flops = 1024.0,
                        .bytes = 1000.0 + gemm_epilogue_bytes(args),
                        .gemm = args};
  EXPECT_EQ(rates_name(call), "gemm nt, bias");
  const std::vector<KernelCall> parts = cpu_kernels_of(call);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].bytes, 1000.0);
  EXPECT_EQ(parts[1].kernel, "gelu_forward");
  EXPECT_EQ(parts[1].bytes, 2.0 * 8 * 16 * 4);
}

}  // namespace
}  // namespace tessera::calibrate_test

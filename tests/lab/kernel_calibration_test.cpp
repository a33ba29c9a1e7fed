#include "kernel_calibration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

namespace tessera {
namespace {

/// Kernels that take a made-up time on a made-up clock.
struct MadeUp {
  double clock = 0.0;
  double flops_per_second = 1e12;
  std::map<std::string, int> measured{};  ///< how often, by kernel and size
  std::set<std::string> disturbed_once{};
  std::vector<KernelCall> order{};

  static std::string name_of(const KernelCall& call) {
    std::string name = rates_name(call) + std::string(to_string(call.dtype));
    for (const double size : rates_size(call)) name += " " + std::to_string(size);
    return name;
  }

  /// A point takes as long as its batches, and as the calls before them.
  PointTime time(const KernelProbe& probe, double seconds) {
    const double work = probe.call.flops > 0.0 ? probe.call.flops : probe.call.bytes;
    const double call = work / flops_per_second;
    clock += 2.0 * call + std::max(seconds, call);
    order.push_back(probe.call);
    const int before = measured[name_of(probe.call)]++;
    const bool disturbed = before == 0 && disturbed_once.contains(name_of(probe.call));
    return {.seconds = disturbed ? 10.0 * call : call, .spread = 0.01, .disturbed = disturbed};
  }
};

struct Calibrated {
  HardwareProfile profile;
  MeasurementNoise noise;
  int all = 0;
};

/// For so many seconds at most.
Calibrated calibrate(MadeUp& kernels, double budget, int coarseness = 1) {
  CalibrationOptions options;
  options.budget = budget;
  options.coarseness = coarseness;
  options.progress = [](const CalibrationProgress& progress) {
    EXPECT_LE(progress.done, progress.all);
    EXPECT_GE(progress.used, 0.0);
    return true;
  };
  KernelCalibration calibration("made up", options.coarseness);
  calibration.add(1, 1);
  CalibrationRun run(
      options, calibration.size(), [&] { return kernels.clock; }, [] { return MachineReading{}; });
  Calibrated result;
  result.all = calibration.size();
  calibration.run(result.profile, run, [&](const KernelProbe& probe, int, double seconds) {
    return kernels.time(probe, seconds);
  });
  result.noise = run.noise(1);
  return result;
}

TEST(KernelCalibration, MeasuresEveryPointIfTheBudgetSuffices) {
  MadeUp kernels;
  const Calibrated result = calibrate(kernels, 180.0, 2);
  EXPECT_EQ(result.noise.points, result.all);
  EXPECT_EQ(result.noise.left_out, 0);
  EXPECT_EQ(result.noise.disturbed, 0);
  EXPECT_NEAR(result.noise.spread, 0.01, 1e-12);
  EXPECT_EQ(static_cast<int>(kernels.order.size()), result.all);
}

TEST(KernelCalibration, KeepsToItsBudgetOnASlowMachine) {
  MadeUp kernels{.flops_per_second = 1e10};  // all points would take ten minutes
  const Calibrated result = calibrate(kernels, 60.0);
  EXPECT_LT(kernels.clock, 60.0);
  EXPECT_GT(kernels.clock, 40.0);
  EXPECT_GT(result.noise.left_out, 0);
  EXPECT_EQ(result.noise.points + result.noise.left_out, result.all);
  // What is left out has the rate of its neighbours.
  EXPECT_NEAR(result.profile.find("gemm nt", "bf16", 1)->at({1536, 1536, 1536}), 1e10, 1e7);
}

TEST(KernelCalibration, MeasuresEachKernelWithoutAnyTime) {
  MadeUp kernels;
  const Calibrated result = calibrate(kernels, 0.0);
  std::set<std::string> names;
  for (const KernelRates& rates : result.profile.kernels) {
    EXPECT_EQ(rates.points.size(), 1U) << rates.kernel;
    names.insert(rates.kernel + rates.dtype);
  }
  EXPECT_EQ(static_cast<std::int64_t>(names.size()), result.noise.points);
  EXPECT_TRUE(names.contains("gemm nt, biasfp32") && names.contains("adamwbf16"));
}

TEST(KernelCalibration, TakesThePointsOfAllGridsFirstAndFp16Last) {
  MadeUp kernels;
  const Calibrated result = calibrate(kernels, 1e6);
  MadeUp every_second;
  const Calibrated quick = calibrate(every_second, 1e6, 2);
  std::set<std::string> first, quickly;
  for (int i = 0; i < quick.all; ++i) {
    first.insert(MadeUp::name_of(kernels.order[static_cast<std::size_t>(i)]));
    quickly.insert(MadeUp::name_of(every_second.order[static_cast<std::size_t>(i)]));
  }
  EXPECT_EQ(first, quickly) << "what --quick measures comes first";
  EXPECT_EQ(kernels.order.back().dtype, DType::kFloat16);
  const KernelCall& next = kernels.order[static_cast<std::size_t>(quick.all)];
  EXPECT_TRUE(next.kernel == "gemm" || next.kernel.starts_with("attention")) << next.kernel;
}

TEST(KernelCalibration, MeasuresAgainWhatWasDisturbed) {
  MadeUp quiet;
  const Calibrated all = calibrate(quiet, 180.0, 2);
  MadeUp kernels;
  kernels.disturbed_once = {MadeUp::name_of(quiet.order[3]), MadeUp::name_of(quiet.order[50])};
  const Calibrated result = calibrate(kernels, 180.0, 2);
  for (const std::string& name : kernels.disturbed_once) EXPECT_EQ(kernels.measured[name], 2);
  EXPECT_EQ(kernels.order.size(), quiet.order.size() + 2);
  EXPECT_EQ(result.noise.disturbed, 0);
  HardwareProfile undisturbed = all.profile;
  undisturbed.noise = result.profile.noise;
  EXPECT_EQ(to_text(result.profile), to_text(undisturbed));
}

TEST(KernelCalibration, CountsWhatStaysDisturbed) {
  MadeUp quiet;
  calibrate(quiet, 0.0);
  MadeUp kernels;
  kernels.disturbed_once = {MadeUp::name_of(quiet.order.front())};
  const Calibrated result = calibrate(kernels, 0.0);
  EXPECT_EQ(kernels.order.size(), quiet.order.size()) << "no time to measure it again";
  EXPECT_EQ(result.noise.disturbed, 1);
}

}  // namespace
}  // namespace tessera

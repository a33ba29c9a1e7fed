#include "tessera/lab/kernel_times.h"

#include <gtest/gtest.h>

namespace tessera::kernel_times_test {
namespace {

/// A CPU whose kernels do a byte a second and a FLOP a second when they are timed alone.
HardwareProfile slow_machine() {
  HardwareProfile profile;
  profile.name = "slow";
  profile.device = "cpu";
  for (const char* const kernel : {"gelu_forward", "layer_norm_forward", "gemm nt"}) {
    const std::size_t dimensions = std::string_view(kernel) == "gemm nt" ? 3 : 1;
    KernelRates rates{.kernel = kernel, .dtype = "fp32", .threads = 1, .source = "", .points = {}};
    rates.points = {{std::vector<double>(dimensions, 8.0), 1.0}};
    profile.kernels.push_back(std::move(rates));
  }
  return profile;
}

StepTimes steps_of(int threads, std::vector<StepTimes::Kernel> kernels) {
  StepTimes steps;
  steps.threads = threads;
  steps.kernels = std::move(kernels);
  return steps;
}

StepTimes::Kernel gelu(const char* operation, double size, double seconds, double alone) {
  return {.operation = operation,
          .kernel = "gelu_forward",
          .dtype = "fp32",
          .size = {size},
          .seconds = seconds,
          .alone = alone,
          .calls = 1.0};
}

KernelCall gelu_of(std::int64_t elements, double bytes) {
  return {.kernel = "gelu_forward", .dims = {elements}, .bytes = bytes};
}

double of_evidence(const PredictedSeconds& predicted, Evidence evidence) {
  EXPECT_EQ(predicted.most(), evidence);
  const double seconds = predicted.by[static_cast<std::size_t>(evidence)];
  EXPECT_EQ(predicted.total(), seconds) << "a kernel rests on one kind of evidence";
  return seconds;
}

TEST(KernelTimes, WithoutStepsAreThoseAlone) {
  const HardwareProfile profile = slow_machine();
  const KernelTimes times(profile, 1);
  EXPECT_FALSE(times.has_steps());
  EXPECT_EQ(of_evidence(times.of(gelu_of(64, 10.0), "forward"), Evidence::kInterpolated), 10.0);
  EXPECT_EQ(times.beside() + times.gap() + times.between(), 0.0);
}

TEST(KernelTimes, AreThoseMeasuredInsideOfTheSameOperation) {
  HardwareProfile profile = slow_machine();
  profile.steps = {
      steps_of(1, {gelu("forward", 64, 12.0, 10.0), gelu("backward", 64, 15.0, 10.0)})};
  const KernelTimes times(profile, 1);
  EXPECT_EQ(of_evidence(times.of(gelu_of(64, 10.0), "forward"), Evidence::kMeasured), 12.0);
  EXPECT_EQ(of_evidence(times.of(gelu_of(64, 10.0), "backward"), Evidence::kMeasured), 15.0);
  EXPECT_EQ(of_evidence(times.of(gelu_of(64, 10.0), "loss"), Evidence::kMeasured), 13.5)
      << "of an operation that no step has: the median of those that have it";
}

TEST(KernelTimes, OfOtherSizesTakeTheRatioOfTheNearest) {
  HardwareProfile profile = slow_machine();
  profile.steps = {steps_of(1, {gelu("forward", 64, 12.0, 10.0), gelu("forward", 4096, 3.0, 2.0)})};
  const KernelTimes times(profile, 1);
  EXPECT_EQ(of_evidence(times.of(gelu_of(128, 20.0), "forward"), Evidence::kCorrected), 24.0);
  EXPECT_EQ(of_evidence(times.of(gelu_of(2048, 20.0), "forward"), Evidence::kCorrected), 30.0);
}

TEST(KernelTimes, OfKernelsThatNoStepHasTakeTheMeanRatio) {
  HardwareProfile profile = slow_machine();
  profile.steps = {steps_of(1, {gelu("forward", 64, 12.0, 10.0), gelu("forward", 4096, 6.0, 2.0)})};
  const KernelTimes times(profile, 1);
  const KernelCall norm{.kernel = "layer_norm_forward", .dims = {4, 8}, .bytes = 10.0};
  EXPECT_EQ(of_evidence(times.of(norm, "forward"), Evidence::kCorrected), 15.0);
}

TEST(KernelTimes, OfAGemmKnowWhatAccompaniesIt) {
  HardwareProfile profile = slow_machine();
  StepTimes::Kernel plain{.operation = "forward",
                          .kernel = "gemm nt",
                          .dtype = "fp32",
                          .size = {2, 3, 4},
                          .seconds = 96.0,
                          .alone = 48.0,
                          .calls = 1.0};
  StepTimes::Kernel added = plain;
  added.kernel = "gemm nt, accumulate";
  added.seconds = 144.0;
  profile.steps = {steps_of(1, {plain, added})};
  const KernelTimes times(profile, 1);
  GemmArgs args;
  args.transpose_b = true;
  KernelCall call{.kernel = "gemm", .dims = {2, 3, 4}, .flops = 48.0, .bytes = 8.0, .gemm = args};
  EXPECT_EQ(of_evidence(times.of(call, "forward"), Evidence::kMeasured), 96.0);
  call.gemm->accumulate = true;
  EXPECT_EQ(of_evidence(times.of(call, "forward"), Evidence::kMeasured), 144.0);
  call.dims = {2, 3, 8};
  call.flops = 96.0;
  EXPECT_EQ(of_evidence(times.of(call, "forward"), Evidence::kCorrected), 288.0);
}

TEST(KernelTimes, OfTeamsThatNoStepHadAreCorrectedByTheNearest) {
  HardwareProfile profile = slow_machine();
  profile.steps = {steps_of(1, {gelu("forward", 64, 12.0, 10.0)}),
                   steps_of(8, {gelu("forward", 64, 4.0, 2.0)})};
  const KernelCall call = gelu_of(64, 10.0);
  EXPECT_EQ(of_evidence(KernelTimes(profile, 8).of(call, "forward"), Evidence::kMeasured), 4.0);
  EXPECT_EQ(of_evidence(KernelTimes(profile, 2).of(call, "forward"), Evidence::kCorrected), 12.0);
  EXPECT_EQ(of_evidence(KernelTimes(profile, 6).of(call, "forward"), Evidence::kCorrected), 20.0);
}

}  // namespace
}  // namespace tessera::kernel_times_test

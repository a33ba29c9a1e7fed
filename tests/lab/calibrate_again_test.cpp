#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/error.h"
#include "tessera/lab/calibrate.h"

namespace tessera {
namespace {

/// A made-up profile in which everything takes `slowness` times as long.
HardwareProfile made_up(double slowness) {
  HardwareProfile profile = find_profile("h100-sxm");
  profile.name = "here";
  profile.device = "cpu";
  profile.kernels = {{"gemm nt", "fp32", 1, "here", {{{64, 64, 64}, 8e9 / slowness}}},
                     {"fill", "fp32", 1, "here", {{{1024}, 4e9 / slowness}}}};
  profile.peak = {{"fp32", {8e9 / slowness, "here"}}};
  profile.handover = {1e-6 * slowness, "here"};
  profile.process.measured = {
      {"all_gather", 2, "here", {{1e3, 1e-5 * slowness}, {1e6, 1e-3 * slowness}}}};
  profile.noise = MeasurementNoise{.points = 2, .disturbed = slowness > 1.0 ? 1 : 0};
  return profile;
}

TEST(FasterOf, HasEachPointsFasterTime) {
  HardwareProfile first = made_up(1.0), second = made_up(2.0);
  second.kernels[1].points.front().per_second = 5e9;
  second.kernels[0].points.push_back({{128, 128, 128}, 3e9});  // for which the first had no time
  second.kernels.push_back({"cast", "fp32", 1, "here", {{{1024}, 1e9}}});
  second.process.measured[0].points[1].seconds = 0.5e-3;
  second.process.measured[0].points.push_back({1e4, 1e-4});
  for (const bool turned : {false, true}) {
    const HardwareProfile both = turned ? faster_of(second, first) : faster_of(first, second);
    const KernelRates& gemms = *both.find("gemm nt", "fp32", 1);
    ASSERT_EQ(gemms.points.size(), 2U);
    EXPECT_EQ(gemms.points[0].per_second, 8e9);
    EXPECT_EQ(both.find("fill", "fp32", 1)->points[0].per_second, 5e9);
    EXPECT_EQ(both.find("cast", "fp32", 1)->points[0].per_second, 1e9);
    EXPECT_EQ(both.peak.at("fp32").value, 8e9);
    EXPECT_EQ(both.handover.value, 1e-6);
    const CollectiveTimes& gather = *both.process.find("all_gather", 2);
    ASSERT_EQ(gather.points.size(), 3U);
    EXPECT_EQ(gather.points[0].seconds, 1e-5);
    EXPECT_EQ(gather.points[1].bytes, 1e4) << "bytes ascend";
    EXPECT_EQ(gather.points[2].seconds, 0.5e-3);
    EXPECT_EQ(both.noise->disturbed, 0);
    EXPECT_EQ(to_text(parse_profile(to_text(both), "both.json")), to_text(both));
  }
  second.device = "cuda";
  EXPECT_THROW(faster_of(first, second), Error);
}

TEST(FasterOf, SaysWhatTheKernelsOfStepsTakeAloneNow) {
  HardwareProfile first = made_up(2.0);
  first.steps = {{.model = "a model",
                  .threads = 1,
                  .kernels = {{.kernel = "gemm nt", .dtype = "fp32", .size = {64, 64, 64}},
                              {.kernel = "gemm nt, bias", .dtype = "fp32", .size = {64, 64, 64}},
                              {.kernel = "unknown", .dtype = "fp32", .size = {8}}}}};
  for (StepTimes::Kernel& kernel : first.steps[0].kernels) {
    kernel.seconds = kernel.alone = 4e-6;
    kernel.calls = 1.0;
  }
  const StepTimes steps = faster_of(first, made_up(1.0)).steps.at(0);
  EXPECT_NEAR(steps.kernels[0].alone, 2e-6, 1e-15);
  EXPECT_NEAR(steps.kernels[1].alone, 2e-6, 1e-15) << "by the rate of its product";
  EXPECT_EQ(steps.kernels[2].alone, 4e-6) << "which has no rate";
  for (const StepTimes::Kernel& kernel : steps.kernels) EXPECT_EQ(kernel.seconds, 4e-6);
}

}  // namespace
}  // namespace tessera

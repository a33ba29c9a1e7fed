#include "tessera/trainer/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "tessera/core/cpu_device.h"
#include "tessera/core/tensor.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/trainer/parameter_hash.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

/// Processor time of this thread or of the whole process: other programs do not lengthen it.
double cpu_seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// FLOP per second of processor time of a square product on one thread, the best of a few.
double rate_of_a_thread(DType dtype) {
  constexpr std::int64_t kSize = 1024;
  const auto device = make_cpu_device();
  Memory memory(*device);
  const auto stream = device->create_stream({.name = "test", .threads = 1});
  const auto matrix = [&] {
    return Tensor::empty(memory, Shape{kSize, kSize}, dtype, MemoryCategory::kWorkspace, "operand");
  };
  const Tensor a = matrix(), b = matrix(), c = matrix();
  double least = INFINITY;
  stream->submit({.name = "measure"}, [&] {
    cpu_kernels().fill({.dst = a, .value = 1.25F}, *stream);
    cpu_kernels().fill({.dst = b, .value = 0.75F}, *stream);
    for (int i = 0; i < 6; ++i) {  // the first generates code
      const double begin = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
      cpu_kernels().gemm({.a = a, .b = b, .c = c, .transpose_b = true}, *stream);
      least = std::min(least, cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - begin);
    }
  });
  stream->synchronize();
  return 2.0 * kSize * kSize * kSize / least;
}

TEST(Metrics, MatmulRateIsThatOfTheRanksThreads) {
  constexpr int kRanks = 2;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    SCOPED_TRACE(to_string(dtype));
    const double expected = kRanks * rate_of_a_thread(dtype);
    const auto begin = std::chrono::steady_clock::now();
    const double cpu_begin = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
    const double rate = measure_matmul_flops(
        resolved({.ranks = kRanks, .precision = dtype, .threads_per_rank = 1}));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    // Ranks may share a core with each other and with other programs.
    const double share =
        (cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_begin) / (kRanks * seconds.count());
    EXPECT_LT(rate, expected * 10.0);
    EXPECT_GT(rate, expected * std::min(share, 1.0) / 10.0);
  }
}

TEST(Metrics, MfuIsAsPaLMDefinesIt) {
  Model model;
  model.flops_per_item = 2e6;
  EXPECT_DOUBLE_EQ(model_flops_utilisation(model, 1000.0, 8e9).value(), 0.25);
  EXPECT_EQ(model_flops_utilisation(model, 1000.0, 2e9), 1.0);
  EXPECT_EQ(model_flops_utilisation(model, 1000.0, 0.0), std::nullopt);
  model.flops_per_item = 0.0;
  EXPECT_EQ(model_flops_utilisation(model, 1000.0, 8e9), std::nullopt);
}

TEST(Metrics, APeakBelowWhatIsAchievedIsNone) {
  Model model;
  model.flops_per_item = 2e6;
  EXPECT_EQ(model_flops_utilisation(model, 5500.0, 2e9), std::nullopt);  // 550 %
}

TEST(Metrics, APeakBelowWhatTheRunAchievedIsMeasuredAgain) {
  Model model;
  model.flops_per_item = 2e6;
  int measured = 0;
  const auto utilisation = [&](double before, double after) {
    measured = 0;
    return utilisation_of_run(model, 1000.0, before, [&] {
      ++measured;
      return after;
    });
  };
  const RunUtilisation usual = utilisation(8e9, 0.0);
  EXPECT_EQ(measured, 0);
  EXPECT_EQ(usual.mfu, 0.25);
  EXPECT_EQ(usual.peak_flops_per_second, 8e9);
  EXPECT_EQ(usual.note, "");

  const RunUtilisation mended = utilisation(1e9, 4e9);
  EXPECT_EQ(measured, 1);
  EXPECT_EQ(mended.mfu, 0.5);
  EXPECT_EQ(mended.peak_flops_per_second, 4e9);
  EXPECT_THAT(mended.note, HasSubstr("reached 1 GFLOP/s, less than the 2 of the run itself"));

  const RunUtilisation busy = utilisation(1e9, 1.5e9);
  EXPECT_EQ(busy.mfu, std::nullopt);
  EXPECT_THAT(busy.note, HasSubstr("so there is no MFU"));

  EXPECT_EQ(utilisation(0.0, 8e9).mfu, std::nullopt);  // it was not to be measured
  EXPECT_EQ(measured, 0);
}

TEST(ParameterHash, IsSha256OfLittleEndianFloats) {
  // hashlib.sha256(struct.pack('<3f', 1.0, -2.5, 3e-8)), cut anywhere.
  const std::string expected = "c1cff5e6e5dc7e449f54d6fb68e48c04ce3a0a5fe05ed3caa12544511d62e9b3";
  EXPECT_EQ(parameters_sha256({{"a", {2}, {1.0F, -2.5F}}, {"b", {1}, {3e-8F}}}), expected);
  EXPECT_EQ(parameters_sha256({{"a", {3}, {1.0F, -2.5F, 3e-8F}}}), expected);
  EXPECT_EQ(parameters_sha256({}),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

}  // namespace
}  // namespace tessera

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "cuda/cudnn_attention_graphs_cuda.h"
#include "tessera/core/error.h"
#include "tessera/kernels/cuda_options.h"

// cuDNN's plans for attention, made without a GPU for devices described in JSON: that the graphs
// find a fused kernel, and what scratch it needs. Numbers are checked by tests/kernels on a GPU.
namespace tessera::cuda {
namespace {

/// `architecture` is 80, 90, ...; sizes are those of an A100 or an H200.
std::string device_json(int architecture) {
  const bool ampere = architecture == 80;
  return concat(
      R"({"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],)",
      R"("regsPerBlock":65536,"multiProcessorCount":)", ampere ? 108 : 132,
      R"(,"warpSize":32,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":)",
      ampere ? 166912 : 232448,
      R"(,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,)",
      R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,)",
      R"("supportCoopLaunch":1,"totalGlobalMem":85899345920,"smClockRateKHz":1400000,)",
      R"("memClockRateKHz":1500000,"l2CacheSize":41943040,"cudaDeviceId":0,"deviceVer":)",
      architecture * 10, R"(,"driverVer":13000,"deviceName":"described"})");
}

struct Case {
  int architecture;
  std::int64_t head_dim;
  DType dtype = DType::kBFloat16;
};

class CudnnPlans : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    // Before cuDNN asks for libcuda.so.1: then the loader has one of that name already.
    ASSERT_NE(dlopen(TESSERA_FAKE_DRIVER, RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
    try {
      library_.emplace();
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kUnavailable);
      GTEST_SKIP() << error.what();
    }
  }

  CudnnAttentionShape shape(CudnnPass pass, std::int64_t length = 1024) const {
    return {.batch = 2,
            .length = length,
            .heads = 3,
            .head_dim = GetParam().head_dim,
            .pass = pass,
            .dtype = GetParam().dtype};
  }
  std::unique_ptr<CudnnPlan> plan(const CudnnAttentionShape& shape) const {
    return make_cudnn_attention_plan(*library_,
                                     {.device_json = device_json(GetParam().architecture)}, shape);
  }
  std::int64_t workspace(CudnnPass pass) const { return plan(shape(pass))->workspace_bytes(); }

  std::optional<CudnnLibrary> library_;
};

/// Workspaces hold a few counters besides what is said below.
constexpr std::int64_t kCounters = 512;

TEST_P(CudnnPlans, ForwardNeedsNoScratch) { EXPECT_LE(workspace(CudnnPass::kForward), kCounters); }

TEST_P(CudnnPlans, BackwardNeedsASecondAccumulatorOnAmpereOnly) {
  const CudnnAttentionShape s = shape(CudnnPass::kBackward);
  const std::int64_t accumulator = GetParam().architecture == 80 ? 4 * s.rows() * s.head_dim : 0;
  const std::int64_t bytes = plan(s)->workspace_bytes();
  EXPECT_GE(bytes, accumulator);
  EXPECT_LE(bytes, accumulator + kCounters);
}

TEST_P(CudnnPlans, DeterministicBackwardNeedsTwoBytesPerScore) {
  const CudnnAttentionShape s = shape(CudnnPass::kBackwardDeterministic);
  const std::int64_t bytes = plan(s)->workspace_bytes();
  EXPECT_GE(bytes, 2 * s.rows() * s.length);
  EXPECT_LE(bytes, 2 * s.rows() * s.length + kCounters);
}

TEST_P(CudnnPlans, FitTheWorkspaceThatMemoryIsPlannedWith) {
  for (const CudnnPass pass :
       {CudnnPass::kForward, CudnnPass::kBackward, CudnnPass::kBackwardDeterministic}) {
    const CudnnAttentionShape s = shape(pass);
    const auto aligned = [](std::int64_t bytes) { return (bytes + 255) / 256 * 256; };
    std::int64_t needed = aligned(plan(s)->workspace_bytes());
    if (pass != CudnnPass::kForward) needed += aligned(4 * s.rows());
    if (pass == CudnnPass::kBackward) needed += aligned(4 * s.rows() * s.head_dim);
    EXPECT_LE(needed, cuda_attention_workspace_bytes(
                          {.batch = s.batch,
                           .length = s.length,
                           .heads = s.heads,
                           .head_dim = s.head_dim,
                           .dtype = s.dtype,
                           .backward = pass != CudnnPass::kForward},
                          {.deterministic = pass == CudnnPass::kBackwardDeterministic}))
        << static_cast<int>(pass);
  }
}

TEST_P(CudnnPlans, TakeLengthsThatAreNoMultipleOfATile) {
  for (const CudnnPass pass :
       {CudnnPass::kForward, CudnnPass::kBackward, CudnnPass::kBackwardDeterministic}) {
    EXPECT_NO_THROW(plan(shape(pass, 200))) << static_cast<int>(pass);
  }
}

TEST_P(CudnnPlans, TakeAttentionThatIsNotCausal) {
  for (const CudnnPass pass :
       {CudnnPass::kForward, CudnnPass::kBackward, CudnnPass::kBackwardDeterministic}) {
    CudnnAttentionShape s = shape(pass);
    s.causal = false;
    EXPECT_NO_THROW(plan(s)) << static_cast<int>(pass);
  }
}

TEST_P(CudnnPlans, RefuseOddHeadSizes) {
  for (const CudnnPass pass : {CudnnPass::kForward, CudnnPass::kBackwardDeterministic}) {
    CudnnAttentionShape s = shape(pass);
    s.head_dim += 2;
    try {
      plan(s);
      FAIL() << "a plan for a head size of " << s.head_dim;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnavailable) << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gpus, CudnnPlans,
                         testing::Values(Case{80, 64}, Case{80, 128}, Case{90, 64}, Case{90, 128},
                                         Case{80, 64, DType::kFloat16},
                                         Case{90, 128, DType::kFloat16}),
                         [](const testing::TestParamInfo<Case>& gpu) {
                           return concat("sm", gpu.param.architecture, "_d", gpu.param.head_dim,
                                         gpu.param.dtype == DType::kFloat16 ? "_fp16" : "");
                         });

}  // namespace
}  // namespace tessera::cuda

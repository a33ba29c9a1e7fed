#include <cublasLt.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "cuda/gemm_plan_cuda.h"
#include "product.h"
#include "tessera/core/error.h"

// That the fake refuses what it should, and that the plans say what was refused. What it computes
// is checked with the kernels (tests/kernels/gemm*_test.cpp).
namespace tessera {
namespace {

using cuda::GemmEpilogue;
using cuda::GemmPlans;
using cuda::GemmPointers;
using cuda::GemmProblem;

constexpr std::int64_t kSize = 64;

class FakeCublasLt : public testing::Test {
 protected:
  FakeCublasLt() : device_(make_cuda_device()), stream_(device_->create_stream({.name = "test"})) {}

  CudaStream& stream() { return dynamic_cast<CudaStream&>(*stream_); }

  /// A square product that is supported; its memory is never touched.
  GemmProblem problem() const {
    return {.m = kSize,
            .n = kSize,
            .k = kSize,
            .a_stride = kSize,
            .b_stride = kSize,
            .c_stride = kSize,
            .dtype = DType::kBFloat16,
            .c_dtype = DType::kBFloat16,
            .a_alignment = 16,
            .b_alignment = 16,
            .c_alignment = 16};
  }
  GemmPointers pointers() { return {.a = a_.data(), .b = b_.data(), .c = c_.data()}; }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<float> a_ = std::vector<float>(kSize * kSize), b_ = a_, c_ = a_;
};

TEST_F(FakeCublasLt, TakesAProductWithOrWithoutGelu) {
  GemmPlans& plans = GemmPlans::of(stream());
  GemmPointers where = pointers();
  EXPECT_TRUE(plans.supports(problem(), where));
  GemmProblem with_gelu = problem();
  with_gelu.epilogue = GemmEpilogue::kGeluAux;
  with_gelu.aux_stride = kSize;
  where.aux = b_.data();
  EXPECT_TRUE(plans.supports(with_gelu, where));
  with_gelu.aux_stride = kSize + 4;
  EXPECT_FALSE(plans.supports(with_gelu, where)) << "rows of aux are no multiple of 8";
  with_gelu.aux_stride = kSize;
  with_gelu.c_dtype = DType::kFloat32;
  EXPECT_FALSE(plans.supports(with_gelu, where)) << "gelu into another type";
}

TEST_F(FakeCublasLt, HasNoKernelForOddRowsOfBf16) {
  GemmProblem odd = problem();
  odd.a_stride = kSize + 1;
  EXPECT_FALSE(GemmPlans::of(stream()).supports(odd, pointers()));
  odd.dtype = DType::kFloat32;
  odd.c_dtype = DType::kFloat32;
  EXPECT_TRUE(GemmPlans::of(stream()).supports(odd, pointers()));
}

TEST_F(FakeCublasLt, RefusalsNameTheFunctionTheStatusAndTheProblem) {
  GemmPlans& plans = GemmPlans::of(stream());
  GemmProblem overlapping = problem();
  overlapping.c_stride = kSize - 1;
  try {
    plans.supports(overlapping, pointers());
    FAIL() << "was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("cublasLtMatmulAlgoGetHeuristic"),
                               testing::HasSubstr("CUBLAS_STATUS_INVALID_VALUE"),
                               testing::HasSubstr("C (64, 64) of bf16 with rows of 63 = A B")));
  }
}

TEST_F(FakeCublasLt, RefusesAddressesThatThePlanWasNotMadeFor) {
  GemmPointers off = pointers();
  off.a = reinterpret_cast<const char*>(off.a) + 8;
  void* workspace = stream().scratch(GemmPlans::of(stream()).workspace_bytes());
  try {
    GemmPlans::of(stream()).run(problem(), off, workspace, stream());
    FAIL() << "was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("cublasLtMatmul failed"));
  }
}

/// As a real kernel does, though the heuristic had one for it.
TEST_F(FakeCublasLt, FaultsOnABiasThatIsNotAligned) {
  GemmProblem with_bias = problem();
  with_bias.epilogue = GemmEpilogue::kBias;
  GemmPointers where = pointers();
  where.vector = b_.data() + 1;
  GemmPlans& plans = GemmPlans::of(stream());
  EXPECT_TRUE(plans.supports(with_bias, where));
  plans.run(with_bias, where, stream().scratch(plans.workspace_bytes()), stream());
  EXPECT_THROW(stream().synchronize(), std::runtime_error);
}

/// Sums in the order of the k-th call.
float in_place_sum(std::vector<float>& a, std::vector<float>& ones) {
  float sum = 0.0F;
  const auto k = static_cast<std::int64_t>(a.size());
  fake_cublaslt::compute({.a_layout = {.type = CUDA_R_32F, .rows = 1, .columns = k, .ld = 1},
                          .b_layout = {.type = CUDA_R_32F, .rows = k, .columns = 1, .ld = k},
                          .c_layout = {.type = CUDA_R_32F, .rows = 1, .columns = 1, .ld = 1},
                          .d_layout = {.type = CUDA_R_32F, .rows = 1, .columns = 1, .ld = 1},
                          .a = a.data(),
                          .b = ones.data(),
                          .c = &sum,
                          .d = &sum,
                          .any_order = true});
  return sum;
}

TEST(FakeProduct, InPlaceReductionsGiveOtherBitsEachTime) {
  std::vector<float> a(100), ones(100, 1.0F);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = std::sin(static_cast<float>(i)) * 1e3F;
  const float first = in_place_sum(a, ones);
  bool differs = false;
  for (int i = 0; i < 20; ++i) differs = differs || in_place_sum(a, ones) != first;
  EXPECT_TRUE(differs) << "a test that expects the same bits could not fail";
}

}  // namespace
}  // namespace tessera

#include <cublasLt.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "cuda/gemm_plan_cuda.h"
#include "fake_cublaslt.h"
#include "fake_cuda.h"
#include "product.h"
#include "tessera/core/error.h"

// That the fake refuses what it should, and that the plans say what was refused. What it computes
// is checked with the kernels (tests/kernels/gemm*_test.cpp).
namespace tessera {
namespace {

using cuda::GemmPlans;
using cuda::GemmPointers;

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
  EXPECT_TRUE(plans.supports(problem()));
  GemmProblem with_gelu = problem();
  with_gelu.epilogue = GemmEpilogue::kGeluAux;
  with_gelu.aux_stride = kSize;
  with_gelu.aux_alignment = 16;
  EXPECT_TRUE(plans.supports(with_gelu));
  with_gelu.aux_stride = kSize + 4;
  EXPECT_FALSE(plans.supports(with_gelu)) << "rows of aux are no multiple of 8";
  with_gelu.aux_stride = kSize;
  with_gelu.c_dtype = DType::kFloat32;
  EXPECT_FALSE(plans.supports(with_gelu)) << "gelu into another type";
}

TEST_F(FakeCublasLt, HasNoKernelForOddRowsOfBf16) {
  GemmProblem odd = problem();
  odd.a_stride = kSize + 1;
  EXPECT_FALSE(GemmPlans::of(stream()).supports(odd));
  odd.dtype = DType::kFloat32;
  odd.c_dtype = DType::kFloat32;
  EXPECT_TRUE(GemmPlans::of(stream()).supports(odd));
}

TEST_F(FakeCublasLt, TakesCodesOfFp8AlongRowsOnAGpuThatHasTheCores) {
  GemmProblem codes = problem();
  codes.dtype = DType::kUInt8;
  codes.transpose_b = true;
  const auto takes = [&](const auto& change) {
    GemmProblem changed = codes;
    change(changed);
    return GemmPlans(0, nullptr).supports(changed);
  };
  EXPECT_TRUE(takes([](GemmProblem&) {}));
  EXPECT_TRUE(takes([](GemmProblem& p) { p.c_dtype = DType::kFloat32; }));
  EXPECT_TRUE(takes([](GemmProblem& p) { p.a_format = Fp8Format::kE5M2; }));
  EXPECT_TRUE(takes([](GemmProblem& p) { p.b_format = Fp8Format::kE5M2; }));
  EXPECT_FALSE(takes([](GemmProblem& p) { p.a_format = p.b_format = Fp8Format::kE5M2; }));
  EXPECT_FALSE(takes([](GemmProblem& p) { p.transpose_b = false; }));
  EXPECT_FALSE(takes([](GemmProblem& p) { p.k = 56; }));
  EXPECT_FALSE(takes([](GemmProblem& p) { p.a_alignment = 8; }));
  fake_cuda::configure({.major = 8, .minor = 6});
  EXPECT_FALSE(takes([](GemmProblem&) {}));
  fake_cuda::configure({.major = 8, .minor = 9});
  EXPECT_TRUE(takes([](GemmProblem&) {}));
  fake_cuda::configure({});
}

TEST_F(FakeCublasLt, RefusalsNameTheFunctionTheStatusAndTheProblem) {
  GemmPlans& plans = GemmPlans::of(stream());
  GemmProblem overlapping = problem();
  overlapping.c_stride = kSize - 1;
  try {
    plans.supports(overlapping);
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

/// As a kernel does that was chosen for another alignment.
TEST_F(FakeCublasLt, FaultsOnABiasThatIsLessAlignedThanWasSaid) {
  GemmProblem with_bias = problem();
  with_bias.epilogue = GemmEpilogue::kBias;
  with_bias.vector_alignment = 16;
  GemmPointers where = pointers();
  where.vector = b_.data() + 1;
  GemmPlans& plans = GemmPlans::of(stream());
  EXPECT_TRUE(plans.supports(with_bias));
  plans.run(with_bias, where, stream().scratch(plans.workspace_bytes()), stream());
  EXPECT_THROW(stream().synchronize(), std::runtime_error);
}

/// A product of fp32 by the table of kernels, whose bias, or whose argument of GELU in bf16, begins
/// `offset` elements after a multiple of 256 bytes.
class GemmAlignment : public FakeCublasLt {
 protected:
  static constexpr std::size_t kBytes = kSize * kSize * sizeof(float) + 256;
  /// Memory of the device, and how it is filled: with numbers of no pattern.
  template <typename T>
  T* fill(std::size_t offset, unsigned seed) {
    buffers_.push_back(std::make_unique<Buffer>(*device_));
    T* const values = static_cast<T*>(buffers_.back()->address) + offset;
    for (std::int64_t i = 0; i < kSize * kSize; ++i) {
      values[i] = T(std::sin(static_cast<float>(seed + 1) * static_cast<float>(i)));
    }
    return values;
  }
  template <typename T>
  static TensorView square(T* values) {
    return {values, dtype_of<T>(), Shape{kSize, kSize}};
  }
  std::vector<float> with_bias(std::size_t offset) {
    float* const c = fill<float>(0, 3);
    stream().kernels().gemm({.a = square(fill<float>(0, 0)),
                             .b = square(fill<float>(0, 1)),
                             .c = square(c),
                             .bias = square(fill<float>(offset, 2)).flat().narrow(0, 0, kSize)},
                            stream());
    stream().synchronize();
    return {c, c + kSize * kSize};
  }
  std::vector<float> with_gelu(std::size_t offset) {
    bfloat16* const c = fill<bfloat16>(0, 3);
    stream().kernels().gemm({.a = square(fill<bfloat16>(0, 0)),
                             .b = square(fill<bfloat16>(0, 1)),
                             .c = square(c),
                             .gelu = true,
                             .gelu_input = square(fill<bfloat16>(offset, 2))},
                            stream());
    stream().synchronize();
    return {c, c + kSize * kSize};
  }

 private:
  struct Buffer {
    explicit Buffer(CudaDevice& d) : device(d), address(d.allocate(kBytes)) {}
    ~Buffer() { device.deallocate(address, kBytes); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    CudaDevice& device;
    void* address;
  };
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

TEST_F(GemmAlignment, APlanIsForTheAlignmentOfBiasAndAux) {
  for (const std::size_t offset : {0, 1, 2, 0}) {  // a plan for 16 bytes would fault at 4
    EXPECT_NO_THROW(with_bias(offset)) << offset;
  }
  for (const std::size_t offset : {0, 4, 2, 0}) EXPECT_NO_THROW(with_gelu(offset)) << offset;
}

TEST_F(GemmAlignment, BitsDoNotDependOnAlignmentBeyond16Bytes) {
  const std::vector<float> bias = with_bias(0), gelu = with_gelu(0);
  for (const std::size_t bytes : {16, 32, 128}) {
    stream_.reset();  // and with it the plans
    stream_ = device_->create_stream({.name = "fresh"});
    EXPECT_EQ(with_bias(bytes / sizeof(float)), bias) << bytes;
    EXPECT_EQ(with_gelu(bytes / sizeof(bfloat16)), gelu) << bytes;
  }
}

TEST_F(FakeCublasLt, NamesOtherAlgorithmsFirstForAnotherAlignment) {
  // Else the test before this could not fail.
  const auto first_for = [](const void* bias) {
    cublasLtHandle_t handle = nullptr;
    cublasLtCreate(&handle);
    FakeMatmulDesc desc{.epilogue = CUBLASLT_EPILOGUE_BIAS, .bias = const_cast<void*>(bias)};
    FakeMatrixLayout square{.type = CUDA_R_32F, .rows = kSize, .columns = kSize, .ld = kSize};
    cublasLtMatmulPreference_t preference = nullptr;
    cublasLtMatmulPreferenceCreate(&preference);
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(handle, &desc, &square, &square, &square, &square,
                                             preference, 1, &found, &count),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(count, 1);
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtDestroy(handle);
    return fake_cublaslt::number_of(std::to_array(found.algo.data));
  };
  alignas(512) static const std::byte memory[512]{};
  EXPECT_NE(first_for(memory + 16), first_for(memory + 256));
  EXPECT_NE(first_for(memory + 16), first_for(memory + 4));
}

/// Ranks that share a GPU do not look for the same algorithms again, even at the same time.
TEST_F(FakeCublasLt, FourThreadsMakeEachPlanOnce) {
  constexpr int kThreads = 4, kSizes = 20;
  const std::int64_t before = fake_cublaslt::heuristics();
  GemmPlans::of(stream());  // keeps them while ranks come and go
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kThreads; ++rank) {
    ranks.emplace_back([this] {
      const auto device = make_cuda_device();
      const auto own = device->create_stream({.name = "rank"});
      auto& cuda = dynamic_cast<CudaStream&>(*own);
      for (int i = 0; i < kSizes; ++i) {
        GemmProblem sized = problem();
        sized.m = kSize - i;
        EXPECT_TRUE(GemmPlans::of(cuda).supports(sized));
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(fake_cublaslt::heuristics() - before, kSizes);
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

#include "kernels/support.h"
#include "tessera/core/cuda_device.h"
#include "tessera/kernels/cuda_options.h"

// cuDNN's attention against our own, which attention_test.cpp holds against the formula. Only on a
// GPU: there is no substitute for cuDNN.
namespace tessera {
namespace {

struct Sizes {
  std::int64_t batch, length, heads, dim;
};

/// T rounds what either computes; between, cuDNN rounds the probabilities and their gradients to T
/// (in bf16 2^-8 each, at random), as ours does: four times that of the largest at most.
template <typename T>
constexpr double kTolerance = 4.0 * rounding<T>();

class CudnnAttention : public testing::TestWithParam<Sizes> {
 protected:
  void TearDown() override { set_cuda_kernel_options(stream(), {}); }

  static CudaStream& stream() {
    StreamUnderTest under_test;
    return dynamic_cast<CudaStream&>(static_cast<Stream&>(under_test));
  }

  template <typename T>
  struct Result {
    std::vector<T> out, d_qkv;
    std::vector<float> lse;
  };

  /// Forward, and the backward of what it gave.
  template <typename T>
  static Result<T> run(const CudaKernelOptions& options) {
    const auto [b, l, h, d] = GetParam();
    const Shape packed{b, l, 3, h, d}, plain{b, l, h, d}, rows{b, h, l};
    auto qkv = random_values<T>(packed.numel(), 1, 1.5F);
    auto d_out = random_values<T>(plain.numel(), 2);
    Result<T> result{.out = std::vector<T>(at(plain.numel())),
                     .d_qkv = std::vector<T>(at(packed.numel())),
                     .lse = std::vector<float>(at(rows.numel()))};
    set_cuda_kernel_options(stream(), options);
    const TensorView out = view_of(result.out, plain), lse = view_of(result.lse, rows);
    kernels_under_test().attention_forward({.qkv = view_of(qkv, packed), .out = out, .lse = lse},
                                           stream());
    kernels_under_test().attention_backward({.d_out = view_of(d_out, plain),
                                             .qkv = view_of(qkv, packed),
                                             .out = out,
                                             .lse = lse,
                                             .d_qkv = view_of(result.d_qkv, packed)},
                                            stream());
    return result;
  }

  /// kCudnn throws where kAuto would take our own.
  template <typename T>
  static void compare() {
    const auto own = run<T>({.attention = AttentionBackend::kOwn});
    for (const bool deterministic : {true, false}) {
      SCOPED_TRACE(deterministic ? "deterministic" : "any order");
      const auto cudnn =
          run<T>({.attention = AttentionBackend::kCudnn, .deterministic = deterministic});
      expect_close(cudnn.out, to_doubles(own.out), kTolerance<T>, "out");
      expect_close(cudnn.lse, to_doubles(own.lse), 1e-4, "lse");
      expect_close(cudnn.d_qkv, to_doubles(own.d_qkv), kTolerance<T>, "d_qkv");
    }
  }
};

TEST_P(CudnnAttention, AgreesWithOurOwn) { compare<bfloat16>(); }

TEST_P(CudnnAttention, AgreesWithOurOwnInFp16) { compare<float16>(); }

TEST_P(CudnnAttention, GivesTheSameBitsTwiceIfDeterministic) {
  const CudaKernelOptions options{.attention = AttentionBackend::kCudnn, .deterministic = true};
  const auto first = run<bfloat16>(options), second = run<bfloat16>(options);
  EXPECT_TRUE(same_bits(first.out, second.out) && same_bits(first.lse, second.lse));
  EXPECT_TRUE(same_bits(first.d_qkv, second.d_qkv));
}

/// What training runs is cuDNN's, without being told.
TEST_P(CudnnAttention, IsTakenByItself) {
  run<bfloat16>({});
  EXPECT_EQ(cuda_attention(stream()).fallback, "");
}

std::string name_of(const testing::TestParamInfo<Sizes>& test) {
  const Sizes& s = test.param;
  return concat("B", s.batch, "L", s.length, "H", s.heads, "D", s.dim);
}

INSTANTIATE_TEST_SUITE_P(Sizes, CudnnAttention,
                         testing::Values(Sizes{1, 128, 1, 64}, Sizes{2, 1024, 5, 64},
                                         Sizes{1, 128, 2, 128}, Sizes{2, 1024, 3, 128}),
                         name_of);

}  // namespace
}  // namespace tessera

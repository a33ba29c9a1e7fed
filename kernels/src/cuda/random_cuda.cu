#include "cuda/cuda_kernels.h"
#include "cuda/elementwise_cuda.h"
#include "elementwise_arguments.h"
#include "tessera/kernels/philox.h"

// Normal numbers by Box-Muller from Philox words: random_normal() of philox.h with the same bits,
// each rounding by an intrinsic that nvcc does not fuse with its neighbours. Bytes: dst once.

namespace tessera::cuda {
namespace {

using P = NormalPolynomials;

__device__ float log_positive(float x) {
  constexpr auto kLog = P::kLog;
  const std::uint32_t bits = __float_as_uint(x) - P::kSqrtHalf;
  const float exponent = __int2float_rn(static_cast<std::int32_t>(bits) >> 23);
  const float f = __fadd_rn(__uint_as_float((bits & 0x7fffffU) + P::kSqrtHalf), -1.0F);
  float p = kLog[0];
#pragma unroll
  for (std::size_t i = 1; i < kLog.size(); ++i) p = __fmaf_rn(p, f, kLog[i]);
  const float square = __fmul_rn(f, f);
  float y = __fmaf_rn(p, __fmul_rn(f, square), __fmul_rn(exponent, P::kLn2Low));
  y = __fmaf_rn(-0.5F, square, y);
  return __fmaf_rn(exponent, P::kLn2High, __fadd_rn(f, y));
}

__device__ float2 normal_pair_of(std::uint32_t radius_word, std::uint32_t angle_word) {
  constexpr auto kSin = P::kSin;
  constexpr auto kCos = P::kCos;
  const float uniform = __fmaf_rn(__uint2float_rn(radius_word >> 1), 0x1p-31F, 0x1p-32F);
  const float radius = __fsqrt_rn(__fmul_rn(-2.0F, log_positive(uniform)));
  const std::uint32_t quadrant = (angle_word + 0x20000000U) >> 30;
  const auto rest = static_cast<std::int32_t>(angle_word - (quadrant << 30));
  const float x = __fmul_rn(__int2float_rn(rest), P::kRadians);
  const float z = __fmul_rn(x, x);
  const float s =
      __fmaf_rn(__fmul_rn(z, x), __fmaf_rn(__fmaf_rn(kSin[0], z, kSin[1]), z, kSin[2]), x);
  const float q = __fmaf_rn(__fmaf_rn(kCos[0], z, kCos[1]), z, kCos[2]);
  const float c = __fmaf_rn(__fmul_rn(z, z), q, __fmaf_rn(-0.5F, z, 1.0F));
  const bool swap = (quadrant & 1U) != 0;
  const float cosine = swap ? s : c;
  const float sine = swap ? c : s;
  return make_float2(__fmul_rn(radius, ((quadrant + 1U) & 2U) != 0 ? -cosine : cosine),
                     __fmul_rn(radius, (quadrant & 2U) != 0 ? -sine : sine));
}

struct FillNormal {
  float* dst;
  float mean, stddev;
  RandomKey key;
  std::int64_t first_index;

  template <int kSize>
  __device__ PhiloxCounter load(std::int64_t i) const {
    const auto block = static_cast<std::uint64_t>(first_index + i) / 4;
    return philox4x32(philox_counter(key, block), philox_key(key));
  }
  /// A group of four begins at a multiple of 4 of the stream.
  template <int kSize>
  __device__ void store(std::int64_t i, const PhiloxCounter& words) const {
    if constexpr (kSize == 1) {
      const auto index = static_cast<std::uint64_t>(first_index + i);
      const bool second = index % 4 >= 2;
      const float2 pair =
          normal_pair_of(second ? words[2] : words[0], second ? words[3] : words[1]);
      dst[i] = scaled(index % 2 == 0 ? pair.x : pair.y);
    } else {
      static_assert(kSize == 4, "one block of words");
      const float2 low = normal_pair_of(words[0], words[1]);
      const float2 high = normal_pair_of(words[2], words[3]);
      store_pack(dst + i,
                 Pack<float, 4>{{scaled(low.x), scaled(low.y), scaled(high.x), scaled(high.y)}});
    }
  }

  __device__ float scaled(float normal) const { return __fmaf_rn(stddev, normal, mean); }
};

}  // namespace

void fill_normal(const FillNormalArgs& args, Stream& stream) {
  check_arguments(args);
  const FillNormal op{.dst = args.dst.as<float>(),
                      .mean = args.mean,
                      .stddev = args.stddev,
                      .key = args.key,
                      .first_index = args.first_index};
  launch_elementwise<4>(op, args.dst.numel(),
                        groups_aligned<4>(op.dst) && args.first_index % 4 == 0, stream);
}

}  // namespace tessera::cuda

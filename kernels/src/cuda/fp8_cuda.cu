#include <algorithm>

#include "cuda/cuda_kernels.h"
#include "cuda/elementwise_cuda.h"
#include "cuda/fp8_transpose_cuda.h"
#include "cuda/magnitude_cuda.h"
#include "fp8_arguments.h"

// amax, max_words, fp8_encode, fp8_decode, with the CPU's bits (a NaN that is rounded is CUDA's).
// The scale is a division of each thread's own, of a word that comes from a cache. Bytes: amax
// reads a tensor; encode reads it and writes a byte per element; decode is the reverse.

namespace tessera::cuda {
namespace {

constexpr int kAmaxThreads = 256;
/// Eight blocks to a multiprocessor: each ends with one atomic.
constexpr unsigned kMostAmaxBlocks = 8 * kMultiprocessors;

__global__ void __launch_bounds__(32) clear_word(std::uint32_t* word) {
  if (threadIdx.x == 0) *word = 0;
}

template <typename T, int kSize>
__global__ void __launch_bounds__(kAmaxThreads)
    largest_magnitude(const T* x, std::int64_t n, std::uint32_t* amax) {
  std::uint32_t largest = 0;
  const auto take = [&](T value) { largest = LargerWord{}(largest, magnitude_word(value)); };
  const std::int64_t thread = std::int64_t{blockIdx.x} * kAmaxThreads + threadIdx.x;
  const std::int64_t stride = std::int64_t{gridDim.x} * kAmaxThreads;
  for (std::int64_t i = thread * kSize; i + kSize <= n; i += stride * kSize) {
    const Pack<T, kSize> group = load_pack<kSize>(x + i);
#pragma unroll
    for (int e = 0; e < kSize; ++e) take(group.v[e]);
  }
  const std::int64_t rest = n / kSize * kSize + thread;
  if (rest < n) take(x[rest]);
  raise_by_block(amax, largest);
}

__global__ void __launch_bounds__(kAmaxThreads)
    largest_of_rows(const std::uint32_t* rows, std::int64_t n, std::int64_t columns,
                    std::uint32_t* words) {
  const std::int64_t column = std::int64_t{blockIdx.x} * kAmaxThreads + threadIdx.x;
  if (column >= columns) return;
  std::uint32_t largest = 0;
  for (std::int64_t row = 0; row < n; ++row) {
    largest = LargerWord{}(largest, rows[row * columns + column]);
  }
  words[column] = largest;
}

template <typename T>
struct Encode {
  const T* x;
  const std::uint32_t* amax;
  std::uint8_t* codes;
  Fp8Format format;
  Fp8Scales scales;

  template <int kSize>
  __device__ Pack<T, kSize> load(std::int64_t i) const {
    return load_pack<kSize>(x + i);
  }
  template <int kSize>
  __device__ void store(std::int64_t i, const Pack<T, kSize>& group) const {
    const float scale = fp8_scale(*amax, format, scales);
    Pack<std::uint8_t, kSize> result;
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      result.v[e] = fp8_code(__fmul_rn(simt::to_float(group.v[e]), scale), format);
    }
    store_pack(codes + i, result);
  }
};

template <typename T>
struct Decode {
  const std::uint8_t* codes;
  const std::uint32_t* amax;
  T* y;
  Fp8Format format;
  Fp8Scales scales;

  template <int kSize>
  __device__ Pack<std::uint8_t, kSize> load(std::int64_t i) const {
    return load_pack<kSize>(codes + i);
  }
  template <int kSize>
  __device__ void store(std::int64_t i, const Pack<std::uint8_t, kSize>& group) const {
    const float reciprocal = __fdiv_rn(1.0F, fp8_scale(*amax, format, scales));
    Pack<T, kSize> result;
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      result.v[e] = simt::from_float<T>(__fmul_rn(fp8_value(group.v[e], format), reciprocal));
    }
    store_pack(y + i, result);
  }
};

}  // namespace

void clear_amax(const TensorView& amax, Stream& stream) {
  simt::launch(clear_word, 1, 32, 0, handle(stream), device_data<std::uint32_t>(amax));
}

void amax(const AmaxArgs& args, Stream& stream) {
  check_arguments(args);
  const cudaStream_t queue = handle(stream);
  auto* const word = device_data<std::uint32_t>(args.amax);
  if (!args.accumulate) clear_amax(args.amax, stream);
  const std::int64_t n = args.x.numel();
  if (n == 0) return;
  with_element_type("amax", args.x.dtype, [&]<typename T>(ElementType<T>) {
    constexpr int kSize = kGroupOf<T>;
    const T* const x = device_data<const T>(args.x);
    const bool grouped = groups_aligned<kSize>(x);
    const std::int64_t per_block = std::int64_t{kAmaxThreads} * (grouped ? kSize : 1);
    const unsigned blocks =
        static_cast<unsigned>(std::min<std::int64_t>(ceil_div(n, per_block), kMostAmaxBlocks));
    simt::launch(grouped ? largest_magnitude<T, kSize> : largest_magnitude<T, 1>, blocks,
                 kAmaxThreads, 0, queue, x, n, word);
  });
}

void max_words(const MaxWordsArgs& args, Stream& stream) {
  check_arguments(args);
  const std::int64_t columns = args.rows.shape[1];
  if (columns == 0) return;
  const auto blocks = static_cast<unsigned>(ceil_div(columns, std::int64_t{kAmaxThreads}));
  simt::launch(largest_of_rows, blocks, kAmaxThreads, 0, handle(stream),
               device_data<const std::uint32_t>(args.rows), args.rows.shape[0], columns,
               device_data<std::uint32_t>(args.words));
}

void fp8_encode(const Fp8EncodeArgs& args, Stream& stream) {
  check_arguments(args);
  if (args.x.numel() == 0) return;
  if (args.transposed) return fp8_encode_transposed(args, stream);
  with_element_type("fp8_encode", args.x.dtype, [&]<typename T>(ElementType<T>) {
    constexpr int kSize = kGroupOf<T>;
    const Encode<T> op{device_data<T>(args.x), device_data<std::uint32_t>(args.amax),
                       args.codes.as<std::uint8_t>(), args.format, args.scales};
    launch_elementwise<kSize>(op, args.x.numel(), groups_aligned<kSize>(op.x, op.codes), stream);
  });
}

void fp8_decode(const Fp8DecodeArgs& args, Stream& stream) {
  check_arguments(args);
  with_element_type("fp8_decode", args.y.dtype, [&]<typename T>(ElementType<T>) {
    constexpr int kSize = kGroupOf<T>;
    const Decode<T> op{args.codes.as<std::uint8_t>(), device_data<std::uint32_t>(args.amax),
                       device_data<T>(args.y), args.format, args.scales};
    launch_elementwise<kSize>(op, args.y.numel(), groups_aligned<kSize>(op.codes, op.y), stream);
  });
}

}  // namespace tessera::cuda

#include <algorithm>

#include "cuda/cuda_kernels.h"
#include "cuda/elementwise_cuda.h"
#include "quantized_arguments.h"
#include "tessera/kernels/dynamic_map.h"

// Weights of their codes and scales (weight_format.h), with the bits of the CPU's kernel. A thread
// makes 8 neighbours: they have one scale in nf4 and fp4, and in int8 where rows are a multiple of
// 8 long. Bytes: 0.5625 (coded scales: 0.516, int8: 1) read and 4 or 2 written per weight.

namespace tessera::cuda {
namespace {

constexpr int kDecodeThreads = 256;
constexpr int kDecodeGroup = 8;

/// By value: a kernel's parameters.
struct CodeTable {
  float entries[16];
};

/// Writes up to 8 weights: whole groups by wide stores if dst is aligned for them.
template <typename T>
__device__ void store_weights(T* to, const float (&weights)[kDecodeGroup], std::int64_t count,
                              bool aligned) {
  constexpr int kSize = kGroupOf<T>;
  if (aligned && count >= kDecodeGroup) {
#pragma unroll
    for (int g = 0; g < kDecodeGroup; g += kSize) {
      Pack<T, kSize> pack;
#pragma unroll
      for (int e = 0; e < kSize; ++e) pack.v[e] = simt::from_float<T>(weights[g + e]);
      store_pack(to + g, pack);
    }
    return;
  }
#pragma unroll
  for (int e = 0; e < kDecodeGroup; ++e) {
    if (e < count) to[e] = simt::from_float<T>(weights[e]);
  }
}

/// The codes of 8 neighbours, of which `count` are there.
__device__ std::uint32_t load_codes(const std::uint8_t* codes, std::int64_t first,
                                    std::int64_t count) {
  if (count >= kDecodeGroup) return *reinterpret_cast<const std::uint32_t*>(codes + first / 2);
  std::uint32_t pairs = 0;
  for (int b = 0; 2 * b < count; ++b) {
    pairs |= static_cast<std::uint32_t>(codes[first / 2 + b]) << (8 * b);
  }
  return pairs;
}

/// Scales that have codes of their own. By value: a kernel's parameters.
struct DeviceScales {
  const float* numbers;
  const std::uint8_t* codes;
  JoinedScales parts[kMostJoined];
  float map[256];
};

/// Shared memory has both tables. A block's weights have one scale.
template <typename T>
__global__ void __launch_bounds__(kDecodeThreads)
    dequantize_coded(const std::uint8_t* codes, T* dst, std::int64_t n, DeviceScales scales,
                     CodeTable table, bool aligned) {
  static_assert(kDecodeThreads == 256, "a thread for each number of the map");
  SIMT_SHARED(float[16], entries);
  SIMT_SHARED(float[256], map);
  if (threadIdx.x < 16) entries[threadIdx.x] = table.entries[threadIdx.x];
  map[threadIdx.x] = scales.map[threadIdx.x];
  __syncthreads();
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kDecodeThreads +
                              static_cast<std::int64_t>(threadIdx.x)) *
                             kDecodeGroup;
  if (first >= n) return;
  const std::int64_t count = n - first;
  const std::int64_t block = first / kQuantizedBlock;
  JoinedScales part = scales.parts[0];
#pragma unroll
  for (std::size_t p = 1; p < kMostJoined; ++p) {
    if (scales.parts[p].blocks > 0 && block >= scales.parts[p].first_block) part = scales.parts[p];
  }
  const float* const numbers = scales.numbers + part.mean;
  const std::int64_t group = (block - part.first_block) / kScaleGroup;
  const float scale =
      __fadd_rn(__fmul_rn(map[scales.codes[block]], numbers[1 + group]), numbers[0]);
  const std::uint32_t pairs = load_codes(codes, first, count);
  float weights[kDecodeGroup];
#pragma unroll
  for (int e = 0; e < kDecodeGroup; ++e) {
    const int shift = e / 2 * 8 + (e % 2 == 0 ? 4 : 0);
    weights[e] = entries[pairs >> shift & 15U] * scale;
  }
  store_weights(dst + first, weights, count, aligned);
}

/// Shared memory has the table: its 16 entries are in as many banks, so lookups never collide.
template <typename T>
__global__ void __launch_bounds__(kDecodeThreads)
    dequantize_4bit(const std::uint8_t* codes, const float* scales, T* dst, std::int64_t n,
                    CodeTable table, bool aligned) {
  SIMT_SHARED(float[16], entries);
  if (threadIdx.x < 16) entries[threadIdx.x] = table.entries[threadIdx.x];
  __syncthreads();
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kDecodeThreads +
                              static_cast<std::int64_t>(threadIdx.x)) *
                             kDecodeGroup;
  if (first >= n) return;
  const std::int64_t count = n - first;
  const float scale = scales[first / kQuantizedBlock];
  const std::uint32_t pairs = load_codes(codes, first, count);
  float weights[kDecodeGroup];
#pragma unroll
  for (int e = 0; e < kDecodeGroup; ++e) {
    const int shift = e / 2 * 8 + (e % 2 == 0 ? 4 : 0);
    weights[e] = entries[pairs >> shift & 15U] * scale;
  }
  store_weights(dst + first, weights, count, aligned);
}

template <typename T>
__global__ void __launch_bounds__(kDecodeThreads)
    dequantize_int8(const std::int8_t* codes, const float* scales, T* dst, std::int64_t n,
                    std::int64_t columns, bool aligned) {
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kDecodeThreads +
                              static_cast<std::int64_t>(threadIdx.x)) *
                             kDecodeGroup;
  if (first >= n) return;
  const std::int64_t count = n - first;
  float weights[kDecodeGroup];
#pragma unroll
  for (int e = 0; e < kDecodeGroup; ++e) {
    if (e < count) {
      const std::int64_t i = first + e;
      weights[e] = static_cast<float>(codes[i]) * scales[i / columns] * kInt8Step;
    } else {
      weights[e] = 0.0F;
    }
  }
  store_weights(dst + first, weights, count, aligned);
}

DeviceScales device_scales(const DequantizeArgs& args, const QuantizedSizes& sizes) {
  const JoinedLayout layout = joined_layout(args.dst.shape, args.joined);
  DeviceScales scales{};
  scales.numbers = reinterpret_cast<const float*>(args.src.data + sizes.scales_begin);
  scales.codes = reinterpret_cast<const std::uint8_t*>(args.src.data) + sizes.scale_codes_begin;
  std::copy(layout.parts.begin(), layout.parts.end(), scales.parts);
  std::copy_n(dynamic_map(true).begin(), 256, scales.map);
  return scales;
}

}  // namespace

void dequantize(const DequantizeArgs& args, Stream& stream) {
  check_arguments(args);
  const std::int64_t n = args.dst.numel();
  const cudaStream_t queue = handle(stream);
  if (n == 0) return;
  if (const auto apart = arguments_apart(args); !apart.empty()) {
    for (const DequantizeArgs& own : apart) dequantize(own, stream);
    return;
  }
  const QuantizedSizes sizes = quantized_sizes(args.format, args.dst.shape, args.joined);
  const auto* const scales = reinterpret_cast<const float*>(args.src.data + sizes.scales_begin);
  const dim3 blocks(blocks_for(n, std::int64_t{kDecodeThreads} * kDecodeGroup));
  with_element_type("dequantize", args.dst.dtype, [&]<typename T>(ElementType<T>) {
    T* const dst = device_data<T>(args.dst);
    const bool aligned = is_aligned(dst, 16);
    if (!has_short_codes(args.format)) {
      simt::launch(dequantize_int8<T>, blocks, dim3(kDecodeThreads), 0, queue,
                   reinterpret_cast<const std::int8_t*>(args.src.data), scales, dst, n,
                   n / sizes.scales, aligned);
      return;
    }
    CodeTable table{};
    std::copy_n(code_table(args.format).begin(), 16, table.entries);
    if (has_coded_scales(args.format)) {
      simt::launch(dequantize_coded<T>, blocks, dim3(kDecodeThreads), 0, queue,
                   reinterpret_cast<const std::uint8_t*>(args.src.data), dst, n,
                   device_scales(args, sizes), table, aligned);
      return;
    }
    simt::launch(dequantize_4bit<T>, blocks, dim3(kDecodeThreads), 0, queue,
                 reinterpret_cast<const std::uint8_t*>(args.src.data), scales, dst, n, table,
                 aligned);
  });
}

}  // namespace tessera::cuda

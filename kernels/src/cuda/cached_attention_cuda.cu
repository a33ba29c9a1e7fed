#include <algorithm>
#include <cstdint>

#include "cached_attention_arguments.h"
#include "cuda/cuda_kernels.h"
#include "cuda/cuda_launch.h"
#include "cuda/soft_cap_cuda.h"
#include "simt.h"

// Attention of a few queries over keys and values that are kept; formulas, also of a soft cap, in
// attention_forward_cuda.cu. qkv (N, 3, H, D), keys and values (K, S, D), out (N, H, D) T. Bytes:
// the keys and values that a query sees, once for each query and head.
//
// A block is a query of a head. Its warps take keys in turn, kKeysAtOnce at a time so that as many
// sums over lanes are on their way together; a lane has every 32nd channel. Each warp keeps a
// maximum, a sum of exponentials and a sum of values (D) of its own, which are put together in
// order of the warps. Which warp takes a key is decided by its distance from the first that the
// query sees, so a query's bits depend on its position and the window alone.

namespace tessera::cuda {
namespace {

constexpr int kCachedWarps = 8;
constexpr int kCachedThreads = 32 * kCachedWarps;
constexpr int kKeysAtOnce = 4;

template <typename T>
struct CachedProblem {
  const T* qkv;
  T* keys;
  T* values;
  T* out;
  std::int64_t key_stride, value_stride;  // between heads
  std::int64_t rows, length, window;
  int heads, kv_heads, width;
  float scale, soft_cap;  // no cap: 0
};

template <typename T>
__global__ void __launch_bounds__(kCachedThreads) keep_rows(const CachedProblem<T> p) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t position = p.length - p.rows + row;
  const T* const from = p.qkv + row * 3 * p.heads * p.width;
  for (int i = static_cast<int>(threadIdx.x); i < p.kv_heads * p.width; i += kCachedThreads) {
    const int head = i / p.width, channel = i % p.width;
    const int first_copy = head * (p.heads / p.kv_heads) * p.width + channel;
    const std::int64_t to = position * p.width + channel;
    p.keys[head * p.key_stride + to] = from[p.heads * p.width + first_copy];
    p.values[head * p.value_stride + to] = from[2 * p.heads * p.width + first_copy];
  }
}

/// What one warp, or all of them together, have of a query: kChannels channels a lane.
template <int kChannels>
struct PartialAttention {
  float maximum = -INFINITY, sum = 0.0F;
  float value[kChannels] = {};
};

/// Adds `count` keys in a row to it. `query`: its lane's channels, scaled.
template <bool kCapped, int kChannels, typename T>
__device__ void add_keys(PartialAttention<kChannels>& part, const float (&query)[kChannels],
                         const T* keys, const T* values, int count, int width, float soft_cap,
                         int lane) {
  float score[kKeysAtOnce];
#pragma unroll
  for (int k = 0; k < kKeysAtOnce; ++k) {
    float dot = 0.0F;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const int channel = lane + 32 * c;
      if (k < count && channel < width) {
        dot = fmaf(query[c], simt::to_float(keys[k * width + channel]), dot);
      }
    }
    score[k] = dot;
  }
  float maximum = part.maximum;
#pragma unroll
  for (int k = 0; k < kKeysAtOnce; ++k) {
    score[k] = k < count ? simt::warp_sum(score[k]) : -INFINITY;
    if (kCapped && k < count) score[k] = SoftCap<T>(soft_cap)(score[k]);
    maximum = fmaxf(maximum, score[k]);
  }
  const float shrink = part.sum == 0.0F ? 0.0F : expf(part.maximum - maximum);
  part.maximum = maximum;
  part.sum *= shrink;
#pragma unroll
  for (int c = 0; c < kChannels; ++c) part.value[c] *= shrink;
#pragma unroll
  for (int k = 0; k < kKeysAtOnce; ++k) {
    if (k >= count) continue;
    const float weight = expf(score[k] - maximum);
    part.sum += weight;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const int channel = lane + 32 * c;
      if (channel < width) {
        part.value[c] = fmaf(weight, simt::to_float(values[k * width + channel]), part.value[c]);
      }
    }
  }
}

/// Dynamic shared memory: the warps' sums of values (kCachedWarps, D).
template <int kChannels, bool kCapped, typename T>
__global__ void __launch_bounds__(kCachedThreads)
    cached_attention_kernel(const CachedProblem<T> p) {
  SIMT_SHARED(float[kCachedWarps], maxima);
  SIMT_SHARED(float[kCachedWarps], sums);
  float* const all_values = simt::dynamic_shared<float>();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t row = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const int kv_head = head / (p.heads / p.kv_heads);
  const T* const q = p.qkv + (row * 3 * p.heads + head) * p.width;
  const T* const keys = p.keys + kv_head * p.key_stride;
  const T* const values = p.values + kv_head * p.value_stride;
  float query[kChannels];
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    const int channel = lane + 32 * c;
    query[c] = channel < p.width ? simt::to_float(q[channel]) * p.scale : 0.0F;
  }
  const std::int64_t end = p.length - p.rows + row + 1;
  const std::int64_t begin = end > p.window ? end - p.window : 0;
  PartialAttention<kChannels> part;
  for (std::int64_t k = begin + warp * kKeysAtOnce; k < end; k += kCachedWarps * kKeysAtOnce) {
    const int count = end - k < kKeysAtOnce ? static_cast<int>(end - k) : kKeysAtOnce;
    add_keys<kCapped>(part, query, keys + k * p.width, values + k * p.width, count, p.width,
                      p.soft_cap, lane);
  }
  if (lane == 0) {
    maxima[warp] = part.maximum;
    sums[warp] = part.sum;
  }
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    const int channel = lane + 32 * c;
    if (channel < p.width) all_values[warp * p.width + channel] = part.value[c];
  }
  __syncthreads();
  float maximum = -INFINITY;
  for (int w = 0; w < kCachedWarps; ++w) maximum = fmaxf(maximum, maxima[w]);
  float factors[kCachedWarps], sum = 0.0F;
#pragma unroll
  for (int w = 0; w < kCachedWarps; ++w) {
    factors[w] = sums[w] == 0.0F ? 0.0F : expf(maxima[w] - maximum);
    sum = fmaf(sums[w], factors[w], sum);
  }
  T* const out = p.out + (row * p.heads + head) * p.width;
  for (int i = static_cast<int>(threadIdx.x); i < p.width; i += kCachedThreads) {
    float total = 0.0F;
#pragma unroll
    for (int w = 0; w < kCachedWarps; ++w) {
      total = fmaf(all_values[w * p.width + i], factors[w], total);
    }
    out[i] = simt::from_float<T>(total / sum);
  }
}

template <int kChannels, typename T>
void launch(const CachedProblem<T>& problem, cudaStream_t queue) {
  const std::size_t shared = static_cast<std::size_t>(kCachedWarps) *
                             static_cast<std::size_t>(problem.width) * sizeof(float);
  simt::launch(problem.soft_cap == 0.0F ? cached_attention_kernel<kChannels, false, T>
                                        : cached_attention_kernel<kChannels, true, T>,
               dim3(blocks_for(problem.rows, 1), static_cast<unsigned>(problem.heads)),
               dim3(kCachedThreads), shared, queue, problem);
}

}  // namespace

void cached_attention(const CachedAttentionArgs& args, Stream& stream) {
  const CachedAttentionSizes s = check_cached_attention(args);
  if (args.qkv.numel() == 0) return;
  with_element_type("cached_attention", args.qkv.dtype, [&]<typename T>(ElementType<T>) {
    const CachedProblem<T> problem{.qkv = device_data<const T>(args.qkv),
                                   .keys = device_data<T>(args.keys),
                                   .values = device_data<T>(args.values),
                                   .out = device_data<T>(args.out),
                                   .key_stride = args.keys.strides[0],
                                   .value_stride = args.values.strides[0],
                                   .rows = s.rows,
                                   .length = s.length,
                                   .window = s.window,
                                   .heads = static_cast<int>(s.heads),
                                   .kv_heads = static_cast<int>(s.kv_heads),
                                   .width = static_cast<int>(s.width),
                                   .scale = args.scores.scale_of(s.width),
                                   .soft_cap = args.scores.soft_cap};
    simt::launch(keep_rows<T>, dim3(blocks_for(s.rows, 1)), dim3(kCachedThreads), 0, handle(stream),
                 problem);
    if (!args.out) return;
    if (s.width <= 64) return launch<2>(problem, handle(stream));
    if (s.width <= 128) return launch<4>(problem, handle(stream));
    launch<static_cast<int>(kMaxHeadWidth) / 32>(problem, handle(stream));
  });
}

}  // namespace tessera::cuda

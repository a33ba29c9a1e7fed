#include <algorithm>
#include <cstdint>

#include "cuda/cuda_kernels.h"
#include "cuda/cuda_launch.h"
#include "cuda/documents_cuda.h"
#include "heads_arguments.h"
#include "simt.h"

// Between the projections of query, key and value and attention: a head's norm, its rotation, and
// copies of keys and values for each query that they serve; formulas in kernel_table.h.
// packed, d_packed (B, L, H + 2 K, D); qkv, d_qkv (B, L, 3, H, D) T; gammas (D) T. Bytes: every
// tensor once; packed again in a backward with norms.
//
// A block takes tokens, one behind the other, and computes a token's angles once; a warp takes
// every kHeadWarps-th head of it, a lane every 32nd channel. Sums along a head: a lane's channels
// in order, then a butterfly. Backward of norms: each warp adds to sums of its own in shared
// memory, which are added in order of the warps when the block is done, to partial sums (blocks, 2,
// D) in scratch; a second kernel adds the blocks in order. How many tokens a block takes is decided
// by their number alone, so the bits depend on the sizes alone.

namespace tessera::cuda {
namespace {

#define TESSERA_ROTARY_FUNCTION __device__ inline
#include "rotary_angle.inc.h"
#undef TESSERA_ROTARY_FUNCTION

constexpr int kHeadWarps = 8;
constexpr int kHeadThreads = 32 * kHeadWarps;
constexpr int kMostAngles = static_cast<int>(kMaxHeadWidth) / 2;
constexpr std::int64_t kMostHeadBlocks = kMultiprocessors * 8;

/// Kernels take them by value: a captured step keeps them.
struct Frequencies {
  float v[kMostAngles];
};

template <typename T>
struct HeadsProblem {
  const T* packed;   // backward: null without norms
  T* qkv;            // backward: d_qkv, which is only read
  T* d_packed;       // forward: null
  const T* q_gamma;  // null: no norms
  const T* k_gamma;
  float* partials;             // (blocks, 2, D); null: not wanted
  const std::int32_t* starts;  // (B, L): of documents; null: one in each sequence
  std::int64_t rows, rows_per_block, length;
  int heads, kv_heads, width, angles;
  float amplitude, epsilon, gamma_offset;

  __device__ int packed_heads() const { return heads + 2 * kv_heads; }
  /// Of head h of queries or keys; null without norms, and for values.
  __device__ const T* gamma(int h) const {
    return h < heads ? q_gamma : h < heads + kv_heads ? k_gamma : nullptr;
  }
  __device__ bool turns(int h) const { return h < heads + kv_heads; }
  __device__ int copies(int h) const { return h < heads ? 1 : heads / kv_heads; }
  /// The first copy of head h among the 3 H of qkv.
  __device__ int first_copy(int h) const {
    return h < heads ? h : heads + (h - heads) * (heads / kv_heads);
  }
};

/// A token's cosines, then its sines; the same for the whole block.
using Angles = float[2 * kMostAngles];

template <typename T>
__device__ void set_angles(const HeadsProblem<T>& p, const Frequencies& frequencies,
                           std::int64_t row, Angles& angles, std::int64_t first_position = 0) {
  const std::int64_t place = row % p.length;
  const auto position =
      static_cast<float>(first_position + place - document_start(p.starts, row, place));
  __syncthreads();  // the token before is done
  for (int i = static_cast<int>(threadIdx.x); i < p.angles; i += kHeadThreads) {
    const SineCosine of = sine_cosine(__fmul_rn(position, frequencies.v[i]));
    angles[i] = of.cosine * p.amplitude;
    angles[kMostAngles + i] = of.sine * p.amplitude;
  }
  __syncthreads();
}

template <typename T>
__device__ float rstd_of(const T* x, const HeadsProblem<T>& p, int lane) {
  float squares = 0.0F;
  for (int i = lane; i < p.width; i += 32) {
    const float value = simt::to_float(x[i]);
    squares = fmaf(value, value, squares);
  }
  return 1.0F / sqrtf(simt::warp_sum(squares) / static_cast<float>(p.width) + p.epsilon);
}

template <typename T>
__global__ void __launch_bounds__(kHeadThreads)
    heads_forward_kernel(const HeadsProblem<T> p, const Frequencies frequencies,
                         const std::int64_t first_position) {
  SIMT_SHARED(Angles, angles);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t row = blockIdx.x;
  set_angles(p, frequencies, row, angles, first_position);
  for (int h = warp; h < p.packed_heads(); h += kHeadWarps) {
    const T* const x = p.packed + (row * p.packed_heads() + h) * p.width;
    const T* const gamma = p.gamma(h);
    const float rstd = gamma == nullptr ? 1.0F : rstd_of(x, p, lane);
    const auto value = [&](int i) {
      const float plain = simt::to_float(x[i]);
      return gamma == nullptr ? plain : plain * rstd * (simt::to_float(gamma[i]) + p.gamma_offset);
    };
    T* const y = p.qkv + (row * 3 * p.heads + p.first_copy(h)) * p.width;
    const auto store = [&](int i, float result) {
      for (int copy = 0; copy < p.copies(h); ++copy)
        y[copy * p.width + i] = simt::from_float<T>(result);
    };
    const int turned = p.turns(h) ? p.angles : 0;
    for (int i = lane; i < turned; i += 32) {
      const float a = value(i), b = value(i + turned);
      const float c = angles[i], s = angles[kMostAngles + i];
      store(i, fmaf(-s, b, c * a));
      store(i + turned, fmaf(s, a, c * b));
    }
    for (int i = 2 * turned + lane; i < p.width; i += 32) store(i, value(i));
  }
}

/// The gradient of channel i of a head: its copies', in order.
template <typename T>
__device__ float sum_copies(const T* dy, int copies, int width, int i) {
  float sum = simt::to_float(dy[i]);
  for (int copy = 1; copy < copies; ++copy) sum += simt::to_float(dy[copy * width + i]);
  return sum;
}

/// d of head h before its rotation, in d_packed's place in fp32: `d` is this warp's (D).
template <typename T>
__device__ void turn_back(const HeadsProblem<T>& p, std::int64_t row, int h, int lane,
                          const Angles& angles, float* d) {
  const T* const dy = p.qkv + (row * 3 * p.heads + p.first_copy(h)) * p.width;
  const int copies = p.copies(h), turned = p.turns(h) ? p.angles : 0;
  for (int i = lane; i < turned; i += 32) {
    const float a = sum_copies(dy, copies, p.width, i);
    const float b = sum_copies(dy, copies, p.width, i + turned);
    const float c = angles[i], s = angles[kMostAngles + i];
    d[i] = fmaf(s, b, c * a);
    d[i + turned] = fmaf(-s, a, c * b);
  }
  for (int i = 2 * turned + lane; i < p.width; i += 32) d[i] = sum_copies(dy, copies, p.width, i);
}

/// Makes dx of d, and adds to dgamma (D), both this warp's.
template <typename T>
__device__ void norm_backward(const HeadsProblem<T>& p, const T* x, const T* gamma, int lane,
                              float* d, float* dgamma) {
  __syncwarp();  // d was written by channel pairs
  const float rstd = rstd_of(x, p, lane);
  float sum = 0.0F;
  for (int i = lane; i < p.width; i += 32) {
    const float n = simt::to_float(x[i]) * rstd;
    sum = fmaf(d[i] * (simt::to_float(gamma[i]) + p.gamma_offset), n, sum);
    dgamma[i] = fmaf(d[i], n, dgamma[i]);
  }
  const float mean = simt::warp_sum(sum) / static_cast<float>(p.width);
  for (int i = lane; i < p.width; i += 32) {
    const float n = simt::to_float(x[i]) * rstd;
    d[i] = rstd * fmaf(-n, mean, d[i] * (simt::to_float(gamma[i]) + p.gamma_offset));
  }
}

/// Dynamic shared memory: (kHeadWarps, D) of the heads at work, then with norms (kHeadWarps, 2, D)
/// of the warps' sums.
template <typename T>
__global__ void __launch_bounds__(kHeadThreads)
    heads_backward_kernel(const HeadsProblem<T> p, const Frequencies frequencies) {
  SIMT_SHARED(Angles, angles);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  float* const shared = simt::dynamic_shared<float>();
  float* const d = shared + warp * p.width;
  float* const sums = shared + kHeadWarps * p.width + warp * 2 * p.width;
  const bool norms = p.q_gamma != nullptr;
  for (int i = lane; norms && i < 2 * p.width; i += 32) sums[i] = 0.0F;
  __syncwarp();
  const std::int64_t begin = blockIdx.x * p.rows_per_block;
  const std::int64_t end = begin + p.rows_per_block < p.rows ? begin + p.rows_per_block : p.rows;
  for (std::int64_t row = begin; row < end; ++row) {
    set_angles(p, frequencies, row, angles);
    for (int h = warp; h < p.packed_heads(); h += kHeadWarps) {
      const std::int64_t at = (row * p.packed_heads() + h) * p.width;
      turn_back(p, row, h, lane, angles, d);
      const T* const gamma = p.gamma(h);
      if (gamma != nullptr) {
        norm_backward(p, p.packed + at, gamma, lane, d, h < p.heads ? sums : sums + p.width);
      }
      __syncwarp();
      for (int i = lane; i < p.width; i += 32) p.d_packed[at + i] = simt::from_float<T>(d[i]);
      __syncwarp();
    }
  }
  if (p.partials == nullptr) return;
  __syncthreads();
  const float* const all = shared + kHeadWarps * p.width;
  for (int i = static_cast<int>(threadIdx.x); i < 2 * p.width; i += kHeadThreads) {
    float total = 0.0F;
    for (int w = 0; w < kHeadWarps; ++w) total += all[w * 2 * p.width + i];
    p.partials[std::int64_t{blockIdx.x} * 2 * p.width + i] = total;
  }
}

/// Adds the blocks' partial sums in order, then to what is there; blockIdx.y: of queries (0) or
/// keys (1).
template <typename D>
__global__ void __launch_bounds__(kHeadThreads)
    add_head_sums(const float* partials, std::int64_t blocks, int width, D* dq_gamma, D* dk_gamma,
                  bool accumulate) {
  const int i = static_cast<int>(blockIdx.x * kHeadThreads + threadIdx.x);
  if (i >= width) return;
  D* const to = (blockIdx.y == 0 ? dq_gamma : dk_gamma) + i;
  float total = 0.0F;
  for (std::int64_t b = 0; b < blocks; ++b) total += partials[(b * 2 + blockIdx.y) * width + i];
  *to = simt::from_float<D>(accumulate ? simt::to_float(*to) + total : total);
}

Frequencies by_value(std::span<const float> frequencies) {
  Frequencies all{};
  std::ranges::copy(frequencies, all.v);
  return all;
}

/// Of both passes.
template <typename T, typename Args>
HeadsProblem<T> problem_of(const HeadsSizes& sizes, const Args& args) {
  return {.packed = nullptr,
          .qkv = nullptr,
          .d_packed = nullptr,
          .q_gamma = device_data<const T>(args.q_gamma),
          .k_gamma = device_data<const T>(args.k_gamma),
          .partials = nullptr,
          .starts = args.starts ? args.starts.template as<std::int32_t>() : nullptr,
          .rows = sizes.rows,
          .rows_per_block = 1,
          .length = sizes.length,
          .heads = static_cast<int>(sizes.heads),
          .kv_heads = static_cast<int>(sizes.kv_heads),
          .width = static_cast<int>(sizes.width),
          .angles = static_cast<int>(sizes.angles),
          .amplitude = args.amplitude,
          .epsilon = args.epsilon,
          .gamma_offset = args.gamma_offset};
}

void add_blocks(const HeadsBackwardArgs& args, const float* partials, std::int64_t blocks,
                std::int64_t width, cudaStream_t queue) {
  with_element_type("heads_backward", args.dq_gamma.dtype, [&]<typename D>(ElementType<D>) {
    simt::launch(add_head_sums<D>, dim3(blocks_for(width, kHeadThreads), 2), dim3(kHeadThreads), 0,
                 queue, partials, blocks, static_cast<int>(width), device_data<D>(args.dq_gamma),
                 device_data<D>(args.dk_gamma), args.accumulate_parameters);
  });
}

}  // namespace

void heads_forward(const HeadsForwardArgs& args, Stream& stream) {
  const HeadsSizes sizes = check_heads(args);
  if (args.qkv.numel() == 0) return;
  with_element_type("heads_forward", args.qkv.dtype, [&]<typename T>(ElementType<T>) {
    auto problem = problem_of<T>(sizes, args);
    problem.packed = device_data<const T>(args.packed);
    problem.qkv = device_data<T>(args.qkv);
    simt::launch(heads_forward_kernel<T>, dim3(blocks_for(sizes.rows, 1)), dim3(kHeadThreads), 0,
                 handle(stream), problem, by_value(args.frequencies), args.first_position);
  });
}

void heads_backward(const HeadsBackwardArgs& args, Stream& stream) {
  const HeadsSizes sizes = check_heads(args);
  if (sizes.width == 0) return;
  with_element_type("heads_backward", args.d_qkv.dtype, [&]<typename T>(ElementType<T>) {
    auto problem = problem_of<T>(sizes, args);
    const bool norms = problem.q_gamma != nullptr;
    problem.packed = norms ? device_data<const T>(args.packed) : nullptr;
    problem.qkv = device_data<T>(args.d_qkv);
    problem.d_packed = device_data<T>(args.d_packed);
    problem.rows_per_block = std::max<std::int64_t>(1, ceil_div(sizes.rows, kMostHeadBlocks));
    const std::int64_t blocks = ceil_div(sizes.rows, problem.rows_per_block);
    const auto sums = static_cast<std::size_t>(2 * sizes.width) * sizeof(float);
    if (args.dq_gamma) {
      problem.partials =
          static_cast<float*>(cuda_stream(stream).scratch(static_cast<std::size_t>(blocks) * sums));
    }
    if (blocks > 0) {
      const std::size_t shared =
          kHeadWarps * (static_cast<std::size_t>(sizes.width) * sizeof(float) + (norms ? sums : 0));
      const auto kernel = heads_backward_kernel<T>;
      simt::allow_dynamic_shared(kernel, shared);
      simt::launch(kernel, dim3(blocks_for(blocks, 1)), dim3(kHeadThreads), shared, handle(stream),
                   problem, by_value(args.frequencies));
    }
    if (args.dq_gamma) {
      add_blocks(args, problem.partials, blocks, sizes.width, handle(stream));
    }
  });
}

}  // namespace tessera::cuda

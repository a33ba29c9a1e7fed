#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "adamw_arguments.h"
#include "cuda/cuda_kernels.h"
#include "cuda/cuda_launch.h"
#include "simt.h"
#include "tessera/kernels/philox.h"

// AdamW on a flat shard in one pass, with the CPU's bits: every operation is rounded as written.
// master, m, v (n) fp32, gradient (n) fp32 or bf16, parameter (n) bf16 or absent. Bytes per
// element: 28 with fp32 gradients (four reads, three writes), 26 with bf16, 2 more with a
// parameter.
//
// A thread takes four elements, 16 bytes of each fp32 tensor; a block a tile of 1024, at multiples
// of 1024 of the shard. Segments go to the kernel by value, as many as fit; a block finds its own
// by bisection. Where a segment ends inside of a group of four, or a view is not aligned, a thread
// takes its elements one by one.

namespace tessera::cuda {
namespace {

using simt::bf16;

constexpr int kGroup = 4;
constexpr int kThreads =
    256;  // 64 bytes in flight per thread: two blocks saturate a multiprocessor
constexpr int kTile = kGroup * kThreads;
/// Of one launch: with 28 bytes each, half of the 4 KiB that parameters may take everywhere.
constexpr int kSegments = 64;

struct Segments {
  int count = 0;
  std::int64_t begin[kSegments] = {}, end[kSegments] = {};
  std::int64_t first_block[kSegments] = {};  // of the grid
  float weight_decay[kSegments] = {};
};

/// AdamWArgs as the device takes it; G is the gradient's type.
template <typename G>
struct Shard {
  float* master;
  const G* gradient;
  float* m;
  float* v;
  bf16* parameter;       // null: none
  const float* scalars;  // (kAdamWScalars)
  float beta1, beta2, epsilon;
  RandomKey rounding_key;
  std::int64_t first_index;
  bool aligned;  // groups of four of every tensor
};

/// What is the same for all elements of a segment.
struct Factors {
  template <typename G>
  __device__ Factors(const Shard<G>& a, float weight_decay)
      : gradient_scale(a.scalars[kAdamWGradientScale]),
        // The product of two fp32 is exact in fp64.
        decay(static_cast<float>(1.0 - static_cast<double>(a.scalars[kAdamWLearningRate]) *
                                           static_cast<double>(weight_decay))),
        beta1(a.beta1),
        one_minus_beta1(1.0F - a.beta1),
        beta2(a.beta2),
        one_minus_beta2(1.0F - a.beta2),
        inverse_root_correction2(a.scalars[kAdamWInverseCorrection2]),
        epsilon(a.epsilon),
        step_size(a.scalars[kAdamWStepSize]) {}

  float gradient_scale, decay;
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float inverse_root_correction2, epsilon, step_size;
};

__device__ void update(const Factors& f, float gradient, float& master, float& m, float& v) {
  const float g = __fmul_rn(f.gradient_scale, gradient);
  const float decayed = __fmul_rn(f.decay, master);
  m = __fmaf_rn(f.beta1, m, __fmul_rn(f.one_minus_beta1, g));
  v = __fmaf_rn(f.beta2, v, __fmul_rn(__fmul_rn(f.one_minus_beta2, g), g));
  const float denominator = __fmaf_rn(__fsqrt_rn(v), f.inverse_root_correction2, f.epsilon);
  master = __fmaf_rn(-f.step_size, __fdiv_rn(m, denominator), decayed);
}

/// What becomes of the parameter.
enum class WriteOut { kNone, kNearest, kAtRandom };

__device__ inline bf16 rounded_at_random(float value, std::uint32_t word) {
  return std::bit_cast<bf16>(bf16_rounded_at_random(value, word));
}

/// The random words of elements index .. index + 3.
__device__ void draw(RandomKey key, std::int64_t index, std::uint32_t (&words)[kGroup]) {
  const auto block = static_cast<std::uint64_t>(index) / 4;
  const auto skipped = static_cast<int>(index % 4);  // the same for all groups of a launch
  const PhiloxCounter first = philox4x32(philox_counter(key, block), philox_key(key));
  PhiloxCounter second{};
  if (skipped != 0) second = philox4x32(philox_counter(key, block + 1), philox_key(key));
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    words[j] = first[j];
#pragma unroll
    for (int s = 1; s < kGroup; ++s) {
      if (skipped == s)
        words[j] = j + s < kGroup ? first[(j + s) % kGroup] : second[(j + s) % kGroup];
    }
  }
}

template <typename T>
struct alignas(kGroup * sizeof(T)) Group {
  T v[kGroup];
};
template <typename T>
__device__ Group<T> load_group(const T* from) {
  return *reinterpret_cast<const Group<T>*>(from);
}
template <typename T>
__device__ void store_group(T* to, const Group<T>& group) {
  *reinterpret_cast<Group<T>*>(to) = group;
}

template <WriteOut kWriteOut, typename G>
__device__ Group<bf16> rounded(const Shard<G>& a, const Group<float>& master, std::int64_t i) {
  Group<bf16> parameter;
  std::uint32_t words[kGroup] = {};
  if constexpr (kWriteOut == WriteOut::kAtRandom) draw(a.rounding_key, a.first_index + i, words);
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    parameter.v[j] = kWriteOut == WriteOut::kAtRandom ? rounded_at_random(master.v[j], words[j])
                                                      : simt::from_float<bf16>(master.v[j]);
  }
  return parameter;
}

template <WriteOut kWriteOut, typename G>
__device__ void update_group(const Shard<G>& a, const Factors& f, std::int64_t i) {
  const Group<G> gradient = load_group(a.gradient + i);
  Group<float> master = load_group(a.master + i);
  Group<float> m = load_group(a.m + i);
  Group<float> v = load_group(a.v + i);
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    update(f, simt::to_float(gradient.v[j]), master.v[j], m.v[j], v.v[j]);
  }
  store_group(a.master + i, master);
  store_group(a.m + i, m);
  store_group(a.v + i, v);
  if constexpr (kWriteOut != WriteOut::kNone) {
    store_group(a.parameter + i, rounded<kWriteOut>(a, master, i));
  }
}

template <WriteOut kWriteOut, typename G>
__device__ void update_element(const Shard<G>& a, const Factors& f, std::int64_t i) {
  float master = a.master[i], m = a.m[i], v = a.v[i];
  update(f, simt::to_float(a.gradient[i]), master, m, v);
  a.master[i] = master;
  a.m[i] = m;
  a.v[i] = v;
  if constexpr (kWriteOut == WriteOut::kAtRandom) {
    std::uint32_t words[kGroup];
    draw(a.rounding_key, a.first_index + i, words);
    a.parameter[i] = rounded_at_random(master, words[0]);
  } else if constexpr (kWriteOut == WriteOut::kNearest) {
    a.parameter[i] = simt::from_float<bf16>(master);
  }
}

/// The last segment whose first block is not behind `block`.
__device__ int segment_of(const Segments& segments, std::int64_t block) {
  int low = 0, high = segments.count;  // it is in [low, high)
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (segments.first_block[middle] <= block ? low : high) = middle;
  }
  return low;
}

template <WriteOut kWriteOut, typename G>
__global__ void __launch_bounds__(kThreads)
    update_segments(const Shard<G> a, const __grid_constant__ Segments segments) {
  const std::int64_t block = blockIdx.x;
  const int s = segment_of(segments, block);
  const std::int64_t tile = segments.begin[s] / kTile + (block - segments.first_block[s]);
  const std::int64_t group = tile * kTile + kGroup * std::int64_t{threadIdx.x};
  const std::int64_t begin = segments.begin[s] > group ? segments.begin[s] : group;
  const std::int64_t end = segments.end[s] < group + kGroup ? segments.end[s] : group + kGroup;
  if (begin >= end) return;
  const Factors f(a, segments.weight_decay[s]);
  if (a.aligned && end - begin == kGroup) {
    update_group<kWriteOut>(a, f, group);
  } else {
    for (std::int64_t i = begin; i < end; ++i) update_element<kWriteOut>(a, f, i);
  }
}

template <typename G>
Shard<G> shard_of(const AdamWArgs& args) {
  Shard<G> a{.master = args.master.as<float>(),
             .gradient = device_data<const G>(args.gradient),
             .m = args.m.as<float>(),
             .v = args.v.as<float>(),
             .parameter = device_data<bf16>(args.parameter),
             .scalars = args.scalars.as<float>(),
             .beta1 = args.beta1,
             .beta2 = args.beta2,
             .epsilon = args.epsilon,
             .rounding_key = args.rounding_key,
             .first_index = args.first_index,
             .aligned = false};
  a.aligned = is_aligned(a.master, alignof(Group<float>)) &&
              is_aligned(a.m, alignof(Group<float>)) && is_aligned(a.v, alignof(Group<float>)) &&
              is_aligned(a.gradient, alignof(Group<G>)) &&
              is_aligned(a.parameter, alignof(Group<bf16>));
  return a;
}

/// One launch for up to kSegments of them.
template <typename G>
void update_chunk(const Shard<G>& shard, std::span<const AdamWSegment> chunk, WriteOut write_out,
                  cudaStream_t stream) {
  Segments segments;
  std::int64_t blocks = 0;
  for (const AdamWSegment& segment : chunk) {
    if (segment.begin == segment.end) continue;
    const int i = segments.count++;
    segments.begin[i] = segment.begin;
    segments.end[i] = segment.end;
    segments.first_block[i] = blocks;
    segments.weight_decay[i] = segment.weight_decay;
    blocks += ceil_div(segment.end, kTile) - segment.begin / kTile;
  }
  if (blocks == 0) return;
  const auto kernel = write_out == WriteOut::kNone      ? update_segments<WriteOut::kNone, G>
                      : write_out == WriteOut::kNearest ? update_segments<WriteOut::kNearest, G>
                                                        : update_segments<WriteOut::kAtRandom, G>;
  simt::launch(kernel, blocks_for(blocks, 1), kThreads, 0, stream, shard, segments);
}

}  // namespace

void adamw(const AdamWArgs& args, Stream& stream) {
  check_adamw(args);
  const WriteOut write_out = !args.parameter            ? WriteOut::kNone
                             : args.stochastic_rounding ? WriteOut::kAtRandom
                                                        : WriteOut::kNearest;
  with_element_type("adamw", args.gradient.dtype, [&]<typename G>(ElementType<G>) {
    const Shard<G> shard = shard_of<G>(args);
    for (std::size_t i = 0; i < args.segments.size(); i += kSegments) {
      const std::size_t count = std::min<std::size_t>(kSegments, args.segments.size() - i);
      update_chunk(shard, args.segments.subspan(i, count), write_out, handle(stream));
    }
  });
}

}  // namespace tessera::cuda

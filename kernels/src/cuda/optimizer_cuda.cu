#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

#include "cuda/cuda_kernels.h"
#include "cuda/cuda_launch.h"
#include "optimizer_arguments.h"
#include "simt.h"
#include "tessera/core/error.h"
#include "tessera/kernels/philox.h"

// One step of any optimizer on a flat shard in one pass, with the CPU's bits: every operation is
// rounded as written. master and states (n) fp32, gradient (n) fp32 or bf16, parameter (n) bf16 or
// absent. Bytes per element with an fp32 gradient: 12, and 8 more for each state (AdamW: 28), 2
// less with one in bf16, 2 more with a parameter.
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

#define TESSERA_UPDATE_RULE __device__
#include "optimizers/update_rules.h"

/// How an update rule computes on one element.
struct ElementMath {
  using Value = float;
  static __device__ float mul(float a, float b) { return __fmul_rn(a, b); }
  static __device__ float mul_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
  static __device__ float div(float a, float b) { return __fdiv_rn(a, b); }
  static __device__ float sqrt(float a) { return __fsqrt_rn(a); }
};

/// OptimizerStepArgs as the device takes them; G is the gradient's type.
template <typename Rule, typename G>
struct Shard {
  static constexpr int kStates = Rule::kStateCount;
  static constexpr bool kStatesOptional = Rule::kRow.states_optional;
  float* master;
  const G* gradient;
  float* states[kStates];            // null: not kept
  bf16* parameter;                   // null: none
  const float* scalars;              // (kOptimizerScalars)
  const float* gradient_scale;       // (1)
  const std::int64_t* skip;          // (1); null: never
  const std::int64_t* rounding_key;  // (kRandomKeyWords)
  std::int64_t first_index;
  bool aligned;  // groups of four of every tensor

  __device__ bool keeps(int state) const { return !kStatesOptional || states[state] != nullptr; }
  __device__ auto factors(float weight_decay) const {
    return Rule::factors(scalars, *gradient_scale, weight_decay);
  }
};

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

/// Read before anything is stored, which might alias it as far as the compiler knows.
template <WriteOut kWriteOut, typename Shard>
__device__ RandomKey rounding_key(const Shard& a) {
  return kWriteOut == WriteOut::kAtRandom ? load_random_key(a.rounding_key) : RandomKey{};
}

template <WriteOut kWriteOut, typename Shard>
__device__ Group<bf16> rounded(const Shard& a, RandomKey key, const Group<float>& master,
                               std::int64_t i) {
  Group<bf16> parameter;
  std::uint32_t words[kGroup] = {};
  if constexpr (kWriteOut == WriteOut::kAtRandom) draw(key, a.first_index + i, words);
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    parameter.v[j] = kWriteOut == WriteOut::kAtRandom ? rounded_at_random(master.v[j], words[j])
                                                      : simt::from_float<bf16>(master.v[j]);
  }
  return parameter;
}

template <WriteOut kWriteOut, typename Rule, typename G>
__device__ void update_group(const Shard<Rule, G>& a, const typename Rule::Factors& f,
                             std::int64_t i) {
  constexpr int kStates = Rule::kStateCount;
  const RandomKey key = rounding_key<kWriteOut>(a);
  const Group<G> gradient = load_group(a.gradient + i);
  Group<float> master = load_group(a.master + i);
  Group<float> states[kStates];
#pragma unroll
  for (int s = 0; s < kStates; ++s) {
    states[s] = a.keeps(s) ? load_group(a.states[s] + i) : Group<float>{};
  }
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    float of_element[kStates];
#pragma unroll
    for (int s = 0; s < kStates; ++s) of_element[s] = states[s].v[j];
    Rule::template update<ElementMath>(f, simt::to_float(gradient.v[j]), master.v[j], of_element);
#pragma unroll
    for (int s = 0; s < kStates; ++s) states[s].v[j] = of_element[s];
  }
  store_group(a.master + i, master);
#pragma unroll
  for (int s = 0; s < kStates; ++s) {
    if (a.keeps(s)) store_group(a.states[s] + i, states[s]);
  }
  if constexpr (kWriteOut != WriteOut::kNone) {
    store_group(a.parameter + i, rounded<kWriteOut>(a, key, master, i));
  }
}

template <WriteOut kWriteOut, typename Rule, typename G>
__device__ void update_element(const Shard<Rule, G>& a, const typename Rule::Factors& f,
                               std::int64_t i) {
  constexpr int kStates = Rule::kStateCount;
  const RandomKey key = rounding_key<kWriteOut>(a);
  float master = a.master[i];
  float states[kStates];
  for (int s = 0; s < kStates; ++s) states[s] = a.keeps(s) ? a.states[s][i] : 0.0F;
  Rule::template update<ElementMath>(f, simt::to_float(a.gradient[i]), master, states);
  a.master[i] = master;
  for (int s = 0; s < kStates; ++s) {
    if (a.keeps(s)) a.states[s][i] = states[s];
  }
  if constexpr (kWriteOut == WriteOut::kAtRandom) {
    std::uint32_t words[kGroup];
    draw(key, a.first_index + i, words);
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

template <WriteOut kWriteOut, typename Rule, typename G>
__global__ void __launch_bounds__(kThreads)
    update_segments(const Shard<Rule, G> a, const __grid_constant__ Segments segments) {
  if (a.skip != nullptr && *a.skip != 0) return;
  const std::int64_t block = blockIdx.x;
  const int s = segment_of(segments, block);
  const std::int64_t tile = segments.begin[s] / kTile + (block - segments.first_block[s]);
  const std::int64_t group = tile * kTile + kGroup * std::int64_t{threadIdx.x};
  const std::int64_t begin = segments.begin[s] > group ? segments.begin[s] : group;
  const std::int64_t end = segments.end[s] < group + kGroup ? segments.end[s] : group + kGroup;
  if (begin >= end) return;
  const auto factors = a.factors(segments.weight_decay[s]);
  if (a.aligned && end - begin == kGroup) {
    update_group<kWriteOut>(a, factors, group);
  } else {
    for (std::int64_t i = begin; i < end; ++i) update_element<kWriteOut>(a, factors, i);
  }
}

template <typename Rule, typename G>
Shard<Rule, G> shard_of(const OptimizerStepArgs& args) {
  Shard<Rule, G> a{.master = args.master.as<float>(),
                   .gradient = device_data<const G>(args.gradient),
                   .states = {},
                   .parameter = device_data<bf16>(args.parameter),
                   .scalars = args.scalars.as<float>(),
                   .gradient_scale = args.gradient_scale.as<float>(),
                   .skip = device_data<const std::int64_t>(args.skip),
                   .rounding_key = device_data<const std::int64_t>(args.rounding_key),
                   .first_index = args.first_index,
                   .aligned = false};
  a.aligned = is_aligned(a.master, alignof(Group<float>)) &&
              is_aligned(a.gradient, alignof(Group<G>)) &&
              is_aligned(a.parameter, alignof(Group<bf16>));
  for (int s = 0; s < Rule::kStateCount; ++s) {
    a.states[s] = state_data(args, static_cast<std::size_t>(s));
    a.aligned = a.aligned && is_aligned(a.states[s], alignof(Group<float>));
  }
  return a;
}

/// One launch for up to kSegments of them.
template <typename Rule, typename G>
void update_chunk(const Shard<Rule, G>& shard, std::span<const OptimizerSegment> chunk,
                  WriteOut write_out, cudaStream_t stream) {
  Segments segments;
  std::int64_t blocks = 0;
  for (const OptimizerSegment& segment : chunk) {
    if (segment.begin == segment.end) continue;
    const int i = segments.count++;
    segments.begin[i] = segment.begin;
    segments.end[i] = segment.end;
    segments.first_block[i] = blocks;
    segments.weight_decay[i] = segment.weight_decay;
    blocks += ceil_div(segment.end, kTile) - segment.begin / kTile;
  }
  if (blocks == 0) return;
  const auto kernel = write_out == WriteOut::kNone ? update_segments<WriteOut::kNone, Rule, G>
                      : write_out == WriteOut::kNearest
                          ? update_segments<WriteOut::kNearest, Rule, G>
                          : update_segments<WriteOut::kAtRandom, Rule, G>;
  simt::launch(kernel, blocks_for(blocks, 1), kThreads, 0, stream, shard, segments);
}

template <typename Rule>
void step_of(const OptimizerStepArgs& args, cudaStream_t stream) {
  const WriteOut write_out = !args.parameter            ? WriteOut::kNone
                             : args.stochastic_rounding ? WriteOut::kAtRandom
                                                        : WriteOut::kNearest;
  with_element_type("optimizer step", args.gradient.dtype, [&]<typename G>(ElementType<G>) {
    const Shard<Rule, G> shard = shard_of<Rule, G>(args);
    for (std::size_t i = 0; i < args.segments.size(); i += kSegments) {
      const std::size_t count = std::min<std::size_t>(kSegments, args.segments.size() - i);
      update_chunk(shard, args.segments.subspan(i, count), write_out, stream);
    }
  });
}

}  // namespace

void optimizer_step(const OptimizerStepArgs& args, Stream& stream) {
  check_optimizer_step(args);
  AllRules::visit(args.optimizer->rule,
                  [&]<typename Rule>(Rule) { step_of<Rule>(args, handle(stream)); });
}

}  // namespace tessera::cuda

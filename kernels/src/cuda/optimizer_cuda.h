#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "cuda/cuda_launch.h"
#include "dynamic_codes.h"
#include "simt.h"
#include "tessera/core/error.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/kernels/optimizer.h"
#include "tessera/kernels/philox.h"

// Parts that the kernels of an optimizer's step share (optimizer_cuda.cu, optimizer_coded_cuda.cu).
namespace tessera::cuda {

#define TESSERA_UPDATE_RULE __device__
#include "optimizers/update_rules.h"

constexpr int kGroup = 4;
constexpr int kUpdateThreads =
    256;  // 64 bytes in flight per thread: two blocks saturate a multiprocessor
/// A launch takes so many: with 32 bytes each, half of the 4 KiB that parameters may take
/// everywhere.
constexpr int kSegments = 64;

struct Segments {
  int count = 0;
  std::int64_t blocks = 0;  // of work; a block of the grid takes one or several
  std::int64_t begin[kSegments] = {}, end[kSegments] = {};
  std::int64_t first_block[kSegments] = {};  // of those
  SegmentRates rates[kSegments] = {};
};

/// The last segment whose first block is not behind `block`.
__device__ inline int segment_of(const Segments& segments, std::int64_t block) {
  int low = 0, high = segments.count;  // it is in [low, high)
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (segments.first_block[middle] <= block ? low : high) = middle;
  }
  return low;
}

/// How an update rule computes on one element.
struct ElementMath {
  using Value = float;
  static __device__ float mul(float a, float b) { return __fmul_rn(a, b); }
  static __device__ float mul_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
  static __device__ float div(float a, float b) { return __fdiv_rn(a, b); }
  static __device__ float sqrt(float a) { return __fsqrt_rn(a); }
  static __device__ float sign(float a) { return a > 0.0F ? 1.0F : a < 0.0F ? -1.0F : a; }
};

/// OptimizerStepArgs as the device takes them; G is the gradient's type, P the parameter's.
template <typename Rule, typename G, typename P>
struct Shard {
  using Gradient = G;
  using Parameter = P;
  static constexpr int kStates = Rule::kStateCount;
  static constexpr bool kStatesOptional = Rule::kRow.states_optional;
  float* master;
  const G* gradient;
  float* states[kStates];            // null: not kept
  P* parameter;                      // null: none
  const float* scalars;              // (kOptimizerScalars)
  const float* gradient_scale;       // (1)
  const std::int64_t* skip;          // (1); null: never
  const std::int64_t* rounding_key;  // (kRandomKeyWords)
  std::int64_t first_index;
  bool aligned;  // groups of four of every tensor

  __device__ bool keeps(int state) const { return !kStatesOptional || states[state] != nullptr; }
  __device__ auto factors(const SegmentRates& rates) const {
    return Rule::factors(scalars, *gradient_scale, rates);
  }
};

template <typename T>
struct alignas(kGroup * sizeof(T)) Group {
  T v[kGroup];
};

/// A shard (Shard, CodedShard) with the members that do not depend on how states are stored;
/// `aligned` is of these.
template <typename Shard>
Shard shard_without_states(const OptimizerStepArgs& args) {
  using G = typename Shard::Gradient;
  using P = typename Shard::Parameter;
  Shard a{};
  a.master = args.master.as<float>();
  a.gradient = device_data<const G>(args.gradient);
  a.parameter = device_data<P>(args.parameter);
  a.scalars = args.scalars.as<float>();
  a.gradient_scale = args.gradient_scale.as<float>();
  a.skip = device_data<const std::int64_t>(args.skip);
  a.rounding_key = device_data<const std::int64_t>(args.rounding_key);
  a.first_index = args.first_index;
  a.aligned = is_aligned(a.master, alignof(Group<float>)) &&
              is_aligned(a.gradient, alignof(Group<G>)) &&
              is_aligned(a.parameter, alignof(Group<P>));
  return a;
}

/// The fate of the parameter.
enum class WriteOut { kNone, kNearest, kAtRandom };

__device__ inline simt::bf16 rounded_at_random(float value, std::uint32_t word) {
  return std::bit_cast<simt::bf16>(bf16_rounded_at_random(value, word));
}

/// The random words of elements index .. index + 3.
__device__ inline void draw(RandomKey key, std::int64_t index, std::uint32_t (&words)[kGroup]) {
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
__device__ auto rounded(const Shard& a, RandomKey key, const Group<float>& master, std::int64_t i) {
  Group<typename Shard::Parameter> parameter;
  if constexpr (kWriteOut == WriteOut::kAtRandom) {
    std::uint32_t words[kGroup];
    draw(key, a.first_index + i, words);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) parameter.v[j] = rounded_at_random(master.v[j], words[j]);
  } else {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      parameter.v[j] = simt::from_float<typename Shard::Parameter>(master.v[j]);
    }
  }
  return parameter;
}

/// Fills in the segments of one launch; blocks_of(segment) says how many blocks each has.
template <typename BlocksOf>
void fill_segments(Segments& segments, std::span<const OptimizerSegment> chunk,
                   const BlocksOf& blocks_of) {
  std::int64_t blocks = 0;
  for (const OptimizerSegment& segment : chunk) {
    if (segment.begin == segment.end) continue;
    const int i = segments.count++;
    segments.begin[i] = segment.begin;
    segments.end[i] = segment.end;
    segments.first_block[i] = blocks;
    segments.rates[i] = segment.rates;
    blocks += blocks_of(segment);
  }
  segments.blocks = blocks;
}

/// Calls body(chunk) for as many segments as one launch takes at a time.
template <typename Body>
void for_each_launch(std::span<const OptimizerSegment> segments, const Body& body) {
  for (std::size_t i = 0; i < segments.size(); i += kSegments) {
    body(segments.subspan(i, std::min<std::size_t>(kSegments, segments.size() - i)));
  }
}

/// Calls body<kWriteOut, P>(), with the parameter's type, for those that go with a gradient of G.
/// Where there is no parameter, the master is it, and it and its gradient are fp32. `args` are
/// OptimizerStepArgs or FactoredStepArgs.
template <typename G, typename Args, typename Body>
void with_write_out(const Args& args, const Body& body) {
  constexpr const char* kName = "optimizer step";
  if (!args.parameter) {
    if constexpr (std::is_same_v<G, float>) {
      return body.template operator()<WriteOut::kNone, simt::bf16>();
    } else {
      fail(ErrorCode::kInvalidArgument, kName, ": the gradient is ", to_string(args.gradient.dtype),
           ", and there is no parameter of that dtype, which a GPU's kernel goes by; pass the "
           "gradient in fp32");
    }
  }
  with_half_type(kName, args.parameter.dtype, [&]<typename P>(ElementType<P>) {
    if constexpr (!kGoTogether<G, P>) {
      fail(ErrorCode::kInvalidArgument, kName, ": the gradient is ", to_string(args.gradient.dtype),
           " and the parameter ", to_string(args.parameter.dtype),
           ", which no kernel of a GPU mixes; pass the gradient in fp32");
    } else {
      if constexpr (std::is_same_v<P, simt::bf16>) {
        if (args.stochastic_rounding) return body.template operator()<WriteOut::kAtRandom, P>();
      }
      body.template operator()<WriteOut::kNearest, P>();
    }
  });
}

/// Where a step runs, and by how many blocks at once; 0: by as many as there is work for.
struct UpdateStream {
  cudaStream_t stream = nullptr;
  int most_blocks = 0;

  /// The grid for so many blocks of work, which are at least one; each takes several if these are
  /// too many.
  unsigned grid(std::int64_t blocks) const {
    const bool fits = most_blocks <= 0 || blocks <= most_blocks;
    return fits ? blocks_for(blocks, 1) : static_cast<unsigned>(most_blocks);
  }
};

/// The step of an optimizer whose states are codes (dynamic_codes.h).
void coded_optimizer_step(const OptimizerStepArgs& args, const UpdateStream& stream);

}  // namespace tessera::cuda

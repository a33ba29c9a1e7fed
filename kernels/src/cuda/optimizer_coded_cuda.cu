#include <cstdint>
#include <span>
#include <utility>

#include "cuda/optimizer_cuda.h"
#include "dynamic_codes.h"
#include "optimizer_arguments.h"

// One step of an optimizer whose states are codes of 8 bits (dynamic_codes.h), with the CPU's bits:
// decodes, updates and encodes. master (n) fp32, gradient (n) fp32, bf16 or fp16,
// parameter (n) bf16, fp16 or absent; of each state codes (n) and the absmax of blocks (n / 256)
// fp32. Bytes per element with an fp32 gradient: 12, and 2.03 for each state, 2 less with a
// gradient of 16 bits, 2 more with a parameter.
//
// A warp takes a block: a lane four elements of each half. So the absmax is a butterfly over the
// warp. Maps and the bounds between codes are in shared memory, computed by each thread block of
// eight warps for itself; eight comparisons find a code.

namespace tessera::cuda {
namespace {

constexpr int kUpdateWarps = kUpdateThreads / 32;
constexpr int kCodes = 256;
constexpr int kHalf = 128;  // elements of half a block: a group for each lane
constexpr int kGroups = 2;  // of a lane

/// bound() of dynamic_map.cpp.
__device__ float part_bound(int i, int parts) {
  const float step = __fdiv_rn(__fsub_rn(1.0F, 0.1F), static_cast<float>(parts));
  return i < (parts + 1) / 2 ? __fmaf_rn(step, static_cast<float>(i), 0.1F)
                             : __fmaf_rn(-step, static_cast<float>(parts - i), 1.0F);
}

__device__ float decade_scale(int decade) {
  const float scales[] = {1e-6F, 1e-5F, 1e-4F, 1e-3F, 1e-2F, 1e-1F, 1.0F};
  float scale = scales[0];
#pragma unroll
  for (int d = 1; d < 7; ++d) scale = decade >= d ? scales[d] : scale;  // no array in memory
  return scale;
}

/// The entry of a dynamic map (dynamic_map.h), which its own order gives: the numbers of a decade
/// follow those of the decade before, counted from 0.
template <bool kSigned>
__device__ float map_entry(int code) {
  const int zero = kSigned ? 127 : 0;
  if (code == zero) return 0.0F;
  if (code == kCodes - 1) return 1.0F;
  const int place = code > zero ? code - zero : zero - code;  // from 1
  const int first = kSigned ? 1 : 2;                          // numbers of the first decade
  int decade = 0;
  while ((first << (decade + 1)) - first < place) ++decade;
  const int parts = first << decade;
  const int i = place - 1 - (parts - first);
  const float sum = __fadd_rn(part_bound(i, parts), part_bound(i + 1, parts));
  const float middle = __fmul_rn(__fmul_rn(sum, 0.5F), decade_scale(decade));
  return code > zero ? middle : -middle;
}

/// By whether the map is signed.
struct CodeTables {
  float map[2][kCodes];
  float bounds[2][kCodes];  // a number above i of them has code i
};

__device__ void fill_tables(CodeTables& tables) {
  static_assert(kUpdateThreads == kCodes);
  const int code = static_cast<int>(threadIdx.x);
  tables.map[0][code] = map_entry<false>(code);
  tables.map[1][code] = map_entry<true>(code);
  __syncthreads();
  const int next = code + 1 < kCodes ? code + 1 : code;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    tables.bounds[s][code] = __fmul_rn(__fadd_rn(tables.map[s][code], tables.map[s][next]), 0.5F);
  }
  __syncthreads();
}

/// How many bounds are below x; NaN: the code of 0.
template <bool kSigned>
__device__ std::uint32_t code_of(const CodeTables& tables, float x) {
  const float* const bounds = tables.bounds[kSigned ? 1 : 0];
  int code = 0;
#pragma unroll
  for (int step = kCodes / 2; step > 0; step /= 2) {
    code += x > bounds[code + step - 1] ? step : 0;
  }
  return static_cast<std::uint32_t>(x == x ? code : kSigned ? 127 : 0);
}

/// OptimizerStepArgs as the device takes them; G is the gradient's type, P the parameter's.
template <typename Rule, typename G, typename P>
struct CodedShard {
  using Gradient = G;
  using Parameter = P;
  static constexpr int kStates = Rule::kStateCount;
  float* master;
  const G* gradient;
  std::uint8_t* codes[kStates];
  float* absmax[kStates];
  P* parameter;                      // null: none
  const float* scalars;              // (kOptimizerScalars)
  const float* gradient_scale;       // (1)
  const std::int64_t* skip;          // (1); null: never
  const std::int64_t* rounding_key;  // (kRandomKeyWords)
  std::int64_t first_index;
  bool aligned;  // groups of four of every tensor
};

/// Up to four elements; the rest are zero.
template <typename T>
__device__ Group<T> load_some(const T* from, std::int64_t count, bool whole) {
  if (whole) return load_group(from);
  Group<T> group{};
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    if (j < count) group.v[j] = from[j];
  }
  return group;
}
template <typename T>
__device__ void store_some(T* to, const Group<T>& group, std::int64_t count, bool whole) {
  if (whole) return store_group(to, group);
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    if (j < count) to[j] = group.v[j];
  }
}

/// The elements of a lane: `begin` of its first group, and how many of each group there are.
struct LaneElements {
  std::int64_t begin;
  std::int64_t counts[kGroups];
  bool whole[kGroups];
};

/// Decodes a lane's part of a block of one state.
template <bool kSigned>
__device__ void decode(const CodeTables& tables, const std::uint8_t* codes, float absmax,
                       const LaneElements& own, float (&values)[kGroups][kGroup]) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const Group<std::uint8_t> group =
        load_some(codes + own.begin + g * kHalf, own.counts[g], own.whole[g]);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      values[g][j] = __fmul_rn(tables.map[kSigned ? 1 : 0][group.v[j]], absmax);
    }
  }
}

/// All lanes of the warp; returns the absmax of the block.
template <bool kSigned>
__device__ float encode(const CodeTables& tables, const float (&values)[kGroups][kGroup],
                        const LaneElements& own, std::uint8_t* codes) {
  float absmax = 0.0F;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      if (j < own.counts[g]) absmax = fmaxf(absmax, fabsf(values[g][j]));
    }
  }
  absmax = simt::warp_reduce(absmax, simt::Maximum{});
  const float inverse = __fdiv_rn(1.0F, fmaxf(absmax, kLeastAbsmax));
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    Group<std::uint8_t> group;
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      group.v[j] =
          static_cast<std::uint8_t>(code_of<kSigned>(tables, __fmul_rn(values[g][j], inverse)));
    }
    store_some(codes + own.begin + g * kHalf, group, own.counts[g], own.whole[g]);
  }
  return absmax;
}

template <WriteOut kWriteOut, typename Rule, typename G, typename P>
__device__ void update_block(const CodedShard<Rule, G, P>& a, const CodeTables& tables,
                             const typename Rule::Factors& f, std::int64_t begin,
                             std::int64_t end) {
  constexpr int kStates = Rule::kStateCount;
  const RandomKey key = rounding_key<kWriteOut>(a);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t block = begin / kCodedBlock;
  LaneElements own{.begin = begin + kGroup * lane, .counts = {}, .whole = {}};
  Group<G> gradient[kGroups];
  Group<float> master[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const std::int64_t left = end - (own.begin + g * kHalf);
    own.counts[g] = left < 0 ? 0 : left < kGroup ? left : kGroup;
    own.whole[g] = a.aligned && own.counts[g] == kGroup;
    gradient[g] = load_some(a.gradient + own.begin + g * kHalf, own.counts[g], own.whole[g]);
    master[g] = load_some(a.master + own.begin + g * kHalf, own.counts[g], own.whole[g]);
  }
  float values[kStates][kGroups][kGroup];
  const auto each_state = [&]<int... kS>(std::integer_sequence<int, kS...>) {
    (decode<Rule::kIsSigned[kS]>(tables, a.codes[kS], a.absmax[kS][block], own, values[kS]), ...);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int j = 0; j < kGroup; ++j) {
        float of_element[] = {values[kS][g][j]...};
        Rule::template update<ElementMath>(f, simt::to_float(gradient[g].v[j]), master[g].v[j],
                                           of_element);
        ((values[kS][g][j] = of_element[kS]), ...);
      }
    }
    const float absmax[] = {encode<Rule::kIsSigned[kS]>(tables, values[kS], own, a.codes[kS])...};
    __syncwarp();  // every lane has read the old absmax; a shuffle does not order memory
    if (lane == 0) ((a.absmax[kS][block] = absmax[kS]), ...);
  };
  each_state(std::make_integer_sequence<int, kStates>());
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const std::int64_t i = own.begin + g * kHalf;
    store_some(a.master + i, master[g], own.counts[g], own.whole[g]);
    if constexpr (kWriteOut != WriteOut::kNone) {
      store_some(a.parameter + i, rounded<kWriteOut>(a, key, master[g], i), own.counts[g],
                 own.whole[g]);
    }
  }
}

template <WriteOut kWriteOut, typename Rule, typename G, typename P>
__global__ void __launch_bounds__(kUpdateThreads)
    update_coded_segments(const CodedShard<Rule, G, P> a,
                          const __grid_constant__ Segments segments) {
  if (a.skip != nullptr && *a.skip != 0) return;
  SIMT_SHARED(CodeTables, tables);
  fill_tables(tables);
  for (std::int64_t block = blockIdx.x; block < segments.blocks; block += gridDim.x) {
    const int s = segment_of(segments, block);
    const std::int64_t place = (block - segments.first_block[s]) * kUpdateWarps + threadIdx.x / 32;
    const std::int64_t begin = segments.begin[s] + place * kCodedBlock;
    if (begin >= segments.end[s]) continue;  // the whole warp
    const std::int64_t end =
        segments.end[s] < begin + kCodedBlock ? segments.end[s] : begin + kCodedBlock;
    const auto factors = Rule::factors(a.scalars, *a.gradient_scale, segments.rates[s]);
    update_block<kWriteOut>(a, tables, factors, begin, end);
  }
}

template <typename Rule, typename G, typename P>
CodedShard<Rule, G, P> coded_shard_of(const OptimizerStepArgs& args) {
  auto a = shard_without_states<CodedShard<Rule, G, P>>(args);
  for (int s = 0; s < Rule::kStateCount; ++s) {
    const auto stored = static_cast<std::size_t>(2 * s);
    a.codes[s] = state_data<std::uint8_t>(args, stored);
    a.absmax[s] = state_data(args, stored + 1);
    a.aligned = a.aligned && is_aligned(a.codes[s], alignof(Group<std::uint8_t>));
  }
  return a;
}

template <WriteOut kWriteOut, typename Rule, typename G, typename P>
void update_chunk(const CodedShard<Rule, G, P>& shard, std::span<const OptimizerSegment> chunk,
                  const UpdateStream& on) {
  Segments segments;
  fill_segments(segments, chunk, [](const OptimizerSegment& segment) {
    return ceil_div(segment.end - segment.begin, kUpdateWarps * kCodedBlock);
  });
  if (segments.blocks == 0) return;
  simt::launch(update_coded_segments<kWriteOut, Rule, G, P>, on.grid(segments.blocks),
               kUpdateThreads, 0, on.stream, shard, segments);
}

}  // namespace

void coded_optimizer_step(const OptimizerStepArgs& args, const UpdateStream& on) {
  AllRules::visit(args.optimizer->rule, [&]<typename Rule>(Rule) {
    if constexpr (Rule::kIsCoded) {
      with_element_type("optimizer step", args.gradient.dtype, [&]<typename G>(ElementType<G>) {
        with_write_out<G>(args, [&]<WriteOut kWriteOut, typename P>() {
          const auto shard = coded_shard_of<Rule, G, P>(args);
          for_each_launch(args.segments, [&](std::span<const OptimizerSegment> chunk) {
            update_chunk<kWriteOut>(shard, chunk, on);
          });
        });
      });
    }
  });
}

}  // namespace tessera::cuda

#include <algorithm>
#include <cstdint>
#include <span>

#include "cuda/cuda_kernels.h"
#include "cuda/optimizer_cuda.h"
#include "optimizer_arguments.h"
#include "tessera/kernels/cuda_options.h"

// One step of any optimizer on a flat shard in one pass, with the CPU's bits: every operation is
// rounded as written. master and states (n) fp32, gradient (n) fp32, bf16 or fp16, parameter (n)
// bf16, fp16 or absent. Bytes per element with an fp32 gradient: 12, and 8 more for each state
// (AdamW: 28), 2 less with one of 16 bits, 2 more with a parameter.
//
// A thread takes four elements, 16 bytes of each fp32 tensor; a block a tile of 1024, at multiples
// of 1024 of the shard, and where few blocks may run at once, further tiles. Segments go to the
// kernel by value, as many as fit; a block finds its own by bisection. Where a segment ends inside
// of a group of four, or a view is not aligned, a thread takes its elements one by one.

namespace tessera::cuda {
namespace {

constexpr int kUpdateTile = kGroup * kUpdateThreads;

template <WriteOut kWriteOut, typename Rule, typename G, typename P>
__device__ void update_group(const Shard<Rule, G, P>& a, const typename Rule::Factors& f,
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

template <WriteOut kWriteOut, typename Rule, typename G, typename P>
__device__ void update_element(const Shard<Rule, G, P>& a, const typename Rule::Factors& f,
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
    a.parameter[i] = simt::from_float<P>(master);
  }
}

template <WriteOut kWriteOut, typename Rule, typename G, typename P>
__global__ void __launch_bounds__(kUpdateThreads)
    update_segments(const Shard<Rule, G, P> a, const __grid_constant__ Segments segments) {
  if (a.skip != nullptr && *a.skip != 0) return;
  for (std::int64_t block = blockIdx.x; block < segments.blocks; block += gridDim.x) {
    const int s = segment_of(segments, block);
    const std::int64_t tile = segments.begin[s] / kUpdateTile + (block - segments.first_block[s]);
    const std::int64_t group = tile * kUpdateTile + kGroup * std::int64_t{threadIdx.x};
    const std::int64_t begin = segments.begin[s] > group ? segments.begin[s] : group;
    const std::int64_t end = segments.end[s] < group + kGroup ? segments.end[s] : group + kGroup;
    if (begin >= end) continue;
    const auto factors = a.factors(segments.rates[s]);
    if (a.aligned && end - begin == kGroup) {
      update_group<kWriteOut>(a, factors, group);
    } else {
      for (std::int64_t i = begin; i < end; ++i) update_element<kWriteOut>(a, factors, i);
    }
  }
}

template <typename Rule, typename G, typename P>
Shard<Rule, G, P> shard_of(const OptimizerStepArgs& args) {
  auto a = shard_without_states<Shard<Rule, G, P>>(args);
  for (int s = 0; s < Rule::kStateCount; ++s) {
    a.states[s] = state_data(args, static_cast<std::size_t>(s));
    a.aligned = a.aligned && is_aligned(a.states[s], alignof(Group<float>));
  }
  return a;
}

/// One launch for up to kSegments of them.
template <WriteOut kWriteOut, typename Rule, typename G, typename P>
void update_chunk(const Shard<Rule, G, P>& shard, std::span<const OptimizerSegment> chunk,
                  const UpdateStream& on) {
  Segments segments;
  fill_segments(segments, chunk, [](const OptimizerSegment& segment) {
    return ceil_div(segment.end, kUpdateTile) - segment.begin / kUpdateTile;
  });
  if (segments.blocks == 0) return;
  simt::launch(update_segments<kWriteOut, Rule, G, P>, on.grid(segments.blocks), kUpdateThreads, 0,
               on.stream, shard, segments);
}

template <typename Rule>
void step_of(const OptimizerStepArgs& args, const UpdateStream& on) {
  with_element_type("optimizer step", args.gradient.dtype, [&]<typename G>(ElementType<G>) {
    with_write_out<G>(args, [&]<WriteOut kWriteOut, typename P>() {
      const auto shard = shard_of<Rule, G, P>(args);
      for_each_launch(args.segments, [&](std::span<const OptimizerSegment> chunk) {
        update_chunk<kWriteOut>(shard, chunk, on);
      });
    });
  });
}

}  // namespace

void optimizer_step(const OptimizerStepArgs& args, Stream& stream) {
  check_optimizer_step(args);
  if (args.master.numel() == 0) return;
  const UpdateStream on{
      .stream = handle(stream),
      .most_blocks = cuda_attention(cuda_stream(stream)).options.optimizer_blocks};
  AllRules::visit(args.optimizer->rule, [&]<typename Rule>(Rule) {
    if constexpr (Rule::kIsCoded) {
      coded_optimizer_step(args, on);
    } else {
      step_of<Rule>(args, on);
    }
  });
}

}  // namespace tessera::cuda

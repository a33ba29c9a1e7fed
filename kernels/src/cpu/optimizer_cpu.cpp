#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/optimizer_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/random_rounding.h"
#include "cpu/simd.h"
#include "cpu/stream_store.h"

#include <bit>
#include <cmath>
#include <utility>

#include "cpu/cpu_kernels.h"
#include "cpu/parallel.h"
#include "dynamic_codes.h"
#include "optimizer_arguments.h"
#include "tessera/core/error.h"
#include "tessera/kernels/dynamic_map.h"

// One step of any optimizer on a flat shard, in one pass: it reads gradient, master and states, and
// writes master, states and, if there is one, the rounded parameter. Every element goes through the
// same vector instructions wherever it lies, so that its result does not depend on how shards are
// cut. States that are stored as codes are decoded and encoded a block at a time, in the
// first-level cache.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

#define TESSERA_UPDATE_RULE HWY_INLINE
#include "optimizers/update_rules.h"

/// How an update rule computes on vectors.
struct VectorMath {
  using Value = FloatVec;
  static HWY_INLINE Value value(float a) { return splat(a); }
  static HWY_INLINE Value value(Value a) { return a; }
  template <typename A, typename B>
  static HWY_INLINE Value mul(A a, B b) {
    return hn::Mul(value(a), value(b));
  }
  template <typename A, typename B, typename C>
  static HWY_INLINE Value mul_add(A a, B b, C c) {
    return hn::MulAdd(value(a), value(b), value(c));
  }
  static HWY_INLINE Value div(Value a, Value b) { return hn::Div(a, b); }
  static HWY_INLINE Value sqrt(Value a) { return hn::Sqrt(a); }
  static HWY_INLINE Value sign(Value a) {
    const auto zero = hn::Zero(FloatTag());
    const auto above = hn::IfThenElse(hn::Gt(a, zero), splat(1.0F), a);
    return hn::IfThenElse(hn::Lt(a, zero), splat(-1.0F), above);
  }
};

/// `parameter` is null if it is absent or written later.
template <typename Rule, typename G, typename P>
void update_elements(const OptimizerStepArgs& args, const typename Rule::Factors& factors,
                     const G* gradient, P* parameter, std::int64_t begin, std::int64_t end) {
  float* const master = args.master.as<float>();
  const typename Rule::Factors f = factors;
  // Loops over the states are unrolled at compile time: GCC does not do it at -O2, and would keep
  // vectors in memory.
  const auto update = [&]<std::size_t... kS>(std::index_sequence<kS...>) HWY_ATTR {
    float* const states[] = {state_data(args, kS)...};
    const auto is_kept = [&](std::size_t s) {
      return !Rule::kRow.states_optional || states[s] != nullptr;
    };
    // Inlined by force: GCC would rather call it for every vector.
    const auto body = [&](std::int64_t k, std::int64_t count) HWY_ATTR
        __attribute__((always_inline)) {
      const std::int64_t i = begin + k;
      prefetch_ahead(gradient + i, 1024);
      prefetch_ahead(master + i, 1024);
      ((is_kept(kS) ? prefetch_ahead(states[kS] + i, 1024) : void()), ...);
      FloatVec updated = load_n(master + i, count);
      FloatVec of_states[] = {is_kept(kS) ? load_n(states[kS] + i, count) : splat(0.0F)...};
      Rule::template update<VectorMath>(f, load_n(gradient + i, count), updated, of_states);
      ((is_kept(kS) ? store_n(of_states[kS], states[kS] + i, count) : void()), ...);
      store_n(updated, master + i, count);
      if (parameter != nullptr) store_n(updated, parameter + i, count);
    };
    for_each_vector(end - begin, body);
  };
  update(std::make_index_sequence<Rule::kStateCount>());
}

using CodeTag = hn::Rebind<std::uint8_t, FloatTag>;  // as many codes as a vector has floats

/// to[i] = map[codes[i]] * absmax. Writes whole vectors.
HWY_INLINE void decode_block(const std::uint8_t* codes, float absmax, bool is_signed, float* to,
                             std::int64_t count) {
  const float* const map = dynamic_map(is_signed).data();
  for_each_vector(count, [&](std::int64_t i, std::int64_t lanes) HWY_ATTR {
    HWY_ALIGN std::uint8_t last[kMaxLanes] = {};
    const std::uint8_t* from = codes + i;
    if (lanes < float_lanes()) {
      std::memcpy(last, from, static_cast<std::size_t>(HWY_MIN(lanes, kMaxLanes)));
      from = last;
    }
    const auto places = hn::PromoteTo(IntTag(), hn::LoadU(CodeTag(), from));
    store(hn::Mul(hn::GatherIndex(FloatTag(), map, places), splat(absmax)), to + i);
  });
}

/// The largest magnitude, of what is a number. As integers, those order as the numbers do.
HWY_INLINE float absmax_of(const float* values, std::int64_t count) {
  const WordTag d;
  auto largest = hn::Zero(d);
  for_each_vector(count, [&](std::int64_t i, std::int64_t lanes) HWY_ATTR {
    const auto value = load_n(values + i, lanes);
    const auto magnitude = hn::BitCast(d, hn::Abs(value));
    largest =
        hn::Max(largest, hn::IfThenElseZero(hn::RebindMask(d, hn::Eq(value, value)), magnitude));
  });
  return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(d, largest)));
}

/// DynamicCodes::code_of of each lane.
HWY_INLINE hn::Vec<IntTag> codes_of(const DynamicCodes& of, FloatVec x) {
  const IntTag d;
  const auto bits = hn::BitCast(d, x);
  const auto magnitude = hn::And(bits, hn::Set(d, 0x7fffffff));
  const auto inside = hn::Min(hn::Max(magnitude, hn::Set(d, DynamicCodes::kLeastMagnitude)),
                              hn::Set(d, DynamicCodes::kMostMagnitude));
  const auto negative = hn::BroadcastSignBit(bits);  // -1 or 0
  const auto of_side = hn::And(negative, hn::Set(d, DynamicCodes::kBins));
  const auto bin =
      hn::Sub(hn::Add(hn::ShiftRight<16>(inside), of_side), hn::Set(d, DynamicCodes::kFirstBin));
  const auto entry = hn::GatherIndex(d, of.entries(), bin);
  const auto lower = hn::Set(d, 0xffff);
  const auto is_above = hn::Gt(hn::And(inside, lower), hn::And(entry, lower));
  const auto step = hn::IfThenElseZero(is_above, hn::Or(negative, hn::Set(d, 1)));
  const auto is_nan = hn::Gt(magnitude, hn::Set(d, DynamicCodes::kInfinity));
  return hn::IfThenElse(is_nan, hn::Set(d, of.zero()), hn::Add(hn::ShiftRight<16>(entry), step));
}

/// Returns the absmax. Reads whole vectors.
HWY_INLINE float encode_block(const float* values, bool is_signed, std::uint8_t* codes,
                              std::int64_t count) {
  const DynamicCodes& of = dynamic_codes(is_signed);
  const float absmax = absmax_of(values, count);
  const auto inverse = splat(1.0F / std::max(absmax, kLeastAbsmax));
  for_each_vector(count, [&](std::int64_t i, std::int64_t lanes) HWY_ATTR {
    const auto vector = codes_of(of, hn::Mul(load(values + i), inverse));
    const auto bytes = hn::DemoteTo(CodeTag(), vector);
    if (lanes == float_lanes()) {
      hn::StoreU(bytes, CodeTag(), codes + i);
      return;
    }
    HWY_ALIGN std::uint8_t last[kMaxLanes];
    hn::Store(bytes, CodeTag(), last);
    std::memcpy(codes + i, last, static_cast<std::size_t>(HWY_MIN(lanes, kMaxLanes)));
  });
  return absmax;
}

/// update_elements of a rule whose states are codes; `begin` begins a block.
template <typename Rule, typename G, typename P>
void update_blocks(const OptimizerStepArgs& args, const typename Rule::Factors& f,
                   const G* gradient, P* parameter, std::int64_t begin, std::int64_t end) {
  float* const master = args.master.as<float>();
  const auto update = [&]<std::size_t... kS>(std::index_sequence<kS...>) HWY_ATTR {
    std::uint8_t* const codes[] = {state_data<std::uint8_t>(args, 2 * kS)...};
    float* const absmax[] = {state_data(args, 2 * kS + 1)...};
    for (std::int64_t at = begin; at < end; at += kCodedBlock) {
      const std::int64_t count = HWY_MIN(kCodedBlock, end - at), block = at / kCodedBlock;
      HWY_ALIGN float values[sizeof...(kS)][kCodedBlock];
      (decode_block(codes[kS] + at, absmax[kS][block], Rule::kIsSigned[kS], values[kS], count),
       ...);
      for_each_vector(count, [&](std::int64_t k, std::int64_t lanes) HWY_ATTR {
        const std::int64_t i = at + k;
        FloatVec updated = load_n(master + i, lanes);
        FloatVec of_states[] = {load_n(values[kS] + k, lanes)...};
        Rule::template update<VectorMath>(f, load_n(gradient + i, lanes), updated, of_states);
        (store_n(of_states[kS], values[kS] + k, lanes), ...);
        store_n(updated, master + i, lanes);
        if (parameter != nullptr) store_n(updated, parameter + i, lanes);
      });
      ((absmax[kS][block] = encode_block(values[kS], Rule::kIsSigned[kS], codes[kS] + at, count)),
       ...);
    }
  };
  update(std::make_index_sequence<Rule::kStateCount>());
}

template <typename Rule, typename G, typename P>
void update(const OptimizerStepArgs& args, const typename Rule::Factors& factors, const G* gradient,
            P* parameter, std::int64_t begin, std::int64_t end) {
  if constexpr (Rule::kIsCoded) {
    update_blocks<Rule>(args, factors, gradient, parameter, begin, end);
  } else {
    update_elements<Rule>(args, factors, gradient, parameter, begin, end);
  }
}

template <typename Rule, typename G>
void update_range(const OptimizerStepArgs& args, const typename Rule::Factors& factors,
                  const G* gradient, std::int64_t begin, std::int64_t end) {
  if (!args.parameter || !args.stochastic_rounding) {
    if (args.parameter.dtype == DType::kFloat16) {
      update<Rule>(args, factors, gradient, args.parameter.as<float16>(), begin, end);
      return;
    }
    bfloat16* const parameter = args.parameter ? args.parameter.as<bfloat16>() : nullptr;
    update<Rule>(args, factors, gradient, parameter, begin, end);
    return;
  }
  const RandomKey key = load_random_key(args.rounding_key.as<std::int64_t>());
  for (std::int64_t i = begin; i < end; i += kRoundingChunk) {
    const std::int64_t chunk_end = HWY_MIN(end, i + kRoundingChunk);
    constexpr bfloat16* kLater = nullptr;
    update<Rule>(args, factors, gradient, kLater, i, chunk_end);
    write_rounded_at_random(args.master.as<float>() + i, args.parameter.as<bfloat16>() + i, key,
                            args.first_index + i, chunk_end - i);
  }
}

void optimizer_range(const OptimizerStepArgs& args, const SegmentRates& rates, std::int64_t begin,
                     std::int64_t end) {
  AllRules::visit(args.optimizer->rule, [&]<typename Rule>(Rule) HWY_ATTR {
    const auto factors =
        Rule::factors(args.scalars.as<float>(), *args.gradient_scale.as<float>(), rates);
    with_float_type(args.gradient.dtype, [&]<typename G>(G) HWY_ATTR {
      update_range<Rule>(args, factors, args.gradient.as<G>(), begin, end);
    });
  });
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(optimizer_range);

/// Elements per chunk: hundreds of KB of traffic, tens of microseconds.
constexpr std::int64_t kGrain = 16384;

}  // namespace

void optimizer_step(const OptimizerStepArgs& args, Stream&) {
  check_optimizer_step(args);
  if (args.skip && *args.skip.as<std::int64_t>() != 0) return;
  // One parallel region for all segments: there may be hundreds of small ones.
  parallel_for(args.master.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (const OptimizerSegment& segment : args.segments) {
      const std::int64_t from = std::max(begin, segment.begin);
      const std::int64_t to = std::min(end, segment.end);
      if (from >= to) continue;
      HWY_DYNAMIC_DISPATCH(optimizer_range)(args, segment.rates, from, to);
    }
  });
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE

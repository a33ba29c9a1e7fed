#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/cross_entropy_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <type_traits>

#include "cpu/cpu_kernels.h"
#include "cpu/parallel.h"
#include "cross_entropy_arguments.h"
#include "tessera/core/error.h"

// Softmax cross-entropy, row by row: maximum, sum of exponentials, then the gradient in place. The
// first two passes bring a row into the cache, the third finds it there: memory is read once and
// written once.
//
// The sum runs over chunks of 2048 elements, in fp32 over 32 lanes (element j belongs to lane j mod
// 32) which are then added as a tree, whatever the vector length; chunks are added in fp64.
//
// With a soft cap the softmax is that of y = cap * tanh(x / cap), which each pass computes anew,
// and the gradient has the factor dy/dx = 1 - tanh(x / cap)^2.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

constexpr std::int64_t kSumLanes = 32;
constexpr std::int64_t kSumChunk = 2048;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// Logits as they are.
struct NoCap {
  HWY_INLINE FloatVec operator()(FloatVec x) const { return x; }
};

/// The first `count` logits, others -inf.
template <typename T, typename Cap>
HWY_INLINE FloatVec load_logits(const T* x, std::int64_t count, const Cap& cap) {
  if constexpr (std::is_same_v<Cap, NoCap>) {
    return load_n(x, count, kMinusInfinity);
  } else {
    const auto mask = hn::FirstN(FloatTag(), static_cast<std::size_t>(count));
    return hn::IfThenElse(mask, cap(load_n(x, count)), splat(kMinusInfinity));
  }
}

/// One logit, by the same instructions as in a vector.
template <typename Cap>
HWY_INLINE float capped_logit(float x, const Cap& cap) {
  return hn::GetLane(cap(splat(x)));
}

/// exp(x) for x <= 0, and 0 where that is below the normal range.
HWY_INLINE FloatVec exp_or_zero(FloatVec x) {
  return hn::IfThenZeroElse(hn::Lt(x, splat(-87.0F)), exp(x));
}

template <typename T>
HWY_INLINE float row_maximum(const T* x, std::int64_t n) {
  const std::int64_t lanes = float_lanes();
  auto m0 = splat(kMinusInfinity);
  auto m1 = m0;
  std::int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    m0 = hn::Max(m0, load(x + i));
    m1 = hn::Max(m1, load(x + i + lanes));
  }
  for_each_vector(n - i, [&](std::int64_t k, std::int64_t count) HWY_ATTR {
    m0 = hn::Max(m0, load_n(x + i + k, count, kMinusInfinity));
  });
  return max_lanes(hn::Max(m0, m1));
}

/// Sums those of up to kSumChunk elements. Writes the exponentials over x if kKeep.
template <bool kKeep, typename T, typename Cap>
HWY_INLINE float chunk_of_exponentials(T* x, std::int64_t n, FloatVec shift, const Cap& cap) {
  const FloatTag d;
  const std::int64_t lanes = float_lanes();
  HWY_ALIGN float sums[kSumLanes] = {};
  std::int64_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) {
    for (std::int64_t j = 0; j < kSumLanes; j += lanes) {
      const auto e = exp_or_zero(hn::Sub(cap(load(x + i + j)), shift));
      if constexpr (kKeep) store(e, x + i + j);
      hn::Store(hn::Add(hn::Load(d, sums + j), e), d, sums + j);
    }
  }
  for (std::int64_t j = 0; i + j < n; j += lanes) {
    const std::int64_t count = HWY_MIN(lanes, n - i - j);
    const auto e = exp_or_zero(hn::Sub(load_logits(x + i + j, count, cap), shift));
    if constexpr (kKeep) store_n(e, x + i + j, count);
    hn::Store(hn::Add(hn::Load(d, sums + j), e), d, sums + j);
  }
  for (std::int64_t width = kSumLanes / 2; width > 0; width /= 2) {
    for (std::int64_t j = 0; j < width; ++j) sums[j] += sums[j + width];
  }
  return sums[0];
}

template <bool kKeep, typename T, typename Cap>
HWY_INLINE double sum_of_exponentials(T* x, std::int64_t n, float maximum, const Cap& cap) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < n; i += kSumChunk) {
    const auto chunk = HWY_MIN(kSumChunk, n - i);
    sum += static_cast<double>(chunk_of_exponentials<kKeep>(x + i, chunk, splat(maximum), cap));
  }
  return sum;
}

/// x becomes factor * exp(x - maximum), or factor * x if the exponentials were kept.
template <bool kKept, typename T>
HWY_INLINE void scaled_exponentials(T* x, std::int64_t n, float maximum, float factor,
                                    const NoCap& /*cap*/) {
  for_each_vector(n, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    auto e = load_n(x + i, count);
    if constexpr (!kKept) e = exp_or_zero(hn::Sub(e, splat(maximum)));
    store_n(hn::Mul(e, splat(factor)), x + i, count);
  });
}

/// x becomes factor * exp(cap t - maximum) * (1 - t^2), t = tanh(x / cap).
template <bool kKept, typename T>
HWY_INLINE void scaled_exponentials(T* x, std::int64_t n, float maximum, float factor,
                                    const SoftCap& cap) {
  static_assert(!kKept);
  for_each_vector(n, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    const auto t = cap.tanh_of(load_n(x + i, count));
    const auto e = exp_or_zero(hn::Sub(hn::Mul(t, splat(cap.cap)), splat(maximum)));
    const auto slope = hn::NegMulAdd(t, t, splat(1.0F));
    store_n(hn::Mul(hn::Mul(e, splat(factor)), slope), x + i, count);
  });
}

/// The derivative at one logit.
HWY_INLINE double slope_of(float /*x*/, const NoCap& /*cap*/) { return 1.0; }
HWY_INLINE double slope_of(float x, const SoftCap& cap) {
  const auto t = static_cast<double>(hn::GetLane(cap.tanh_of(splat(x))));
  return 1.0 - t * t;
}

/// Whether the target's is the first of the largest logits.
template <typename T>
bool is_hit(const T* x, std::int32_t target, float maximum) {
  const auto is_largest = [&](T logit) { return static_cast<float>(logit) == maximum; };
  return is_largest(x[target]) && std::none_of(x, x + target, is_largest);
}

/// Counts of some rows, as CrossEntropyArgs::hits.
struct Hits {
  std::int64_t correct = 0, counted = 0;
};

/// Adds a row to CrossEntropyArgs::hits of its class and of the one with the largest logit.
template <typename T>
void count_classes(const T* x, std::int64_t classes, std::int32_t target, float maximum,
                   std::int64_t* hits) {
  const auto word = [&](std::int64_t c, int w) {
    return std::atomic_ref(hits[kHitWords + kClassHitWords * c + w]);
  };
  const std::int64_t predicted =
      std::find_if(x, x + classes, [&](T l) { return static_cast<float>(l) == maximum; }) - x;
  ++word(target, 2);
  if (predicted == classes) return;  // of logits that are not numbers none is the largest
  ++word(predicted, 1);
  if (predicted == target) ++word(target, 0);
}

template <typename T, typename Cap>
void cross_entropy_row(const CrossEntropyArgs& args, T* x, std::int32_t target, float& loss,
                       Hits& hits, const Cap& cap) {
  const std::int64_t n = args.vocab_size;
  if (target == args.ignore_index) {
    loss = 0.0F;
    if (args.gradient) std::fill(x, x + args.logits.shape[1], T(0.0F));
    return;
  }
  const float largest = row_maximum(x, n);  // a cap keeps the order
  if (args.hits) {
    ++hits.counted;
    hits.correct += is_hit(x, target, largest) ? 1 : 0;
    if (args.hits.numel() > kHitWords) {
      count_classes(x, n, target, largest, args.hits.as<std::int64_t>());
    }
  }
  const auto at_target = static_cast<float>(x[target]);
  const float maximum = capped_logit(largest, cap);
  const double shifted = static_cast<double>(capped_logit(at_target, cap) - maximum);
  // fp32 holds the exponentials themselves between the passes; 16 bits would round them twice.
  // A cap needs the logits once more.
  constexpr bool kKeep = std::is_same_v<T, float> && std::is_same_v<Cap, NoCap>;
  const double sum = kKeep && args.gradient ? sum_of_exponentials<kKeep>(x, n, maximum, cap)
                                            : sum_of_exponentials<false>(x, n, maximum, cap);
  loss = static_cast<float>(std::log(sum) - shifted);
  if (!args.gradient) return;
  const double scale = args.scale ? static_cast<double>(*args.scale.as<float>()) : 1.0;
  scaled_exponentials<kKeep>(x, n, maximum, static_cast<float>(scale / sum), cap);
  // 1 is subtracted before anything is rounded: the target's gradient is small when p is near 1.
  const double p = std::exp(shifted) / sum;
  x[target] = T(static_cast<float>((p - 1.0) * scale * slope_of(at_target, cap)));
  std::fill(x + n, x + args.logits.shape[1], T(0.0F));
}

void cross_entropy_range(const CrossEntropyArgs& args, std::int64_t begin, std::int64_t end) {
  const std::int32_t* const targets = args.targets.as<std::int32_t>();
  float* const losses = args.losses.as<float>();
  Hits hits;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t offset = row * args.logits.strides[0];
    with_float_type(args.logits.dtype, [&]<typename T>(T) HWY_ATTR {
      T* const x = args.logits.as<T>() + offset;
      if (args.soft_cap != 0.0F) {
        cross_entropy_row(args, x, targets[row], losses[row], hits, SoftCap(args.soft_cap));
      } else {
        cross_entropy_row(args, x, targets[row], losses[row], hits, NoCap());
      }
    });
  }
  if (!args.hits) return;
  std::int64_t* const all = args.hits.as<std::int64_t>();
  std::atomic_ref(all[0]) += hits.correct;
  std::atomic_ref(all[1]) += hits.counted;
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(cross_entropy_range);

void check_targets(const CrossEntropyArgs& args) {
  const std::int32_t* const targets = args.targets.as<std::int32_t>();
  for (std::int64_t row = 0; row < args.targets.numel(); ++row) {
    const std::int32_t target = targets[row];
    require(target == args.ignore_index || (target >= 0 && target < args.vocab_size),
            ErrorCode::kInvalidArgument, "cross_entropy: target ", target, " of row ", row,
            " is outside of the vocabulary of ", args.vocab_size);
  }
}

}  // namespace

void cross_entropy(const CrossEntropyArgs& args, Stream&) {
  check_cross_entropy(args);
  check_targets(args);
  // At least 8 Ki logits per chunk: some 10 us.
  const std::int64_t grain = std::max<std::int64_t>(1, 8192 / args.vocab_size);
  parallel_for(args.logits.shape[0], grain, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(cross_entropy_range)(args, begin, end);
  });
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE

#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/cached_attention_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cached_attention_arguments.h"
#include "cpu/cpu_kernels.h"
#include "cpu/parallel.h"

// Attention of a few queries over keys and values that are kept. A query of a head is a task of one
// thread, which reads the keys and values that it sees once, kCachedKeys at a time, with the
// softmax computed as they arrive (formulas, also of a soft cap, in attention_forward_cpu.cpp):
//   m' = max(m, max z),  p = exp(z - m'),  l' = l exp(m - m') + sum p,  o' = o exp(m - m') + p v
// Everything is fp32 until the output is rounded. Blocks of keys begin at the first that the query
// sees; sums along a head run in as many lanes as a vector has. So a query's bits depend on its
// position, the window and the instruction set, not on the thread count or the other queries.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

constexpr std::int64_t kCachedKeys = 256;

/// A query, the sum of values so far, and the scores of a block of keys.
struct CachedScratch {
  HWY_ALIGN float query[kMaxHeadWidth];
  HWY_ALIGN float sum[kMaxHeadWidth];
  HWY_ALIGN float scores[kCachedKeys];
};

template <typename T>
HWY_INLINE float dot(const float* q, const T* k, std::int64_t width) {
  auto sum = splat(0.0F);
  for_each_vector(width, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    sum = hn::MulAdd(load_n(q + i, count), load_n(k + i, count), sum);
  });
  return sum_lanes(sum);
}

/// to += x * weight
template <typename T>
HWY_INLINE void add_row(float* to, const T* x, float weight, std::int64_t width) {
  for_each_vector(width, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    const auto value = hn::MulAdd(load_n(x + i, count), splat(weight), load_n(to + i, count));
    store_n(value, to + i, count);
  });
}

HWY_INLINE void scale_row(float* x, float factor, std::int64_t width) {
  for_each_vector(width, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    store_n(hn::Mul(load_n(x + i, count), splat(factor)), x + i, count);
  });
}

/// Scores become cap * tanh(score / cap).
HWY_INLINE void cap_scores(float* scores, std::int64_t count, float cap) {
  const SoftCap capped(cap);
  for_each_vector(count, [&](std::int64_t i, std::int64_t n)
                             HWY_ATTR { store_n(capped(load_n(scores + i, n)), scores + i, n); });
}

/// Scores become exp(score - maximum); returns their sum.
HWY_INLINE float exponentiate(float* scores, std::int64_t count, float maximum) {
  auto sum = splat(0.0F);
  for_each_vector(count, [&](std::int64_t i, std::int64_t n) HWY_ATTR {
    // Lanes past the end add exp(-inf), which is 1e-38 here, to a sum of at least 1.
    const auto score = load_n(scores + i, n, -std::numeric_limits<float>::infinity());
    const auto e = exp(hn::Sub(score, splat(maximum)));
    sum = hn::Add(sum, e);
    store_n(e, scores + i, n);
  });
  return sum_lanes(sum);
}

template <typename T>
void attend(const CachedAttentionArgs& args, const CachedAttentionSizes& s, std::int64_t row,
            std::int64_t head, CachedScratch& scratch) {
  const T* const q = args.qkv.as<T>() + (row * 3 * s.heads + head) * s.width;
  const std::int64_t kv_head = head / s.group();
  const T* const keys = args.keys.as<T>() + kv_head * args.keys.strides[0];
  const T* const values = args.values.as<T>() + kv_head * args.values.strides[0];
  const std::int64_t end = s.position(row) + 1;
  const float scale = args.scores.scale_of(s.width);
  for_each_vector(s.width, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    store_n(hn::Mul(load_n(q + i, count), splat(scale)), scratch.query + i, count);
  });
  std::fill_n(scratch.sum, s.width, 0.0F);
  float maximum = -std::numeric_limits<float>::infinity(), sum = 0.0F;
  for (std::int64_t k0 = std::max<std::int64_t>(0, end - s.window); k0 < end; k0 += kCachedKeys) {
    const std::int64_t count = std::min(kCachedKeys, end - k0);
    for (std::int64_t k = 0; k < count; ++k) {
      scratch.scores[k] = dot(scratch.query, keys + (k0 + k) * s.width, s.width);
    }
    if (args.scores.soft_cap != 0.0F) cap_scores(scratch.scores, count, args.scores.soft_cap);
    float block_maximum = maximum;
    for (std::int64_t k = 0; k < count; ++k) {
      block_maximum = std::max(block_maximum, scratch.scores[k]);
    }
    const float shrink = sum == 0.0F ? 0.0F : std::exp(maximum - block_maximum);
    maximum = block_maximum;
    sum = sum * shrink + exponentiate(scratch.scores, count, maximum);
    scale_row(scratch.sum, shrink, s.width);
    for (std::int64_t k = 0; k < count; ++k) {
      add_row(scratch.sum, values + (k0 + k) * s.width, scratch.scores[k], s.width);
    }
  }
  scale_row(scratch.sum, 1.0F / sum, s.width);
  T* const out = args.out.as<T>() + (row * s.heads + head) * s.width;
  for_each_vector(s.width, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    store_n(load_n(scratch.sum + i, count), out + i, count);
  });
}

/// Tasks [begin, end): the queries of head 0, of head 1, ...
void attend_tasks(const CachedAttentionArgs& args, const CachedAttentionSizes& sizes,
                  std::int64_t begin, std::int64_t end) {
  CachedScratch scratch;
  with_float_type(args.qkv.dtype, [&]<typename T>(T) HWY_ATTR {
    for (std::int64_t task = begin; task < end; ++task) {
      attend<T>(args, sizes, task % sizes.rows, task / sizes.rows, scratch);
    }
  });
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(attend_tasks);

/// Keys and values of the new rows go behind those that are there.
void keep_rows(const CachedAttentionArgs& args, const CachedAttentionSizes& s) {
  const std::size_t bytes = static_cast<std::size_t>(s.width) * size_of(args.qkv.dtype);
  const auto byte = [&](const TensorView& view, std::int64_t element) {
    return view.data + element * static_cast<std::int64_t>(size_of(view.dtype));
  };
  parallel_for(s.rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t h = 0; h < s.kv_heads; ++h) {
        const std::int64_t from = (row * 3 * s.heads + h * s.group()) * s.width;
        const std::int64_t to = h * args.keys.strides[0] + s.position(row) * s.width;
        std::memcpy(byte(args.keys, to), byte(args.qkv, from + s.heads * s.width), bytes);
        const std::int64_t v = h * args.values.strides[0] + s.position(row) * s.width;
        std::memcpy(byte(args.values, v), byte(args.qkv, from + 2 * s.heads * s.width), bytes);
      }
    }
  });
}

}  // namespace

void cached_attention(const CachedAttentionArgs& args, Stream&) {
  const CachedAttentionSizes sizes = check_cached_attention(args);
  if (args.qkv.numel() == 0) return;
  keep_rows(args, sizes);
  if (!args.out) return;
  parallel_for(sizes.rows * sizes.heads, 1, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(attend_tasks)(args, sizes, begin, end);
  });
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE

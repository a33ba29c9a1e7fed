#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention_forward_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "cpu/attention_cpu.h"

// One block of queries against all blocks of keys that it sees, left to right, with the softmax
// computed as the keys arrive (Milakov and Gimelshein 2018; Dao et al. 2022). With z = scale q k^T,
// or cap * tanh(scale q k^T / cap), per row:
//   m' = max(m, max z),  p = exp(z - m'),  l' = l exp(m - m') + sum p,  o' = o exp(m - m') + p v
// and at the end out = o / l, lse = m + log l.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

template <typename T>
T* probabilities(const ForwardScratch& scratch) {
  if constexpr (std::is_same_v<T, float>) {
    return scratch.scores;
  } else {
    return static_cast<T*>(scratch.rounded);
  }
}

/// The keys that one row of a block sees: none if end is begin.
struct VisibleKeys {
  std::int64_t begin, end;
};

/// p = exp(scale z - maximum) where visible, zeros elsewhere up to `keys`; returns the sum of p
/// before rounding.
template <typename T>
HWY_INLINE float exponentiate_row(const float* z, T* p, VisibleKeys visible, std::int64_t keys,
                                  float scale, float maximum) {
  const auto shift = splat(maximum);
  auto sum = splat(0.0F);
  clear(p, visible.begin);
  clear(p + visible.end, keys - visible.end);
  z += visible.begin;
  p += visible.begin;
  for_each_vector(visible.end - visible.begin, [&](std::int64_t j, std::int64_t count) HWY_ATTR {
    // Lanes past the end add exp(-inf), which is 1e-38 here, to a sum of at least 1.
    const auto score = load_n(z + j, count, -std::numeric_limits<float>::infinity());
    const auto e = exp(hn::MulSub(score, splat(scale), shift));
    sum = hn::Add(sum, e);
    store_n(e, p + j, count);
  });
  return sum_lanes(sum);
}

/// z becomes cap * tanh(scale z / cap) where visible.
HWY_INLINE void cap_row(float* z, VisibleKeys visible, float scale, float cap) {
  const auto inner = splat(scale / cap), outer = splat(cap);
  z += visible.begin;
  for_each_vector(visible.end - visible.begin, [&](std::int64_t j, std::int64_t count) HWY_ATTR {
    store_n(hn::Mul(tanh(hn::Mul(load_n(z + j, count), inner)), outer), z + j, count);
  });
}

HWY_INLINE float row_maximum(const float* z, VisibleKeys visible) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  auto maximum = splat(kNone);
  z += visible.begin;
  for_each_vector(visible.end - visible.begin, [&](std::int64_t j, std::int64_t count) HWY_ATTR {
    maximum = hn::Max(maximum, load_n(z + j, count, kNone));
  });
  return max_lanes(maximum);
}

template <typename T>
void softmax_rows_typed(const ForwardScratch& scratch, const ScoreBlock& block) {
  for (std::int64_t r = 0; r < block.queries; ++r) {
    float* z = scratch.scores + r * scratch.score_stride;
    const std::int64_t end = block.keys_end(r);
    // A late query may see nothing of the first blocks, for its window or its document begins
    // later: its maximum is then -inf, its sum 0.
    const std::int64_t start = block.starts == nullptr ? 0 : block.starts[r] - block.first_key;
    const std::int64_t of_window = block.causal ? block.diagonal + r + 1 - block.window : 0;
    const VisibleKeys visible{std::clamp<std::int64_t>(std::max(start, of_window), 0, end), end};
    const bool capped = block.soft_cap != 0.0F;
    if (capped) cap_row(z, visible, block.scale, block.soft_cap);
    const float scale = capped ? 1.0F : block.scale;
    const float local = scale * row_maximum(z, visible);
    const float maximum = block.first ? local : std::max(scratch.maxima[r], local);
    const float sum = exponentiate_row(z, probabilities<T>(scratch) + r * scratch.score_stride,
                                       visible, block.keys, scale, maximum);
    if (block.first) {
      scratch.sums[r] = sum;
    } else {
      // Equal: both may be -inf.
      const float shrink =
          scratch.maxima[r] == maximum ? 1.0F : std::exp(scratch.maxima[r] - maximum);
      scratch.sums[r] = scratch.sums[r] * shrink + sum;
      float* out = scratch.out + r * block.head_dim;
      for_each_vector(block.head_dim, [&](std::int64_t j, std::int64_t count) HWY_ATTR {
        store_n(hn::Mul(load_n(out + j, count), splat(shrink)), out + j, count);
      });
    }
    scratch.maxima[r] = maximum;
  }
}

void softmax_rows(const ForwardScratch& scratch, const ScoreBlock& block, DType dtype) {
  with_float_type(dtype, [&]<typename T>(T) HWY_ATTR { softmax_rows_typed<T>(scratch, block); });
}

template <typename T>
void finish_rows_typed(const ForwardScratch& scratch, const ScoreBlock& block, T* out,
                       std::int64_t out_stride, float* lse) {
  for (std::int64_t r = 0; r < block.queries; ++r) {
    const auto inverse = splat(1.0F / scratch.sums[r]);
    const float* from = scratch.out + r * block.head_dim;
    T* to = out + r * out_stride;
    for_each_vector(block.head_dim, [&](std::int64_t j, std::int64_t count) HWY_ATTR {
      store_n(hn::Mul(load_n(from + j, count), inverse), to + j, count);
    });
    lse[r] = scratch.maxima[r] + std::log(scratch.sums[r]);
  }
}

/// Writes the rows to `out`, whose first element is number `offset` of the view.
void finish_rows(const ForwardScratch& scratch, const ScoreBlock& block, const TensorView& out,
                 std::int64_t offset, std::int64_t out_stride, float* lse) {
  with_float_type(out.dtype, [&]<typename T>(T) HWY_ATTR {
    finish_rows_typed(scratch, block, out.as<T>() + offset, out_stride, lse);
  });
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(softmax_rows);
HWY_EXPORT(finish_rows);

/// scores = q k^T
void multiply_scores(const Matrix& q, Matrix k, const ScoreBlock& block,
                     const ForwardScratch& scratch, DType dtype) {
  k.transposed = true;
  multiply({.m = block.queries,
            .n = block.keys,
            .k = block.head_dim,
            .a = q,
            .b = k,
            .c = scratch.scores,
            .c_stride = scratch.score_stride,
            .bias = nullptr,
            .accumulate = false,
            .dtype = dtype,
            .c_dtype = DType::kFloat32});
}

/// out = [out +] p v
void add_values(const Matrix& v, const ScoreBlock& block, const ForwardScratch& scratch,
                DType dtype) {
  const void* p = scratch.rounded != nullptr ? scratch.rounded : scratch.scores;
  multiply({.m = block.queries,
            .n = block.head_dim,
            .k = block.keys,
            .a = {p, scratch.score_stride, false},
            .b = v,
            .c = scratch.out,
            .c_stride = block.head_dim,
            .bias = nullptr,
            .accumulate = !block.first,
            .dtype = dtype,
            .c_dtype = DType::kFloat32});
}

}  // namespace

void attention_forward_block(const AttentionForwardArgs& args, const AttentionShape& shape,
                             std::int64_t b, std::int64_t h, std::int64_t block,
                             std::byte* memory) {
  const DType dtype = args.qkv.dtype;
  const ForwardScratch scratch(memory, shape.length, shape.head_dim, dtype);
  const std::int64_t q0 = block * kQueryBlock;
  const std::int64_t queries = std::min(kQueryBlock, shape.length - q0);
  const auto row = [&](int part, std::int64_t position) -> Matrix {
    const std::int64_t element = shape.qkv_offset(b, h, part) + position * shape.qkv_stride();
    return {args.qkv.data + element * static_cast<std::int64_t>(size_of(dtype)), shape.qkv_stride(),
            false};
  };
  ScoreBlock scores(shape.head_dim, shape.window, shape.scores);
  scores.queries = queries;
  const std::int64_t first = shape.first_key(b, q0);
  if (shape.starts != nullptr) scores.starts = shape.starts + b * shape.length + q0;
  scores.causal = shape.causal;
  std::int64_t keys_end = shape.keys_end(q0 + queries);
  std::array<std::int32_t, kQueryBlock> ends{};
  if (!shape.causal && shape.starts != nullptr) {
    keys_end = shape.end_of(b, q0 + queries - 1);
    std::int64_t end = keys_end;
    for (std::int64_t r = queries - 1; r >= 0; --r) {
      ends[static_cast<std::size_t>(r)] = static_cast<std::int32_t>(end);
      if (shape.start_of(b, q0 + r) == q0 + r) end = q0 + r;
    }
    scores.ends = ends.data();
  }
  for (std::int64_t k0 = first; k0 < keys_end; k0 += kKeyBlock) {
    scores.keys = std::min(kKeyBlock, keys_end - k0);
    scores.diagonal = q0 - k0;
    scores.first_key = k0;
    scores.first = k0 == first;
    multiply_scores(row(0, q0), row(1, k0), scores, scratch, dtype);
    HWY_DYNAMIC_DISPATCH(softmax_rows)(scratch, scores, dtype);
    add_values(row(2, k0), scores, scratch, dtype);
  }
  HWY_DYNAMIC_DISPATCH(finish_rows)
  (scratch, scores, args.out, shape.out_offset(b, h) + q0 * shape.out_stride(), shape.out_stride(),
   args.lse.as<float>() + shape.lse_offset(b, h) + q0);
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE

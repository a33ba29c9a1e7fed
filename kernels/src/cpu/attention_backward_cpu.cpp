#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention_backward_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "cpu/attention_cpu.h"

// One head's gradients (Dao et al. 2022, recomputing p from lse). With z = scale q k^T:
//   p = exp(z - lse),  delta = rowsum(do * out),  ds = scale p (do v^T - delta)
//   dv = p^T do,  dk = ds^T q,  dq = ds k
// With a soft cap, z = cap t of t = tanh(scale q k^T / cap), and ds has the factor 1 - t^2, too.
// Blocks of scores are held transposed, a row per key: then lse and delta of the queries run along
// the vectors, and two of the three products after the softmax need no transposition.
//
// Key blocks go left to right, so that the first that a query block sees starts its dq. For each,
// query blocks go from the last that sees any of it, whose scores are there for the whole key block
// and so start dk and dv, to the diagonal.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

template <typename T>
void row_dots_typed(const T* a, const T* b, std::int64_t stride, std::int64_t rows,
                    std::int64_t width, float* dots) {
  for (std::int64_t i = 0; i < rows; ++i) {
    auto sum = splat(0.0F);
    for_each_vector(width, [&](std::int64_t j, std::int64_t count) HWY_ATTR {
      sum = hn::MulAdd(load_n(a + i * stride + j, count), load_n(b + i * stride + j, count), sum);
    });
    dots[i] = sum_lanes(sum);
  }
}

/// dots[i] = row i of a times row i of b, `stride` elements apart, from element `offset` of each.
void row_dots(const TensorView& a, const TensorView& b, std::int64_t offset, std::int64_t stride,
              std::int64_t rows, std::int64_t width, float* dots) {
  with_float_type(a.dtype, [&]<typename T>(T) HWY_ATTR {
    row_dots_typed(a.as<T>() + offset, b.as<T>() + offset, stride, rows, width, dots);
  });
}

/// Turns k q^T and v do^T into p^T and ds^T, rounded to T. `lse` and `delta` begin at the block's
/// first query.
template <bool kCapped, typename T>
void softmax_gradient_typed(const BackwardScratch& scratch, const ScoreBlock& block,
                            const float* lse, const float* delta, T* p, T* ds) {
  const auto scale = splat(block.scale);
  const auto inner = splat(kCapped ? block.scale / block.soft_cap : 0.0F);
  for (std::int64_t c = 0; c < block.keys; ++c) {
    const std::int64_t row = c * scratch.score_stride;
    const std::int64_t begin = block.causal              ? c - block.diagonal
                               : block.starts == nullptr ? 0
                                                         : block.starts[c] - block.first_query;
    const std::int64_t hidden = std::clamp<std::int64_t>(begin, 0, block.queries);
    clear(p + row, hidden);
    clear(ds + row, hidden);
    const std::int64_t end =
        block.ends == nullptr ? block.queries : block.ends[c] - block.first_query;
    const std::int64_t window_end =
        block.causal ? c - block.diagonal + block.window : block.queries;
    const std::int64_t seen_until =
        std::clamp<std::int64_t>(std::min(end, window_end), hidden, block.queries);
    clear(p + row + seen_until, block.queries - seen_until);
    clear(ds + row + seen_until, block.queries - seen_until);
    for_each_vector(seen_until - hidden, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
      const std::int64_t r = hidden + i;
      auto z = load_n(scratch.scores + row + r, count);
      auto dp = hn::Sub(load_n(scratch.d_scores + row + r, count), load_n(delta + r, count));
      if constexpr (kCapped) {
        const auto t = tanh(hn::Mul(z, inner));
        z = hn::Mul(t, splat(block.soft_cap));
        dp = hn::Mul(dp, hn::NegMulAdd(t, t, splat(1.0F)));
      } else {
        z = hn::Mul(z, scale);
      }
      const auto e = exp(hn::Sub(z, load_n(lse + r, count)));
      store_n(e, p + row + r, count);
      store_n(hn::Mul(hn::Mul(e, scale), dp), ds + row + r, count);
    });
  }
}

void softmax_gradient(const BackwardScratch& scratch, const ScoreBlock& block, const float* lse,
                      const float* delta, DType dtype) {
  const auto run = [&]<typename T>(T* p, T* ds) HWY_ATTR {
    if (block.soft_cap != 0.0F) {
      softmax_gradient_typed<true>(scratch, block, lse, delta, p, ds);
    } else {
      softmax_gradient_typed<false>(scratch, block, lse, delta, p, ds);
    }
  };
  if (scratch.rounded == nullptr) return run(scratch.scores, scratch.d_scores);
  with_float_type(dtype, [&]<typename T>(T) HWY_ATTR {
    run(static_cast<T*>(scratch.rounded), static_cast<T*>(scratch.d_rounded));
  });
}

template <typename T>
void store_rows_typed(const float* from, std::int64_t rows, std::int64_t width, T* to,
                      std::int64_t stride) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for_each_vector(width, [&](std::int64_t j, std::int64_t count) HWY_ATTR {
      store_n(load_n(from + i * width + j, count), to + i * stride + j, count);
    });
  }
}

/// Rounds contiguous rows into those of `to` from its element `offset` on.
void store_rows(const float* from, std::int64_t rows, std::int64_t width, const TensorView& to,
                std::int64_t offset, std::int64_t stride) {
  with_float_type(to.dtype, [&]<typename T>(T) HWY_ATTR {
    store_rows_typed(from, rows, width, to.as<T>() + offset, stride);
  });
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(row_dots);
HWY_EXPORT(softmax_gradient);
HWY_EXPORT(store_rows);

/// One head's pass: the names of `attention_backward_head`'s arguments, and the loop's body.
class BackwardHead {
 public:
  BackwardHead(const AttentionBackwardArgs& args, const AttentionShape& shape, std::int64_t b,
               std::int64_t h, std::byte* memory)
      : args_(args),
        shape_(shape),
        b_(b),
        h_(h),
        dtype_(args.qkv.dtype),
        scratch_(memory, shape.length, shape.head_dim, dtype_),
        block_(shape.head_dim, shape.window, shape.scores) {
    block_.causal = shape.causal;
    if (shape.starts == nullptr) return;
    ends_.resize(static_cast<std::size_t>(shape.length));
    auto end = static_cast<std::int32_t>(shape.length);
    for (std::int64_t t = shape.length - 1; t >= 0; --t) {
      ends_[static_cast<std::size_t>(t)] = end;
      if (shape.start_of(b, t) == t) end = static_cast<std::int32_t>(t);
    }
  }

  void run() {
    const std::int64_t length = shape_.length;
    HWY_DYNAMIC_DISPATCH(row_dots)
    (args_.d_out, args_.out, shape_.out_offset(b_, h_), shape_.out_stride(), length,
     shape_.head_dim, scratch_.delta);
    for (std::int64_t k0 = 0; k0 < length; k0 += kKeyBlock) {
      const std::int64_t keys = std::min(kKeyBlock, length - k0);
      const std::int64_t last = shape_.last_query_block(k0 + keys, document_end(k0 + keys - 1));
      const std::int64_t first = shape_.first_query(b_, k0);
      for (std::int64_t i = last; i * kQueryBlock >= first; --i) {
        add_block(k0, i * kQueryBlock, i == last);
      }
      store(scratch_.dk, 1, k0, keys);
      store(scratch_.dv, 2, k0, keys);
    }
    store(scratch_.dq, 0, 0, length);
  }

 private:
  std::int64_t document_end(std::int64_t position) const {
    return ends_.empty() ? shape_.length : ends_[static_cast<std::size_t>(position)];
  }

  /// Adds the contributions of one block of scores to dq, dk and dv.
  void add_block(std::int64_t k0, std::int64_t q0, bool last_queries) {
    block_.queries = std::min(kQueryBlock, shape_.length - q0);
    block_.keys = std::min(kKeyBlock, shape_.keys_end(q0 + block_.queries) - k0);
    block_.diagonal = q0 - k0;
    block_.first_query = q0;
    if (!ends_.empty()) block_.ends = ends_.data() + k0;
    if (!ends_.empty() && !shape_.causal) {
      block_.starts = shape_.starts + b_ * shape_.length + k0;
    }
    const std::int64_t m = block_.keys;
    const std::int64_t n = block_.queries;
    const std::int64_t d = shape_.head_dim;
    const std::int64_t stride = scratch_.score_stride;
    product(m, n, d, qkv_rows(1, k0), transposed(qkv_rows(0, q0)), scratch_.scores, stride, false);
    product(m, n, d, qkv_rows(2, k0), transposed(d_out_rows(q0)), scratch_.d_scores, stride, false);
    const float* lse = args_.lse.as<float>() + shape_.lse_offset(b_, h_) + q0;
    HWY_DYNAMIC_DISPATCH(softmax_gradient)(scratch_, block_, lse, scratch_.delta + q0, dtype_);
    const bool rounded = scratch_.rounded != nullptr;
    const Matrix p = rounded ? Matrix{scratch_.rounded, stride} : Matrix{scratch_.scores, stride};
    const Matrix ds =
        rounded ? Matrix{scratch_.d_rounded, stride} : Matrix{scratch_.d_scores, stride};
    product(m, d, n, p, d_out_rows(q0), scratch_.dv, d, !last_queries);
    product(m, d, n, ds, qkv_rows(0, q0), scratch_.dk, d, !last_queries);
    product(n, d, m, transposed(ds), qkv_rows(1, k0), scratch_.dq + q0 * d, d,
            k0 > shape_.first_key(b_, q0));
  }

  void product(std::int64_t m, std::int64_t n, std::int64_t k, const Matrix& a, const Matrix& b,
               float* c, std::int64_t c_stride, bool accumulate) const {
    Product p;
    p.m = m;
    p.n = n;
    p.k = k;
    p.a = a;
    p.b = b;
    p.c = c;
    p.c_stride = c_stride;
    p.accumulate = accumulate;
    p.dtype = dtype_;
    multiply(p);
  }

  static Matrix transposed(Matrix matrix) {
    matrix.transposed = true;
    return matrix;
  }
  /// Rows of q (part 0), k (1) or v (2) from a position on.
  Matrix qkv_rows(int part, std::int64_t position) const {
    return rows(args_.qkv, shape_.qkv_offset(b_, h_, part), shape_.qkv_stride(), position);
  }
  Matrix d_out_rows(std::int64_t position) const {
    return rows(args_.d_out, shape_.out_offset(b_, h_), shape_.out_stride(), position);
  }
  static Matrix rows(const TensorView& view, std::int64_t offset, std::int64_t stride,
                     std::int64_t position) {
    const auto size = static_cast<std::int64_t>(size_of(view.dtype));
    return {view.data + (offset + position * stride) * size, stride};
  }

  void store(const float* from, int part, std::int64_t position, std::int64_t rows) const {
    const std::int64_t stride = shape_.qkv_stride();
    HWY_DYNAMIC_DISPATCH(store_rows)
    (from, rows, shape_.head_dim, args_.d_qkv, shape_.qkv_offset(b_, h_, part) + position * stride,
     stride);
  }

  const AttentionBackwardArgs& args_;
  const AttentionShape& shape_;
  const std::int64_t b_, h_;
  const DType dtype_;
  const BackwardScratch scratch_;
  ScoreBlock block_;
  std::vector<std::int32_t> ends_;  ///< of the document of each position; empty: one document
};

}  // namespace

void attention_backward_head(const AttentionBackwardArgs& args, const AttentionShape& shape,
                             std::int64_t b, std::int64_t h, std::byte* scratch) {
  BackwardHead(args, shape, b, h, scratch).run();
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE

#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/heads_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"

#include <cmath>
#include <vector>

#include "cpu/cpu_kernels.h"
#include "cpu/parallel.h"
#include "cpu/row_blocks.h"
#include "heads_arguments.h"

// Between the projections of query, key and value and attention: a head's norm, its rotation, and
// copies of keys and values for each query that they serve.
//
// A token's angles are computed once for all of its heads. A head is a row of D fp32 numbers in L1:
//   h = x rstd gamma [without norms h = x; gamma is what is stored + gamma_offset],  rstd = 1 /
//   sqrt(sum(x^2) / D + epsilon) y_i = c_i h_i - s_i h_j,  y_j = c_i h_j + s_i h_i   for i < R/2, j
//   = i + R/2
// and backward, with dy the sum of the copies' gradients in order,
//   dh_i = c_i dy_i + s_i dy_j,  dh_j = c_i dy_j - s_i dy_i,  g = dh gamma,  n = x rstd,
//   dx = rstd (g - n sum(g n) / D),  dgamma = sum dh n over tokens and heads
// in the order of row_blocks.h, heads within a token in order. Sums along a head run in as many
// lanes as a vector has: results depend on the instruction set, not on the thread count.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

#define TESSERA_ROTARY_FUNCTION HWY_INLINE
#include "rotary_angle.inc.h"
#undef TESSERA_ROTARY_FUNCTION

/// A head's numbers, or a token's sines and cosines.
struct HeadRow {
  HWY_ALIGN float v[kMaxHeadWidth];
};

struct Rotation {
  HeadRow cosine, sine;

  void set(std::int64_t position, std::span<const float> frequencies, float amplitude) {
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      const SineCosine of = sine_cosine(static_cast<float>(position) * frequencies[i]);
      cosine.v[i] = of.cosine * amplitude;
      sine.v[i] = of.sine * amplitude;
    }
  }
  /// Turns the row's first 2 * angles numbers, forward or back.
  HWY_INLINE void turn(HeadRow& row, std::int64_t angles, bool back) const {
    for_each_vector(angles, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
      const auto c = load_n(cosine.v + i, count), plain = load_n(sine.v + i, count);
      const auto s = back ? hn::Neg(plain) : plain;
      const auto a = load_n(row.v + i, count), b = load_n(row.v + angles + i, count);
      store_n(hn::NegMulAdd(s, b, hn::Mul(c, a)), row.v + i, count);
      store_n(hn::MulAdd(s, a, hn::Mul(c, b)), row.v + angles + i, count);
    });
  }
};

template <typename T>
HWY_INLINE float rstd_of(const T* x, std::int64_t width, float epsilon) {
  auto squares = splat(0.0F);
  for_each_vector(width, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    const auto value = load_n(x + i, count);
    squares = hn::MulAdd(value, value, squares);
  });
  return 1.0F / std::sqrt(sum_lanes(squares) / static_cast<float>(width) + epsilon);
}

/// Options of the norms in both passes.
struct NormOptions {
  float epsilon, gamma_offset;
};

/// The row as it is, or normalised where there is a gamma.
template <typename T>
HWY_INLINE void load_head(const T* x, const T* gamma, std::int64_t width, NormOptions norm,
                          HeadRow& row) {
  const auto rstd = splat(gamma == nullptr ? 1.0F : rstd_of(x, width, norm.epsilon));
  const auto offset = splat(norm.gamma_offset);
  for_each_vector(width, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    auto value = load_n(x + i, count);
    if (gamma != nullptr) {
      value = hn::Mul(hn::Mul(value, rstd), hn::Add(load_n(gamma + i, count), offset));
    }
    store_n(value, row.v + i, count);
  });
}

template <typename T>
HWY_INLINE void store_head(const HeadRow& row, std::int64_t width, T* to) {
  for_each_vector(width, [&](std::int64_t i, std::int64_t count)
                             HWY_ATTR { store_n(load_n(row.v + i, count), to + i, count); });
}

template <typename T>
const T* gamma_of(const TensorView& gamma) {
  return gamma ? gamma.as<T>() : nullptr;
}

/// Where the document of a row of (B L) begins in its sequence.
HWY_INLINE std::int64_t document_start(const TensorView& starts, std::int64_t row) {
  return starts ? starts.as<std::int32_t>()[row] : 0;
}

template <typename T>
void heads_forward_typed(const HeadsForwardArgs& args, const HeadsSizes& s, std::int64_t begin,
                         std::int64_t end) {
  const T* const q_gamma = gamma_of<T>(args.q_gamma);
  const T* const k_gamma = gamma_of<T>(args.k_gamma);
  const NormOptions norm{args.epsilon, args.gamma_offset};
  Rotation rotation;
  HeadRow head;
  for (std::int64_t row = begin; row < end; ++row) {
    rotation.set(args.first_position + row % s.length - document_start(args.starts, row),
                 args.frequencies, args.amplitude);
    const T* x = args.packed.as<T>() + row * s.packed_heads() * s.width;
    T* y = args.qkv.as<T>() + row * 3 * s.heads * s.width;
    for (std::int64_t h = 0; h < s.heads; ++h, x += s.width, y += s.width) {
      load_head(x, q_gamma, s.width, norm, head);
      rotation.turn(head, s.angles, false);
      store_head(head, s.width, y);
    }
    for (std::int64_t h = 0; h < 2 * s.kv_heads; ++h, x += s.width) {
      const bool is_key = h < s.kv_heads;
      load_head(x, is_key ? k_gamma : nullptr, s.width, norm, head);
      if (is_key) rotation.turn(head, s.angles, false);
      for (std::int64_t g = 0; g < s.group(); ++g, y += s.width) store_head(head, s.width, y);
    }
  }
}

/// dx of a head whose `dh` is given; adds the head's part to dgamma.
template <typename T>
HWY_INLINE void norm_backward(const T* x, const T* gamma, std::int64_t width, NormOptions norm,
                              HeadRow& dh, float* dgamma) {
  const auto rstd = splat(rstd_of(x, width, norm.epsilon)), offset = splat(norm.gamma_offset);
  auto sum = splat(0.0F);
  for_each_vector(width, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    const auto n = hn::Mul(load_n(x + i, count), rstd);
    const auto d = load_n(dh.v + i, count);
    sum = hn::MulAdd(hn::Mul(d, hn::Add(load_n(gamma + i, count), offset)), n, sum);
    store_n(hn::MulAdd(d, n, load_n(dgamma + i, count)), dgamma + i, count);
  });
  const auto mean = splat(sum_lanes(sum) / static_cast<float>(width));
  for_each_vector(width, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    const auto n = hn::Mul(load_n(x + i, count), rstd);
    const auto g = hn::Mul(load_n(dh.v + i, count), hn::Add(load_n(gamma + i, count), offset));
    store_n(hn::Mul(rstd, hn::NegMulAdd(n, mean, g)), dh.v + i, count);
  });
}

/// The gradients of `copies` copies of a head, which lie one behind the other, in order.
template <typename T>
HWY_INLINE void sum_copies(const T* dy, std::int64_t copies, std::int64_t width, HeadRow& sum) {
  for_each_vector(width, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    auto total = load_n(dy + i, count);
    for (std::int64_t g = 1; g < copies; ++g)
      total = hn::Add(total, load_n(dy + g * width + i, count));
    store_n(total, sum.v + i, count);
  });
}

/// `dgamma`: (2, D), of queries and of keys; not written to without norms.
template <typename T>
void heads_backward_typed(const HeadsBackwardArgs& args, const HeadsSizes& s, std::int64_t begin,
                          std::int64_t end, float* dgamma) {
  const T* const q_gamma = gamma_of<T>(args.q_gamma);
  const T* const k_gamma = gamma_of<T>(args.k_gamma);
  const T* const packed = q_gamma == nullptr ? nullptr : args.packed.as<T>();
  const NormOptions norm{args.epsilon, args.gamma_offset};
  Rotation rotation;
  HeadRow head;
  for (std::int64_t row = begin; row < end; ++row) {
    rotation.set(row % s.length - document_start(args.starts, row), args.frequencies,
                 args.amplitude);
    const T* dy = args.d_qkv.as<T>() + row * 3 * s.heads * s.width;
    for (std::int64_t h = 0; h < s.packed_heads(); ++h) {
      const std::int64_t at = (row * s.packed_heads() + h) * s.width;
      const bool is_query = h < s.heads, is_value = h >= s.heads + s.kv_heads;
      const std::int64_t copies = is_query ? 1 : s.group();
      sum_copies(dy, copies, s.width, head);
      dy += copies * s.width;
      if (!is_value) {
        rotation.turn(head, s.angles, true);
        if (packed != nullptr) {
          norm_backward(packed + at, is_query ? q_gamma : k_gamma, s.width, norm, head,
                        is_query ? dgamma : dgamma + s.width);
        }
      }
      store_head(head, s.width, args.d_packed.as<T>() + at);
    }
  }
}

void heads_forward_rows(const HeadsForwardArgs& args, const HeadsSizes& sizes, std::int64_t begin,
                        std::int64_t end) {
  with_float_type(args.qkv.dtype,
                  [&]<typename T>(T) HWY_ATTR { heads_forward_typed<T>(args, sizes, begin, end); });
}

void heads_backward_rows(const HeadsBackwardArgs& args, const HeadsSizes& sizes, std::int64_t begin,
                         std::int64_t end, float* dgamma) {
  std::fill_n(dgamma, 2 * sizes.width, 0.0F);
  with_float_type(args.d_qkv.dtype, [&]<typename T>(T) HWY_ATTR {
    heads_backward_typed<T>(args, sizes, begin, end, dgamma);
  });
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(heads_forward_rows);
HWY_EXPORT(heads_backward_rows);

}  // namespace

void heads_forward(const HeadsForwardArgs& args, Stream&) {
  const HeadsSizes sizes = check_heads(args);
  parallel_for(sizes.rows, RowBlocks::kMinRows, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(heads_forward_rows)(args, sizes, begin, end);
  });
}

void heads_backward(const HeadsBackwardArgs& args, Stream&) {
  const HeadsSizes sizes = check_heads(args);
  const std::int64_t width = sizes.width;
  const RowBlocks blocks(sizes.rows);
  std::vector<float> partials(static_cast<std::size_t>(blocks.count() * 2 * width));
  parallel_for(blocks.count(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      HWY_DYNAMIC_DISPATCH(heads_backward_rows)
      (args, sizes, blocks.begin(b), blocks.end(b), partials.data() + b * 2 * width);
    }
  });
  if (!args.dq_gamma) return;
  const bool accumulate = args.accumulate_parameters;
  combine_blocks(partials.data(), blocks.count(), 2 * width, args.dq_gamma, accumulate);
  combine_blocks(partials.data() + width, blocks.count(), 2 * width, args.dk_gamma, accumulate);
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE

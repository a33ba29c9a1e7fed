#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/layer_norm_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"

#include <cmath>
#include <vector>

#include "cpu/cpu_kernels.h"
#include "cpu/parallel.h"
#include "cpu/row_blocks.h"
#include "layer_norm_arguments.h"

// Layer normalisation over the last dimension C, one row at a time; each row is read from memory
// once and stays in L1 for the further passes over it.
//
// Forward, s = x [+ residual, rounded to T as it is stored]:
//   mean = sum(s) / C,  rstd = 1 / sqrt(sum((s - mean)^2) / C + epsilon)   (two passes: no
//   cancellation),  y = (s - mean) rstd gamma + beta
// Backward, h = (x - mean) rstd and g = dy gamma:
//   dx = rstd (g - mean(g) - h mean(g h)) [+ d_residual],  dgamma = sum dy h,  dbeta = sum dy
// An RMS norm has no mean, mean(g) and beta: they count as 0. gamma is what is stored +
// gamma_offset. The sums over rows are as row_blocks.h says. Sums along a row run in as many lanes
// as a vector has: results depend on the instruction set, not on the thread count.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

/// One row's pointers; `residual` and `sum` may be null.
template <typename T>
struct ForwardRow {
  const T* x;
  const T* residual;
  T* sum;
  T* y;

  void advance(std::int64_t elements) {
    x += elements;
    y += elements;
    if (residual == nullptr) return;
    residual += elements;
    sum += elements;
  }
};

struct Moments {
  float mean, rstd;
};

/// Stores s if there is a residual.
template <typename T>
HWY_INLINE float row_sum(const ForwardRow<T>& row, std::int64_t width) {
  auto total = splat(0.0F);
  if (row.residual == nullptr) {
    for_each_vector(width, [&](std::int64_t j, std::int64_t count)
                               HWY_ATTR { total = hn::Add(total, load_n(row.x + j, count)); });
  } else {
    for_each_vector(width, [&](std::int64_t j, std::int64_t count) HWY_ATTR {
      store_n(hn::Add(load_n(row.x + j, count), load_n(row.residual + j, count)), row.sum + j,
              count);
      total = hn::Add(total, load_n(row.sum + j, count));
    });
  }
  return sum_lanes(total);
}

template <typename T>
HWY_INLINE float row_variance(const T* s, float mean, std::int64_t width) {
  auto total = splat(0.0F);
  const auto center = splat(mean);
  for_each_vector(width, [&](std::int64_t j, std::int64_t count) HWY_ATTR {
    const auto deviation = hn::Sub(load_n(s + j, count, mean), center);
    total = hn::MulAdd(deviation, deviation, total);
  });
  return sum_lanes(total) / static_cast<float>(width);
}

/// `beta` is null in an RMS norm.
template <typename T>
HWY_INLINE Moments normalize_row(const ForwardRow<T>& row, const T* gamma, const T* beta,
                                 std::int64_t width, const LayerNormForwardArgs& args) {
  const T* s = row.residual == nullptr ? row.x : row.sum;
  const bool centered = beta != nullptr;
  const float sum = centered || row.residual != nullptr ? row_sum(row, width) : 0.0F;
  const float mean = centered ? sum / static_cast<float>(width) : 0.0F;
  const float rstd = 1.0F / std::sqrt(row_variance(s, mean, width) + args.epsilon);
  const auto offset = splat(args.gamma_offset);
  for_each_vector(width, [&](std::int64_t j, std::int64_t count) HWY_ATTR {
    const auto h = hn::Mul(hn::Sub(load_n(s + j, count), splat(mean)), splat(rstd));
    const auto shift = centered ? load_n(beta + j, count) : splat(0.0F);
    store_n(hn::MulAdd(h, hn::Add(load_n(gamma + j, count), offset), shift), row.y + j, count);
  });
  return {mean, rstd};
}

template <typename T>
void forward_rows_typed(const LayerNormForwardArgs& args, std::int64_t begin, std::int64_t end,
                        std::int64_t width) {
  const T* gamma = args.gamma.as<T>();
  const T* beta = args.beta ? args.beta.as<T>() : nullptr;
  float* mean = args.mean ? args.mean.as<float>() : nullptr;
  float* rstd = args.rstd.as<float>();
  const bool add = static_cast<bool>(args.residual);
  ForwardRow<T> row{args.x.as<T>(), add ? args.residual.as<T>() : nullptr,
                    add ? args.sum.as<T>() : nullptr, args.y.as<T>()};
  row.advance(begin * width);
  for (std::int64_t i = begin; i < end; ++i, row.advance(width)) {
    const Moments moments = normalize_row(row, gamma, beta, width, args);
    if (mean != nullptr) mean[i] = moments.mean;
    rstd[i] = moments.rstd;
  }
}

void forward_rows(const LayerNormForwardArgs& args, std::int64_t begin, std::int64_t end,
                  std::int64_t width) {
  with_float_type(args.x.dtype,
                  [&]<typename T>(T) HWY_ATTR { forward_rows_typed<T>(args, begin, end, width); });
}

/// One row's pointers; `d_residual` may be null.
template <typename T>
struct BackwardRow {
  const T* dy;
  const T* x;
  const T* d_residual;
  T* dx;

  void advance(std::int64_t elements) {
    dy += elements;
    x += elements;
    dx += elements;
    if (d_residual != nullptr) d_residual += elements;
  }
};

/// dx of one row; adds the row's part of dgamma and dbeta to the partial sums. An RMS norm has no
/// `dbeta`.
template <typename T>
HWY_INLINE void backward_row(const BackwardRow<T>& row, Moments moments, const T* gamma,
                             float gamma_offset, std::int64_t width, float* dgamma, float* dbeta) {
  const auto offset = splat(gamma_offset);
  const auto mean = splat(moments.mean);
  const auto rstd = splat(moments.rstd);
  auto sum_g = splat(0.0F);
  auto sum_gh = splat(0.0F);
  for_each_vector(width, [&](std::int64_t j, std::int64_t count) HWY_ATTR {
    const auto h = hn::Mul(hn::Sub(load_n(row.x + j, count), mean), rstd);
    const auto dy = load_n(row.dy + j, count);
    const auto g = hn::Mul(dy, hn::Add(load_n(gamma + j, count), offset));
    sum_g = hn::Add(sum_g, g);
    sum_gh = hn::MulAdd(g, h, sum_gh);
    store_n(hn::MulAdd(dy, h, load_n(dgamma + j, count)), dgamma + j, count);
    if (dbeta != nullptr) store_n(hn::Add(dy, load_n(dbeta + j, count)), dbeta + j, count);
  });
  const auto mean_g = splat(dbeta == nullptr ? 0.0F : sum_lanes(sum_g) / static_cast<float>(width));
  const auto mean_gh = splat(sum_lanes(sum_gh) / static_cast<float>(width));
  const T* d_residual = row.d_residual;
  for_each_vector(width, [&](std::int64_t j, std::int64_t count) HWY_ATTR {
    const auto h = hn::Mul(hn::Sub(load_n(row.x + j, count), mean), rstd);
    const auto g = hn::Mul(load_n(row.dy + j, count), hn::Add(load_n(gamma + j, count), offset));
    const auto centered = hn::NegMulAdd(h, mean_gh, hn::Sub(g, mean_g));
    const auto added = d_residual == nullptr ? splat(0.0F) : load_n(d_residual + j, count);
    store_n(hn::MulAdd(rstd, centered, added), row.dx + j, count);
  });
}

template <typename T>
void backward_rows_typed(const LayerNormBackwardArgs& args, std::int64_t begin, std::int64_t end,
                         std::int64_t width, float* dgamma, float* dbeta) {
  const T* gamma = args.gamma.as<T>();
  const float* mean = args.mean ? args.mean.as<float>() : nullptr;
  const float* rstd = args.rstd.as<float>();
  BackwardRow<T> row{args.dy.as<T>(), args.x.as<T>(),
                     args.d_residual ? args.d_residual.as<T>() : nullptr, args.dx.as<T>()};
  row.advance(begin * width);
  for (std::int64_t i = begin; i < end; ++i, row.advance(width)) {
    const Moments moments{mean == nullptr ? 0.0F : mean[i], rstd[i]};
    backward_row(row, moments, gamma, args.gamma_offset, width, dgamma,
                 mean == nullptr ? nullptr : dbeta);
  }
}

/// dx of rows [begin, end); `dgamma` and `dbeta` (C) receive the sums over these rows.
void backward_rows(const LayerNormBackwardArgs& args, std::int64_t begin, std::int64_t end,
                   std::int64_t width, float* dgamma, float* dbeta) {
  std::fill(dgamma, dgamma + width, 0.0F);
  std::fill(dbeta, dbeta + width, 0.0F);
  with_float_type(args.x.dtype, [&]<typename T>(T) HWY_ATTR {
    backward_rows_typed<T>(args, begin, end, width, dgamma, dbeta);
  });
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(forward_rows);
HWY_EXPORT(backward_rows);

}  // namespace

void layer_norm_forward(const LayerNormForwardArgs& args, Stream& stream) {
  const LayerNormSizes sizes = check_layer_norm(args);
  parallel_for(sizes.rows, RowBlocks::kMinRows, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(forward_rows)(args, begin, end, sizes.width);
  });
  if (args.amax) amax({.x = args.y, .amax = args.amax}, stream);
}

void layer_norm_backward(const LayerNormBackwardArgs& args, Stream& stream) {
  const LayerNormSizes sizes = check_layer_norm(args);
  const std::int64_t width = sizes.width;
  const RowBlocks blocks(sizes.rows);
  std::vector<float> partials(static_cast<std::size_t>(blocks.count() * 2 * width));
  parallel_for(blocks.count(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      float* sums = partials.data() + b * 2 * width;
      HWY_DYNAMIC_DISPATCH(backward_rows)
      (args, blocks.begin(b), blocks.end(b), width, sums, sums + width);
    }
  });
  if (args.amax) amax({.x = args.dx, .amax = args.amax}, stream);
  if (args.dx_sums) {
    bias_gradient({.dy = args.dx.reshape({sizes.rows, width}), .db = args.dx_sums}, stream);
  }
  if (!args.dgamma) return;
  const bool accumulate = args.accumulate_parameters;
  combine_blocks(partials.data(), blocks.count(), 2 * width, args.dgamma, accumulate);
  if (!args.dbeta) return;
  combine_blocks(partials.data() + width, blocks.count(), 2 * width, args.dbeta, accumulate);
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE

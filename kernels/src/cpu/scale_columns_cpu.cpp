#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/scale_columns_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"

#include <vector>

#include "cpu/cpu_kernels.h"
#include "cpu/parallel.h"
#include "cpu/row_blocks.h"
#include "elementwise_arguments.h"

// y = x * scale over (rows, C), scale of C numbers. Backward: dx = dy * scale, d_scale = column
// sums of dy * x. Products are rounded to fp32 before they are added, within a row block from its
// first row to its last, then over blocks: an order that CUDA's kernel has, too.
// Traffic: forward reads x and writes y [and kept], backward reads dy [and x] and writes dx.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

/// The elements of row `row`, whose rows may be strided.
template <typename T>
T* row_of(const TensorView& view, std::int64_t row) {
  return view.as<T>() + row * view.strides[0];
}

template <typename T>
void scale_forward_typed(const ScaleColumnsForwardArgs& args, std::int64_t begin,
                         std::int64_t end) {
  const T* const scale = args.scale.as<T>();
  for (std::int64_t row = begin; row < end; ++row) {
    const T* const x = row_of<T>(args.x, row);
    T* const y = row_of<T>(args.y, row);
    T* const kept = args.kept ? row_of<T>(args.kept, row) : nullptr;
    for_each_vector(args.x.shape[1], [&](std::int64_t j, std::int64_t count) HWY_ATTR {
      const auto value = load_n(x + j, count);
      if (kept != nullptr) store_n(value, kept + j, count);
      store_n(hn::Mul(value, load_n(scale + j, count)), y + j, count);
    });
  }
}

/// Rows [row, row + kRows): dx, and what they add to `sums` (C) unless that is null.
template <int kRows, typename T>
HWY_INLINE void scale_backward_of(const ScaleColumnsBackwardArgs& args, std::int64_t row,
                                  float* sums) {
  const T* const scale = args.scale.as<T>();
  for_each_vector(args.dy.shape[1], [&](std::int64_t j, std::int64_t count) HWY_ATTR {
    const auto factor = load_n(scale + j, count);
    auto sum = sums == nullptr ? splat(0.0F) : load_n(sums + j, count);
    for (int i = 0; i < kRows; ++i) {
      const auto dy = load_n(row_of<T>(args.dy, row + i) + j, count);
      if (sums != nullptr) {
        sum = hn::Add(sum, hn::Mul(dy, load_n(row_of<T>(args.x, row + i) + j, count)));
      }
      store_n(hn::Mul(dy, factor), row_of<T>(args.dx, row + i) + j, count);
    }
    if (sums != nullptr) store_n(sum, sums + j, count);
  });
}

void scale_forward_rows(const ScaleColumnsForwardArgs& args, std::int64_t begin, std::int64_t end) {
  with_float_type(args.x.dtype,
                  [&]<typename T>(T) HWY_ATTR { scale_forward_typed<T>(args, begin, end); });
}

/// dx of rows [begin, end); `sums` (C) receives their part of d_scale, unless it is null.
void scale_backward_rows(const ScaleColumnsBackwardArgs& args, std::int64_t begin, std::int64_t end,
                         float* sums) {
  constexpr int kTogether = 4;  // so that sums are read and written once for so many rows
  if (sums != nullptr) std::fill(sums, sums + args.dy.shape[1], 0.0F);
  with_float_type(args.dy.dtype, [&]<typename T>(T) HWY_ATTR {
    std::int64_t row = begin;
    for (; row + kTogether <= end; row += kTogether) {
      scale_backward_of<kTogether, T>(args, row, sums);
    }
    for (; row < end; ++row) scale_backward_of<1, T>(args, row, sums);
  });
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(scale_forward_rows);
HWY_EXPORT(scale_backward_rows);

}  // namespace

void scale_columns_forward(const ScaleColumnsForwardArgs& args, Stream&) {
  check_arguments(args);
  // Rows of about 16 KiB elements together are worth a thread.
  const std::int64_t width = std::max<std::int64_t>(args.x.shape[1], 1);
  const std::int64_t least = std::max<std::int64_t>(1, 16384 / width);
  parallel_for(args.x.shape[0], least, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(scale_forward_rows)(args, begin, end);
  });
}

void scale_columns_backward(const ScaleColumnsBackwardArgs& args, Stream&) {
  check_arguments(args);
  const std::int64_t n = args.dy.shape[1];
  const RowBlocks blocks(args.dy.shape[0]);
  std::vector<float> partials;
  if (args.d_scale) partials.resize(static_cast<std::size_t>(blocks.count() * n));
  parallel_for(blocks.count(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      float* const sums = partials.empty() ? nullptr : partials.data() + b * n;
      HWY_DYNAMIC_DISPATCH(scale_backward_rows)(args, blocks.begin(b), blocks.end(b), sums);
    }
  });
  if (!args.d_scale) return;
  combine_blocks(partials.data(), blocks.count(), n, args.d_scale.flat(), args.accumulate);
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE

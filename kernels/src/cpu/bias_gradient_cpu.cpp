#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/bias_gradient_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"

#include <vector>

#include "cpu/cpu_kernels.h"
#include "cpu/parallel.h"
#include "cpu/row_blocks.h"
#include "elementwise_arguments.h"

// db[j] = sum over i of dy[i][j]. Reads dy once, eight rows at a time, so that the partial sums
// (L1 or L2) are read and written once per eight rows. Order: within a row block from its first row
// to its last, then over blocks, then to what is there.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

/// sums[0, n) += rows of `from`, `stride` elements apart, in order.
template <int kRows, typename T>
HWY_INLINE void add_rows(const T* from, std::int64_t stride, float* sums, std::int64_t n) {
  for_each_vector(n, [&](std::int64_t j, std::int64_t count) HWY_ATTR {
    auto sum = load_n(sums + j, count);
    for (int i = 0; i < kRows; ++i) sum = hn::Add(sum, load_n(from + i * stride + j, count));
    store_n(sum, sums + j, count);
  });
}

template <typename T>
void sum_rows_typed(const T* from, std::int64_t rows, float* sums, std::int64_t n) {
  std::fill(sums, sums + n, 0.0F);
  std::int64_t i = 0;
  for (; i + 8 <= rows; i += 8) add_rows<8>(from + i * n, n, sums, n);
  for (; i < rows; ++i) add_rows<1>(from + i * n, n, sums, n);
}

/// sums (n) = column sums of rows [begin, end) of dy.
void sum_rows(const TensorView& dy, std::int64_t begin, std::int64_t end, float* sums,
              std::int64_t n) {
  with_float_type(dy.dtype, [&]<typename T>(T) HWY_ATTR {
    sum_rows_typed(dy.as<T>() + begin * n, end - begin, sums, n);
  });
}

template <typename T>
void combine_typed(const float* partials, std::int64_t blocks, std::int64_t stride, T* out,
                   std::int64_t begin, std::int64_t end, bool accumulate) {
  for_each_vector(end - begin, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    const std::int64_t j = begin + i;
    auto sum = splat(0.0F);
    for (std::int64_t b = 0; b < blocks; ++b) {
      sum = hn::Add(sum, load_n(partials + b * stride + j, count));
    }
    store_n(accumulate ? hn::Add(load_n(out + j, count), sum) : sum, out + j, count);
  });
}

void combine_range(const float* partials, std::int64_t blocks, std::int64_t stride,
                   const TensorView& out, std::int64_t begin, std::int64_t end, bool accumulate) {
  with_float_type(out.dtype, [&]<typename T>(T) HWY_ATTR {
    combine_typed(partials, blocks, stride, out.as<T>(), begin, end, accumulate);
  });
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {
HWY_EXPORT(sum_rows);
HWY_EXPORT(combine_range);
}  // namespace

void combine_blocks(const float* partials, std::int64_t blocks, std::int64_t stride,
                    const TensorView& out, bool accumulate) {
  parallel_for(out.numel(), 1024, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(combine_range)(partials, blocks, stride, out, begin, end, accumulate);
  });
}

void bias_gradient(const BiasGradientArgs& args, Stream&) {
  check_arguments(args);
  const std::int64_t n = args.dy.shape[1];
  const RowBlocks blocks(args.dy.shape[0]);
  std::vector<float> partials(static_cast<std::size_t>(blocks.count() * n));
  parallel_for(blocks.count(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      HWY_DYNAMIC_DISPATCH(sum_rows)
      (args.dy, blocks.begin(b), blocks.end(b), partials.data() + b * n, n);
    }
  });
  combine_blocks(partials.data(), blocks.count(), n, args.db, args.accumulate);
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE

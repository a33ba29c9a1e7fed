#include "cpu/row_blocks.h"
#include "cuda/cuda_kernels.h"
#include "cuda/elementwise_cuda.h"
#include "elementwise_arguments.h"

// y = x * scale over (rows, C), scale of C numbers. Backward: dx = dy * scale, d_scale = column
// sums of dy * x.
//
// Forward treats each element by itself. Backward is two launches: in the first a thread takes a
// group of columns of a row block, whose rows it adds from first to last, and writes a row of
// partial sums (blocks, C) to scratch; in the second a thread adds a column's partial sums in
// order. Row blocks and order are the CPU's, products are rounded before they are added: the same
// bits.
// Bytes: forward reads x and writes y [and kept], backward reads dy [and x] and writes dx; the
// partial sums are at most an eighth as much, of 16 rows of fp32.

namespace tessera::cuda {
namespace {

constexpr int kScaleThreads = 128;
/// Rows of a thread whose loads are on their way together.
constexpr int kScaleRowsAhead = 4;

/// Where element i of (rows, width) lies in memory whose rows are `stride` apart.
struct StridedRows {
  std::int64_t width, stride;
  __device__ std::int64_t at(std::int64_t i) const { return i + i / width * (stride - width); }
};

StridedRows rows_of(const TensorView& view) { return {view.shape[1], view.strides[0]}; }

/// Element by element.
template <int kSize, typename T>
__device__ Pack<T, kSize> product(const Pack<T, kSize>& x, const Pack<T, kSize>& scale) {
  Pack<T, kSize> result;
#pragma unroll
  for (int e = 0; e < kSize; ++e) {
    result.v[e] = simt::from_float<T>(simt::to_float(x.v[e]) * simt::to_float(scale.v[e]));
  }
  return result;
}

template <typename T>
struct ScaleForward {
  const T* x;
  const T* scale;
  T* y;
  T* kept;  // null: none
  StridedRows x_rows, y_rows, kept_rows;

  template <int kSize>
  struct Group {
    Pack<T, kSize> x, scale;
  };
  template <int kSize>
  __device__ Group<kSize> load(std::int64_t i) const {
    return {load_pack<kSize>(x + x_rows.at(i)), load_pack<kSize>(scale + i % x_rows.width)};
  }
  template <int kSize>
  __device__ void store(std::int64_t i, const Group<kSize>& group) const {
    if (kept != nullptr) store_pack(kept + kept_rows.at(i), group.x);
    store_pack(y + y_rows.at(i), product(group.x, group.scale));
  }
};

template <typename T>
struct ScaleBackward {
  const T* dy;
  const T* x;
  const T* scale;
  T* dx;
  float* partials;  // (blocks, width); null: not wanted, and x is not read
  std::int64_t rows, block_rows, width;
  std::int64_t dy_stride, x_stride, dx_stride;
};

/// Rows [row, row + kRows) of a group of columns: loads before stores, so that they overlap.
template <int kSize, int kRows, typename T>
__device__ void scale_rows(const ScaleBackward<T>& a, std::int64_t row, std::int64_t column,
                           const Pack<T, kSize>& scale, float (&sums)[kSize]) {
  Pack<T, kSize> dy[kRows], x[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    dy[r] = load_pack<kSize>(a.dy + (row + r) * a.dy_stride + column);
    if (a.partials != nullptr) x[r] = load_pack<kSize>(a.x + (row + r) * a.x_stride + column);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    store_pack(a.dx + (row + r) * a.dx_stride + column, product(dy[r], scale));
  }
  if (a.partials == nullptr) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      const float term = __fmul_rn(simt::to_float(dy[r].v[e]), simt::to_float(x[r].v[e]));
      sums[e] = __fadd_rn(sums[e], term);
    }
  }
}

template <int kSize, typename T>
__global__ void __launch_bounds__(kScaleThreads) scale_backward_kernel(const ScaleBackward<T> a) {
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * kScaleThreads +
                               static_cast<std::int64_t>(threadIdx.x)) *
                              kSize;
  if (column >= a.width) return;  // width: whole groups
  std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * a.block_rows;
  const std::int64_t end = row + a.block_rows < a.rows ? row + a.block_rows : a.rows;
  const auto scale = load_pack<kSize>(a.scale + column);
  float sums[kSize] = {};
  for (; row + kScaleRowsAhead <= end; row += kScaleRowsAhead) {
    scale_rows<kSize, kScaleRowsAhead>(a, row, column, scale, sums);
  }
  for (; row < end; ++row) scale_rows<kSize, 1>(a, row, column, scale, sums);
  if (a.partials == nullptr) return;
  float* const to = a.partials + static_cast<std::int64_t>(blockIdx.y) * a.width + column;
#pragma unroll
  for (int e = 0; e < kSize; ++e) to[e] = sums[e];
}

/// d_scale [+]= the sum of each column's partial sums, from the first block to the last.
template <typename D>
__global__ void __launch_bounds__(kScaleThreads)
    add_partials_kernel(const float* partials, std::int64_t blocks, std::int64_t width, D* d_scale,
                        bool accumulate) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kScaleThreads +
                              static_cast<std::int64_t>(threadIdx.x);
  if (column >= width) return;
  float sum = 0.0F;
#pragma unroll 8
  for (std::int64_t b = 0; b < blocks; ++b) sum += partials[b * width + column];
  D& to = d_scale[column];
  to = simt::from_float<D>(accumulate ? simt::to_float(to) + sum : sum);
}

/// Whether rows of these widths and strides can be moved in groups of kSize elements.
template <int kSize>
bool whole_groups(std::initializer_list<std::int64_t> sizes) {
  for (const std::int64_t size : sizes) {
    if (size % kSize != 0) return false;
  }
  return true;
}

}  // namespace

void scale_columns_forward(const ScaleColumnsForwardArgs& args, Stream& stream) {
  check_arguments(args);
  with_element_type("scale_columns_forward", args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kSize = kGroupOf<T>;
    const TensorView& kept = args.kept ? args.kept : args.y;
    const ScaleForward<T> op{.x = device_data<T>(args.x),
                             .scale = device_data<T>(args.scale),
                             .y = device_data<T>(args.y),
                             .kept = device_data<T>(args.kept),
                             .x_rows = rows_of(args.x),
                             .y_rows = rows_of(args.y),
                             .kept_rows = rows_of(kept)};
    const bool grouped = whole_groups<kSize>({op.x_rows.width, op.x_rows.stride, op.y_rows.stride,
                                              op.kept_rows.stride}) &&
                         groups_aligned<kSize>(op.x, op.scale, op.y, op.kept);
    launch_elementwise<kSize>(op, args.x.numel(), grouped, stream);
  });
}

void scale_columns_backward(const ScaleColumnsBackwardArgs& args, Stream& stream) {
  check_arguments(args);
  const cudaStream_t queue = handle(stream);
  const std::int64_t width = args.dy.shape[1];
  if (width == 0) return;
  const cpu::RowBlocks blocks(args.dy.shape[0]);
  float* partials = nullptr;
  if (args.d_scale) {
    const auto count = static_cast<std::size_t>(std::max<std::int64_t>(blocks.count(), 1) * width);
    partials = static_cast<float*>(cuda_stream(stream).scratch(count * sizeof(float)));
  }
  with_element_type("scale_columns_backward", args.dy.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kSize = kGroupOf<T>;
    const ScaleBackward<T> a{.dy = device_data<T>(args.dy),
                             .x = args.d_scale ? device_data<T>(args.x) : nullptr,
                             .scale = device_data<T>(args.scale),
                             .dx = device_data<T>(args.dx),
                             .partials = partials,
                             .rows = blocks.rows,
                             .block_rows = blocks.size,
                             .width = width,
                             .dy_stride = args.dy.strides[0],
                             .x_stride = args.d_scale ? args.x.strides[0] : 0,
                             .dx_stride = args.dx.strides[0]};
    if (a.rows == 0) return;
    const bool grouped = whole_groups<kSize>({width, a.dy_stride, a.x_stride, a.dx_stride}) &&
                         groups_aligned<kSize>(a.dy, a.x, a.scale, a.dx);
    const auto row_blocks = static_cast<unsigned>(blocks.count());
    if (grouped) {
      simt::launch(scale_backward_kernel<kSize, T>,
                   dim3(blocks_for(width, kScaleThreads * kSize), row_blocks), dim3(kScaleThreads),
                   0, queue, a);
    } else {
      simt::launch(scale_backward_kernel<1, T>, dim3(blocks_for(width, kScaleThreads), row_blocks),
                   dim3(kScaleThreads), 0, queue, a);
    }
  });
  if (!args.d_scale) return;
  with_element_type("scale_columns_backward", args.d_scale.dtype, [&](auto type) {
    using D = typename decltype(type)::type;
    simt::launch(add_partials_kernel<D>, dim3(blocks_for(width, kScaleThreads)),
                 dim3(kScaleThreads), 0, queue, partials, blocks.count(), width,
                 device_data<D>(args.d_scale), args.accumulate);
  });
}

}  // namespace tessera::cuda

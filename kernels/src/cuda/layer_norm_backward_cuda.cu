#include <algorithm>
#include <cstdint>

#include "cuda/column_slabs.h"
#include "cuda/cuda_kernels.h"
#include "cuda/cuda_launch.h"
#include "cuda/magnitude_cuda.h"
#include "layer_norm_arguments.h"
#include "simt.h"

// Layer normalisation, backward: with h = (x - mean) rstd and g = dy gamma,
//   dx = rstd (g - mean(g) - h mean(g h)) [+ d_residual],  dgamma = sum dy h,  dbeta = sum dy
// An RMS norm has no mean, mean(g) and dbeta: they count as 0. gamma is what is stored +
// gamma_offset.
// dy, x, d_residual, dx (rows, C) T; gamma (C) T; mean, rstd (rows) fp32; dgamma, dbeta (C) fp32,
// bf16 or fp16. Bytes: every tensor once, and the partial sums below.
//
// A block takes a slab of column_slabs.h. A group of its threads takes a row, 16 bytes to a thread
// and access, so that a thread has the same columns in every row and sums their dgamma and dbeta in
// registers; the next rows are on their way to shared memory meanwhile. Groups are added into the
// slab's partial sums (slabs, 2, C), fp32, in scratch; a second kernel adds the slabs. On their
// way, blocks of bf16 rows leave the largest magnitude of dx, and blocks of 16-bit rows the column
// sums of dx, as a third row of partial sums.

namespace tessera::cuda {
namespace {

using simt::Vec16;

constexpr int kNormBackwardThreads = kSlabThreads;
/// Rows of a thread in shared memory: all but one are on their way, of three vectors each.
constexpr int kStages = 4;

template <typename T>
struct NormBackwardRows {
  const T* dy;
  const T* x;
  const float* mean;  // null in an RMS norm
  const float* rstd;
  const T* gamma;
  const T* d_residual;  // null: none; may be dx
  T* dx;                // may be dy
  float* partials;      // (slabs, 2, C): of dgamma, of dbeta[, of dx]; null: not wanted
  std::uint32_t* amax;  // of dx; see kMagnitude
  std::int64_t rows;
  int width;
  float gamma_offset;
};

/// A kernel leaves these on its way to dx.
struct NormLeaves {
  bool amax = false, dx_sums = false;
};

/// A row's parts in shared memory: dy, x, d_residual.
constexpr int kRowTensors = 3;

/// Where a thread has vector k of a tensor of the row of a step: neighbours have neighbouring ones.
template <typename T, int kVectors>
__device__ Vec16<T>* row_slot(Vec16<T>* stages, int step, int tensor, int k) {
  const int slot = (step % kStages * kRowTensors + tensor) * kVectors + k;
  return stages + slot * static_cast<int>(blockDim.x) + threadIdx.x;
}

/// A thread's columns: vectors `index`, `index + count`, ... of a row.
struct NormBackwardColumns {
  int index, count, vectors;
  __device__ bool has(int k) const { return index + k * count < vectors; }
  template <typename T>
  __device__ int first(int k) const {
    return (index + k * count) * Vec16<T>::kSize;
  }
};

/// A block's rows: those of all blocks that are read at one time are neighbours in memory.
struct Slab {
  template <typename T>
  __device__ explicit Slab(const NormBackwardRows<T>& a)
      : rows(static_cast<int>((a.rows - blockIdx.x + gridDim.x - 1) / gridDim.x)) {}
  __device__ std::int64_t row(int i) const { return blockIdx.x + std::int64_t{i} * gridDim.x; }
  int rows;
};

/// Sends for row i of the slab; nothing behind the last.
template <typename T, int kVectors>
__device__ void request_row(const NormBackwardRows<T>& a, const NormBackwardColumns& columns,
                            const Slab& slab, int i, int step, Vec16<T>* stages) {
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (i >= slab.rows || !columns.has(k)) continue;
    const std::int64_t offset = slab.row(i) * a.width + columns.template first<T>(k);
    simt::cp_async16(row_slot<T, kVectors>(stages, step, 0, k), a.dy + offset);
    simt::cp_async16(row_slot<T, kVectors>(stages, step, 1, k), a.x + offset);
    if (a.d_residual != nullptr) {
      simt::cp_async16(row_slot<T, kVectors>(stages, step, 2, k), a.d_residual + offset);
    }
  }
  simt::cp_async_commit();
}

/// Row i's; nothing behind the last.
template <typename T>
__device__ void load_statistics(const NormBackwardRows<T>& a, const Slab& slab, int i, float& mean,
                                float& rstd) {
  if (i >= slab.rows) return;
  if (a.mean != nullptr) mean = a.mean[slab.row(i)];
  rstd = a.rstd[slab.row(i)];
}

/// sum(g) and sum(g h) over a row or a part of it.
struct RowSums {
  float g = 0.0F, gh = 0.0F;
};

/// A thread keeps this of one vector of a row until the row's sums are known.
template <int kSize>
struct NormalizedPart {
  float g[kSize] = {}, h[kSize] = {};
};

/// Adds one vector to the row's sums, and to the columns'.
template <typename T, int kSize>
__device__ void add_vector(const Vec16<T>& dys, const Vec16<T>& xs, const float (&gamma)[kSize],
                           float mean, float rstd, RowSums& sums, NormalizedPart<kSize>& part,
                           float (&dgamma)[kSize], float (&dbeta)[kSize]) {
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    const float dy = simt::to_float(dys.v[j]);
    const float h = (simt::to_float(xs.v[j]) - mean) * rstd;
    const float g = dy * gamma[j];
    sums.g += g;
    sums.gh = fmaf(g, h, sums.gh);
    dgamma[j] = fmaf(dy, h, dgamma[j]);
    dbeta[j] += dy;
    part.g[j] = g;
    part.h[j] = h;
  }
}

/// Gives dx of one element; `means` are those of g and g h.
__device__ inline float dx_of(float g, float h, float rstd, RowSums means, float d_residual) {
  return fmaf(rstd, fmaf(-h, means.gh, g - means.g), d_residual);
}

/// The sums over the warps [first, first + count), at most 16, of the block, which call it together
/// with all others. `turn` alternates between 0 and 1, so that one barrier is enough.
__device__ inline RowSums sum_over_warps(RowSums sums, int first, int count, int turn) {
  using Slots = RowSums[2][kNormBackwardThreads / 32];
  SIMT_SHARED(Slots, slots);
  sums = {simt::warp_sum(sums.g), simt::warp_sum(sums.gh)};
  if (threadIdx.x % 32 == 0) slots[turn][threadIdx.x / 32] = sums;
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) % 16;
  sums = warp < count ? slots[turn][first + warp] : RowSums{};
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) {
    sums.g += __shfl_xor_sync(~0U, sums.g, offset);
    sums.gh += __shfl_xor_sync(~0U, sums.gh, offset);
  }
  return sums;
}

/// dx of the row of a step from what its thread has kept. `take` gets each vector of it.
template <typename T, int kVectors, int kSize, typename Take>
__device__ void store_dx(const NormBackwardRows<T>& a, const NormBackwardColumns& columns,
                         std::int64_t row, int step, Vec16<T>* stages, float rstd,
                         const NormalizedPart<kSize> (&parts)[kVectors], RowSums sums,
                         const Take& take) {
  const auto width = static_cast<float>(a.width);
  const RowSums means{a.mean == nullptr ? 0.0F : sums.g / width, sums.gh / width};
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (!columns.has(k)) continue;
    Vec16<T> added = {};
    if (a.d_residual != nullptr) added = *row_slot<T, kVectors>(stages, step, 2, k);
    Vec16<T> dx;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      dx.v[j] = simt::from_float<T>(
          dx_of(parts[k].g[j], parts[k].h[j], rstd, means, simt::to_float(added.v[j])));
    }
    simt::store16(a.dx + row * a.width + columns.template first<T>(k), dx);
    take(k, dx);
  }
}

/// Adds the groups' sums in order, in shared memory (kSums, C), where rows were, and writes them as
/// the slab's.
template <typename T, int kSums, int kVectors, int kSize>
__device__ void add_groups(const NormBackwardRows<T>& a, const NormBackwardColumns& columns,
                           int group, int groups,
                           const float (&of_columns)[kSums][kVectors][kSize]) {
  float* const sums = simt::dynamic_shared<float>();
  __syncthreads();
  for (int g = 0; g < groups; ++g) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (g != group || !columns.has(k)) continue;
      float* const to = sums + columns.template first<T>(k);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
#pragma unroll
        for (int sum = 0; sum < kSums; ++sum) {
          float* const at = to + sum * a.width + j;
          *at = (g == 0 ? 0.0F : *at) + of_columns[sum][k][j];
        }
      }
    }
    __syncthreads();
  }
  float* const partials = a.partials + std::int64_t{blockIdx.x} * kSums * a.width;
  for (int i = static_cast<int>(threadIdx.x); i < kSums * a.width;
       i += static_cast<int>(blockDim.x)) {
    partials[i] = sums[i];
  }
}

/// A block's threads as groups of `NormBackwardColumns::count`, each of which takes every groups-th
/// row of a slab. It leaves what NormLeaves calls so, in two arguments as nvcc takes no class here.
template <typename T, int kVectors, bool kAmax, bool kDxSums>
__global__ void __launch_bounds__(kNormBackwardThreads, kVectors == 1 ? 2 : 1)
    backward_in_registers(const NormBackwardRows<T> a, int group_threads) {
  constexpr int kSize = Vec16<T>::kSize;
  const auto thread = static_cast<int>(threadIdx.x);
  const int groups = static_cast<int>(blockDim.x) / group_threads;
  const int group = thread / group_threads;
  const int warps = group_threads / 32;
  const NormBackwardColumns columns{thread % group_threads, group_threads, a.width / kSize};
  const Slab slab(a);

  float gamma[kVectors][kSize] = {};
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (!columns.has(k)) continue;
    const Vec16<T> gammas = simt::load16(a.gamma + columns.template first<T>(k));
#pragma unroll
    for (int j = 0; j < kSize; ++j) gamma[k][j] = simt::to_float(gammas.v[j]) + a.gamma_offset;
  }
  constexpr int kSums = kDxSums ? 3 : 2;
  float of_columns[kSums][kVectors][kSize] = {};
  auto* const stages = simt::dynamic_shared<Vec16<T>>();
  for (int step = 0; step < kStages - 1; ++step) {
    request_row<T, kVectors>(a, columns, slab, step * groups + group, step, stages);
  }
  float next_mean = 0.0F, next_rstd = 0.0F;
  load_statistics(a, slab, group, next_mean, next_rstd);
  std::uint32_t largest = 0;
  for (int first = 0, step = 0; first < slab.rows; first += groups, ++step) {
    const int i = first + group;
    const bool active = i < slab.rows;
    const float mean = next_mean, rstd = next_rstd;
    load_statistics(a, slab, i + groups, next_mean, next_rstd);
    simt::cp_async_wait<kStages - 2>();
    const int ahead = step + kStages - 1;
    request_row<T, kVectors>(a, columns, slab, ahead * groups + group, ahead, stages);
    RowSums sums;
    NormalizedPart<kSize> parts[kVectors];
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (!active || !columns.has(k)) continue;
      add_vector(*row_slot<T, kVectors>(stages, step, 0, k),
                 *row_slot<T, kVectors>(stages, step, 1, k), gamma[k], mean, rstd, sums, parts[k],
                 of_columns[0][k], of_columns[1][k]);
    }
    sums = sum_over_warps(sums, group * warps, warps, step % 2);
    if (!active) continue;
    store_dx(a, columns, slab.row(i), step, stages, rstd, parts, sums,
             [&](int k, const Vec16<T>& dx) {
               if constexpr (kAmax) largest = LargerWord{}(largest, largest_word(dx.v));
               if constexpr (kDxSums) {
#pragma unroll
                 for (int j = 0; j < kSize; ++j) of_columns[2][k][j] += simt::to_float(dx.v[j]);
               }
             });
  }
  if constexpr (kAmax) raise_by_block(a.amax, largest);
  if (a.partials != nullptr) add_groups(a, columns, group, groups, of_columns);
}

/// Any row: a block takes a row at a time, element by element, and sums the columns in memory.
template <typename T>
__global__ void __launch_bounds__(kNormBackwardThreads) backward_any(const NormBackwardRows<T> a) {
  const Slab slab(a);
  const auto thread = static_cast<int>(threadIdx.x);
  float* const partials =
      a.partials == nullptr ? nullptr : a.partials + std::int64_t{blockIdx.x} * 2 * a.width;
  for (int r = 0; r < slab.rows; ++r) {
    const std::int64_t row = slab.row(r);
    const std::int64_t offset = row * a.width;
    const float mean = a.mean == nullptr ? 0.0F : a.mean[row], rstd = a.rstd[row];
    RowSums sums;
    for (int i = thread; i < a.width; i += kNormBackwardThreads) {
      const float dy = simt::to_float(a.dy[offset + i]);
      const float h = (simt::to_float(a.x[offset + i]) - mean) * rstd;
      const float g = dy * (simt::to_float(a.gamma[i]) + a.gamma_offset);
      sums.g += g;
      sums.gh = fmaf(g, h, sums.gh);
      if (partials == nullptr) continue;
      partials[i] = fmaf(dy, h, r == 0 ? 0.0F : partials[i]);
      partials[a.width + i] = (r == 0 ? 0.0F : partials[a.width + i]) + dy;
    }
    const auto width = static_cast<float>(a.width);
    const RowSums means{a.mean == nullptr ? 0.0F : simt::block_sum(sums.g) / width,
                        simt::block_sum(sums.gh) / width};
    for (int i = thread; i < a.width; i += kNormBackwardThreads) {
      const float added = a.d_residual == nullptr ? 0.0F : simt::to_float(a.d_residual[offset + i]);
      const float factor = simt::to_float(a.gamma[i]) + a.gamma_offset;
      const float g = simt::to_float(a.dy[offset + i]) * factor;
      const float h = (simt::to_float(a.x[offset + i]) - mean) * rstd;
      a.dx[offset + i] = simt::from_float<T>(dx_of(g, h, rstd, means, added));
    }
  }
}

/// How a block takes rows, and which rows a block takes.
template <typename T>
ColumnSlabs plan_for(const NormBackwardRows<T>& a) {
  ColumnSlabs plan = column_slabs(a.rows, a.width, Vec16<T>::kSize);
  const bool aligned = is_aligned(a.dy, 16) && is_aligned(a.x, 16) && is_aligned(a.gamma, 16) &&
                       is_aligned(a.d_residual, 16) && is_aligned(a.dx, 16);
  plan.in_registers = plan.in_registers && aligned;
  return plan;
}

template <bool kAmax, bool kDxSums, typename T>
void launch_in_registers(const NormBackwardRows<T>& a, const ColumnSlabs& plan,
                         cudaStream_t stream) {
  const auto vectors = static_cast<std::size_t>(plan.threads()) * (plan.two_vectors ? 2 : 1);
  const std::size_t shared = std::max(vectors * kStages * kRowTensors * sizeof(Vec16<T>),
                                      3 * static_cast<std::size_t>(a.width) * sizeof(float));
  const auto kernel = plan.two_vectors ? backward_in_registers<T, 2, kAmax, kDxSums>
                                       : backward_in_registers<T, 1, kAmax, kDxSums>;
  simt::allow_dynamic_shared(kernel, shared);
  simt::launch(kernel, blocks_for(plan.slabs, 1), static_cast<unsigned>(plan.threads()), shared,
               stream, a, plan.group_threads);
}

/// Gives what the kernels that are made for rows of T leave of `wanted`.
template <typename T>
NormLeaves left_by(const ColumnSlabs& plan, NormLeaves wanted) {
  if (!plan.in_registers || plan.slabs == 0) return {};
  return {.amax = wanted.amax && kLeavesMagnitude<T>,
          .dx_sums = wanted.dx_sums && !std::is_same_v<T, float>};
}

template <typename T>
void launch_backward(const NormBackwardRows<T>& a, const ColumnSlabs& plan, NormLeaves leaves,
                     cudaStream_t stream) {
  const unsigned grid = blocks_for(plan.slabs, 1);
  if (grid == 0) return;
  if (!plan.in_registers) {
    simt::launch(backward_any<T>, grid, kNormBackwardThreads, 0, stream, a);
    return;
  }
  if constexpr (kLeavesMagnitude<T>) {
    if (leaves.amax && leaves.dx_sums) {
      return launch_in_registers<true, true>(a, plan, stream);
    }
    if (leaves.amax) return launch_in_registers<true, false>(a, plan, stream);
  }
  if constexpr (!std::is_same_v<T, float>) {
    if (leaves.dx_sums) return launch_in_registers<false, true>(a, plan, stream);
  }
  launch_in_registers<false, false>(a, plan, stream);
}

/// Gives what the kernels have left.
template <typename T>
NormLeaves run_backward(const LayerNormBackwardArgs& args, const LayerNormSizes& sizes,
                        Stream& stream) {
  NormBackwardRows<T> rows{.dy = device_data<const T>(args.dy),
                           .x = device_data<const T>(args.x),
                           .mean = args.mean ? args.mean.as<float>() : nullptr,
                           .rstd = args.rstd.as<float>(),
                           .gamma = device_data<const T>(args.gamma),
                           .d_residual = device_data<const T>(args.d_residual),
                           .dx = device_data<T>(args.dx),
                           .partials = nullptr,
                           .amax = device_data<std::uint32_t>(args.amax),
                           .rows = sizes.rows,
                           .width = static_cast<int>(sizes.width),
                           .gamma_offset = args.gamma_offset};
  const ColumnSlabs plan = plan_for(rows);
  const NormLeaves leaves = left_by<T>(
      plan, {.amax = static_cast<bool>(args.amax), .dx_sums = static_cast<bool>(args.dx_sums)});
  SlabSums sums{.partials = nullptr,
                .slabs = plan.slabs,
                .stride = (leaves.dx_sums ? 3 : 2) * sizes.width,
                .width = sizes.width};
  if (args.dgamma || leaves.dx_sums) {
    const auto floats = static_cast<std::size_t>(sums.slabs * sums.stride);
    rows.partials = static_cast<float*>(cuda_stream(stream).scratch(floats * sizeof(float)));
    sums.partials = rows.partials;
  }
  if (leaves.amax) clear_amax(args.amax, stream);
  launch_backward(rows, plan, leaves, handle(stream));
  if (args.dgamma) {
    require(!args.dbeta || args.dgamma.dtype == args.dbeta.dtype, ErrorCode::kInvalidArgument,
            "layer_norm: dgamma and dbeta must be of one dtype");
    sums.add_into(args.dgamma, args.dbeta, args.accumulate_parameters, handle(stream));
  }
  if (leaves.dx_sums) {
    sums.partials += 2 * sizes.width;
    sums.add_into(args.dx_sums, {}, false, handle(stream));
  }
  return leaves;
}

}  // namespace

void layer_norm_backward(const LayerNormBackwardArgs& args, Stream& stream) {
  const LayerNormSizes sizes = check_layer_norm(args);
  NormLeaves left;
  if (sizes.width > 0) {
    with_element_type("layer_norm", args.x.dtype, [&]<typename T>(ElementType<T>) {
      left = run_backward<T>(args, sizes, stream);
    });
  }
  if (args.amax && !left.amax) amax({.x = args.dx, .amax = args.amax}, stream);
  if (args.dx_sums && !left.dx_sums) {
    bias_gradient({.dy = args.dx.reshape({sizes.rows, sizes.width}), .db = args.dx_sums}, stream);
  }
}

}  // namespace tessera::cuda

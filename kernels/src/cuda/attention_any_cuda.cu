#include "cuda/attention_cuda.h"
#include "cuda/cuda_launch.h"
#include "cuda/score_cap_cuda.h"
#include "simt.h"

// Attention for what the tensor-core kernels do not take: fp32, head sizes that are no multiple of
// 8 or above 256, unaligned views. The same formulas (attention_forward_cuda.cu,
// attention_backward_cuda.cu) in fp32 on CUDA cores.
//
// A block of 16 x 16 threads works on 64 x 64 tiles of scores, 4 x 4 to a thread: rows 4 ty + i,
// columns 4 tx + j. It owns 64 rows of a head and 64 columns of D in what it sums up; a larger D is
// more blocks, which compute the same scores again. The operands of every product pass through
// shared memory as fp32, 32 terms at a time. Sums run in the order of keys or queries.

namespace tessera::cuda {
namespace {

constexpr int kSide = 16;
constexpr int kAnyThreads = kSide * kSide;
constexpr int kAnyTile = 64;          // rows and columns of a tile
constexpr int kTerms = 32;            // of a product, in shared memory at a time
constexpr int kPitch = kAnyTile + 4;  // keeps rows of shared memory in different banks, and aligned

using Sums = float[4][4];

/// The rows of one head, from `first` on: rows past `count` and columns past `dim` read as zero.
template <typename T>
struct AnyRows {
  const T* data;
  std::int64_t stride;
  int count, dim;

  __device__ float at(int row, int column) const {
    return row < count && column < dim ? simt::to_float(data[row * stride + column]) : 0.0F;
  }
  __device__ AnyRows from(int row) const { return {data + row * stride, stride, count - row, dim}; }
};

/// Memory that the threads of a block share.
struct Shared {
  float left[kTerms][kPitch];
  float right[kTerms][kPitch];
  float tile[kAnyTile][kPitch];  // a tile of scores, transposed: [column][row]
};

__device__ inline int tx() { return static_cast<int>(threadIdx.x) % kSide; }
__device__ inline int ty() { return static_cast<int>(threadIdx.x) / kSide; }

__device__ inline void clear(Sums& sums) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[i][j] = 0.0F;
  }
}

__device__ inline void add_outer(Sums& sums, const float* rows, const float* columns) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[i][j] = fmaf(rows[i], columns[j], sums[i][j]);
  }
}

/// sums = A B^T for 64 rows each. Begins with a barrier, after which shared memory is free.
template <typename T>
__device__ void multiply_rows(Sums& sums, const AnyRows<T>& a, const AnyRows<T>& b,
                              Shared& shared) {
  clear(sums);
  for (int d0 = 0; d0 < a.dim; d0 += kTerms) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kAnyTile * kTerms; i += kAnyThreads) {
      shared.left[i % kTerms][i / kTerms] = a.at(i / kTerms, d0 + i % kTerms);
      shared.right[i % kTerms][i / kTerms] = b.at(i / kTerms, d0 + i % kTerms);
    }
    __syncthreads();
#pragma unroll 8
    for (int d = 0; d < kTerms; ++d) {
      add_outer(sums, &shared.left[d][4 * ty()], &shared.right[d][4 * tx()]);
    }
  }
}

/// sums += P B, with P in shared.tile and 64 columns of the 64 rows of B, from `column` on. Begins
/// with a barrier, after which what was stored in the tile is seen by all.
template <typename T>
__device__ void add_product(Sums& sums, const AnyRows<T>& b, int column, Shared& shared) {
  for (int r0 = 0; r0 < kAnyTile; r0 += kTerms) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kAnyTile * kTerms; i += kAnyThreads) {
      shared.right[i / kAnyTile][i % kAnyTile] = b.at(r0 + i / kAnyTile, column + i % kAnyTile);
    }
    __syncthreads();
#pragma unroll 8
    for (int r = 0; r < kTerms; ++r) {
      add_outer(sums, &shared.tile[r0 + r][4 * ty()], &shared.right[r][4 * tx()]);
    }
  }
}

/// Puts a tile of scores where add_product reads it. A barrier must lie between the last such
/// reading and this.
__device__ inline void put(const Sums& values, Shared& shared) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) shared.tile[4 * tx() + j][4 * ty() + i] = values[i][j];
  }
}

/// Writes 64 x 64 sums at (row, column) of a head's rows, each row times `factor`.
template <typename T>
__device__ void store(const Sums& sums, const float (&factors)[4], T* to, std::int64_t stride,
                      int rows, int column, int dim) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int r = 4 * ty() + i, c = column + 4 * tx() + j;
      if (r < rows && c < dim) to[r * stride + c] = simt::from_float<T>(sums[i][j] * factors[i]);
    }
  }
}

/// The whole problem: q, k, v or their gradients of one head; and which part is this block's.
template <typename T>
struct AnyProblem {
  AttentionLayout layout;
  const T *qkv, *d_out;
  T *out, *d_qkv;
  float* lse;
  RowStatistics statistics;
};

template <typename T>
struct AnyPlace {
  const AnyProblem<T>& problem;
  int tiles, columns;  // of 64
  int column, tile;
  std::int64_t head, batch;

  __device__ explicit AnyPlace(const AnyProblem<T>& p) : problem(p) {
    tiles = static_cast<int>(p.layout.tiles(kAnyTile));
    columns = (p.layout.head_dim + kAnyTile - 1) / kAnyTile;
    int rest = static_cast<int>(blockIdx.x);
    column = rest % columns * kAnyTile;
    rest /= columns;
    tile = rest % tiles;
    rest /= tiles;
    head = rest % p.layout.heads;
    batch = rest / p.layout.heads;
  }
  __device__ std::int64_t index() const { return batch * problem.layout.heads + head; }
  __device__ std::int64_t qkv_offset(int part) const {
    const AttentionLayout& layout = problem.layout;
    return batch * layout.length * layout.qkv_stride +
           (part * layout.heads + head) * layout.head_dim;
  }
  __device__ std::int64_t out_offset() const {
    const AttentionLayout& layout = problem.layout;
    return batch * layout.length * layout.out_stride + head * layout.head_dim;
  }
  __device__ AnyRows<T> rows(int part) const {
    const AttentionLayout& layout = problem.layout;
    return {problem.qkv + qkv_offset(part), layout.qkv_stride, layout.length, layout.head_dim};
  }
  __device__ AnyRows<T> d_out() const {
    const AttentionLayout& layout = problem.layout;
    return {problem.d_out + out_offset(), layout.out_stride, layout.length, layout.head_dim};
  }
  __device__ void store_gradient(const Sums& sums, int part, int first, float factor) const {
    const AttentionLayout& layout = problem.layout;
    const float factors[4] = {factor, factor, factor, factor};
    store(sums, factors,
          problem.d_qkv + qkv_offset(part) + static_cast<std::int64_t>(first) * layout.qkv_stride,
          layout.qkv_stride, layout.length - first, column, layout.head_dim);
  }
};

/// The largest or the sum over the 16 threads of a row.
template <typename Op>
__device__ float over_row(float value, const Op& op) {
  for (int step = kSide / 2; step > 0; step /= 2) {
    value = op(value, __shfl_xor_sync(~0U, value, step));
  }
  return value;
}

/// One tile of the online softmax: scores become p, and what was summed before is rescaled. A query
/// of a window may see none of the first tile's keys: its maximum is then -inf, its p 0.
__device__ void softmax_step(Sums& s, Sums& out, float (&maximum)[4], float (&sum)[4], float c) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float m = fmaxf(fmaxf(s[i][0], s[i][1]), fmaxf(s[i][2], s[i][3]));
    m = fmaxf(maximum[i], over_row(m, [](float x, float y) { return fmaxf(x, y); }));
    const float shift = m == -INFINITY ? 0.0F : m;
    const float rescale = exp2f((maximum[i] - shift) * c);
    maximum[i] = m;
    sum[i] *= rescale;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      out[i][j] *= rescale;
      s[i][j] = exp2f((s[i][j] - shift) * c);
      sum[i] += s[i][j];
    }
  }
}

/// The tiles of keys that a tile of queries sees, by their first keys.
struct SeenTiles {
  int begin, end;
};
__device__ inline SeenTiles tiles_seen(const AttentionLayout& layout, int first,
                                       const Documents& documents) {
  if (layout.causal) {
    return {layout.first_key(first, kAnyTile, documents), layout.keys_end(first + kAnyTile)};
  }
  return {documents.start(first) / kAnyTile * kAnyTile,
          documents.end(min(first + kAnyTile, layout.length) - 1)};
}

template <bool kCapped, typename T>
__global__ void __launch_bounds__(kAnyThreads) forward_kernel(AnyProblem<T> problem) {
  SIMT_SHARED(Shared, shared);
  const AttentionLayout& layout = problem.layout;
  const AnyPlace<T> place(problem);
  const int first = (place.tiles - 1 - place.tile) * kAnyTile;  // long blocks go first
  const AnyRows<T> q = place.rows(0).from(first), k = place.rows(1), v = place.rows(2);
  Sums s, out;
  clear(out);
  float maximum[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
  float sum[4] = {};  // of this thread's keys
  const Documents documents = layout.documents(place.batch);
  const ScoreCap<T> cap(layout);
  const SeenTiles keys = tiles_seen(layout, first, documents);
  for (int key = keys.begin; key < keys.end; key += kAnyTile) {
    multiply_rows(s, q, k.from(key), shared);
    for (int i = 0; i < 4; ++i) {
      const int query = first + 4 * ty() + i;
      const auto [last, seen] = layout.visible(query, documents);
      for (int j = 0; j < 4; ++j) {
        if constexpr (kCapped) cap.apply(s[i][j]);
        if (hides(last, key + 4 * tx() + j, seen)) s[i][j] = -INFINITY;
      }
    }
    softmax_step(s, out, maximum, sum, layout.scale * kLog2E);
    put(s, shared);
    add_product(out, v.from(key), place.column, shared);
  }
  float* lse = problem.lse + place.index() * layout.length;
  for (int i = 0; i < 4; ++i) {
    sum[i] = over_row(sum[i], [](float x, float y) { return x + y; });
    const int query = first + 4 * ty() + i;
    if (query < layout.length && !documents.begins_somewhere(query)) sum[i] = NAN;
    if (place.column == 0 && tx() == 0 && query < layout.length) {
      lse[query] = maximum[i] * layout.scale + logf(sum[i]);
    }
    sum[i] = 1.0F / sum[i];
  }
  store(out, sum, problem.out + place.out_offset() + first * std::int64_t{layout.out_stride},
        layout.out_stride, layout.length - first, place.column, layout.head_dim);
}

/// dk and dv of a tile of keys, from the transposed scores: a row per key.
template <bool kCapped, typename T>
__global__ void __launch_bounds__(kAnyThreads) keys_kernel(AnyProblem<T> problem) {
  SIMT_SHARED(Shared, shared);
  const AttentionLayout& layout = problem.layout;
  const AnyPlace<T> place(problem);
  const int first = place.tile * kAnyTile;
  const AnyRows<T> q = place.rows(0), k = place.rows(1).from(first), v = place.rows(2).from(first),
                   d_out = place.d_out();
  const float* lse2 = problem.statistics.lse2 + place.index() * problem.statistics.stride;
  const float* delta = problem.statistics.delta + place.index() * problem.statistics.stride;
  Sums p, ds, dk, dv;
  clear(dk);
  clear(dv);
  const Documents documents = layout.documents(place.batch);
  const ScoreCap<T> cap(layout);
  const int end = layout.queries_end(min(first + kAnyTile, layout.length), documents);
  const int begin = layout.causal ? first : documents.start(first) / kAnyTile * kAnyTile;
  for (int query = begin; query < end; query += kAnyTile) {
    multiply_rows(p, k, q.from(query), shared);
    multiply_rows(ds, v, d_out.from(query), shared);
    for (int j = 0; j < 4; ++j) {
      const int at = query + 4 * tx() + j;
      const auto [last, seen] = layout.visible(at, documents);
      for (int i = 0; i < 4; ++i) {
        const bool hidden = hides(last, first + 4 * ty() + i, seen);
        const float slope = kCapped ? cap.apply(p[i][j]) : 1.0F;
        p[i][j] = hidden ? 0.0F : exp2f(fmaf(p[i][j], layout.scale * kLog2E, -lse2[at]));
        ds[i][j] = p[i][j] * (ds[i][j] - delta[at]);
        if constexpr (kCapped) ds[i][j] *= slope;
      }
    }
    put(p, shared);
    add_product(dv, d_out.from(query), place.column, shared);
    __syncthreads();
    put(ds, shared);
    add_product(dk, q.from(query), place.column, shared);
  }
  place.store_gradient(dk, 1, first, layout.scale);
  place.store_gradient(dv, 2, first, 1.0F);
}

/// dq of a tile of queries.
template <bool kCapped, typename T>
__global__ void __launch_bounds__(kAnyThreads) queries_kernel(AnyProblem<T> problem) {
  SIMT_SHARED(Shared, shared);
  const AttentionLayout& layout = problem.layout;
  const AnyPlace<T> place(problem);
  const int first = (place.tiles - 1 - place.tile) * kAnyTile;  // long blocks go first
  const AnyRows<T> q = place.rows(0).from(first), k = place.rows(1), v = place.rows(2),
                   d_out = place.d_out().from(first);
  const std::int64_t row = place.index() * problem.statistics.stride + first + 4 * ty();
  const float* lse2 = problem.statistics.lse2 + row;
  const float* delta = problem.statistics.delta + row;
  Sums s, ds, dq;
  clear(dq);
  const Documents documents = layout.documents(place.batch);
  const ScoreCap<T> cap(layout);
  const SeenTiles keys = tiles_seen(layout, first, documents);
  for (int key = keys.begin; key < keys.end; key += kAnyTile) {
    multiply_rows(s, q, k.from(key), shared);
    multiply_rows(ds, d_out, v.from(key), shared);
    for (int i = 0; i < 4; ++i) {
      const int query = first + 4 * ty() + i;
      const auto [last, seen] = layout.visible(query, documents);
      for (int j = 0; j < 4; ++j) {
        const bool hidden = hides(last, key + 4 * tx() + j, seen);
        const float slope = kCapped ? cap.apply(s[i][j]) : 1.0F;
        const float p = exp2f(fmaf(s[i][j], layout.scale * kLog2E, -lse2[i]));
        ds[i][j] = hidden ? 0.0F : p * (ds[i][j] - delta[i]);
        if constexpr (kCapped) ds[i][j] *= slope;
      }
    }
    put(ds, shared);
    add_product(dq, k.from(key), place.column, shared);
  }
  place.store_gradient(dq, 0, first, layout.scale);
}

template <typename T>
void launch_any(void (*kernel)(AnyProblem<T>), const AnyProblem<T>& problem, CudaStream& stream) {
  const AttentionLayout& layout = problem.layout;
  const unsigned blocks = blocks_for(
      layout.tiles(kAnyTile) * layout.all_heads() * ceil_div(layout.head_dim, kAnyTile), 1);
  simt::launch(kernel, dim3(blocks), dim3(kAnyThreads), 0, stream.handle(), problem);
}

template <typename T>
void forward(const AttentionForwardArgs& args, CudaStream& stream) {
  AnyProblem<T> problem{};
  problem.layout = AttentionLayout(args.qkv, args.window, args.starts, args.causal, args.scores);
  problem.qkv = device_data<const T>(args.qkv);
  problem.out = device_data<T>(args.out);
  problem.lse = args.lse.as<float>();
  launch_any(problem.layout.soft_cap == 0.0F ? forward_kernel<false, T> : forward_kernel<true, T>,
             problem, stream);
}

template <typename T>
void backward(const AttentionBackwardArgs& args, CudaStream& stream) {
  AnyProblem<T> problem{};
  problem.layout = AttentionLayout(args.qkv, args.window, args.starts, args.causal, args.scores);
  problem.qkv = device_data<const T>(args.qkv);
  problem.d_out = device_data<const T>(args.d_out);
  problem.d_qkv = device_data<T>(args.d_qkv);
  problem.statistics = row_statistics(args, stream);
  const bool capped = problem.layout.soft_cap != 0.0F;
  launch_any(capped ? keys_kernel<true, T> : keys_kernel<false, T>, problem, stream);
  launch_any(capped ? queries_kernel<true, T> : queries_kernel<false, T>, problem, stream);
}

}  // namespace

void any_attention_forward(const AttentionForwardArgs& args, CudaStream& stream) {
  with_element_type("attention", args.qkv.dtype,
                    [&]<typename T>(ElementType<T>) { forward<T>(args, stream); });
}

void any_attention_backward(const AttentionBackwardArgs& args, CudaStream& stream) {
  with_element_type("attention", args.qkv.dtype,
                    [&]<typename T>(ElementType<T>) { backward<T>(args, stream); });
}

}  // namespace tessera::cuda

#include "cuda/attention_tiles_cuda.h"

// Attention, backward, on tensor cores. With z = scale q k^T, p recomputed from lse:
//   p = exp(z - lse),  delta = rowsum(d_out * out),  ds = p (d_out v^T - delta)
//   dv = p^T d_out,  dk = scale ds^T q,  dq = scale ds k
// With a soft cap z = cap t of t = tanh(scale q k^T / cap), and ds has the factor 1 - t^2, too.
// qkv, d_qkv (B, L, 3, H, D), out, d_out (B, L, H, D) all in T, bf16 or fp16, D a multiple of 8 up
// to 256.
//
// Two kernels, so that every sum has one owner and one order, and no atomics:
// - keys: a block holds a tile of keys and values and goes through the queries from the diagonal
// on.
//   It works on the transposed scores, a row per key: then p^T and ds^T are left operands of the
//   products that follow and stay in registers.
// - queries: a block holds a tile of queries and d_out and goes through the keys to the diagonal.
// Both compute scores and d_out v^T: 7 products instead of 5. Heads above 128 have sums of dk and
// of dv that do not fit the registers together: the first kernel runs once for each, with 2
// products for dv and 3 for dk, 8 in all. Tiles come in by cp.async in
// two stages. Products and sums are fp32; p and ds are rounded to T for the second products.

namespace tessera::cuda {
namespace {

template <typename T>
struct BackwardProblem {
  AttentionLayout layout;
  const T *d_out, *qkv;
  T* d_qkv;
  RowStatistics statistics;
};

/// The sizes of a kernel: rows that a block owns, and how many of the others pass by at a time.
/// Chosen so that 2 sums of D columns per owned row (keys) or one (queries, and keys of D above
/// 128), and two blocks of scores, fit in 255 registers, and two blocks of threads in shared
/// memory.
template <typename T_, int kDim_, int kRowBlocks_, int kStep_>
struct BackwardSizes {
  using T = T_;
  static constexpr int kDim = kDim_;
  static constexpr int kRowBlocks = kRowBlocks_;  // of 16 rows per warp
  static constexpr int kWarpRows = 16 * kRowBlocks;
  static constexpr int kRows = kWarpRows * kAttentionWarps;
  static constexpr int kStep = kStep_;
  // Two tiles of own rows; two tiles in two stages; two statistics in two stages.
  static constexpr std::size_t kTileBytes = (2 * kRows + 4 * kStep) * kDim * sizeof(T);
  static constexpr std::size_t kSharedBytes = kTileBytes + 4 * kStep * sizeof(float);
};

/// The tiles of a block in shared memory.
template <typename Sizes>
struct BackwardTiles {
  using OfRows = Tile<typename Sizes::T, Sizes::kDim>;
  typename Sizes::T* data = simt::dynamic_shared<typename Sizes::T>();

  __device__ OfRows own(int which) const { return {data + which * Sizes::kRows * Sizes::kDim}; }
  __device__ OfRows passing(int which, int stage) const {
    return {data + (2 * Sizes::kRows + (2 * stage + which) * Sizes::kStep) * Sizes::kDim};
  }
  __device__ float* statistic(int which, int stage) const {
    return reinterpret_cast<float*>(reinterpret_cast<char*>(data) + Sizes::kTileBytes) +
           (2 * stage + which) * Sizes::kStep;
  }
};

/// Starts the copy of lse2 and delta of queries [first, first + kStep).
template <typename Sizes>
__device__ void copy_statistics(const BackwardTiles<Sizes>& tiles, int stage, const float* lse2,
                                const float* delta, int first) {
  constexpr int kChunks = Sizes::kStep / 4;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= 2 * kChunks) return;
  const int which = thread / kChunks, at = thread % kChunks * 4;
  simt::cp_async16(tiles.statistic(which, stage) + at, (which == 0 ? lse2 : delta) + first + at);
}

/// Turns s = k q^T and dp = v d_out^T into p^T and ds^T. Row 0 of the warp is key `key`, column 0
/// query `query`; lse2 and delta begin there. kSearches: `found` says which queries see the keys.
template <typename T, bool kMask, bool kSearches, bool kCausal, bool kCapped, int kM, int kStep>
__device__ void transposed_gradient(float (&s)[kM][kStep / 8][4], float (&dp)[kM][kStep / 8][4],
                                    const float* lse2, const float* delta, int key, int query,
                                    const AttentionLayout& layout, const Documents& documents,
                                    float c, const AttentionLayout::Visible* found) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const ScoreCap<T> cap(layout);
#pragma unroll
  for (int j = 0; j < kStep / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int column = j * 8 + lane % 4 * 2 + e;
      const float lse = lse2[column], d = delta[column];
      const int seen = kMask ? documents.seen(query + column, layout.window) : 0;
#pragma unroll
      for (int i = 0; i < kM; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& p = s[i][j][2 * half + e];
          float& ds = dp[i][j][2 * half + e];
          const float slope = kCapped ? cap.apply(p) : 1.0F;
          p = simt::exp2_approx(fmaf(p, c, -lse));
          const int row = key + i * 16 + half * 8 + lane / 4;
          if constexpr (kMask && kSearches) {
            const auto [last, count] = found[i * 16 + half * 8 + lane / 4];
            if (hides(last, query + column, count)) p = 0.0F;
          } else if (kMask && hides(layout.position<kCausal>(query + column), row, seen)) {
            p = 0.0F;
          }
          ds = kCapped ? p * (ds - d) * slope : p * (ds - d);
        }
      }
    }
  }
}

/// The gradients that a block of the first kernel sums up.
enum class Sums { kKeys, kValues, kBoth };

template <typename Sizes, Sums kSums, bool kDocuments, bool kCausal, bool kCapped>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    keys_kernel(BackwardProblem<typename Sizes::T> problem) {
  using T = typename Sizes::T;
  constexpr int kM = Sizes::kRowBlocks, kStep = Sizes::kStep, kDim = Sizes::kDim;
  const AttentionLayout& layout = problem.layout;
  const Place place(layout, static_cast<int>(layout.tiles(Sizes::kRows)));
  const int first_key = place.tile * Sizes::kRows;  // early keys are seen by most, and go first
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * Sizes::kWarpRows;
  const int warp_key = first_key + warp_row;
  const HeadRows<const T> q = place.rows(layout, problem.qkv, 0),
                          k = place.rows(layout, problem.qkv, 1),
                          v = place.rows(layout, problem.qkv, 2),
                          d_out = place.out_rows(layout, problem.d_out);
  const std::int64_t row0 = place.index(layout) * problem.statistics.stride;
  const float* lse2 = problem.statistics.lse2 + row0;
  const float* delta = problem.statistics.delta + row0;

  const BackwardTiles<Sizes> tiles;
  const auto copy_step = [&](int stage, int query) {
    copy_rows<kStep>(tiles.passing(0, stage), q, query);
    copy_rows<kStep>(tiles.passing(1, stage), d_out, query);
    copy_statistics(tiles, stage, lse2, delta, query);
    simt::cp_async_commit();
  };
  clear_padding<2 * Sizes::kRows + 4 * kStep>(tiles.own(0), q.chunks);
  copy_rows<Sizes::kRows>(tiles.own(0), k, first_key);
  copy_rows<Sizes::kRows>(tiles.own(1), v, first_key);
  int query = kCausal ? first_key / kStep * kStep : 0;
  constexpr bool kSearches = kDocuments && !kCausal;
  if constexpr (kSearches) {
    query = layout.documents(place.batch).start(first_key) / kStep * kStep;
  }
  copy_step(0, query);

  const float c = layout.scale * kLog2E;
  float dk[kM][kDim / 8][4] = {}, dv[kM][kDim / 8][4] = {};
  const Documents documents = layout.documents<kDocuments>(place.batch);
  const int end = layout.queries_end(min(first_key + Sizes::kRows, layout.length), documents);
  AttentionLayout::Visible first_seen{}, last_seen{};  // kSearches: the queries that see a key
  const AttentionLayout::Visible* found = nullptr;
  if constexpr (kSearches) {
    first_seen = layout.visible(warp_key, documents);
    last_seen = layout.visible(warp_key + Sizes::kWarpRows - 1, documents);
    found = search_rows<Sizes::kRows>(layout, documents, first_key) + warp_row;
  }
  for (int stage = 0; query < end; query += kStep, stage ^= 1) {
    simt::cp_async_wait<0>();
    __syncthreads();  // this step is there, and all warps have left the one before
    if (query + kStep < end) copy_step(stage ^ 1, query + kStep);
    const int last_query = query + kStep - 1;
    const int first_place = layout.position<kCausal>(query);
    const int last_place = layout.position<kCausal>(last_query);
    const bool after_all =
        warp_key + Sizes::kWarpRows - 1 <= first_place - documents.seen(query, layout.window);
    if constexpr (kSearches) {
      const bool before_all = last_query <= first_seen.place - first_seen.seen;
      if (query > last_seen.place || before_all) continue;
    } else if (last_place < warp_key || after_all) {
      continue;  // none sees this warp's keys
    }
    float s[kM][kStep / 8][4], dp[kM][kStep / 8][4] = {};
    multiply_rows<kM, kStep>(s, tiles.own(0), warp_row, tiles.passing(0, stage));
    if constexpr (kSums != Sums::kValues) {
      multiply_rows<kM, kStep>(dp, tiles.own(1), warp_row, tiles.passing(1, stage));
    }
    const float *lse2_here = tiles.statistic(0, stage), *delta_here = tiles.statistic(1, stage);
    if (kSearches ? last_query > first_seen.place || query <= last_seen.place - last_seen.seen
                  : first_place < warp_key + Sizes::kWarpRows - 1 ||
                        warp_key <= last_place - documents.seen(last_query, layout.window)) {
      transposed_gradient<T, true, kSearches, kCausal, kCapped, kM, kStep>(
          s, dp, lse2_here, delta_here, warp_key, query, layout, documents, c, found);
    } else {
      transposed_gradient<T, false, kSearches, kCausal, kCapped, kM, kStep>(
          s, dp, lse2_here, delta_here, warp_key, query, layout, documents, c, found);
    }
    if constexpr (kSums != Sums::kKeys) add_product<kM, kStep>(dv, s, tiles.passing(1, stage));
    if constexpr (kSums != Sums::kValues) add_product<kM, kStep>(dk, dp, tiles.passing(0, stage));
  }
  float factors[kM][2];
  const auto fill = [&](float value) {
#pragma unroll
    for (int i = 0; i < kM; ++i) factors[i][0] = factors[i][1] = value;
  };
  if constexpr (kSums != Sums::kValues) {
    fill(layout.scale);
    store_rows(dk, factors, tiles.own(0), warp_row, place.rows(layout, problem.d_qkv, 1),
               first_key);
  }
  if constexpr (kSums != Sums::kKeys) {
    fill(1.0F);
    store_rows(dv, factors, tiles.own(1), warp_row, place.rows(layout, problem.d_qkv, 2),
               first_key);
  }
}

/// Turns s = q k^T and dp = d_out v^T into ds, in dp. Row 0 of the warp is query `query`, column 0
/// key `key`. kSearches: `found` says which keys the queries see.
template <typename T, bool kMask, bool kSearches, bool kCausal, bool kCapped, int kM, int kStep>
__device__ void score_gradient(const float (&s)[kM][kStep / 8][4], float (&dp)[kM][kStep / 8][4],
                               const float (&lse2)[kM][2], const float (&delta)[kM][2], int query,
                               int key, const AttentionLayout& layout, const Documents& documents,
                               float c, const AttentionLayout::Visible* found) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const ScoreCap<T> cap(layout);
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = query + i * 16 + half * 8 + lane / 4;
      const int seen = kMask ? documents.seen(row, layout.window) : 0;
#pragma unroll
      for (int j = 0; j < kStep / 8; ++j) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          float product = s[i][j][e];
          const float slope = kCapped ? cap.apply(product) : 1.0F;
          const float p = simt::exp2_approx(fmaf(product, c, -lse2[i][half]));
          dp[i][j][e] = p * (dp[i][j][e] - delta[i][half]);
          if constexpr (kCapped) dp[i][j][e] *= slope;
          const int column = key + j * 8 + lane % 4 * 2 + e % 2;
          if constexpr (kMask && kSearches) {
            const auto [last, count] = found[i * 16 + half * 8 + lane / 4];
            if (hides(last, column, count)) dp[i][j][e] = 0.0F;
          } else if (kMask && hides(layout.position<kCausal>(row), column, seen)) {
            dp[i][j][e] = 0.0F;
          }
        }
      }
    }
  }
}

template <typename Sizes, bool kDocuments, bool kCausal, bool kCapped>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    queries_kernel(BackwardProblem<typename Sizes::T> problem) {
  using T = typename Sizes::T;
  constexpr int kM = Sizes::kRowBlocks, kStep = Sizes::kStep, kDim = Sizes::kDim;
  const AttentionLayout& layout = problem.layout;
  const int tile_count = static_cast<int>(layout.tiles(Sizes::kRows));
  const Place place(layout, tile_count);
  const int first_query = (tile_count - 1 - place.tile) * Sizes::kRows;  // long blocks go first
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * Sizes::kWarpRows;
  const int warp_query = first_query + warp_row;
  const HeadRows<const T> q = place.rows(layout, problem.qkv, 0),
                          k = place.rows(layout, problem.qkv, 1),
                          v = place.rows(layout, problem.qkv, 2),
                          d_out = place.out_rows(layout, problem.d_out);

  const BackwardTiles<Sizes> tiles;
  const auto copy_step = [&](int stage, int key) {
    copy_rows<kStep>(tiles.passing(0, stage), k, key);
    copy_rows<kStep>(tiles.passing(1, stage), v, key);
    simt::cp_async_commit();
  };
  clear_padding<2 * Sizes::kRows + 4 * kStep>(tiles.own(0), q.chunks);
  copy_rows<Sizes::kRows>(tiles.own(0), q, first_query);
  copy_rows<Sizes::kRows>(tiles.own(1), d_out, first_query);
  const Documents documents = layout.documents<kDocuments>(place.batch);
  int begin = kCausal ? layout.first_key(first_query, kStep, documents) : 0;
  constexpr bool kSearches = kDocuments && !kCausal;
  if constexpr (kSearches) begin = documents.start(first_query) / kStep * kStep;
  copy_step(0, begin);

  float lse2[kM][2], delta[kM][2], factors[kM][2];
  const std::int64_t row0 = place.index(layout) * problem.statistics.stride + warp_query;
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      lse2[i][half] = problem.statistics.lse2[row0 + i * 16 + half * 8 + lane / 4];
      delta[i][half] = problem.statistics.delta[row0 + i * 16 + half * 8 + lane / 4];
      factors[i][half] = layout.scale;
    }
  }
  const float c = layout.scale * kLog2E;
  float dq[kM][kDim / 8][4] = {};
  constexpr int kLastRow = Sizes::kWarpRows - 1;
  int seen_first = documents.seen(warp_query, layout.window);
  int seen_last = documents.seen(warp_query + kLastRow, layout.window);
  int end = kCausal ? min(first_query + Sizes::kRows, layout.length) : layout.length;
  int first_place = layout.position<kCausal>(warp_query);
  int last_place = layout.position<kCausal>(warp_query + kLastRow);
  const AttentionLayout::Visible* found = nullptr;
  if constexpr (kSearches) {
    const auto first = layout.visible(warp_query, documents);
    const auto last = layout.visible(warp_query + kLastRow, documents);
    first_place = first.place;
    seen_first = first.seen;
    last_place = last.place;
    seen_last = last.seen;
    end = documents.end(min(first_query + Sizes::kRows, layout.length) - 1);
    found = search_rows<Sizes::kRows>(layout, documents, first_query) + warp_row;
  }
  for (int key = begin, stage = 0; key < end; key += kStep, stage ^= 1) {
    simt::cp_async_wait<0>();
    __syncthreads();  // this step is there, and all warps have left the one before
    if (key + kStep < end) copy_step(stage ^ 1, key + kStep);
    const bool before_all = key + kStep - 1 <= first_place - seen_first;
    if (key > last_place || before_all) continue;  // all hidden from this warp
    float s[kM][kStep / 8][4], dp[kM][kStep / 8][4];
    multiply_rows<kM, kStep>(s, tiles.own(0), warp_row, tiles.passing(0, stage));
    multiply_rows<kM, kStep>(dp, tiles.own(1), warp_row, tiles.passing(1, stage));
    if (key + kStep - 1 > first_place || key <= last_place - seen_last) {
      score_gradient<T, true, kSearches, kCausal, kCapped, kM, kStep>(
          s, dp, lse2, delta, warp_query, key, layout, documents, c, found);
    } else {
      score_gradient<T, false, kSearches, kCausal, kCapped, kM, kStep>(
          s, dp, lse2, delta, warp_query, key, layout, documents, c, found);
    }
    add_product<kM, kStep>(dq, dp, tiles.passing(0, stage));
  }
  store_rows(dq, factors, tiles.own(0), warp_row, place.rows(layout, problem.d_qkv, 0),
             first_query);
}

template <typename Sizes>
void launch_backward(void (*kernel)(BackwardProblem<typename Sizes::T>),
                     const BackwardProblem<typename Sizes::T>& problem, cudaStream_t stream) {
  simt::allow_dynamic_shared(kernel, Sizes::kSharedBytes);
  simt::launch(kernel, attention_grid(problem.layout, Sizes::kRows), dim3(kAttentionThreads),
               Sizes::kSharedBytes, stream, problem);
}

template <typename KeysSizes, typename QueriesSizes, bool kDocuments, bool kCausal, bool kCapped>
void launch_kernels(const BackwardProblem<typename KeysSizes::T>& problem, cudaStream_t stream) {
  const auto launch_keys = [&]<Sums kSums>() {
    launch_backward<KeysSizes>(keys_kernel<KeysSizes, kSums, kDocuments, kCausal, kCapped>, problem,
                               stream);
  };
  if constexpr (KeysSizes::kDim <= 128) {
    launch_keys.template operator()<Sums::kBoth>();
  } else {
    launch_keys.template operator()<Sums::kValues>();
    launch_keys.template operator()<Sums::kKeys>();
  }
  launch_backward<QueriesSizes>(queries_kernel<QueriesSizes, kDocuments, kCausal, kCapped>, problem,
                                stream);
}

/// A soft cap has one kernel of each kind, with or without documents.
template <typename KeysSizes, typename QueriesSizes>
void launch_all(const BackwardProblem<typename KeysSizes::T>& problem, cudaStream_t stream) {
  const AttentionLayout& layout = problem.layout;
  if (layout.soft_cap != 0.0F) {
    launch_kernels<KeysSizes, QueriesSizes, true, true, true>(problem, stream);
  } else if (layout.starts == nullptr) {
    layout.causal ? launch_kernels<KeysSizes, QueriesSizes, false, true, false>(problem, stream)
                  : launch_kernels<KeysSizes, QueriesSizes, false, false, false>(problem, stream);
  } else {
    layout.causal ? launch_kernels<KeysSizes, QueriesSizes, true, true, false>(problem, stream)
                  : launch_kernels<KeysSizes, QueriesSizes, true, false, false>(problem, stream);
  }
}

}  // namespace

void tensor_core_attention_backward(const AttentionBackwardArgs& args, CudaStream& stream) {
  with_half_type("attention", args.qkv.dtype, [&]<typename T>(ElementType<T>) {
    const BackwardProblem<T> problem{
        AttentionLayout(args.qkv, args.window, args.starts, args.causal, args.scores),
        device_data<const T>(args.d_out), device_data<const T>(args.qkv),
        device_data<T>(args.d_qkv), row_statistics(args, stream)};
    if (problem.layout.head_dim <= 64) {
      using Sizes = BackwardSizes<T, 64, 2, 32>;
      launch_all<Sizes, Sizes>(problem, stream.handle());
    } else if (problem.layout.head_dim <= 128) {
      launch_all<BackwardSizes<T, 128, 1, 64>, BackwardSizes<T, 128, 2, 32>>(problem,
                                                                             stream.handle());
    } else {
      using Sizes = BackwardSizes<T, 256, 1, 16>;
      launch_all<Sizes, Sizes>(problem, stream.handle());
    }
  });
}

}  // namespace tessera::cuda

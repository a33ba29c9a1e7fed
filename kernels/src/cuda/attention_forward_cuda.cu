#include "cuda/attention_tiles_cuda.h"

// Attention, forward, on tensor cores (the online softmax of Dao et al. 2022 and 2023):
//   s = scale q k^T over the keys up to the query, or all of its document if not causal,
//   out = softmax(s) v,  lse = log sum exp(s)
// With a soft cap s is cap * tanh(scale q k^T / cap).
// qkv (B, L, 3, H, D), out (B, L, H, D) both in T, bf16 or fp16, D a multiple of 8 up to 256; lse
// (B, H, L) fp32.
//
// A block takes 128 queries of one head, 32 to a warp (of heads above 128 half as many, whose sums
// fit the registers), and goes through the keys from the first to
// the diagonal, a tile at a time; the tile after is on its way meanwhile (cp.async, two stages).
// Per query, m is the largest raw score so far, c = scale log2(e), and
//   p = 2^(c s - c m),  sum += p,  out += p v, all rescaled by 2^(c m_old - c m) when m grows.
// Products and sums are fp32 in the order of the keys, p is rounded to T for the second product.
// Bytes: queries and out once; keys and values once per query tile, mostly from the L2 cache.
// A tile of 32 rows per warp because each 16 x 8 block of keys or values that comes from shared
// memory then feeds two mma, without which shared memory would be the limit on Hopper.

namespace tessera::cuda {
namespace {

/// The sizes of a kernel: D, keys to a tile, and blocks of 16 queries to a warp.
template <int kDim_, int kKeys_, int kRowBlocks_>
struct ForwardSizes {
  static constexpr int kDim = kDim_, kKeys = kKeys_, kRowBlocks = kRowBlocks_;
  static constexpr int kQueries = 16 * kRowBlocks * kAttentionWarps;
  // Queries; two stages of keys and values.
  static constexpr std::size_t kSharedBytes = (kQueries + 4 * kKeys) * kDim * sizeof(std::uint16_t);
};

template <typename T>
struct ForwardProblem {
  AttentionLayout layout;
  const T* qkv;
  T* out;
  float* lse;
};

/// A lane's sums and maxima of its queries, two per 16 rows.
template <int kRowBlocks>
struct SoftmaxState {
  float maximum[kRowBlocks][2];
  float sum[kRowBlocks][2];  // of this lane's keys
};

/// Hides the keys after each query and those before its window or document: row 0 of the warp is
/// query `query`, column 0 is key `key`. kSearches: `found` says which keys the queries see.
template <bool kSearches, bool kCausal, int kRowBlocks, int kColumns>
__device__ void mask_scores(float (&s)[kRowBlocks][kColumns][4], int query, int key,
                            const AttentionLayout& layout, const Documents& documents,
                            const AttentionLayout::Visible* found) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kRowBlocks; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = query + i * 16 + half * 8 + lane / 4;
      const int seen = documents.seen(row, layout.window);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          const int column = key + j * 8 + lane % 4 * 2 + e % 2;
          if constexpr (kSearches) {
            const auto [last, count] = found[i * 16 + half * 8 + lane / 4];
            if (hides(last, column, count)) s[i][j][e] = -INFINITY;
          } else if (hides(layout.position<kCausal>(row), column, seen)) {
            s[i][j][e] = -INFINITY;
          }
        }
      }
    }
  }
}

/// Caps the products of queries and keys.
template <typename T, int kRowBlocks, int kColumns>
__device__ void cap_scores(float (&s)[kRowBlocks][kColumns][4], const AttentionLayout& layout) {
  const ScoreCap<T> cap(layout);
#pragma unroll
  for (int i = 0; i < kRowBlocks; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) cap.apply(s[i][j][e]);
    }
  }
}

/// Turns scores into p and rescales what was summed before. A query of a window may see none of the
/// first tile's keys: its maximum is then -inf, its p 0.
template <int kRowBlocks, int kColumns, int kChannels>
__device__ void softmax_step(float (&s)[kRowBlocks][kColumns][4],
                             float (&out)[kRowBlocks][kChannels][4],
                             SoftmaxState<kRowBlocks>& state, float c) {
#pragma unroll
  for (int i = 0; i < kRowBlocks; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float maximum = state.maximum[i][half];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        maximum = fmaxf(maximum, fmaxf(s[i][j][2 * half], s[i][j][2 * half + 1]));
      }
      maximum = fmaxf(maximum, __shfl_xor_sync(~0U, maximum, 1));
      maximum = fmaxf(maximum, __shfl_xor_sync(~0U, maximum, 2));
      const float shift = maximum == -INFINITY ? 0.0F : maximum;
      const float rescale = simt::exp2_approx((state.maximum[i][half] - shift) * c);
      state.maximum[i][half] = maximum;
      const float scaled = shift * c;
      float sum = 0.0F;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          s[i][j][e] = simt::exp2_approx(fmaf(s[i][j][e], c, -scaled));
          sum += s[i][j][e];
        }
      }
      state.sum[i][half] = state.sum[i][half] * rescale + sum;
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        out[i][j][2 * half] *= rescale;
        out[i][j][2 * half + 1] *= rescale;
      }
    }
  }
}

/// Completes the sums over the lanes, writes lse, and leaves 1 / sum in state.sum.
template <int kRowBlocks>
__device__ void finish_softmax(SoftmaxState<kRowBlocks>& state, float* lse, int query, int length,
                               float scale, const Documents& documents) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kRowBlocks; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = state.sum[i][half];
      sum += __shfl_xor_sync(~0U, sum, 1);
      sum += __shfl_xor_sync(~0U, sum, 2);
      const int row = query + i * 16 + half * 8 + lane / 4;
      if (row < length && !documents.begins_somewhere(row)) sum = NAN;
      if (lane % 4 == 0 && row < length) lse[row] = state.maximum[i][half] * scale + logf(sum);
      state.sum[i][half] = 1.0F / sum;
    }
  }
}

template <typename Sizes, bool kDocuments, bool kCausal, bool kCapped, typename T>
__global__ void __launch_bounds__(kAttentionThreads, 2) forward_kernel(ForwardProblem<T> problem) {
  constexpr int kDim = Sizes::kDim, kKeys = Sizes::kKeys, kRowBlocks = Sizes::kRowBlocks;
  constexpr int kQueries = Sizes::kQueries;
  const AttentionLayout& layout = problem.layout;
  const int tiles = static_cast<int>(layout.tiles(kQueries));
  const Place place(layout, tiles);
  const int first_query = (tiles - 1 - place.tile) * kQueries;  // long blocks go first
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16 * kRowBlocks;
  const int warp_query = first_query + warp_row;
  const HeadRows<const T> q = place.rows(layout, problem.qkv, 0),
                          k = place.rows(layout, problem.qkv, 1),
                          v = place.rows(layout, problem.qkv, 2);

  T* shared = simt::dynamic_shared<T>();
  const Tile<T, kDim> queries{shared};
  const auto keys = [&](int stage) {
    return Tile<T, kDim>{shared + (kQueries + 2 * stage * kKeys) * kDim};
  };
  const auto values = [&](int stage) {
    return Tile<T, kDim>{shared + (kQueries + (2 * stage + 1) * kKeys) * kDim};
  };
  clear_padding<kQueries + 4 * kKeys>(queries, q.chunks);
  copy_rows<kQueries>(queries, q, first_query);
  const Documents documents = layout.documents<kDocuments>(place.batch);
  int begin = kCausal ? layout.first_key(first_query, kKeys, documents) : 0;
  constexpr bool kSearches = kDocuments && !kCausal;
  if constexpr (kSearches) begin = documents.start(first_query) / kKeys * kKeys;
  copy_rows<kKeys>(keys(0), k, begin);
  copy_rows<kKeys>(values(0), v, begin);
  simt::cp_async_commit();

  const float c = layout.scale * kLog2E;
  float out[kRowBlocks][kDim / 8][4] = {};
  SoftmaxState<kRowBlocks> state;
#pragma unroll
  for (int i = 0; i < kRowBlocks; ++i) {
    state.maximum[i][0] = state.maximum[i][1] = -INFINITY;
    state.sum[i][0] = state.sum[i][1] = 0.0F;
  }
  constexpr int kLastRow = 16 * kRowBlocks - 1;
  int seen_first = documents.seen(warp_query, layout.window);
  int seen_last = documents.seen(warp_query + kLastRow, layout.window);
  int end = kCausal ? min(first_query + kQueries, layout.length) : layout.length;
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
    end = documents.end(min(first_query + kQueries, layout.length) - 1);
    found = search_rows<kQueries>(layout, documents, first_query) + warp_row;
  }
  for (int key = begin, stage = 0; key < end; key += kKeys, stage ^= 1) {
    simt::cp_async_wait<0>();
    __syncthreads();  // this tile is there, and all warps have left the one before
    if (key + kKeys < end) {
      copy_rows<kKeys>(keys(stage ^ 1), k, key + kKeys);
      copy_rows<kKeys>(values(stage ^ 1), v, key + kKeys);
      simt::cp_async_commit();
    }
    const bool before_all = key + kKeys - 1 <= first_place - seen_first;
    if (key > last_place || before_all) continue;  // all hidden from this warp
    float s[kRowBlocks][kKeys / 8][4];
    multiply_rows<kRowBlocks, kKeys>(s, queries, warp_row, keys(stage));
    if constexpr (kCapped) cap_scores<T>(s, layout);
    if (key + kKeys - 1 > first_place || key <= last_place - seen_last) {
      mask_scores<kSearches, kCausal>(s, warp_query, key, layout, documents, found);
    }
    softmax_step(s, out, state, c);
    add_product<kRowBlocks, kKeys>(out, s, values(stage));
  }
  finish_softmax(state, problem.lse + place.index(layout) * layout.length, warp_query,
                 layout.length, layout.scale, documents);
  store_rows(out, state.sum, queries, warp_row, place.out_rows(layout, problem.out), first_query);
}

/// A soft cap has one kernel, with or without documents.
template <typename Sizes, typename T>
void launch_forward(const ForwardProblem<T>& problem, cudaStream_t stream) {
  const AttentionLayout& layout = problem.layout;
  const auto kernel = layout.soft_cap != 0.0F ? forward_kernel<Sizes, true, true, true, T>
                      : layout.starts == nullptr
                          ? (layout.causal ? forward_kernel<Sizes, false, true, false, T>
                                           : forward_kernel<Sizes, false, false, false, T>)
                      : layout.causal ? forward_kernel<Sizes, true, true, false, T>
                                      : forward_kernel<Sizes, true, false, false, T>;
  simt::allow_dynamic_shared(kernel, Sizes::kSharedBytes);
  simt::launch(kernel, attention_grid(layout, Sizes::kQueries), dim3(kAttentionThreads),
               Sizes::kSharedBytes, stream, problem);
}

}  // namespace

void tensor_core_attention_forward(const AttentionForwardArgs& args, CudaStream& stream) {
  with_half_type("attention", args.qkv.dtype, [&]<typename T>(ElementType<T>) {
    const ForwardProblem<T> problem{
        AttentionLayout(args.qkv, args.window, args.starts, args.causal, args.scores),
        device_data<const T>(args.qkv), device_data<T>(args.out), args.lse.as<float>()};
    // 64 keys to a tile: with 32 queries per warp, the accumulators (scores and out) and operands
    // fit in 255 registers, two blocks to a multiprocessor.
    if (problem.layout.head_dim <= 64) {
      launch_forward<ForwardSizes<64, 64, 2>>(problem, stream.handle());
    } else if (problem.layout.head_dim <= 128) {
      launch_forward<ForwardSizes<128, 32, 2>>(problem, stream.handle());
    } else {
      launch_forward<ForwardSizes<256, 32, 1>>(problem, stream.handle());
    }
  });
}

}  // namespace tessera::cuda

#pragma once

#include <cstdint>

#include "cuda/attention_cuda.h"
#include "cuda/cuda_launch.h"
#include "cuda/score_cap_cuda.h"
#include "simt.h"

// The parts that the tensor-core attention kernels are made of: tiles of a head's rows in shared
// memory, and the two products that a warp computes from them. T is bf16 or fp16.
//
// A warp owns 16 kM rows of the product; a lane holds element (g, 2t), (g, 2t + 1), (g + 8, 2t),
// (g + 8, 2t + 1) of every 16 x 8 block, with g = lane / 4 and t = lane % 4 (the accumulator of
// mma.m16n8k16). Two such blocks side by side are, rounded to T, the left operand of the next
// mma: what a warp has computed never leaves its registers.
namespace tessera::cuda {

inline constexpr int kAttentionWarps = 4;
inline constexpr int kAttentionThreads = 32 * kAttentionWarps;
inline constexpr float kLn2 = 0.6931471805599453F;

/// Rows of kDim elements in shared memory. A row is split into chunks of 16 bytes, and chunk c of
/// row r is stored at place c ^ (r % 8): the 8 rows that ldmatrix reads at once then lie in
/// different banks.
template <typename T, int kDim>
struct Tile {
  static constexpr int kChunks = kDim / 8;
  T* data;

  __device__ static int offset(int row, int c) { return row * kDim + (c ^ (row % 8)) * 8; }
  __device__ T* chunk(int row, int c) const { return data + offset(row, c); }
  /// The place of `offset` in the 16 x 16 block that is i blocks down and j to the right. (An
  /// exclusive or of constants, since j shifts c by an even number: no addresses to keep.)
  __device__ const T* block(int offset, int i, int j) const {
    return data + i * 16 * kDim + (offset ^ (j * 16));
  }
};

/// One instruction, unlike a product of two 64-bit numbers.
__device__ inline std::int64_t row_offset(int row, int stride) {
  return static_cast<std::int64_t>(row) * stride;
}

/// The rows of one head in a tensor whose rows are `stride` elements apart. T may be const.
template <typename T>
struct HeadRows {
  T* data;
  int stride;
  int length;
  int chunks;  ///< of 8 elements: D / 8
};

/// Starts the copy of rows [first, first + kRows) into a tile. Rows past the end repeat the last
/// one: the causal mask hides such keys, and such queries are not stored.
template <int kRows, typename T, int kDim>
__device__ void copy_rows(Tile<T, kDim> tile, const HeadRows<const T>& rows, int first) {
  constexpr int kChunks = Tile<T, kDim>::kChunks;
  constexpr int kRowStep = kAttentionThreads / kChunks;
  const int thread = static_cast<int>(threadIdx.x);
  const int c = thread % kChunks;
  if (c >= rows.chunks) return;
  T* const first_to = tile.chunk(thread / kChunks, c);
  const T* from = rows.data + c * 8;
  const int last = rows.length - 1 - first;
#pragma unroll 4
  for (int row = 0; row < kRows; row += kRowStep) {
    // Steps of whole multiples of 8 rows stay at the same place of a row.
    T* const to = kRowStep % 8 == 0 ? first_to + row * kDim : tile.chunk(thread / kChunks + row, c);
    simt::cp_async16(to, from + row_offset(first + min(thread / kChunks + row, last), rows.stride));
  }
}

/// Zeroes the chunks that copy_rows leaves alone, from `chunks` on.
template <int kRows, typename T, int kDim>
__device__ void clear_padding(Tile<T, kDim> tile, int chunks) {
  if (chunks == tile.kChunks) return;
  const int padding = tile.kChunks - chunks;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * padding; i += kAttentionThreads) {
    simt::store16(tile.chunk(i / padding, chunks + i % padding), simt::Vec16<T>{});
  }
}

/// Two 16 x 8 blocks of sums, side by side.
template <typename T>
__device__ void multiply_blocks(float (&left)[4], float (&right)[4], const std::uint32_t (&a)[4],
                                const std::uint32_t (&b)[4]) {
  simt::mma_m16n8k16<T>(left, a, {b[0], b[1]});
  simt::mma_m16n8k16<T>(right, a, {b[2], b[3]});
}

/// sums = A B^T: the warp's 16 kM rows of `a` from `a_row` on, times the kN rows of `b`.
template <int kM, int kN, typename T, int kDim>
__device__ void multiply_rows(float (&sums)[kM][kN / 8][4], Tile<T, kDim> a, int a_row,
                              Tile<T, kDim> b) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int a_offset = Tile<T, kDim>::offset(a_row + lane % 16, lane / 16);
  const int b_offset = Tile<T, kDim>::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      for (float& sum : sums[i][j]) sum = 0.0F;
    }
  }
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    std::uint32_t left[kM][4];
#pragma unroll
    for (int i = 0; i < kM; ++i) simt::ldmatrix_x4(left[i], a.block(a_offset, i, k));
#pragma unroll
    for (int j = 0; j < kN / 16; ++j) {
      std::uint32_t right[4];
      simt::ldmatrix_x4(right, b.block(b_offset, j, k));
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        multiply_blocks<T>(sums[i][2 * j], sums[i][2 * j + 1], left[i], right);
      }
    }
  }
}

/// sums += P B: P (16 kM, kN) as a product's accumulators, rounded to T; B the kN rows of `b`.
template <int kM, int kN, typename T, int kDim>
__device__ void add_product(float (&sums)[kM][kDim / 8][4], const float (&p)[kM][kN / 8][4],
                            Tile<T, kDim> b) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int offset = Tile<T, kDim>::offset(lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < kN / 16; ++k) {
    std::uint32_t left[kM][4];
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      left[i][0] = simt::pack_pair<T>(p[i][2 * k][0], p[i][2 * k][1]);
      left[i][1] = simt::pack_pair<T>(p[i][2 * k][2], p[i][2 * k][3]);
      left[i][2] = simt::pack_pair<T>(p[i][2 * k + 1][0], p[i][2 * k + 1][1]);
      left[i][3] = simt::pack_pair<T>(p[i][2 * k + 1][2], p[i][2 * k + 1][3]);
    }
#pragma unroll
    for (int j = 0; j < kDim / 16; ++j) {
      std::uint32_t right[4];
      simt::ldmatrix_x4_trans(right, b.block(offset, k, j));
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        multiply_blocks<T>(sums[i][2 * j], sums[i][2 * j + 1], left[i], right);
      }
    }
  }
}

/// Writes the warp's 16 kM rows of sums, row r of a lane times factors[.][r], to global memory as
/// T: through its own rows of `tile`, from `tile_row` on, so that the stores are whole chunks.
/// `first` is the position of tile row 0; rows past the end are dropped.
template <int kM, typename T, int kDim>
__device__ void store_rows(const float (&sums)[kM][kDim / 8][4], const float (&factors)[kM][2],
                           Tile<T, kDim> tile, int tile_row, const HeadRows<T>& out, int first) {
  constexpr int kChunks = Tile<T, kDim>::kChunks;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncwarp();  // other lanes may still be reading these rows
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile_row + i * 16 + half * 8 + lane / 4;
#pragma unroll
      for (int j = 0; j < kChunks; ++j) {
        const float factor = factors[i][half];
        *reinterpret_cast<std::uint32_t*>(tile.chunk(row, j) + lane % 4 * 2) =
            simt::pack_pair<T>(sums[i][j][2 * half] * factor, sums[i][j][2 * half + 1] * factor);
      }
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16 * kM * kChunks / 32; ++i) {
    const int row = tile_row + (i * 32 + lane) / kChunks;
    const int c = (i * 32 + lane) % kChunks;
    if (first + row < out.length && c < out.chunks) {
      simt::store16(out.data + row_offset(first + row, out.stride) + c * 8,
                    simt::load16(tile.chunk(row, c)));
    }
  }
}

/// One block per tile of `rows` rows of each head.
inline dim3 attention_grid(const AttentionLayout& layout, int rows) {
  return dim3(blocks_for(layout.tiles(rows) * layout.all_heads(), 1));
}

/// Where attention is not causal, what a block's own rows see of documents takes a search. This
/// does it once for each of the rows from position `first` on, and keeps in shared memory what it
/// finds, for all threads after a __syncthreads. A key is seen by the queries of its document, so
/// the rows may be keys as well.
template <int kRows>
__device__ const AttentionLayout::Visible* search_rows(const AttentionLayout& layout,
                                                       const Documents& documents, int first) {
  SIMT_SHARED(AttentionLayout::Visible[kRows], found);
  for (int row = static_cast<int>(threadIdx.x); row < kRows; row += kAttentionThreads) {
    found[row] = layout.visible(first + row, documents);
  }
  return found;
}

/// Which tile of which head a block works on: heads one after another, so that the blocks that run
/// at the same time share keys and values in the L2 cache.
struct Place {
  __device__ Place(const AttentionLayout& layout, int tiles)
      : tile(static_cast<int>(blockIdx.x) % tiles),
        head(static_cast<int>(blockIdx.x) / tiles % layout.heads),
        batch(static_cast<int>(blockIdx.x) / tiles / layout.heads) {}

  int tile, head;
  std::int64_t batch;  // wide: it is multiplied by the elements of a sequence

  __device__ std::int64_t qkv_offset(const AttentionLayout& layout, int part) const {
    return batch * layout.length * layout.qkv_stride +
           (static_cast<std::int64_t>(part) * layout.heads + head) * layout.head_dim;
  }
  __device__ std::int64_t out_offset(const AttentionLayout& layout) const {
    return batch * layout.length * layout.out_stride +
           static_cast<std::int64_t>(head) * layout.head_dim;
  }
  __device__ std::int64_t index(const AttentionLayout& layout) const {
    return batch * layout.heads + head;
  }
  /// q (part 0), k (1) or v (2) of this head, or their gradients.
  template <typename T>
  __device__ HeadRows<T> rows(const AttentionLayout& layout, T* qkv, int part) const {
    return {qkv + qkv_offset(layout, part), layout.qkv_stride, layout.length, layout.head_dim / 8};
  }
  /// out of this head, or its gradient.
  template <typename T>
  __device__ HeadRows<T> out_rows(const AttentionLayout& layout, T* out) const {
    return {out + out_offset(layout), layout.out_stride, layout.length, layout.head_dim / 8};
  }
};

}  // namespace tessera::cuda

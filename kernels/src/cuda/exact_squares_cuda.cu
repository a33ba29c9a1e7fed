#include <algorithm>
#include <cstdint>

#include "cuda/cuda_kernels.h"
#include "cuda/cuda_launch.h"
#include "cuda/exact_accumulator_cuda.h"
#include "exact_sum_arguments.h"
#include "simt.h"

// Sums of squares of blocks of 64 elements, in fp64, with the CPU's bits: lane j of eight sums
// elements j, j + 8, ..., j + 56, then lanes are added as a tree, ((0+4) + (2+6)) + ((1+5) +
// (3+7)). The blocks' sums are added exactly. x (n) fp32, bf16 or fp16. Bytes: x once.
//
// A warp brings 4 KiB of x into shared memory, where neighbouring threads read neighbouring 16
// bytes; there a thread sums four lanes of a block (fp32) or all eight (of 16 bits), whole chunks
// at a time. There are no more blocks of threads than a GPU holds at once: each ends with some ten
// atomic additions to the same words in global memory.

namespace tessera::cuda {
namespace {

using simt::Vec16;

constexpr int kSquaresWarps = 4;
/// By their registers five blocks (16 bits) or six (fp32) fit a multiprocessor, and keep 70 KiB or
/// more on their way.
constexpr int kSquaresThreads = 32 * kSquaresWarps;
constexpr int kLanes = 8;
constexpr unsigned kMostSquaresBlocks = kMultiprocessors * 6;

/// What a warp takes. Chunks are of 16 bytes.
template <typename T>
struct SquaresTile {
  static constexpr int kThreadsPerBlock = kLanes / Vec16<T>::kSize;  // also chunks per eight lanes
  static constexpr int kBlocks = 32 / kThreadsPerBlock;
  static constexpr int kBlockChunks = static_cast<int>(kNormBlock) / Vec16<T>::kSize;
  static constexpr int kChunksPerThread = kBlocks * kBlockChunks / 32;
  /// Padded, so that the threads of different blocks read from different banks.
  static constexpr int kStride = kBlockChunks + kThreadsPerBlock;
  using OfWarps = Vec16<T>[kSquaresWarps * kBlocks * kStride];
};

template <bool kAligned, typename T>
__device__ Vec16<T> load_chunk(const T* from) {
  if constexpr (kAligned) {
    return simt::load16_streaming(from);
  } else {
    Vec16<T> chunk;
#pragma unroll
    for (int j = 0; j < Vec16<T>::kSize; ++j) chunk.v[j] = from[j];
    return chunk;
  }
}

/// Fills the tile with the first `chunks` of what begins at x.
template <typename T, bool kAligned>
__device__ void load_tile(const T* x, int chunks, Vec16<T>* tile) {
  using W = SquaresTile<T>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Vec16<T> loaded[W::kChunksPerThread];  // all on their way before the first is stored
#pragma unroll
  for (int i = 0; i < W::kChunksPerThread; ++i) {
    const int chunk = i * 32 + lane;
    if (chunk < chunks) loaded[i] = load_chunk<kAligned>(x + chunk * Vec16<T>::kSize);
  }
#pragma unroll
  for (int i = 0; i < W::kChunksPerThread; ++i) {
    const int chunk = i * 32 + lane;
    if (chunk < chunks)
      tile[chunk / W::kBlockChunks * W::kStride + chunk % W::kBlockChunks] = loaded[i];
  }
}

/// lane[j] + lane[j + 4] for j < 4, from the lanes that a thread has: all eight ...
__device__ inline void add_upper_lanes(const double (&lane)[8], double (&sums)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) sums[j] = lane[j] + lane[j + 4];
}
/// ... or four, the others being its neighbour's.
__device__ inline void add_upper_lanes(const double (&lane)[4], double (&sums)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) sums[j] = lane[j] + __shfl_xor_sync(~0U, lane[j], 1);
}

/// The sum of squares of block `lane / kThreadsPerBlock` of a tile, in the first of its threads, if
/// the tile has that block. By whole warps.
template <typename T>
__device__ double block_square(const Vec16<T>* tile, int lane, bool has_block) {
  using W = SquaresTile<T>;
  const Vec16<T>* const chunks =
      tile + lane / W::kThreadsPerBlock * W::kStride + lane % W::kThreadsPerBlock;
  double sum[Vec16<T>::kSize] = {};
#pragma unroll
  for (int row = 0; row < static_cast<int>(kNormBlock) / kLanes; ++row) {
    if (!has_block) break;
    const Vec16<T> v = chunks[row * W::kThreadsPerBlock];
#pragma unroll
    for (int j = 0; j < Vec16<T>::kSize; ++j) {
      const auto value = static_cast<double>(simt::to_float(v.v[j]));
      sum[j] = __fma_rn(value, value, sum[j]);  // the square is exact: rounded once either way
    }
  }
  double pair[4];
  add_upper_lanes(sum, pair);
  return (pair[0] + pair[2]) + (pair[1] + pair[3]);
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kSquaresThreads)
    add_squares(const T* x, std::int64_t* words, std::int64_t blocks) {
  using W = SquaresTile<T>;
  SIMT_SHARED(typename SquaresTile<T>::OfWarps, tiles);
  SIMT_SHARED(ExactWords, sum);
  clear_words<kSquaresThreads>(sum);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Vec16<T>* const tile = tiles + warp * W::kBlocks * W::kStride;
  ExactWindow window;
  const std::int64_t stride = std::int64_t{gridDim.x} * kSquaresWarps * W::kBlocks;
  for (std::int64_t first = (std::int64_t{blockIdx.x} * kSquaresWarps + warp) * W::kBlocks;
       first < blocks; first += stride) {  // by whole warps
    const int count = static_cast<int>(blocks - first < W::kBlocks ? blocks - first : W::kBlocks);
    load_tile<T, kAligned>(x + first * kNormBlock, count * W::kBlockChunks, tile);
    __syncwarp();
    const bool has_block = lane / W::kThreadsPerBlock < count;
    const double square = block_square(tile, lane, has_block);
    window.add(sum, has_block && lane % W::kThreadsPerBlock == 0 ? square : 0.0);
    __syncwarp();
  }
  window.flush(sum);
  add_words<kSquaresThreads>(sum, words);
}

template <typename T>
void launch_squares(const T* x, std::int64_t* words, std::int64_t blocks, cudaStream_t stream) {
  const unsigned grid =
      std::min(blocks_for(blocks, kSquaresWarps * SquaresTile<T>::kBlocks), kMostSquaresBlocks);
  if (is_aligned(x, 16)) {
    simt::launch(add_squares<T, true>, grid, kSquaresThreads, 0, stream, x, words, blocks);
  } else {
    simt::launch(add_squares<T, false>, grid, kSquaresThreads, 0, stream, x, words, blocks);
  }
}

}  // namespace

void exact_squares(const ExactSquaresArgs& args, Stream& stream) {
  check_arguments(args);
  if (args.x.numel() == 0) return;
  with_element_type("exact_squares", args.x.dtype, [&]<typename T>(ElementType<T>) {
    launch_squares(device_data<const T>(args.x), args.words.as<std::int64_t>(),
                   args.x.numel() / kNormBlock, handle(stream));
  });
}

}  // namespace tessera::cuda

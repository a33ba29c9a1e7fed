#include <cstdint>
#include <vector>

#include "cuda/cuda_kernels.h"
#include "cuda/cuda_launch.h"
#include "simt.h"
#include "tessera/core/error.h"
#include "tessera/kernels/norm_tree.h"

// The subtrees of the norm tree (norm_tree.h) that a shard consists of, with the CPU's bits.
// x (n) fp32 or bf16, nodes (m) fp64.
//
// block_squares first. Then windows of 2^11 values are summed, each into its first value, until no
// subtree is left that has more of them than one block of threads takes: a window is a node of the
// tree, and there is one pass for shards of up to 2^28 elements. At last every subtree is summed by
// a block of its own. Bytes: n / 64 doubles written and read, from the L2 cache if they fit.

namespace tessera::cuda {
namespace {

constexpr int kWindowLevel = 11;
constexpr int kWindow = 1 << kWindowLevel;
constexpr int kThreads = 256;
constexpr int kPerThread = kWindow / kThreads;  // consecutive, so that their tree needs no exchange
constexpr int kWarps = kThreads / 32;

/// The sum of values 0 .. count - 1 <= kWindow, a power of two of them and `stride` apart, as the
/// tree adds them. What is missing of a window counts as zero, which changes no sum of squares. In
/// all threads; once per kernel.
__device__ double sum_as_tree(const double* values, std::int64_t stride, int count) {
  const int first = static_cast<int>(threadIdx.x) * kPerThread;
  double v[kPerThread];
#pragma unroll
  for (int j = 0; j < kPerThread; ++j)
    v[j] = first + j < count ? values[(first + j) * stride] : 0.0;
#pragma unroll
  for (int width = 1; width < kPerThread; width *= 2) {
#pragma unroll
    for (int j = 0; j < kPerThread; j += 2 * width) v[j] += v[j + width];
  }
  double sum = v[0];
#pragma unroll
  for (int width = 1; width < 32; width *= 2) sum += __shfl_xor_sync(~0U, sum, width);
  SIMT_SHARED(double[kWarps], warps);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  static_assert(kWarps == 8);
  return ((warps[0] + warps[1]) + (warps[2] + warps[3])) +
         ((warps[4] + warps[5]) + (warps[6] + warps[7]));
}

/// Block i: the sum of window i of values that are `stride` apart, into its first value.
__global__ void __launch_bounds__(kThreads) sum_windows(double* values, std::int64_t stride) {
  double* const window = values + std::int64_t{blockIdx.x} * kWindow * stride;
  const double sum = sum_as_tree(window, stride, kWindow);
  if (threadIdx.x == 0) window[0] = sum;
}

/// The subtrees, by value: `count` of them; subtree i sums values offset[i] + k 2^stride_level[i]
/// for k < 2^levels[i].
struct Subtrees {
  int count = 0;
  std::int64_t offset[kNormNodes] = {};
  std::int8_t stride_level[kNormNodes] = {}, levels[kNormNodes] = {};
};

/// Block i writes node i: subtree i, or the zeros behind the last.
__global__ void __launch_bounds__(kThreads)
    sum_subtrees(const double* values, double* nodes, const __grid_constant__ Subtrees subtrees) {
  const auto i = static_cast<int>(blockIdx.x);
  double sum = 0.0;
  if (i < subtrees.count) {
    sum = sum_as_tree(values + subtrees.offset[i], std::int64_t{1} << subtrees.stride_level[i],
                      1 << subtrees.levels[i]);
  }
  if (threadIdx.x == 0) nodes[i] = sum;
}

/// Sums the windows that make up the subtrees of at least `level`, the next multiple of
/// kWindowLevel; false if there are none.
bool sum_windows_of(const std::vector<NormNode>& nodes, std::int64_t first_block, int level,
                    double* values, cudaStream_t stream) {
  // These subtrees are neighbours: levels rise from the left end of a shard and fall to the right.
  std::int64_t begin = -1, windows = 0;
  for (const NormNode& node : nodes) {
    if (node.level < level) continue;
    if (begin < 0) begin = (node.index << node.level) - first_block;
    windows += std::int64_t{1} << (node.level - level);
  }
  if (windows == 0) return false;
  simt::launch(sum_windows, blocks_for(windows, 1), kThreads, 0, stream, values + begin,
               std::int64_t{1} << (level - kWindowLevel));
  return true;
}

}  // namespace

void norm_nodes(const NormNodesArgs& args, Stream& stream) {
  const std::int64_t blocks = args.x.numel() / kNormBlock;
  require(args.workspace.numel() >= blocks, ErrorCode::kInvalidArgument, "norm_nodes: ", blocks,
          " blocks need a workspace of as many, got ", args.workspace.numel());
  require(args.first_block >= 0, ErrorCode::kInvalidArgument, "norm_nodes: the first block is ",
          args.first_block);
  const std::vector<NormNode> nodes = tessera::norm_nodes({args.first_block, blocks});
  const std::int64_t room = args.nodes.numel();
  require(room >= static_cast<std::int64_t>(nodes.size()), ErrorCode::kInvalidArgument,
          "norm_nodes: room for ", room, " nodes, need ", nodes.size());
  if (room == 0) return;
  const TensorView squares = args.workspace.narrow(0, 0, blocks);
  block_squares({.x = args.x, .out = squares}, stream);

  double* const values = squares.as<double>();
  for (int level = kWindowLevel;
       sum_windows_of(nodes, args.first_block, level, values, handle(stream));) {
    level += kWindowLevel;
  }
  Subtrees subtrees;
  for (const NormNode& node : nodes) {
    const int levels = node.level % kWindowLevel;
    subtrees.offset[subtrees.count] = (node.index << node.level) - args.first_block;
    subtrees.levels[subtrees.count] = static_cast<std::int8_t>(levels);
    subtrees.stride_level[subtrees.count++] = static_cast<std::int8_t>(node.level - levels);
  }
  simt::launch(sum_subtrees, blocks_for(room, 1), kThreads, 0, handle(stream), values,
               args.nodes.as<double>(), subtrees);
}

}  // namespace tessera::cuda

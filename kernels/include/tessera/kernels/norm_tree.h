#pragma once

#include <cstdint>
#include <span>
#include <vector>

// A sum over a flat tensor whose bits do not depend on how the tensor is cut into shards.
//
// The tensor is a row of blocks, each with a value (block_squares). Their sum is defined as the
// root of a binary tree over absolute block indices: node i of level l is the sum of nodes 2i and
// 2i+1 of level l-1, blocks are the nodes of level 0, and what lies beyond the tensor is zero. A
// shard, a range of blocks, evaluates the maximal subtrees inside of it; there are at most two of
// any level, so they fit a small fixed buffer which the ranks all-gather. Everybody then finishes
// the tree.
namespace tessera {

/// A shard of the row of blocks.
struct BlockRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// A subtree: the blocks [index << level, (index + 1) << level).
struct NormNode {
  int level = 0;
  std::int64_t index = 0;
  bool operator==(const NormNode&) const = default;
};

/// Doubles that hold any shard's subtree sums.
inline constexpr std::int64_t kNormNodes = 128;

/// The maximal aligned subtrees that make up `range`, left to right: at most kNormNodes.
std::vector<NormNode> norm_nodes(BlockRange range);

/// Writes the sums of norm_nodes(range) in their order, then zeros to the end of `nodes`, which
/// must have room (kNormNodes always do). `block_sums` has range.count values, those of the range's
/// blocks.
void reduce_to_norm_nodes(std::span<const double> block_sums, BlockRange range,
                          std::span<double> nodes);

/// values[target] = values[left] + values[right].
struct NormAddition {
  std::int32_t target = 0, left = 0, right = 0;
};

/// Appends to `additions` what finishes the tree, given an array in which the subtree sums of shard
/// s begin at first_value[s]; intermediate sums go to `scratch` and on, which is advanced behind
/// them. Returns where the root is, -1 if there are no blocks. `ranges` as in combine_norm_nodes.
std::int32_t plan_norm_sum(std::span<const BlockRange> ranges,
                           std::span<const std::int32_t> first_value, std::int32_t& scratch,
                           std::vector<NormAddition>& additions);

/// The root of the tree. `ranges` are the shards, ascending and adjacent, the first beginning at
/// block 0; `nodes` holds kNormNodes values of each. Throws Error{kInvalidArgument} otherwise.
double combine_norm_nodes(std::span<const BlockRange> ranges, std::span<const double> nodes);

}  // namespace tessera

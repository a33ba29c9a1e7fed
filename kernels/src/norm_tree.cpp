#include "tessera/kernels/norm_tree.h"

#include <algorithm>
#include <array>
#include <bit>

#include "cpu/parallel.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

/// Subtrees of this level (64K blocks, 512 KiB of sums) are the unit of parallel work.
constexpr int kParallelLevel = 16;

double pairwise_sum(const double* values, int level) {
  if (level == 0) return values[0];
  if (level == 1) return values[0] + values[1];
  if (level == 2) return (values[0] + values[1]) + (values[2] + values[3]);
  return pairwise_sum(values, level - 1) +
         pairwise_sum(values + (std::int64_t{1} << (level - 1)), level - 1);
}

double subtree_sum(const double* values, int level) {
  if (level <= kParallelLevel) return pairwise_sum(values, level);
  const std::int64_t count = std::int64_t{1} << (level - kParallelLevel);
  std::vector<double> sums(static_cast<std::size_t>(count));
  cpu::parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      sums[static_cast<std::size_t>(i)] =
          pairwise_sum(values + (i << kParallelLevel), kParallelLevel);
    }
  });
  return pairwise_sum(sums.data(), level - kParallelLevel);
}

}  // namespace

std::vector<NormNode> norm_nodes(BlockRange range) {
  std::vector<NormNode> nodes;
  std::int64_t begin = range.first;
  const std::int64_t end = range.first + range.count;
  while (begin < end) {
    // The largest subtree that starts at `begin` and stays inside.
    const int aligned =
        begin == 0 ? 62 : static_cast<int>(std::countr_zero(static_cast<std::uint64_t>(begin)));
    const int fits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(end - begin))) - 1;
    const int level = std::min(aligned, fits);
    nodes.push_back({.level = level, .index = begin >> level});
    begin += std::int64_t{1} << level;
  }
  return nodes;
}

void reduce_to_norm_nodes(std::span<const double> block_sums, BlockRange range,
                          std::span<double> nodes) {
  require(static_cast<std::int64_t>(block_sums.size()) == range.count && range.first >= 0,
          ErrorCode::kInvalidArgument, "reduce_to_norm_nodes: ", block_sums.size(),
          " block sums for a range of ", range.count, " blocks from ", range.first);
  const std::vector<NormNode> subtrees = norm_nodes(range);
  require(nodes.size() >= subtrees.size(), ErrorCode::kInvalidArgument,
          "reduce_to_norm_nodes: room for ", nodes.size(), " nodes, need ", subtrees.size());
  std::fill(nodes.begin(), nodes.end(), 0.0);
  std::size_t next = 0;
  for (const NormNode& node : subtrees) {
    const std::int64_t offset = (node.index << node.level) - range.first;
    nodes[next++] = subtree_sum(block_sums.data() + offset, node.level);
  }
}

std::int32_t plan_norm_sum(std::span<const BlockRange> ranges,
                           std::span<const std::int32_t> first_value, std::int32_t& scratch,
                           std::vector<NormAddition>& additions) {
  require(ranges.size() == first_value.size(), ErrorCode::kInvalidArgument,
          "norm tree: ", first_value.size(), " places for ", ranges.size(), " shards");
  struct Subtree {
    NormNode node;
    std::int32_t value;
  };
  const auto add = [&](std::int32_t left, std::int32_t right) {
    additions.push_back({.target = scratch, .left = left, .right = right});
    return scratch++;
  };
  std::vector<Subtree> open;  // left siblings that wait for their right one; levels descend
  std::int64_t covered = 0;
  for (std::size_t s = 0; s < ranges.size(); ++s) {
    require(ranges[s].first == covered && ranges[s].count >= 0, ErrorCode::kInvalidArgument,
            "norm tree: shard ", s, " begins at block ", ranges[s].first, " instead of ", covered);
    covered += ranges[s].count;
    std::int32_t value = first_value[s];
    for (const NormNode& node : norm_nodes(ranges[s])) {
      Subtree right{node, value++};
      while (!open.empty() && open.back().node.level == right.node.level &&
             open.back().node.index % 2 == 0) {
        right = {{right.node.level + 1, right.node.index / 2}, add(open.back().value, right.value)};
        open.pop_back();
      }
      open.push_back(right);
    }
  }
  // What is open are left siblings whose right ones are zero from here on: their parents, and so on
  // up, have the same sum until they meet.
  if (open.empty()) return -1;
  std::int32_t root = open.back().value;
  for (auto left = open.rbegin() + 1; left != open.rend(); ++left) root = add(left->value, root);
  return root;
}

double combine_norm_nodes(std::span<const BlockRange> ranges, std::span<const double> nodes) {
  require(nodes.size() == ranges.size() * kNormNodes, ErrorCode::kInvalidArgument,
          "combine_norm_nodes: ", nodes.size(), " values for ", ranges.size(), " shards");
  std::vector<std::int32_t> first_value;
  for (std::size_t s = 0; s < ranges.size(); ++s) {
    first_value.push_back(static_cast<std::int32_t>(s * kNormNodes));
  }
  auto scratch = static_cast<std::int32_t>(nodes.size());
  std::vector<NormAddition> additions;
  const std::int32_t root = plan_norm_sum(ranges, first_value, scratch, additions);
  std::vector<double> values(nodes.begin(), nodes.end());
  values.resize(static_cast<std::size_t>(scratch));
  const auto at = [&](std::int32_t i) -> double& { return values[static_cast<std::size_t>(i)]; };
  for (const NormAddition& a : additions) at(a.target) = at(a.left) + at(a.right);
  return root < 0 ? 0.0 : at(root);
}

}  // namespace tessera

#include "tessera/kernels/norm_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>

#include "tessera/core/error.h"

namespace tessera {
namespace {

std::vector<double> random_squares(std::int64_t n, unsigned seed) {
  std::mt19937_64 generator(seed);
  std::lognormal_distribution<double> sizes(0.0, 8.0);  // many magnitudes: every rounding differs
  std::vector<double> values(static_cast<std::size_t>(n));
  for (double& value : values) value = sizes(generator);
  return values;
}

/// The definition: node (level, index) of the tree over `values`, zero beyond them.
double naive_node(const std::vector<double>& values, int level, std::int64_t index) {
  if ((index << level) >= static_cast<std::int64_t>(values.size())) return 0.0;
  if (level == 0) return values[static_cast<std::size_t>(index)];
  return naive_node(values, level - 1, 2 * index) + naive_node(values, level - 1, 2 * index + 1);
}

double naive_root(const std::vector<double>& values) {
  return naive_node(values, static_cast<int>(std::bit_width(values.size())), 0);
}

/// The root by way of shards that end at `cuts` (ascending, the last one the size).
double sharded_root(const std::vector<double>& values, const std::vector<std::int64_t>& cuts) {
  std::vector<BlockRange> ranges;
  std::vector<double> nodes(cuts.size() * kNormNodes);
  std::int64_t first = 0;
  for (std::size_t s = 0; s < cuts.size(); ++s) {
    ranges.push_back({.first = first, .count = cuts[s] - first});
    const auto shard = std::span(values).subspan(static_cast<std::size_t>(first),
                                                 static_cast<std::size_t>(cuts[s] - first));
    reduce_to_norm_nodes(shard, ranges.back(),
                         std::span(nodes).subspan(s * kNormNodes, kNormNodes));
    first = cuts[s];
  }
  return combine_norm_nodes(ranges, nodes);
}

void expect_same(double a, double b, const std::string& what) {
  EXPECT_EQ(std::bit_cast<std::uint64_t>(a), std::bit_cast<std::uint64_t>(b)) << what;
}

TEST(NormNodes, AreTheMaximalAlignedSubtrees) {
  EXPECT_EQ(norm_nodes({0, 0}), std::vector<NormNode>{});
  EXPECT_EQ(norm_nodes({5, 0}), std::vector<NormNode>{});
  EXPECT_EQ(norm_nodes({0, 8}), (std::vector<NormNode>{{3, 0}}));
  EXPECT_EQ(norm_nodes({3, 10}), (std::vector<NormNode>{{0, 3}, {2, 1}, {2, 2}, {0, 12}}));
  EXPECT_EQ(norm_nodes({4, 4}), (std::vector<NormNode>{{2, 1}}));
}

TEST(NormNodes, FitTheBufferForAnyRange) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 62) - 1;
  EXPECT_LE(static_cast<std::int64_t>(norm_nodes({1, kMost - 1}).size()), kNormNodes);
  EXPECT_LE(static_cast<std::int64_t>(norm_nodes({0, kMost}).size()), kNormNodes);
}

TEST(NormTree, EveryCutIntoTwoGivesTheBitsOfTheRecursion) {
  for (const std::int64_t n : {0, 1, 2, 3, 5, 8, 31, 64, 97}) {
    const auto values = random_squares(n, 3);
    const double expected = naive_root(values);
    for (std::int64_t cut = 0; cut <= n; ++cut) {
      expect_same(sharded_root(values, {cut, n}), expected, concat(n, " cut at ", cut));
    }
  }
}

TEST(NormTree, RandomCutsIntoManyShardsChangeNoBit) {
  std::mt19937 generator(17);
  for (int trial = 0; trial < 300; ++trial) {
    const std::int64_t n = generator() % 5000;
    const auto values = random_squares(n, static_cast<unsigned>(trial));
    std::vector<std::int64_t> cuts{n};
    for (auto shards = generator() % 17; shards > 0; --shards) {
      cuts.push_back(static_cast<std::int64_t>(generator()) % (n + 1));
    }
    std::sort(cuts.begin(), cuts.end());  // equal cuts make empty shards
    expect_same(sharded_root(values, cuts), naive_root(values), concat("trial ", trial, ", n ", n));
  }
}

TEST(NormTree, LargeSubtreesRunInParallelWithTheSameBits) {
  const std::int64_t n = (std::int64_t{1} << 18) + 12345;
  const auto values = random_squares(n, 5);
  expect_same(sharded_root(values, {n}), naive_root(values), "whole");
  expect_same(sharded_root(values, {77777, 200003, n}), naive_root(values), "in three");
}

TEST(NormTree, PaddingWithZeroBlocksChangesNoBit) {
  auto values = random_squares(1000, 9);
  const double expected = naive_root(values);
  values.resize(1777, 0.0);
  expect_same(sharded_root(values, {444, 888, 1332, 1777}), expected, "padded");
}

TEST(NormTree, RejectsGapsAndWrongSizes) {
  std::vector<double> nodes(2 * kNormNodes);
  const std::vector<BlockRange> gap{{0, 3}, {4, 2}};
  const std::vector<BlockRange> late{{1, 3}, {4, 2}};
  const std::vector<BlockRange> one{{0, 3}};
  EXPECT_THROW(combine_norm_nodes(gap, nodes), Error);
  EXPECT_THROW(combine_norm_nodes(late, nodes), Error);
  EXPECT_THROW(combine_norm_nodes(one, nodes), Error);
  EXPECT_THROW(reduce_to_norm_nodes(nodes, {0, 3}, nodes), Error);
  EXPECT_THROW(reduce_to_norm_nodes(std::span(nodes).first(3), {0, 3}, std::span(nodes).first(1)),
               Error);
}

}  // namespace
}  // namespace tessera

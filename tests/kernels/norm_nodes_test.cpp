#include <bit>

#include "kernels/every_way.h"
#include "tessera/core/error.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/kernels/norm_tree.h"

namespace tessera {
namespace {

/// The node of the tree over the squares of blocks [begin, begin + 2^level) of x, by recursion.
double naive_node(const std::vector<double>& squares, std::int64_t begin, int level) {
  if (level == 0) return squares[static_cast<std::size_t>(begin)];
  return naive_node(squares, begin, level - 1) +
         naive_node(squares, begin + (std::int64_t{1} << (level - 1)), level - 1);
}

template <typename T>
void check(std::int64_t first_block, std::int64_t blocks) {
  SCOPED_TRACE(concat(blocks, " blocks from ", first_block));
  std::vector<T> x = random_values<T>(blocks * kNormBlock, 7);
  for (std::size_t i = 0; i < x.size(); i += 97) x[i] = T(1e10F);  // every rounding differs
  StreamUnderTest stream;
  std::vector<double> squares(static_cast<std::size_t>(blocks));
  kernels_under_test().block_squares({.x = view_of(x), .out = view_of(squares)}, stream);
  std::vector<double> expected;
  for (const NormNode& node : norm_nodes({first_block, blocks})) {
    expected.push_back(naive_node(squares, (node.index << node.level) - first_block, node.level));
  }
  expected.resize(kNormNodes);
  const auto nodes = run_every_way([&] {
    std::vector<double> workspace(static_cast<std::size_t>(blocks) + 3), result(kNormNodes, -1.0);
    kernels_under_test().norm_nodes({.x = view_of(x),
                                     .first_block = first_block,
                                     .workspace = view_of(workspace),
                                     .nodes = view_of(result)},
                                    stream);
    return result;
  });
  EXPECT_TRUE(same_bits(nodes, expected));
}

TEST(NormNodesKernel, GivesTheBitsOfTheRecursion) {
  for (const std::int64_t first : {0, 1, 5, 1023, 2047}) {
    for (const std::int64_t blocks : {0, 1, 2, 31, 100, 2047, 2048, 2049})
      check<float>(first, blocks);
  }
  check<bfloat16>(3, 1000);
}

TEST(NormNodesKernel, LargeSubtreesGiveTheBitsOfTheRecursion) {
  check<bfloat16>(0, 8192);
  check<bfloat16>(2000, 13000);
  check<float>(4095, 4097);
}

TEST(NormNodesKernel, RejectsWhatDoesNotFit) {
  std::vector<float> x(128);
  std::vector<double> workspace(1), nodes(kNormNodes);
  StreamUnderTest stream;
  NormNodesArgs args{.x = view_of(x), .workspace = view_of(workspace), .nodes = view_of(nodes)};
  EXPECT_THROW(kernels_under_test().norm_nodes(args, stream), Error);
  workspace.resize(2);
  args.workspace = view_of(workspace);
  args.first_block = 1;  // two subtrees
  args.nodes = view_of(nodes, 0, 1);
  EXPECT_THROW(kernels_under_test().norm_nodes(args, stream), Error);
}

}  // namespace
}  // namespace tessera

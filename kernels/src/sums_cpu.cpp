#include "cpu_kernels.h"
#include "tessera/core/error.h"
#include "tessera/kernels/norm_tree.h"

// norm_nodes: block_squares reads n elements once; the tree reads n / 64 doubles.
// sum: one sequential pass, since its order is the contract; n is the losses of a micro-batch.
namespace tessera::cpu {

void norm_nodes(const NormNodesArgs& args, Stream& stream) {
  const std::int64_t blocks = args.x.numel() / kNormBlock;
  require(args.workspace.numel() >= blocks && args.nodes.numel() == kNormNodes,
          ErrorCode::kInvalidArgument, "norm_nodes: ", blocks, " blocks need a workspace of ",
          blocks, " and ", kNormNodes, " nodes, got ", args.workspace.numel(), " and ",
          args.nodes.numel());
  const TensorView squares = args.workspace.narrow(0, 0, blocks);
  block_squares({.x = args.x, .out = squares}, stream);
  reduce_to_norm_nodes({squares.as<double>(), static_cast<std::size_t>(blocks)},
                       {args.first_block, blocks},
                       {args.nodes.as<double>(), static_cast<std::size_t>(kNormNodes)});
}

void sum(const SumArgs& args, Stream&) {
  const float* x = args.x.as<float>();
  double total = 0.0;
  for (std::int64_t i = 0; i < args.x.numel(); ++i) total += static_cast<double>(x[i]);
  *args.out.as<double>() = total;
}

}  // namespace tessera::cpu

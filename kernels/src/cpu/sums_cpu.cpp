#include <cmath>

#include "cpu/cpu_kernels.h"
#include "tessera/core/error.h"
#include "tessera/kernels/norm_tree.h"

// norm_nodes: block_squares reads n elements once; the tree reads n / 64 doubles.
// step_results: a few doubles per unit and rank.
// sum: one sequential pass, since its order is the contract; n is the losses of a micro-batch.
namespace tessera::cpu {

void norm_nodes(const NormNodesArgs& args, Stream& stream) {
  const std::int64_t blocks = args.x.numel() / kNormBlock;
  require(args.workspace.numel() >= blocks, ErrorCode::kInvalidArgument, "norm_nodes: ", blocks,
          " blocks need a workspace of as many, got ", args.workspace.numel());
  const TensorView squares = args.workspace.narrow(0, 0, blocks);
  block_squares({.x = args.x, .out = squares}, stream);
  reduce_to_norm_nodes({squares.as<double>(), static_cast<std::size_t>(blocks)},
                       {args.first_block, blocks},
                       {args.nodes.as<double>(), static_cast<std::size_t>(args.nodes.numel())});
}

void sum(const SumArgs& args, Stream&) {
  const float* x = args.x.as<float>();
  double total = 0.0;
  for (std::int64_t i = 0; i < args.x.numel(); ++i) total += static_cast<double>(x[i]);
  *args.out.as<double>() = total;
}

void loss_scale(const LossScaleArgs& args, Stream&) {
  const std::int64_t* const counts = args.counts.as<std::int64_t>();
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < args.counts.numel(); ++i) total += counts[i];
  *args.scale.as<float>() = total > 0 ? static_cast<float>(1.0 / static_cast<double>(total)) : 0.0F;
}

void step_results(const StepResultsArgs& args, Stream&) {
  double* const values = args.values.as<double>();
  double losses = 0.0;
  for (std::int64_t m = 0; m < args.micro_steps; ++m) {
    for (std::int64_t r = 0; r < args.ranks; ++r) losses += values[r * args.message + m];
  }
  const std::int32_t* const rows = args.additions.as<std::int32_t>();
  const std::int32_t* const units = args.units.as<std::int32_t>();
  const std::int32_t* const roots = args.roots.as<std::int32_t>();
  double squares = 0.0;
  for (std::int64_t u = 0; u < args.roots.numel(); ++u) {
    for (std::int64_t i = units[u]; i < units[u + 1]; ++i) {
      values[rows[3 * i]] = values[rows[3 * i + 1]] + values[rows[3 * i + 2]];
    }
    if (roots[u] >= 0) squares += values[roots[u]];
  }
  const double norm = std::sqrt(squares);
  args.results.as<double>()[0] = losses;
  args.results.as<double>()[1] = norm;
  const double factor = args.clip_norm > 0.0 ? args.clip_norm / (norm + 1e-6) : 1.0;
  *args.clip_factor.as<float>() = factor >= 1.0 ? 1.0F : static_cast<float>(factor);
}

}  // namespace tessera::cpu

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "tessera/core/error.h"
#include "tessera/lab/kernel_calls.h"
#include "tessera/sharding/operation.h"
#include "tessera/trainer/training_plan.h"

namespace tessera {
namespace {

/// FLOPs that a device makes in the time in which it moves a byte, to the nearest ten: an H100 in
/// bf16 about 300, a core with AVX-512 about 50. What decides is which layers are heavy.
double flops_per_byte(const TrainerOptions& options) {
  return options.device == DeviceChoice::kCuda ? 300.0 : 50.0;
}

/// By layer: forward and backward of one micro-batch, in the time in which a byte is moved.
std::vector<double> layer_costs(const RunInputs& inputs, const TrainerOptions& options) {
  TrainerOptions alone = options;
  alone.ranks = 1;
  alone.replicas = 1;
  alone.pipeline = {};
  alone.accumulate = 1;
  alone.placement = Placement{};
  const ModelLayout layout = make_layout(inputs.model, alone);
  const Schedule schedule = plan(layout, plan_options(alone, inputs, layout));
  const std::vector<std::vector<KernelCall>> calls =
      record_kernels({&schedule, &inputs.source}, layout, inputs.model, executor_options(alone));
  std::vector<double> costs(inputs.model.layers.size(), 0.0);
  for (std::size_t a = 0; a < calls.size(); ++a) {
    const Action& action = schedule.actions[a];
    if (!action.operation->is_pass) continue;
    for (const KernelCall& call : calls[a]) {
      costs[static_cast<std::size_t>(action.layer)] +=
          std::max(call.flops / flops_per_byte(options), call.bytes);
    }
  }
  return costs;
}

std::vector<double> layer_parameters(const Model& model) {
  std::vector<double> parameters;
  for (const auto& layer : model.layers) {
    double numel = 0.0;
    for (const ParameterSpec& spec : layer->parameters()) {
      numel += static_cast<double>(spec.shape.numel());
    }
    parameters.push_back(numel);
  }
  return parameters;
}

/// The slowest stage of a split, and then the one with most parameters.
struct Worst {
  double cost = std::numeric_limits<double>::infinity();
  double parameters = 0.0;
  auto operator<=>(const Worst&) const = default;
};

/// A split as pipeline ranks have it; the smaller, the better.
struct SplitCost {
  double slowest_rank = 0.0;
  double squares = 0.0;     ///< sum over stages: equal stages wait least for one another
  double parameters = 0.0;  ///< of the rank with most
  auto operator<=>(const SplitCost&) const = default;
};

SplitCost cost_of(const std::vector<int>& counts, const std::vector<int>& rank_of_stage,
                  const std::vector<double>& costs, const std::vector<double>& parameters) {
  SplitCost cost;
  std::map<int, double> by_rank, parameters_by_rank;
  std::size_t layer = 0;
  for (std::size_t stage = 0; stage < counts.size(); ++stage) {
    double own = 0.0;
    for (int i = 0; i < counts[stage]; ++i, ++layer) {
      own += costs[layer];
      parameters_by_rank[rank_of_stage[stage]] += parameters[layer];
    }
    cost.squares += own * own;
    by_rank[rank_of_stage[stage]] += own;
  }
  for (const auto& [rank, sum] : by_rank) cost.slowest_rank = std::max(cost.slowest_rank, sum);
  for (const auto& [rank, sum] : parameters_by_rank) {
    cost.parameters = std::max(cost.parameters, sum);
  }
  return cost;
}

/// Lets a stage give a layer to another, and those in between pass one on, as long as that makes
/// the slowest rank faster, or else stages more equal.
void improve(std::vector<int>& counts, const PipelineSplit& pipeline,
             const std::vector<double>& costs, const std::vector<double>& parameters) {
  const std::vector<int> ranks = pipeline.ranks_of_stages();
  SplitCost best = cost_of(counts, ranks, costs, parameters);
  for (bool improves = true; improves;) {
    improves = false;
    std::vector<int> better = counts;
    for (std::size_t from = 0; from < counts.size(); ++from) {
      for (std::size_t to = 0; to < counts.size(); ++to) {
        if (from == to || counts[from] == 1) continue;
        std::vector<int> other = counts;
        --other[from];
        ++other[to];
        const SplitCost cost = cost_of(other, ranks, costs, parameters);
        if (cost < best) {
          best = cost;
          better = std::move(other);
          improves = true;
        }
      }
    }
    counts = better;
  }
}

}  // namespace

/// The split whose slowest stage is fastest: of the first n layers into s stages, from those into
/// s - 1. Where ranks have several stages, the slowest rank counts.
StageLayers balanced_layers(const RunInputs& inputs, const TrainerOptions& options) {
  const std::vector<double> costs = layer_costs(inputs, options);
  const std::vector<double> parameters = layer_parameters(inputs.model);
  const std::size_t layers = costs.size();
  const auto stages = static_cast<std::size_t>(options.pipeline.stages());
  require(stages <= layers, ErrorCode::kConfig, "there are ", stages, " stages on ",
          options.pipeline.ranks, " pipeline ranks, but the model has ", layers,
          " layers, the embedding and the head among them, and a stage has one at least");
  std::vector<std::vector<Worst>> best(stages + 1, std::vector<Worst>(layers + 1));
  std::vector<std::vector<std::size_t>> last(stages + 1, std::vector<std::size_t>(layers + 1));
  best[0][0] = {0.0, 0.0};
  for (std::size_t s = 1; s <= stages; ++s) {
    for (std::size_t n = s; n <= layers; ++n) {
      Worst own{0.0, 0.0};  // of layers [first, n)
      for (std::size_t first = n; first-- > s - 1;) {
        own.cost += costs[first];
        own.parameters += parameters[first];
        const Worst& before = best[s - 1][first];
        const Worst both{std::max(own.cost, before.cost),
                         std::max(own.parameters, before.parameters)};
        if (both < best[s][n]) {
          best[s][n] = both;
          last[s][n] = n - first;
        }
      }
    }
  }
  StageLayers split;
  for (std::size_t s = stages, n = layers; s > 0; --s) {
    split.counts.push_back(static_cast<int>(last[s][n]));
    n -= last[s][n];
  }
  std::ranges::reverse(split.counts);
  improve(split.counts, options.pipeline, costs, parameters);
  return split;
}

}  // namespace tessera

#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "support/small_run.h"
#include "tessera/sharding/operation.h"

// Pipelines of a small GPT on virtual clocks.
namespace tessera::test {

/// What passes and messages cost, in virtual seconds.
struct VirtualPipeline {
  std::vector<int> first_layers;
  int virtual_stages = 1;
  PipelineOrder order = PipelineOrder::kOneForwardOneBackward;
  int micro_steps = 8;
  int prefetch = 1;
  std::map<int, double> forward, backward;  ///< by layer: embedding, blocks and head
  double weight_share = 0.5;                ///< of backward, where weights have a pass of their own
  double message = 0.0;
};

/// Equal stages, of which each costs f forward and b backward: one block is what costs.
inline VirtualPipeline equal_stages(int stages, double f, double b) {
  VirtualPipeline even{.first_layers = {}, .forward = {}, .backward = {}};
  for (int s = 0; s < stages; ++s) even.first_layers.push_back(s == 0 ? 0 : s + 1);
  for (int layer = 0; layer < stages + 2; ++layer) {
    const bool block = layer > 0 && layer <= stages;
    even.forward[layer] = block ? f : 0.0;
    even.backward[layer] = block ? b : 0.0;
  }
  return even;
}

/// A step of all pipeline ranks, on one clock.
struct VirtualStep {
  StepPlan step;
  std::vector<Simulation> ranks;

  /// Seconds from the first pass to the last.
  double makespan() const {
    double end = 0.0;
    for (const Simulation& rank : ranks) {
      for (const ActionSpan& span : rank.spans) end = std::max(end, span.end);
    }
    return end;
  }
};

inline VirtualStep simulate(const VirtualPipeline& pipeline, Recompute recompute = {}) {
  SmallRun run{.layers = static_cast<int>(pipeline.forward.size()) - 2,
               .first_layers = pipeline.first_layers,
               .virtual_stages = pipeline.virtual_stages,
               .pipeline_order = pipeline.order,
               .pipeline_prefetch = pipeline.prefetch,
               .strategy = "no_shard",
               .micro_steps = pipeline.micro_steps};
  run.policy.recompute = recompute;
  GptConfig config = small_gpt();
  config.layers = run.layers;
  config.tie_embedding = false;
  const Model model = make_gpt(config);
  const RandomTokens source(11, 61, true);
  const ModelLayout layout = layout_of(run, model);
  VirtualStep virtual_step{.step = plan_step(layout, plan_options(run, model, layout, source)),
                           .ranks = {}};
  require_valid(virtual_step.step);
  ExecutorOptions options = executor_options(run);
  options.cost = [&](const Schedule&, const Action& action) {
    if (action.operation->is_message) return pipeline.message;
    if (!action.operation->is_pass) return 0.0;
    const PassParts& parts = action.operation->parts;
    const double backward = pipeline.backward.at(action.layer);
    double cost = parts.forward ? pipeline.forward.at(action.layer) : 0.0;
    if (parts.backward && parts.gradients) return cost + backward;
    if (parts.backward) cost += backward * (1.0 - pipeline.weight_share);
    if (parts.gradients) cost += backward * pipeline.weight_share;
    return cost;
  };
  std::vector<std::vector<Program>> ranks;
  for (const Schedule& schedule : virtual_step.step.ranks) ranks.push_back({{&schedule, &source}});
  const std::vector<ExecutorOptions> all(ranks.size(), options);
  virtual_step.ranks =
      simulate(ranks, layout, model, state_options(virtual_step.step.ranks.front()), all);
  return virtual_step;
}

}  // namespace tessera::test

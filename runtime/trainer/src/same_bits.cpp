#include "tessera/trainer/same_bits.h"

#include "tessera/sharding/gradient_sums.h"
#include "tessera/sharding/planner.h"
#include "tessera/sharding/step_plan.h"
#include "tessera/trainer/training_plan.h"

namespace tessera {

std::uint64_t hash_of_sums(const Model& model, const TrainerOptions& resolved) {
  TrainerOptions options = resolved;
  std::vector<int>& counts = options.pipeline.layers.counts;
  const int stages = options.pipeline.stages(), layers = static_cast<int>(model.layers.size());
  if (stages > 1 && counts.empty()) {  // no sum depends on where the layers are cut
    counts.assign(static_cast<std::size_t>(stages), 1);
    counts.back() = layers - stages + 1;
  }
  const ModelLayout layout = make_layout(model, options);
  PlanOptions planned = plan_options(options);
  planned.pipeline.input_numels.assign(static_cast<std::size_t>(stages), 1);  // nor on sizes
  return hash_of(gradient_sums(plan_step(layout, planned)));
}

BitsByStrategy compare_bits(const Model& model, const TrainerOptions& given) {
  // Where state lies changes no sum, and not every strategy can have it everywhere.
  TrainerOptions options = resolved_for(model, given);
  options.offload_optimizer = options.offload_parameters = options.offload_gradients = {};
  const std::uint64_t own = hash_of_sums(model, options);
  BitsByStrategy result;
  for (const Strategy& strategy : strategies()) {
    const TrainerOptions other = resolved(with_strategy(options, strategy.name));
    (hash_of_sums(model, other) == own ? result.same : result.others).push_back(strategy.name);
  }
  return result;
}

}  // namespace tessera

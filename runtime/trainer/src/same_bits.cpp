#include "tessera/trainer/same_bits.h"

#include "tessera/sharding/gradient_sums.h"
#include "tessera/sharding/plan.h"
#include "tessera/trainer/training_plan.h"

namespace tessera {

std::uint64_t hash_of_sums(const Model& model, const TrainerOptions& resolved) {
  const ModelLayout layout = make_layout(model, resolved);
  return hash_of(gradient_sums(plan(layout, plan_options(resolved))));
}

BitsByStrategy compare_bits(const Model& model, const TrainerOptions& given) {
  // Where state lies changes no sum, and not every strategy can have it everywhere.
  TrainerOptions options = given;
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

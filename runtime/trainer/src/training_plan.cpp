#include "tessera/trainer/training_plan.h"

#include "tessera/core/error.h"
#include "tessera/sharding/account.h"
#include "tessera/sharding/executor.h"
#include "tessera/sharding/plan.h"
#include "tessera/sharding/validate.h"

namespace tessera {
namespace {

PlanOptions plan_options(const TrainerOptions& options) {
  return {.mesh = {.replicate = options.replicas, .shard = options.ranks / options.replicas},
          .placement = *options.placement,
          .reshard_after_forward = *options.reshard_after_forward,
          .reduction_order = options.reduction_order,
          .parameter_dtype = options.precision,
          .reduce_dtype = options.reduce_dtype,
          .micro_steps = options.accumulate,
          .accumulate_unsharded = options.accumulate_unsharded,
          .prefetch_forward = options.prefetch_forward,
          .prefetch_backward = options.prefetch_backward,
          .recompute = options.recompute};
}

}  // namespace

ExecutorOptions executor_options(const TrainerOptions& options) {
  ExecutorOptions result;
  result.optimizer = options.optimizer;
  result.seed = options.seed;
  result.micro_batch = options.micro_batch;
  result.threads = options.threads_per_rank;
  result.trace = options.trace;
  // Ranks that share a process and a GPU exchange events between their captures, which is not
  // allowed.
  const bool capturable = options.ranks == 1 || options.group == GroupChoice::kNccl;
  result.graph =
      options.cuda_graph && options.device == DeviceChoice::kCuda && capturable && !options.trace;
  return result;
}

TrainingPlan make_training_plan(const Model& model, const BatchSource& source,
                                const TrainerOptions& options) {
  check(model);
  TrainingPlan result;
  result.options = resolved(options);
  result.layout = make_layout(model, result.options.wrap, result.options.ranks);
  result.schedule = plan(result.layout, plan_options(result.options));
  require_valid(result.schedule);
  result.memory = predict_memory(result.schedule, result.layout, model, source,
                                 executor_options(result.options));
  result.traffic = account_traffic(result.schedule);
  return result;
}

}  // namespace tessera

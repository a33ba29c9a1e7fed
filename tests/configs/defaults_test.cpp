// The library's defaults are those of the program: TrainerOptions{} trains as `tessera train` does.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>

#include "tessera/compat/config.h"
#include "tessera/model/dataset.h"
#include "tessera/model/gpt.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::defaults_test {
namespace {

using nlohmann::json;
using Get = std::function<json(const TrainerOptions&)>;

template <typename T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

/// Every setting of the trainer, as options have it.
const std::map<std::string, Get>& getters() {
  using O = TrainerOptions;
  static const std::map<std::string, Get> all{
      {"ranks", [](const O& o) { return o.ranks; }},
      {"strategy", [](const O& o) { return o.strategy; }},
      {"trainable_strategy", [](const O& o) { return o.trainable_strategy; }},
      {"replicas", [](const O& o) { return o.replicas; }},
      {"ranks_per_node", [](const O& o) { return o.ranks_per_node; }},
      {"parameter_placement", [](const O& o) { return to_string(o.placement->parameter); }},
      {"gradient_placement", [](const O& o) { return to_string(o.placement->gradient); }},
      {"optimizer_placement", [](const O& o) { return to_string(o.placement->optimizer); }},
      {"reshard_after_forward", [](const O& o) { return or_null(o.reshard_after_forward); }},
      {"reduction_order", [](const O& o) { return to_string(o.reduction_order); }},
      {"wrap", [](const O& o) { return to_string(o.wrap); }},
      {"offload_optimizer", [](const O& o) { return to_string(o.offload_optimizer); }},
      {"offload_parameters", [](const O& o) { return to_string(o.offload_parameters); }},
      {"offload_activations", [](const O& o) { return to_string(o.offload_activations); }},
      {"offload_gradients", [](const O& o) { return to_string(o.offload_gradients); }},
      {"offload_path", [](const O& o) { return o.offload_path; }},
      {"prefetch_disk", [](const O& o) { return o.policy.prefetch_disk; }},
      {"prefetch_host", [](const O& o) { return o.policy.prefetch_host; }},
      {"prefetch_forward", [](const O& o) { return o.policy.prefetch_forward; }},
      {"prefetch_backward", [](const O& o) { return o.policy.prefetch_backward; }},
      {"steps", [](const O& o) { return o.steps; }},
      {"micro_batch", [](const O& o) { return o.micro_batch; }},
      {"accumulate", [](const O& o) { return o.accumulate; }},
      {"accumulate_unsharded", [](const O& o) { return o.accumulate_unsharded; }},
      {"recompute", [](const O& o) { return to_string(o.policy.recompute); }},
      {"precision", [](const O& o) { return precision_name(o); }},
      {"fp8_recipe", [](const O&) { return json(); }},  // in another precision
      {"fp8_history", [](const O&) { return json(); }},
      {"fp8_history_rule", [](const O&) { return json(); }},
      {"fp8_margin", [](const O&) { return json(); }},
      {"fp8_format", [](const O&) { return json(); }},
      {"fp8_scales", [](const O&) { return json(); }},
      {"fp8_products", [](const O&) { return json(); }},
      {"fp8_bf16_blocks", [](const O&) { return json(); }},
      {"gather_format", [](const O&) { return json(); }},
      {"fp8_scale_units", [](const O&) { return json(); }},
      {"fp8_fast_accumulation", [](const O&) { return json(); }},
      {"reduce_dtype", [](const O& o) { return to_string(o.reduce_dtype); }},
      {"seed", [](const O& o) { return o.seed; }},
      {"loss_scale", [](const O& o) { return to_string(*o.loss_scale.choice); }},
      {"loss_scale_dialect", [](const O& o) { return to_string(o.loss_scale.dialect); }},
      {"loss_scale_initial", [](const O& o) { return or_null(o.loss_scale.initial); }},
      {"loss_scale_growth_factor", [](const O& o) { return or_null(o.loss_scale.growth_factor); }},
      {"loss_scale_backoff_factor",
       [](const O& o) { return or_null(o.loss_scale.backoff_factor); }},
      {"loss_scale_window", [](const O& o) { return or_null(o.loss_scale.window); }},
      {"loss_scale_minimum", [](const O& o) { return or_null(o.loss_scale.minimum); }},
      {"loss_scale_hysteresis", [](const O& o) { return or_null(o.loss_scale.hysteresis); }},
      {"loss_scale_consecutive_hysteresis",
       [](const O& o) { return or_null(o.loss_scale.consecutive_hysteresis); }},
      {"learning_rate", [](const O& o) { return o.learning_rate.peak; }},
      {"minimum_learning_rate", [](const O& o) { return or_null(o.learning_rate.minimum); }},
      {"learning_rate_schedule", [](const O& o) { return to_string(o.learning_rate.kind); }},
      {"warmup_steps", [](const O& o) { return or_null(o.learning_rate.warmup_steps); }},
      {"decay_steps", [](const O& o) { return or_null(o.learning_rate.decay_steps); }},
      {"optimizer", [](const O& o) { return o.optimizer.name; }},
      {"weight_decay", [](const O& o) { return or_null(o.optimizer.weight_decay); }},
      {"learning_rate_groups", [](const O& o) { return to_string(o.optimizer.groups); }},
      {"beta1", [](const O& o) { return o.optimizer.hyperparameters.at("beta1"); }},
      {"beta2", [](const O& o) { return o.optimizer.hyperparameters.at("beta2"); }},
      {"epsilon", [](const O& o) { return o.optimizer.hyperparameters.at("epsilon"); }},
      {"momentum", [](const O& o) { return o.optimizer.hyperparameters.count("momentum"); }},
      {"nesterov", [](const O& o) { return o.optimizer.hyperparameters.count("nesterov"); }},
      {"epsilon1", [](const O& o) { return o.optimizer.hyperparameters.count("epsilon1"); }},
      {"epsilon2", [](const O& o) { return o.optimizer.hyperparameters.count("epsilon2"); }},
      {"clip_threshold",
       [](const O& o) { return o.optimizer.hyperparameters.count("clip_threshold"); }},
      {"decay_rate", [](const O& o) { return o.optimizer.hyperparameters.count("decay_rate"); }},
      {"scale_parameter",
       [](const O& o) { return o.optimizer.hyperparameters.count("scale_parameter"); }},
      {"relative_step",
       [](const O& o) { return o.optimizer.hyperparameters.count("relative_step"); }},
      {"warmup_init", [](const O& o) { return o.optimizer.hyperparameters.count("warmup_init"); }},
      {"eval_every", [](const O& o) { return o.evaluate_every; }},
      {"patience", [](const O& o) { return o.patience; }},
      {"min_improvement", [](const O& o) { return o.min_improvement; }},
      {"pipeline", [](const O& o) { return o.pipeline.ranks; }},
      {"pipeline_schedule", [](const O& o) { return to_string(o.pipeline.schedule); }},
      {"virtual_stages", [](const O& o) { return o.pipeline.virtual_stages; }},
      {"pipeline_split", [](const O& o) { return to_string(o.pipeline.layers); }},
      {"layers_per_virtual_stage", [](const O& o) { return or_null(o.pipeline.stage_blocks); }},
      {"first_rank_layers", [](const O& o) { return or_null(o.pipeline.first_blocks); }},
      {"last_rank_layers", [](const O& o) { return or_null(o.pipeline.last_blocks); }},
      {"pipeline_prefetch", [](const O& o) { return o.pipeline.prefetch; }},
      {"tied_apart", [](const O& o) { return or_null(o.pipeline.tied_apart); }},
      {"clip_norm", [](const O& o) { return o.optimizer.clip_norm; }},
      {"stochastic_rounding", [](const O& o) { return o.optimizer.stochastic_rounding; }},
      {"device", [](const O& o) { return to_string(o.device); }},
      {"group", [](const O& o) { return to_string(o.group); }},
      {"deterministic_collectives", [](const O& o) { return o.deterministic_collectives; }},
      {"attention", [](const O& o) { return to_string(o.attention); }},
      {"deterministic_attention", [](const O& o) { return o.deterministic_attention; }},
      {"save", [](const O& o) { return o.checkpoints.folder; }},
      {"save_every", [](const O& o) { return o.checkpoints.every; }},
      {"save_total_limit", [](const O& o) { return o.checkpoints.total_limit; }},
      {"save_best", [](const O& o) { return o.checkpoints.save_best; }},
      {"save_async", [](const O& o) { return o.checkpoints.asynchronous; }},
      {"save_failures", [](const O& o) { return to_string(o.checkpoints.failures); }},
      {"resume", [](const O& o) { return o.checkpoints.resume; }},
      {"allow_other_data", [](const O& o) { return o.checkpoints.allow_other_data; }},
      {"allow_other_optimizer", [](const O& o) { return o.checkpoints.allow_other_optimizer; }},
      {"allow_other_model", [](const O& o) { return o.checkpoints.allow_other_model; }},
      {"stop_after", [](const O& o) { return o.stop_after; }},
      {"gemm_table", [](const O& o) { return o.gemm_table; }},
      {"optimizer_blocks", [](const O& o) { return o.optimizer_blocks; }},
      {"cuda_graph", [](const O& o) { return o.cuda_graph; }},
      {"threads_per_rank", [](const O& o) { return o.threads_per_rank; }},
      {"bind", [](const O& o) { return to_string(o.bind); }},
      {"bind_core_list", [](const O& o) { return o.bind_core_list; }},
      {"memory_limit", [](const O& o) { return o.memory_limit_bytes; }},
      {"timeout", [](const O& o) { return o.timeout.count(); }},
      {"check_collectives", [](const O& o) { return o.check_collectives; }},
      {"time_actions", [](const O& o) { return or_null(o.time_actions); }},
      {"trace", [](const O& o) { return o.trace.file; }},
      {"trace_steps", [](const O& o) { return o.trace.steps ? to_string(*o.trace.steps) : ""; }},
      {"overlap_steps", [](const O& o) { return or_null(o.overlap_steps); }},
      {"dump_folder", [](const O& o) { return o.dump_folder; }},
      {"allow_non_finite", [](const O& o) { return o.allow_non_finite; }},
      {"parameters_hash", [](const O& o) { return o.hash_parameters; }},
  };
  return all;
}

TEST(Defaults, OfTheLibraryAreThoseOfTheProgram) {
  for (const std::int64_t steps : {TrainerOptions{}.steps, std::int64_t{7}, std::int64_t{5000}}) {
    Config config(trainer_settings());
    if (steps != TrainerOptions{}.steps) config.set_text("steps", std::to_string(steps));
    const TrainerOptions program = trainer_options(config);
    const TrainerOptions library = resolved(TrainerOptions{.steps = steps});
    for (const Setting& setting : trainer_settings()) {
      ASSERT_TRUE(getters().contains(setting.name)) << setting.name << " is compared by nobody";
      const Get& get = getters().at(setting.name);
      EXPECT_EQ(get(library), get(program)) << setting.name << " at " << steps << " steps";
    }
    EXPECT_EQ(library.learning_rate.total_steps, program.learning_rate.total_steps);
  }
}

TEST(Defaults, OfModelAndDataAreThoseOfTheProgram) {
  EXPECT_EQ(GptConfig{}.width, gpt_preset("gpt2-tiny").width);
  EXPECT_EQ(GptConfig{}.vocab_size, gpt_preset("gpt2-tiny").vocab_size);
  EXPECT_EQ(DatasetOptions{}.sequence_length, GptConfig{}.context_length);
}

}  // namespace
}  // namespace tessera::defaults_test

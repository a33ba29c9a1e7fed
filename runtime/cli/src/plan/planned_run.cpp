#include "plan/planned_run.h"

#include "tessera/sharding/account.h"
#include "tessera/sharding/schedule_json.h"
#include "tessera/trainer/gpu_overhead.h"
#include "tessera/trainer/log.h"
#include "tessera/trainer/trainer_settings.h"
#include "tessera/trainer/training_plan.h"

namespace tessera::cli {
namespace {

TrainingPlan planned(const Config& config, const RunInputs& inputs,
                     const PlannedRun::Adapt& adapt) {
  TrainerOptions options = trainer_options(config);
  adapt(options, inputs);
  return make_training_plan(inputs, options);
}

}  // namespace

PlannedRun::PlannedRun(Config& config, const Adapt& adapt)
    : choice(choose_gpt(config)),
      model(make_model(choice)),
      shapes(choice.sequence_length, choice.has_starts),
      plan(planned(config, {model, shapes}, adapt)) {}

FittedPlan plan_fitted(Config& config) {
  FittedPlan plan;
  plan.run = std::make_unique<const PlannedRun>(
      config, [&](TrainerOptions& options, const RunInputs& inputs) {
        if (config.is_null("fit")) return;
        plan.request = fit_request(config, options, false);
        if (!config.given("device")) {
          const bool is_gpu = plan.request->cluster.profile.device == "cuda";
          options.device = is_gpu ? DeviceChoice::kCuda : DeviceChoice::kCpu;
        }
        plan.choice = apply_fit(config, options, inputs, *plan.request);
      });
  set_effective(config, plan.run->plan.options);
  return plan;
}

namespace {

nlohmann::ordered_json stages_to_json(const TrainingPlan& plan) {
  auto stages = nlohmann::ordered_json::array();
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const RankCosts& costs = plan.stages[s];
    const std::vector<int> own = plan.step.ranks[s].pipeline.stages_of_rank(
        static_cast<int>(s), plan.options.pipeline.ranks);
    int layers = 0;
    for (const int stage : own) {
      layers += plan.options.pipeline.layers.counts[static_cast<std::size_t>(stage)];
    }
    stages.push_back({{"stages", own},
                      {"layers", layers},
                      {"peak_bytes", to_json(costs.memory)},
                      {"host_bytes", costs.host_memory.total},
                      {"disk_bytes", costs.disk_bytes},
                      {"sent_bytes", sent_bytes_to_json(costs.traffic)}});
  }
  return stages;
}

}  // namespace

nlohmann::ordered_json to_json(const Config& config, const FittedPlan& fitted) {
  const TrainingPlan& plan = fitted.run->plan;
  nlohmann::ordered_json overhead = nlohmann::ordered_json::object();
  for (const OverheadItem& item : gpu_overhead(plan)) overhead[item.name] = item.bytes;
  nlohmann::ordered_json json{{"kind", "plan"},
                              {"settings", config.values()},
                              {"parameters", parameter_count(plan.inputs.model)},
                              {"peak_bytes", to_json(plan.memory)},
                              {"gpu_overhead_bytes", overhead},
                              {"device_bytes", device_bytes(plan)},
                              {"sent_bytes", sent_bytes_to_json(plan.traffic)},
                              {"collectives", calls_to_json(plan.traffic)},
                              {"gradient_sum_bytes", account_gradient_sums(plan.schedule())}};
  if (plan.host_memory.total > 0) {
    json["host_peak_bytes"] = to_json(plan.host_memory);
    json["tier_copy_bytes"] = tier_copies_to_json(plan.traffic);
  }
  if (plan.disk_bytes > 0) {
    json["disk_bytes"] = plan.disk_bytes;
    json["disk_copy_bytes"] = disk_copies_to_json(plan.traffic);
  }
  if (fitted.choice) json["fit"] = to_json(*fitted.choice, *fitted.request);
  if (plan.stages.size() == 1) {
    json["schedule"] = to_json(plan.schedule());
  } else {
    json["stages"] = stages_to_json(plan);
    for (const Schedule& schedule : plan.step.ranks) json["schedules"].push_back(to_json(schedule));
  }
  return json;
}

}  // namespace tessera::cli

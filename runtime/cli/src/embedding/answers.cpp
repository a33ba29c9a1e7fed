#include "tessera/cli/answers.h"

#include <algorithm>

#include "commands.h"
#include "embedding/given_config.h"
#include "explain/explain_report.h"
#include "plan/planned_run.h"
#include "settings/gpt_choice.h"
#include "settings/sweep.h"
#include "simulate/simulation.h"
#include "tessera/core/error.h"
#include "tessera/sharding/account.h"
#include "tessera/sharding/account_json.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

/// Simulates; `config` has the settings of kSimulation.
SimulatedSweep simulated(const Config& config, const std::vector<Swept>& sweep) {
  return simulate_sweep(config, find_profile(config.get<std::string>("profile")), sweep);
}

}  // namespace

PlanAnswer answer_plan(const GivenSettings& given) {
  Config config = config_of(SettingsOf::kPlan, given, kForAnyMachine, train_only_settings());
  const FittedPlan plan = plan_fitted(config);
  return {
      .json = to_json(config, plan), .step = plan.run->plan.step, .notes = plan.run->plan.notes};
}

SimulationAnswer answer_simulation(const GivenSettings& given) {
  const Config config =
      config_of(SettingsOf::kSimulation, given, kForAnyMachine, train_only_settings());
  const SimulatedSweep sweep = simulated(config, {});
  const SimulatedCell& cell = sweep.cells.front();
  return {.json = to_json({}, cell), .step = cell.plan().step, .spans = cell.step.spans};
}

nlohmann::ordered_json answer_sweep(const GivenSettings& given, const SweptSettings& swept) {
  const Config config =
      config_of(SettingsOf::kSimulation, given, kForAnyMachine, train_only_settings());
  std::vector<Swept> sweep;
  for (const auto& [name, values] : swept) {
    require(find_setting(config.table(), name) != nullptr, ErrorCode::kConfig,
            "there is no setting '", name, "' to sweep");
    require(!values.empty(), ErrorCode::kConfig, "the sweep of '", name, "' has no values");
    sweep.push_back({name, values});
  }
  require(!sweep.empty(), ErrorCode::kConfig,
          "nothing to sweep: give a list of values for at least one setting");
  const SimulatedSweep result = simulated(config, sweep);
  nlohmann::ordered_json json{{"runs", nlohmann::ordered_json::array()},
                              {"left_out", nlohmann::ordered_json::array()}};
  for (const SimulatedCell& cell : result.cells) json["runs"].push_back(to_json(sweep, cell));
  for (const LeftOut& one : result.left_out) {
    json["left_out"].push_back({{"values", one.values}, {"why", with_keywords(one.why)}});
  }
  return json;
}

nlohmann::ordered_json answer_memory(const GivenSettings& given, const SweptSettings& lists) {
  MemoryRequest request;
  const Config config = config_of(SettingsOf::kMemoryEstimate, given, kForAnyMachine);
  for (const auto& [name, text] : given.values) request.config.set_text(name, text);
  for (const auto& [name, values] : lists) {
    std::vector<std::string>* const list = name == "ranks"       ? &request.ranks
                                           : name == "strategy"  ? &request.strategies
                                           : name == "precision" ? &request.precisions
                                           : name == "dtypes"    ? &request.dtypes
                                                                 : nullptr;
    require(list != nullptr, ErrorCode::kConfig, "'", name,
            "' takes one value here; lists are for ranks, strategy, precision and dtypes");
    *list = values;
  }
  return to_json(request, estimate_memory(request));
}

nlohmann::ordered_json answer_explanation(const GivenSettings& given) {
  Config config = config_of(SettingsOf::kPlan, given, kForAnyMachine, train_only_settings());
  require(!config.translations().empty(), ErrorCode::kConfig,
          "nothing to explain: give the path of a config file");
  make_model(choose_gpt(config));
  set_effective(config, trainer_options(config));
  return explanation_of(config);
}

nlohmann::ordered_json account_json(const Schedule& schedule) {
  const Traffic traffic = account_traffic(schedule);
  const auto in_json = [](const MemoryUse& use) {
    nlohmann::ordered_json json = nlohmann::ordered_json::object();
    for (int i = 0; i < kMemoryCategories; ++i) {
      const auto category = static_cast<MemoryCategory>(i);
      if (use[category] > 0) json[std::string(to_string(category))] = use[category];
    }
    return json;
  };
  return {{"calls", calls_to_json(traffic)},
          {"sent_bytes", sent_bytes_to_json(traffic)},
          {"copied_bytes", traffic.copied_bytes},
          {"tier_copy_bytes", tier_copies_to_json(traffic)},
          {"disk_copy_bytes", disk_copies_to_json(traffic)},
          {"memory", in_json(account_memory(schedule))},
          {"host_memory", in_json(account_memory(schedule, Tier::kHost))},
          {"disk_bytes", account_disk(schedule)},
          {"gradient_sum_bytes", account_gradient_sums(schedule)}};
}

}  // namespace tessera::cli

#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "sharding/frozen_configurations.h"
#include "tessera/sharding/operation.h"

// What is recorded of the plans of a frozen configuration.
namespace tessera::test {

using Json = nlohmann::ordered_json;

inline constexpr int kFrozenBlocks = 3;  ///< that are run
inline constexpr int kDeepBlocks = 9;    ///< that are planned besides

// As JSON, what is 0 is left out.

inline Json to_json(const MemoryUse& use) {
  Json json = Json::object();
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    if (use[category] != 0) json[std::string(to_string(category))] = use[category];
  }
  return json;
}

inline Json to_json(const MemoryPeak& peak) {
  Json json{{"total", peak.total}};
  json.update(to_json(peak.by_category));
  return json;
}

inline Json to_json(const Traffic& traffic) {
  Json json = Json::object();
  for (int i = 0; i < kCollectiveKinds; ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    if (traffic.calls_of(kind) == 0) continue;
    json[std::string(to_string(kind))] = {{"calls", traffic.calls_of(kind)},
                                          {"bytes", traffic.sent_of(kind)}};
  }
  for (const auto& [name, bytes] : {std::pair{"staged", traffic.copied_bytes},
                                    {"to host", traffic.to_host_bytes},
                                    {"to device", traffic.to_device_bytes},
                                    {"to disk", traffic.to_disk_bytes},
                                    {"from disk", traffic.from_disk_bytes}}) {
    if (bytes != 0) json[name] = bytes;
  }
  return json;
}

/// Virtual seconds of actions, all multiples of 1/4, so that sums of them are exact.
struct UnitCosts {
  const char* name;
  double collective, copy, disk;

  double of(const Schedule& schedule, const Action& action) const {
    const Operation* const operation = action.operation;
    if (operation == &operations::kForward || operation == &operations::kForwardLoss) return 1.0;
    if (operation == &operations::kLoss) return 3.0;
    if (operation == &operations::kBackward) {
      return schedule.policy.recompute == Recompute::kFull        ? 3.0
             : schedule.policy.recompute == Recompute::kSelective ? 2.5
                                                                  : 2.0;
    }
    if (operation == &operations::kOptimizerStep) return 1.0;
    if (operation == &operations::kCopy) return is_of_disk(action.lane) ? disk : copy;
    if (operation->meeting == Meeting::kAlongAxes) return collective;
    const bool is_light = operation == &operations::kCast || operation == &operations::kDecode ||
                          operation == &operations::kNormPartial ||
                          operation->meeting == Meeting::kWorld;
    return is_light ? 0.25 : 0.0;
  }
};
inline constexpr UnitCosts kEven{"even", 1.0, 1.0, 2.0};
inline constexpr UnitCosts kSlowLinks{"slow links", 3.0, 2.5, 6.0};

/// A configuration's model, and the schedules that run over its state.
class FrozenPlans {
 public:
  explicit FrozenPlans(const FrozenConfiguration& c, int blocks = kFrozenBlocks)
      : configuration(c), model(make_model(c, blocks)), layout(layout_of(c.run, model)) {
    PlanOptions planned = plan_options(c.run, model, layout, source);
    if (c.placement) planned.placement = *c.placement;
    state = planned.state();
    schedules.emplace_back("step", plan(layout, planned));
    if (c.snapshots) {
      schedules.emplace_back("snapshot",
                             with_snapshot(schedules.front().second, c.run.stochastic_rounding));
    }
    if (c.evaluates) {
      planned.purpose = Purpose::kEvaluate;
      planned.micro_steps = 1;
      planned.offload_activations = {};
      schedules.emplace_back("evaluation", plan(layout, planned));
    }
    for (const auto& [name, schedule] : schedules) require_valid(schedule);
  }
  FrozenPlans(const FrozenPlans&) = delete;
  FrozenPlans& operator=(const FrozenPlans&) = delete;

  std::vector<Program> programs() const {
    std::vector<Program> all;
    for (const auto& [name, schedule] : schedules) all.push_back({&schedule, &source});
    return all;
  }

  ExecutorOptions executor_options() const {
    ExecutorOptions options = test::executor_options(configuration.run);
    if (configuration.loss_scale) {
      options.loss_scaling = LossScaling{.initial_scale = *configuration.loss_scale};
    }
    return options;
  }

  /// Bytes that each rank holds on the host for the snapshot.
  std::int64_t snapshot_bytes() const {
    std::int64_t bytes = 0;
    for (const auto& [name, schedule] : schedules) bytes += account_snapshot(schedule);
    return bytes;
  }

  const FrozenConfiguration& configuration;
  Model model;
  RandomTokens source{11, 61, true};
  ModelLayout layout;
  StateOptions state;
  std::vector<std::pair<std::string, Schedule>> schedules;  ///< "step" first

 private:
  static Model make_model(const FrozenConfiguration& c, int blocks) {
    GptConfig config = small_gpt(c.run.dropout, c.run.family);
    config.layers = blocks;
    config.adapter = c.run.adapter;
    config.base_format = c.run.base_format;
    Model model = make_gpt(config);
    if (!c.frozen.empty()) freeze(c.frozen)(model);
    return model;
  }
};

inline Json counts_of_actions(const Schedule& schedule) {
  std::map<std::string, int> counts;
  for (const Action& action : schedule.actions) {
    ++counts[std::string(action.operation->name)];
    ++counts["all"];
  }
  return counts;
}

/// Step time and exposed communication of each schedule by itself.
inline Json virtual_seconds(const FrozenPlans& plans, const Program& program) {
  Json json = Json::object();
  for (const UnitCosts& costs : {kEven, kSlowLinks}) {
    ExecutorOptions options = plans.executor_options();
    options.cost = [&](const Schedule& s, const Action& action) { return costs.of(s, action); };
    const TimelineSummary summary = summarize(
        simulate(std::span(&program, 1), plans.layout, plans.model, plans.state, options).spans);
    json[costs.name] = {{"step", summary.step_seconds}, {"exposed", summary.exposed_seconds}};
  }
  return json;
}

inline Json simulated_peaks(const FrozenPlans& plans) {
  const Simulation all =
      simulate(plans.programs(), plans.layout, plans.model, plans.state, plans.executor_options());
  return {{"device", to_json(all.memory)}, {"host", to_json(all.host_memory)}};
}

/// All that is recorded of a configuration's plans, or, of a mixture, the most telling part.
enum class Detail { kAll, kBrief };

inline Json planned_values(const FrozenConfiguration& c, Detail detail) {
  const bool brief = detail == Detail::kBrief;
  const FrozenPlans plans(c), deep(c, kDeepBlocks);
  std::vector<const Schedule*> schedules;
  for (const auto& [name, schedule] : plans.schedules) schedules.push_back(&schedule);
  const Schedule& step = plans.schedules.front().second;
  Json json;
  json["account"] = {{"device", to_json(account_memory(schedules))},
                     {"host", to_json(account_memory(schedules, Tier::kHost))},
                     {"disk", account_disk(step)},
                     {"snapshot", plans.snapshot_bytes()},
                     {"gradient sums", account_gradient_sums(step)}};
  json["peak"] = simulated_peaks(plans);
  if (!brief) json["deep peak"] = simulated_peaks(deep);
  for (std::size_t i = 0; i < plans.schedules.size(); ++i) {
    const auto& [name, schedule] = plans.schedules[i];
    json[name + " traffic"] = to_json(account_traffic(schedule));
    const Json actions = counts_of_actions(deep.schedules[i].second);
    json[name + " deep actions"] = brief ? Json{{"all", actions.at("all")}} : actions;
    json[name + " deep seconds"] = virtual_seconds(deep, deep.programs()[i]);
    if (brief) continue;
    json[name + " actions"] = counts_of_actions(schedule);
    json[name + " seconds"] = virtual_seconds(plans, plans.programs()[i]);
  }
  return json;
}

}  // namespace tessera::test

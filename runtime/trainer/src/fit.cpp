#include "tessera/trainer/fit.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "fit_search.h"
#include "tessera/core/error.h"
#include "tessera/sharding/plan.h"
#include "tessera/sharding/step_plan.h"
#include "tessera/trainer/byte_size.h"
#include "tessera/trainer/gpu_overhead.h"
#include "tessera/trainer/rank_device.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera {
namespace {

constexpr const char* kStrategySetting = "strategy";
constexpr const char* kScheduleSetting = "pipeline_schedule";

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

/// A placement of the user's own leaves nothing for a strategy to decide.
bool is_kept(const std::vector<std::string>& kept, const std::string& setting) {
  if (contains(kept, setting)) return true;
  return setting == kStrategySetting && std::ranges::any_of(kept, [](const std::string& name) {
           return name.ends_with("_placement");
         });
}

const BoundSetting<TrainerOptions>& row_of(const std::string& setting) {
  const auto row =
      std::ranges::find(trainer_rows(), setting, [](const auto& r) { return r.setting.name; });
  require(row != trainer_rows().end(), ErrorCode::kInternal, "there is no setting ", setting);
  return *row;
}

/// A strategy decides anew what the user has not given.
TrainerOptions with_value(const TrainerOptions& options, const std::string& setting,
                          const std::string& value, const std::vector<std::string>& kept) {
  if (setting == kStrategySetting) {
    TrainerOptions changed = with_strategy(options, value);
    if (contains(kept, "replicas")) changed.replicas = options.replicas;
    if (contains(kept, "reshard_after_forward")) {
      changed.reshard_after_forward = options.reshard_after_forward;
    }
    return changed;
  }
  TrainerOptions changed = options;
  row_of(setting).write(changed, value);
  return changed;
}

/// The values that a setting may become: nothing goes to a disk without --offload-path.
std::vector<std::string> values_to_try(const FitAxis& axis, const TrainerOptions& options,
                                       const std::vector<std::string>& kept) {
  if (is_kept(kept, axis.setting)) return {row_of(axis.setting).read(options).get<std::string>()};
  std::vector<std::string> values = axis.values;
  // Without stages there is one order, and so many stages on a rank are for some alone.
  const bool has_orders = options.pipeline.ranks > 1 && options.pipeline.virtual_stages == 0 &&
                          options.pipeline.layers.counts.empty();
  if (axis.setting == kScheduleSetting && !has_orders) {
    return {options.pipeline.schedule.order ? to_string(options.pipeline.schedule)
                                            : values.front()};
  }
  if (options.offload_path.empty()) {
    std::erase_if(values, [](const std::string& value) { return value.starts_with("disk"); });
  }
  return values;
}

/// Every combination, in the order of the axes: the values of the last one change first.
std::vector<std::vector<std::string>> combinations(const TrainerOptions& options,
                                                   const std::vector<std::string>& kept) {
  std::vector<std::vector<std::string>> all{{}};
  for (const FitAxis& axis : fit_axes()) {
    const std::vector<std::string> values = values_to_try(axis, options, kept);
    std::vector<std::vector<std::string>> longer;
    for (const auto& combination : all) {
      for (const std::string& value : values) {
        longer.push_back(combination);
        longer.back().push_back(value);
      }
    }
    all = std::move(longer);
  }
  return all;
}

std::optional<FitExcess> excess_of(const FitCandidate& candidate, const FitRequest& request) {
  if (candidate.device_bytes > request.device_bytes) {
    return FitExcess{"device", candidate.device_bytes - request.device_bytes};
  }
  const bool shared = candidate.options.device != DeviceChoice::kCuda;
  const std::int64_t on_host = candidate.host_bytes + (shared ? candidate.device_bytes : 0);
  if (on_host > request.host_bytes) return FitExcess{"host", on_host - request.host_bytes};
  return std::nullopt;
}

std::string words_of(const FitCandidate& candidate) {
  std::string words;
  for (std::size_t i = 0; i < fit_axes().size(); ++i) {
    words += concat(i == 0 ? "`" : " `", fit_axes()[i].setting, "` ", candidate.values[i]);
  }
  return words;
}

/// The fitting ones by time, then the others by what they need.
void sort(std::vector<FitCandidate>& candidates) {
  std::ranges::stable_sort(candidates, [](const FitCandidate& a, const FitCandidate& b) {
    if (a.excess.has_value() != b.excess.has_value()) return !a.excess;
    if (!a.excess) return *a.step_seconds < *b.step_seconds;
    return a.device_bytes < b.device_bytes;
  });
}

}  // namespace

std::optional<std::size_t> first_fit(const FitSearch& search) {
  for (std::size_t i = 0; i < search.candidates; ++i) {
    try {
      const std::optional<TrainerOptions> options = search.options(i);
      if (options && search.takes(i, make_training_plan(search.inputs, *options))) return i;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kConfig || !search.refused) throw;
      search.refused(error);
    }
  }
  return std::nullopt;
}

std::string to_string(const FitExcess& excess) {
  return concat(excess.memory, " memory: ", format_bytes(excess.bytes), " too much");
}

const std::vector<FitAxis>& fit_axes() {
  static const std::vector<FitAxis> axes = [] {
    FitAxis strategy{kStrategySetting, {}};
    for (const Strategy& one : strategies()) strategy.values.push_back(one.name);
    return std::vector<FitAxis>{strategy,
                                {"recompute", {"none", "selective", "full"}},
                                {"offload_optimizer", {"none", "host:0.5", "host", "disk"}},
                                {"offload_gradients", {"none", "host"}},
                                {"offload_parameters", {"none", "host:0.5", "host", "disk"}},
                                {"offload_activations", {"none", "host"}},
                                {kScheduleSetting, {"1f1b", "interleaved", "zb-h1", "zb-v"}}};
  }();
  return axes;
}

TrainerOptions with_fit(const TrainerOptions& options, const std::vector<std::string>& values,
                        const std::vector<std::string>& kept) {
  require(values.size() == fit_axes().size(), ErrorCode::kInvalidArgument, "there are ",
          fit_axes().size(), " settings to choose, not ", values.size());
  TrainerOptions changed = options;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::string& setting = fit_axes()[i].setting;
    if (!is_kept(kept, setting)) changed = with_value(changed, setting, values[i], kept);
  }
  return changed;
}

namespace {

/// The text of a step's actions, whatever options led to it.
std::string text_without_policy(Schedule schedule) {
  PlanOptions plain{.purpose = schedule.purpose,
                    .mesh = schedule.mesh,
                    .placement = schedule.placement,
                    .pipeline = schedule.pipeline,
                    .parameter_dtype = schedule.parameter_dtype,
                    .reduce_dtype = schedule.reduce_dtype,
                    .micro_steps = schedule.micro_steps};
  plain.policy.recompute = schedule.policy.recompute;
  static_cast<PlanOptions&>(schedule) = plain;
  return to_string(schedule);
}

/// Divides layers among stages: once for each number of stages, for no combination makes one layer
/// slower than others.
class StageSplits {
 public:
  explicit StageSplits(const RunInputs& inputs) : inputs_(inputs) {}

  TrainerOptions with_split(TrainerOptions options) {
    const TrainerOptions full = resolved(options);
    if (full.pipeline.stages() == 1 || !full.pipeline.layers.counts.empty()) return options;
    const auto key = to_string(full.pipeline.schedule);
    if (!splits_.contains(key)) splits_[key] = balanced_layers(inputs_, full);
    options.pipeline.layers = splits_.at(key);
    return options;
  }

 private:
  const RunInputs& inputs_;
  std::map<std::string, StageLayers> splits_;
};

}  // namespace

SimulatedStep predict_step(const TrainingPlan& plan, const Cluster& cluster) {
  TrainerOptions timed = plan.options;
  timed.device = cluster.profile.device == "cuda" ? DeviceChoice::kCuda : DeviceChoice::kCpu;
  return simulate_step(programs_of(plan, plan.inputs.source, nullptr, nullptr), plan.layout,
                       plan.inputs.model, executor_options(timed), cluster);
}

FitChoice choose_fit(const RunInputs& inputs, const TrainerOptions& options,
                     const FitRequest& request) {
  TrainerOptions here = options;
  here.trace = {};  // decides nothing of memory or virtual time
  FitChoice choice;
  const auto all = combinations(here, request.kept);
  std::set<std::size_t> schedules;  // hashes of their texts
  std::string refusal;
  StageSplits splits(inputs);
  const auto options_of = [&](std::size_t i) -> std::optional<TrainerOptions> {
    TrainerOptions changed = splits.with_split(with_fit(here, all[i], request.kept));
    const TrainerOptions full = resolved(changed);
    const ModelLayout layout = make_layout(inputs.model, full);
    std::string text;
    for (const Schedule& of_rank : plan_step(layout, plan_options(full, inputs, layout)).ranks) {
      text += text_without_policy(of_rank);
    }
    if (!schedules.insert(std::hash<std::string>{}(text)).second) return std::nullopt;
    return changed;
  };
  first_fit({.inputs = inputs,
             .candidates = all.size(),
             .options = options_of,
             .takes =
                 [&](std::size_t i, const TrainingPlan& plan) {
                   FitCandidate candidate{
                       .values = all[i],
                       .options = splits.with_split(with_fit(here, all[i], request.kept)),
                       .device_bytes = device_bytes(plan),
                       .host_bytes = plan.host_memory.total};
                   candidate.excess = excess_of(candidate, request);
                   if (!candidate.excess) {
                     candidate.step_seconds = predict_step(plan, request.cluster).seconds;
                   }
                   choice.candidates.push_back(std::move(candidate));
                   return false;  // all are listed
                 },
             .refused =
                 [&](const Error& error) {
                   if (refusal.empty()) refusal = error.what();
                   ++choice.refused;
                 }});
  require(!choice.candidates.empty(), ErrorCode::kConfig, refusal);
  sort(choice.candidates);
  const FitCandidate& best = choice.best();
  require(!best.excess, ErrorCode::kOutOfMemory,
          "no combination of strategy, recomputation and offload fits ",
          format_bytes(request.device_bytes), " per rank: the smallest one needs ",
          format_bytes(best.device_bytes), " and ", format_bytes(best.host_bytes),
          " of the host's memory (", words_of(best), "; ",
          to_string(best.excess.value_or(FitExcess{})),
          "); give more memory, a smaller `micro_batch` with more `accumulate`, more ranks, or a "
          "smaller model");
  std::size_t timed = 0;
  for (FitCandidate& candidate : choice.candidates) {
    if (candidate.step_seconds || timed == kTimedMisses) continue;
    candidate.step_seconds =
        predict_step(make_training_plan(inputs, candidate.options), request.cluster).seconds;
    ++timed;
  }
  return choice;
}

}  // namespace tessera

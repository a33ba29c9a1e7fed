#include "tessera/trainer/fit.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "fit_search.h"
#include "tessera/core/error.h"
#include "tessera/sharding/planner.h"
#include "tessera/sharding/step_plan.h"
#include "tessera/trainer/byte_size.h"
#include "tessera/trainer/gpu_overhead.h"
#include "tessera/trainer/rank_device.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera {
namespace {

constexpr const char* kStrategySetting = "strategy";
constexpr const char* kPipelineSetting = "pipeline";
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
  const BoundSetting<TrainerOptions>& row = row_of(setting);
  const bool is_number = row.setting.type == SettingType::kInteger;
  row.write(changed, is_number ? nlohmann::json(std::stoi(value)) : nlohmann::json(value));
  PipelineSplit& pipeline = changed.pipeline;
  const bool is_of_stages = setting == kPipelineSetting || setting == kScheduleSetting;
  if (is_of_stages && !contains(kept, "virtual_stages") && pipeline.layers.counts.empty()) {
    pipeline.virtual_stages = 0;  // as the order has it
  }
  if (setting == kPipelineSetting && pipeline.ranks != options.pipeline.ranks) {
    // Resolved options have these from the number of pipeline ranks before.
    if (!contains(kept, "tied_apart")) pipeline.tied_apart.reset();
    if (!contains(kept, "replicas")) changed.replicas = 0;
    const SampleDivision division = sample_division(options);
    const auto steps = division.micro_steps_among(options.ranks / pipeline.ranks);
    require(steps && *steps <= kMaxAccumulate, ErrorCode::kConfig, "pipeline is ", value,
            ", for which a step has too many micro-steps");
    changed.accumulate = static_cast<int>(*steps);  // the same samples in a step
  }
  return changed;
}

/// Whether the user has said how many stages there are. Resolved options have a number always.
bool has_own_stages(const PipelineSplit& split, const std::vector<std::string>& kept) {
  return contains(kept, "virtual_stages") || !split.layers.counts.empty();
}

/// The numbers of pipeline ranks to try, the fewest first: one alone where the user has said how
/// stages are made, which is for a certain number.
std::vector<std::string> pipelines_to_try(const TrainerOptions& options, const Model& model,
                                          const std::vector<std::string>& kept) {
  const PipelineSplit& split = options.pipeline;
  const bool is_decided = split.ranks > 1 || has_own_stages(split, kept) ||
                          split.waits_for_blocks() || !split.schedule.listed.empty();
  if (is_decided) return {concat(split.ranks)};
  std::vector<std::string> values;
  for (const std::int64_t ranks : divisors(options.ranks)) {
    if (ranks <= std::ssize(model.layers)) values.push_back(concat(ranks));
  }
  return values;
}

/// The text of a setting's value.
std::string value_text(const std::string& setting, const TrainerOptions& options) {
  const nlohmann::json value = row_of(setting).read(options);
  if (value.is_null()) return "";
  return plain_text(value);
}

/// The values that a setting may become: nothing goes to a disk without --offload-path.
std::vector<std::string> values_to_try(const FitAxis& axis, const TrainerOptions& options,
                                       const Model& model, const std::vector<std::string>& kept) {
  if (is_kept(kept, axis.setting)) return {value_text(axis.setting, options)};
  if (axis.setting == kPipelineSetting) return pipelines_to_try(options, model, kept);
  std::vector<std::string> values = axis.values;
  // So many stages on a rank are for some orders alone.
  const bool has_orders =
      !has_own_stages(options.pipeline, kept) && !options.pipeline.waits_for_blocks();
  if (axis.setting == kScheduleSetting && !has_orders) {
    return {options.pipeline.schedule.order ? to_string(options.pipeline.schedule)
                                            : values.front()};
  }
  if (options.offload_path.empty()) {
    std::erase_if(values, [](const std::string& value) { return value.starts_with("disk"); });
  }
  return values;
}

using Combination = std::vector<std::string>;

const std::string& value_of(const Combination& values, std::string_view setting) {
  const auto axis = std::ranges::find(fit_axes(), setting, &FitAxis::setting);
  return values[static_cast<std::size_t>(axis - fit_axes().begin())];
}

/// Every combination, in the order of the axes: the values of the last one change first. Without
/// stages there is one order.
std::vector<Combination> combinations(const TrainerOptions& options, const Model& model,
                                      const std::vector<std::string>& kept) {
  std::vector<Combination> all{{}};
  std::string first_order;
  for (const FitAxis& axis : fit_axes()) {
    const std::vector<std::string> values = values_to_try(axis, options, model, kept);
    if (axis.setting == kScheduleSetting) first_order = values.front();
    std::vector<Combination> longer;
    for (const Combination& combination : all) {
      for (const std::string& value : values) {
        longer.push_back(combination);
        longer.back().push_back(value);
      }
    }
    all = std::move(longer);
  }
  std::erase_if(all, [&](const Combination& values) {
    return value_of(values, kPipelineSetting) == "1" &&
           value_of(values, kScheduleSetting) != first_order;
  });
  return all;
}

/// Whether a combination offloads what the options do not, and has other pipeline ranks than these
/// or another order than the first: the last resort, for which many plans would be made.
bool is_pipelined_offload(const Combination& values, const TrainerOptions& options,
                          const std::string& first_order) {
  if (value_of(values, kPipelineSetting) == concat(options.pipeline.ranks) &&
      value_of(values, kScheduleSetting) == first_order) {
    return false;
  }
  return std::ranges::any_of(fit_axes(), [&](const FitAxis& axis) {
    return axis.setting.starts_with("offload_") &&
           value_of(values, axis.setting) != value_text(axis.setting, options);
  });
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

/// The fitting ones by time, of equals those with fewer pipeline ranks; then the others by what
/// they need.
void sort(std::vector<FitCandidate>& candidates) {
  std::ranges::stable_sort(candidates, [](const FitCandidate& a, const FitCandidate& b) {
    if (a.excess.has_value() != b.excess.has_value()) return !a.excess;
    if (!a.excess) {
      const int ranks = a.options.pipeline.ranks, others = b.options.pipeline.ranks;
      return std::tie(*a.step_seconds, ranks) < std::tie(*b.step_seconds, others);
    }
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
                                {kPipelineSetting, {}},
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
    const TrainerOptions full = resolved_for(inputs_.model, options);
    if (full.pipeline.stages() == 1 || !full.pipeline.layers.counts.empty()) return options;
    const auto key = concat(full.pipeline.ranks, " ", to_string(full.pipeline.schedule));
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

namespace {

/// Plans combinations and keeps what is known of each.
class FitTrials {
 public:
  FitTrials(const RunInputs& inputs, const TrainerOptions& options, const FitRequest& request)
      : inputs_(inputs), options_(options), request_(request), splits_(inputs) {
    options_.trace = {};  // decides nothing of memory or virtual time
  }

  void run(const std::vector<Combination>& all) {
    first_fit({.inputs = inputs_,
               .candidates = all.size(),
               .options = [&](std::size_t i) { return options_of(all[i]); },
               .takes =
                   [&](std::size_t i, const TrainingPlan& plan) {
                     add(all[i], plan);
                     return false;  // all are listed
                   },
               .refused =
                   [&](const Error& error) {
                     if (refusal_.empty()) refusal_ = error.what();
                     ++choice_.refused;
                   }});
  }

  bool any_fits() const {
    return std::ranges::any_of(choice_.candidates, [](const auto& one) { return !one.excess; });
  }
  FitChoice& choice() { return choice_; }
  const std::string& refusal() const { return refusal_; }

 private:
  TrainerOptions changed(const Combination& values) {
    return splits_.with_split(with_fit(options_, values, request_.kept));
  }

  /// Nothing if another combination is the same schedule.
  std::optional<TrainerOptions> options_of(const Combination& values) {
    TrainerOptions own = changed(values);
    const TrainerOptions full = resolved_for(inputs_.model, own);
    const ModelLayout layout = make_layout(inputs_.model, full);
    std::string text;
    for (const Schedule& of_rank : plan_step(layout, plan_options(full, inputs_, layout)).ranks) {
      text += text_without_policy(of_rank);
    }
    if (!schedules_.insert(std::hash<std::string>{}(text)).second) return std::nullopt;
    return own;
  }

  void add(const Combination& values, const TrainingPlan& plan) {
    FitCandidate candidate{.values = values,
                           .options = changed(values),
                           .device_bytes = device_bytes(plan),
                           .host_bytes = plan.host_memory.total};
    candidate.excess = excess_of(candidate, request_);
    if (!candidate.excess) candidate.step_seconds = predict_step(plan, request_.cluster).seconds;
    choice_.candidates.push_back(std::move(candidate));
  }

  const RunInputs& inputs_;
  TrainerOptions options_;
  const FitRequest& request_;
  StageSplits splits_;
  std::set<std::size_t> schedules_;  // hashes of their texts
  std::string refusal_;
  FitChoice choice_;
};

void require_fit(const FitCandidate& best, const FitRequest& request) {
  require(!best.excess, ErrorCode::kOutOfMemory,
          "no combination of strategy, recomputation, offload and pipeline ranks fits ",
          format_bytes(request.device_bytes), " per rank: the smallest one needs ",
          format_bytes(best.device_bytes), " and ", format_bytes(best.host_bytes),
          " of the host's memory (", words_of(best), "; ",
          to_string(best.excess.value_or(FitExcess{})),
          "); give more memory, a smaller `micro_batch` with more `accumulate`, more ranks, or a "
          "smaller model");
}

}  // namespace

FitChoice choose_fit(const RunInputs& inputs, const TrainerOptions& options,
                     const FitRequest& request) {
  std::vector<Combination> all = combinations(options, inputs.model, request.kept);
  const std::string first_order = value_of(all.front(), kScheduleSetting);
  const auto later = std::stable_partition(all.begin(), all.end(), [&](const Combination& values) {
    return !is_pipelined_offload(values, options, first_order);
  });
  FitTrials trials(inputs, options, request);
  trials.run(std::vector<Combination>(all.begin(), later));
  if (!trials.any_fits()) {
    std::vector<Combination> rest(later, all.end());
    std::erase_if(rest, [&](const Combination& values) {  // which keep more than the first order
      return value_of(values, kScheduleSetting) != first_order;
    });
    trials.run(rest);
  }
  FitChoice choice = std::move(trials.choice());
  require(!choice.candidates.empty(), ErrorCode::kConfig, trials.refusal());
  sort(choice.candidates);
  require_fit(choice.best(), request);
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


#include <algorithm>
#include <map>
#include <span>

#include "commands.h"
#include "plan/planned_run.h"
#include "settings/gpt_choice.h"
#include "settings/gpt_settings.h"
#include "settings/sweep.h"
#include "tessera/core/error.h"
#include "tessera/trainer/gpu_overhead.h"
#include "tessera/trainer/log.h"
#include "tessera/trainer/trainer_settings.h"
#include "tessera/trainer/training_plan.h"

namespace tessera::cli {

MemoryRequest::MemoryRequest() : config(joined({model_settings(), trainer_settings()})) {
  config.set_text("micro_batch", "1");
}

int stages_of(const Config& config) {
  return static_cast<int>(config.get<std::int64_t>("pipeline"));
}

namespace {

/// Bits of an element; of what `accelerate estimate-memory` knows, and bfloat16.
int bits_of(const std::string& dtype) {
  if (dtype == "float32") return 32;
  if (dtype == "float16" || dtype == "bfloat16") return 16;
  if (dtype == "int8") return 8;
  if (dtype == "int4") return 4;
  fail(ErrorCode::kConfig, "--dtypes: ",
       unknown_name("dtype", dtype, {"float32", "float16", "bfloat16", "int8", "int4"}),
       "; choose float32, float16, bfloat16, int8 or int4");
}

/// Accelerate never splits a block, and takes every other module for a layer of its own. So the two
/// embeddings are two, though one layer here has both.
std::int64_t largest_layer(const Model& model) {
  std::map<std::string, std::int64_t> numel;
  for (const auto& layer : model.layers) {
    for (const ParameterSpec& parameter : layer->parameters()) {
      const bool block = layer->type() != "Embedding" && layer->type() != "Head";
      const std::string module = parameter.name.substr(0, parameter.name.rfind('.'));
      numel[block ? layer->name() : module] += parameter.shape.numel();
    }
  }
  std::int64_t largest = 0;
  for (const auto& [module, count] : numel) largest = std::max(largest, count);
  return largest;
}

std::vector<LoadRow> load_rows(const Model& model, const std::vector<std::string>& dtypes) {
  std::vector<LoadRow> rows;
  for (const std::string& dtype : dtypes) {
    const int bits = bits_of(dtype);
    const std::int64_t whole = parameter_count(model) * 4;
    rows.push_back({.dtype = dtype,
                    .largest = largest_layer(model) * 4 * bits / 32,
                    .total = whole * bits / 32,
                    .training = bits == 32   ? 4 * whole
                                : bits == 16 ? 2 * whole
                                             : 0});
  }
  return rows;
}

std::vector<std::string> strategies_of(const MemoryRequest& request) {
  if (!request.strategies.empty()) return request.strategies;
  std::vector<std::string> names;
  for (const Strategy& strategy : strategies()) names.push_back(strategy.name);
  return names;
}

/// A sweep over precisions and recomputation for each number of ranks and each strategy.
PlanRows plan_rows(const MemoryRequest& request) {
  PlanRows all;
  Config config = request.config;
  const std::vector<Swept> sweep{{"precision", request.precisions},
                                 {"recompute", {"none", "selective", "full"}}};
  const auto add = [&](Config own, const std::vector<std::string>& values) {
    if (values.front() == "fp8") {
      for (const NamedText& setting : request.of_fp8) own.set_text(setting.name, setting.value);
    }
    const PlannedRun run(own, [](TrainerOptions&, const RunInputs&) {});
    const TrainerOptions& options = run.plan.options;
    const auto column = static_cast<std::size_t>(options.policy.recompute);
    const auto stages = run.plan.stages.size();
    for (std::size_t stage = 0; column == 0 && stage < stages; ++stage) {
      all.rows.push_back(
          {options.strategy, precision_name(options), options.ranks, static_cast<int>(stage)});
    }
    for (PlanRow& row : std::span(all.rows).last(stages)) {
      row.peaks.at(column) = run.plan.stages[static_cast<std::size_t>(row.pipeline_rank)].memory;
      row.device_bytes.at(column) = device_bytes(run.plan, row.pipeline_rank);
    }
  };
  for (const std::string& text : request.ranks) {
    config.set_text("ranks", text);
    const auto ranks = static_cast<int>(config.get<std::int64_t>("ranks"));
    const auto per_node = static_cast<int>(config.get<std::int64_t>("ranks_per_node"));
    const int of_stage = std::max(ranks / stages_of(config), 1);
    for (const std::string& name : strategies_of(request)) {
      const Strategy& strategy = find_strategy(name);
      if (strategy.hybrid && default_replicas(strategy, of_stage, per_node) == 1) {
        all.impossible.push_back({strategy.name, ranks, of_stage});
        continue;
      }
      config.set_text("strategy", strategy.name);
      const std::vector<LeftOut> left_out = each_combination(config, sweep, add);
      require(left_out.empty(), ErrorCode::kConfig, left_out.empty() ? "" : left_out[0].why);
    }
  }
  require(!all.rows.empty(), ErrorCode::kConfig,
          all.impossible.empty() ? "" : all.impossible.front().why(),
          "; 4, 6 or 9 ranks do, for instance (--ranks)");
  return all;
}

void check_settings(const MemoryRequest& request) {
  Config config = request.config;
  for (const std::string& ranks : request.ranks) config.set_text("ranks", ranks);
  for (const std::string& precision : request.precisions) config.set_text("precision", precision);
  for (const NamedText& setting : request.of_fp8) {
    config.set_text(setting.name, setting.value);
    const auto& precisions = request.precisions;
    require(std::ranges::find(precisions, "fp8") != precisions.end(), ErrorCode::kConfig,
            flag_name(setting.name), " is ", setting.value,
            ", but no --precision is fp8; give it, or leave ", flag_name(setting.name), " out");
  }
  // Beyond that, sizes in bytes would not fit into an integer.
  constexpr std::int64_t kMost = 1 << 20;
  const auto micro_batch = config.get<std::int64_t>("micro_batch");
  require(micro_batch <= kMost, ErrorCode::kConfig, "--micro-batch is ", micro_batch,
          "; it must be at most ", kMost);
}

}  // namespace

MemoryEstimate estimate_memory(const MemoryRequest& request) {
  check_settings(request);
  const auto asked = request.config.get<std::string>("model");
  Config chosen = request.config;
  const GptChoice choice = choose_gpt(chosen);
  const bool is_preset = choice.name == chosen.get<std::string>("model");
  return {.model = is_preset ? asked : choice.name,
          .sequence_length = choice.sequence_length,
          .loads = load_rows(make_model(choice), request.dtypes),
          .plans = plan_rows(request)};
}

nlohmann::ordered_json to_json(const MemoryRequest& request, const MemoryEstimate& estimate) {
  auto loading = nlohmann::ordered_json::array();
  for (const LoadRow& row : estimate.loads) {
    loading.push_back({{"dtype", row.dtype},
                       {"largest_layer_bytes", row.largest},
                       {"total_bytes", row.total},
                       {"training_bytes", row.training > 0 ? nlohmann::ordered_json(row.training)
                                                           : nlohmann::ordered_json()}});
  }
  auto training = nlohmann::ordered_json::array();
  for (const PlanRow& row : estimate.plans.rows) {
    for (std::size_t r = 0; r < kRecomputes.size(); ++r) {
      training.push_back({{"strategy", row.strategy},
                          {"ranks", row.ranks},
                          {"pipeline_rank", row.pipeline_rank},
                          {"precision", row.precision},
                          {"recompute", to_string(kRecomputes[r])},
                          {"peak_bytes", to_json(row.peaks[r])},
                          {"device_bytes", row.device_bytes[r]}});
    }
  }
  auto impossible = nlohmann::ordered_json::array();
  for (const Impossible& one : estimate.plans.impossible) {
    impossible.push_back({{"strategy", one.strategy}, {"ranks", one.ranks}, {"why", one.why()}});
  }
  return {{"kind", "estimate-memory"},
          {"model", estimate.model},
          {"micro_batch", request.config.value("micro_batch")},
          {"accumulate", request.config.value("accumulate")},
          {"pipeline", request.config.value("pipeline")},
          {"optimizer", request.config.value("optimizer")},
          {"ranks_per_node", request.config.value("ranks_per_node")},
          {"sequence_length", estimate.sequence_length},
          {"loading", loading},
          {"training", training},
          {"impossible", impossible}};
}

}  // namespace tessera::cli

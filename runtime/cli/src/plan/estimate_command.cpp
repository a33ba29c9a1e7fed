#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "commands.h"
#include "output/json_output.h"
#include "output/terminal.h"
#include "output/text_table.h"
#include "plan/planned_run.h"
#include "settings/flag_aliases.h"
#include "settings/gpt_choice.h"
#include "settings/gpt_settings.h"
#include "settings/model_names.h"
#include "settings/option_names.h"
#include "settings/sweep.h"
#include "tessera/core/error.h"
#include "tessera/trainer/byte_size.h"
#include "tessera/trainer/gpu_overhead.h"
#include "tessera/trainer/log.h"
#include "tessera/trainer/trainer_settings.h"
#include "tessera/trainer/training_plan.h"

namespace tessera::cli {
namespace {

constexpr std::array kRecomputes{Recompute::kNone, Recompute::kSelective, Recompute::kFull};

/// The settings of a model that estimates depend on, all but its name.
std::vector<Setting> size_settings() {
  std::vector<Setting> sizes = model_settings();
  std::erase_if(sizes, [](const Setting& setting) {
    return setting.name == "model" || setting.name == "init" || setting.name == "dropout" ||
           setting.name == "tokenizer";
  });
  return sizes;
}

struct Request {
  std::vector<std::string> dtypes{"float32", "bfloat16", "float16", "int8", "int4"};
  std::vector<std::string> ranks{"8"};
  std::vector<std::string> strategies{};
  std::vector<std::string> precisions{"bf16"};
  Config config{joined({model_settings(), trainer_settings()})};
  bool json = false;
};

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

/// A row of Accelerate's table. Its training column is the largest of model, gradients, optimizer
/// and step: 4 times the model in fp32, and as many bytes as 2 fp32 models in 16 bits.
struct LoadRow {
  std::string dtype;
  std::int64_t largest = 0, total = 0;
  std::int64_t training = 0;  ///< 0: not trainable
};

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

/// The needs of one rank of a pipeline rank, from the plan.
struct PlanRow {
  std::string strategy, precision;
  int ranks = 1;
  int pipeline_rank = 0;
  std::array<MemoryPeak, kRecomputes.size()> peaks{};
  std::array<std::int64_t, kRecomputes.size()> device_bytes{};
};

std::vector<std::string> strategies_of(const Request& request) {
  if (!request.strategies.empty()) return request.strategies;
  std::vector<std::string> names;
  for (const Strategy& strategy : strategies()) names.push_back(strategy.name);
  return names;
}

/// A strategy that the ranks cannot form: it would be another one.
struct Impossible {
  std::string strategy;
  int ranks = 1;
  int of_stage = 1;  ///< ranks of one

  std::string why() const {
    return concat(strategy, " needs several replicas of several ranks each, which ", of_stage,
                  of_stage == 1 ? " rank" : " ranks", of_stage < ranks ? " of a stage" : "",
                  of_stage == 1 ? " does" : " do", " not make");
  }
};

struct PlanRows {
  std::vector<PlanRow> rows{};
  std::vector<Impossible> impossible{};
};

int stages_of(const Config& config) {
  return static_cast<int>(config.get<std::int64_t>("pipeline"));
}

/// A sweep over precisions and recomputation for each number of ranks and each strategy.
PlanRows plan_rows(const Request& request) {
  PlanRows all;
  Config config = request.config;
  const std::vector<Swept> sweep{{"precision", request.precisions},
                                 {"recompute", {"none", "selective", "full"}}};
  const auto add = [&](Config own, const std::vector<std::string>& /*values*/) {
    const PlannedRun run(own, [](TrainerOptions&, const RunInputs&) {});
    const TrainerOptions& options = run.plan.options;
    const auto column = static_cast<std::size_t>(options.policy.recompute);
    const auto stages = run.plan.stages.size();
    for (std::size_t stage = 0; column == 0 && stage < stages; ++stage) {
      all.rows.push_back({options.strategy, std::string(to_string(options.precision)),
                          options.ranks, static_cast<int>(stage)});
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

struct Estimate {
  std::string model{};  ///< as it was asked for, or its sizes
  std::int64_t sequence_length = 0;
  std::vector<LoadRow> loads{};
  PlanRows plans{};
};

void print_json(const Request& request, const Estimate& estimate) {
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
  const nlohmann::ordered_json object{{"kind", "estimate-memory"},
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
  write_json(std::cout, object);
}

void print_text(const Request& request, const Estimate& estimate) {
  std::cout << "Memory Usage for loading `" << estimate.model << "`\n";
  TextTable loading({"dtype", "Largest Layer", "Total Size", "Training using Adam"});
  for (const LoadRow& row : estimate.loads) {
    loading.add({row.dtype, format_bytes(row.largest), format_bytes(row.total),
                 row.training > 0 ? format_bytes(row.training) : "N/A"});
  }
  loading.print(std::cout);
  const bool staged = stages_of(request.config) > 1;
  const std::string of_pipeline = staged
                                      ? concat(", ", request.config.get<std::int64_t>("accumulate"),
                                               " micro-steps through the stages of a pipeline")
                                      : "";
  std::cout
      << "\n"
      << wrapped(
             concat(
                 "The table above is Accelerate's (and bfloat16, which Accelerate lacks), without "
                 "activations or sharding. The table below is what one rank in training needs of "
                 "its device, from the plan (a run measures the same, to the byte)",
                 request.config.get<std::string>("device") == "cuda"
                     ? ", with what a GPU holds beside it"
                     : "",
                 ": micro-batch ", request.config.get<std::int64_t>("micro_batch"), of_pipeline,
                 ", sequences of ", estimate.sequence_length,
                 ", fp32 master weights, the states of ",
                 request.config.get<std::string>("optimizer"),
                 ", gradients reduced in fp32, by recomputation:"),
             kColumns)
      << "\n\n";
  std::vector<std::string> titles{"strategy", "ranks", "precision", "none", "selective", "full"};
  if (staged) titles.insert(titles.begin() + 2, "pipeline rank");
  TextTable training(titles);
  for (const PlanRow& row : estimate.plans.rows) {
    std::vector<std::string> cells{row.strategy, std::to_string(row.ranks)};
    if (staged) cells.push_back(std::to_string(row.pipeline_rank));
    cells.push_back(row.precision);
    for (const std::int64_t bytes : row.device_bytes) cells.push_back(format_bytes(bytes));
    training.add(cells);
  }
  training.print(std::cout);
  for (const Impossible& one : estimate.plans.impossible) {
    print_line(stdout, "note: " + one.why(), 2);
  }
  std::cout << "\n";
  print_paragraph(
      std::cout,
      "'tessera plan' has one of these by category, --device cuda counts what a GPU "
      "holds beside it, too; 'tessera train --auto-batch' chooses the largest micro-batch "
      "that fits.");
}

void check_settings(const Request& request) {
  Config config = request.config;
  for (const std::string& ranks : request.ranks) config.set_text("ranks", ranks);
  for (const std::string& precision : request.precisions) config.set_text("precision", precision);
  // Beyond that, sizes in bytes would not fit into an integer.
  constexpr std::int64_t kMost = 1 << 20;
  const auto micro_batch = config.get<std::int64_t>("micro_batch");
  require(micro_batch <= kMost, ErrorCode::kConfig, "--micro-batch is ", micro_batch,
          "; it must be at most ", kMost);
}

int run_estimate(const CLI::App& app, Request request) {
  const std::vector<std::string> extras = app.remaining();
  if (!extras.empty()) {
    require(extras.front().starts_with("-"), ErrorCode::kConfig, "unexpected argument '",
            extras.front(), "'; one model at a time");
    refuse_flag(extras.front(), shown_flags(app));
  }
  check_settings(request);
  const auto asked = request.config.get<std::string>("model");
  Config chosen = request.config;
  const GptChoice choice = choose_gpt(chosen);
  const bool is_preset = choice.name == chosen.get<std::string>("model");
  const Estimate estimate{.model = is_preset ? asked : choice.name,
                          .sequence_length = choice.sequence_length,
                          .loads = load_rows(make_model(choice), request.dtypes),
                          .plans = plan_rows(request)};
  (request.json ? print_json : print_text)(request, estimate);
  return kExitGood;
}

}  // namespace

std::function<int()> add_estimate_memory(CLI::App& app) {
  const auto request = std::make_shared<Request>();
  request->config.set_text("micro_batch", "1");
  // A setting, in the limits and the words of `train`.
  const auto add = [&](const std::string& flags, const std::string& name, const std::string& help) {
    const auto take = [request, name](const std::string& text) {
      request->config.set_text(name, text);
    };
    return app.add_option_function<std::string>(flags, take, help);
  };
  add("MODEL,--model", "model", "a preset: " + model_names())->required();
  app.add_option("--dtypes", request->dtypes, "dtypes of the table for loading")->delimiter(',');
  app.add_option("--ranks", request->ranks, "numbers of ranks")->delimiter(',')->type_name("N");
  add("--ranks-per-node", "ranks_per_node",
      "ranks of a node, by which hybrids choose their replicas [all ranks on one node]")
      ->type_name("N");
  app.add_option("--strategies", request->strategies, "[all]")->delimiter(',');
  app.add_option("--precision", request->precisions, "fp32, bf16, fp16: one or several")
      ->delimiter(',');
  add("--micro-batch", "micro_batch", "samples per micro-step and rank")->type_name("N");
  add("--pipeline", "pipeline",
      "pipeline ranks, which have stages of the model; each has a row [1]")
      ->type_name("N");
  add("--pipeline-schedule", "pipeline_schedule",
      "1f1b, interleaved, gpipe, zb-h1, zb-v or a file of passes [1f1b]")
      ->type_name("TEXT");
  add("--virtual-stages", "virtual_stages", "stages on each pipeline rank [1]")->type_name("N");
  add("--pipeline-split", "pipeline_split", "layers of each stage, as 3,4,4,3 [balanced by time]")
      ->type_name("LIST");
  add("--accumulate", "accumulate",
      "micro-steps; a stage keeps activations of as many as it has begun [1]")
      ->type_name("N");
  add("--optimizer", "optimizer", "of the table for training [adamw]")->type_name("TEXT");
  add("--device", "device",
      "of the table for training: cuda counts what a GPU holds beside the plan, too [cpu]")
      ->type_name("TEXT");
  for (const Setting& size : size_settings()) {
    add(flag_name(size.name), size.name, with_flags(size.help))->type_name("N");
  }
  app.add_flag("--json", request->json, "print one JSON object");
  app.allow_extras();  // so that an unknown flag is answered
  accept_aliases(app);
  return [&app, request] { return run_estimate(app, *request); };
}

}  // namespace tessera::cli

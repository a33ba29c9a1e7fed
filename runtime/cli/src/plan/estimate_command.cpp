#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "commands.h"
#include "output/json_output.h"
#include "output/terminal.h"
#include "output/text_table.h"
#include "settings/command_line.h"
#include "settings/flag_aliases.h"
#include "settings/gpt_settings.h"
#include "settings/model_names.h"
#include "settings/option_names.h"
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
  std::vector<int> ranks{8};
  int ranks_per_node = 0;  ///< all on one
  std::vector<std::string> strategies{};
  std::vector<std::string> precisions{"bf16"};
  std::int64_t micro_batch = 1;
  std::string optimizer = "adamw";
  DeviceChoice device = DeviceChoice::kAuto;
  Config model{model_settings()};
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

/// As Accelerate counts: a block is never split, of the rest every module is a layer of its own. So
/// the two embeddings are two, though one layer here has both.
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

/// What Accelerate's table holds. Its training column is the largest of model, gradients, optimizer
/// and step: 4 times the model in fp32, and as many bytes as 2 fp32 models in 16 bits.
struct LoadRow {
  std::string dtype;
  std::int64_t largest = 0, total = 0;
  std::int64_t training = 0;  ///< 0: not trainable
};

std::vector<LoadRow> load_rows(const Model& model, const Request& request) {
  std::vector<LoadRow> rows;
  for (const std::string& dtype : request.dtypes) {
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

/// What one rank needs, from the plan.
struct PlanRow {
  std::string strategy, precision;
  int ranks = 1;
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

  std::string why() const {
    return concat(strategy, " needs several replicas of several ranks each, which ", ranks,
                  ranks == 1 ? " rank does" : " ranks do", " not make");
  }
};

struct PlanRows {
  std::vector<PlanRow> rows{};
  std::vector<Impossible> impossible{};
};

PlanRow plan_row(const Model& model, std::int64_t sequence_length, const TrainerOptions& options) {
  PlanRow row{.strategy = options.strategy,
              .precision = std::string(to_string(options.precision)),
              .ranks = options.ranks};
  const TokenShapes shapes(sequence_length);
  for (std::size_t r = 0; r < kRecomputes.size(); ++r) {
    TrainerOptions recomputing = options;
    recomputing.policy.recompute = kRecomputes[r];
    const TrainingPlan plan = make_training_plan(model, shapes, recomputing);
    row.peaks[r] = plan.memory;
    row.device_bytes[r] = device_bytes(plan);
  }
  return row;
}

PlanRows plan_rows(const Model& model, std::int64_t sequence_length, const Request& request) {
  PlanRows all;
  for (const int ranks : request.ranks) {
    for (const std::string& name : strategies_of(request)) {
      const Strategy& strategy = find_strategy(name);
      if (strategy.hybrid && default_replicas(strategy, ranks, request.ranks_per_node) == 1) {
        all.impossible.push_back({strategy.name, ranks});
        continue;
      }
      for (const std::string& precision : request.precisions) {
        all.rows.push_back(plan_row(model, sequence_length,
                                    {.strategy = strategy.name,
                                     .ranks = ranks,
                                     .ranks_per_node = request.ranks_per_node,
                                     .micro_batch = request.micro_batch,
                                     .precision = parse_dtype(precision),
                                     .optimizer = {.name = request.optimizer},
                                     .device = request.device}));
      }
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
                                      {"micro_batch", request.micro_batch},
                                      {"optimizer", request.optimizer},
                                      {"ranks_per_node", request.ranks_per_node},
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
  std::cout
      << "\n"
      << wrapped(
             concat(
                 "The table above is Accelerate's (and bfloat16, which Accelerate lacks), without "
                 "activations or sharding. The table below is what one rank in training needs of "
                 "its device, from the plan (a run measures the same, to the byte)",
                 request.device == DeviceChoice::kCuda ? ", with what a GPU holds beside it" : "",
                 ": micro-batch ", request.micro_batch, ", sequences of ", estimate.sequence_length,
                 ", fp32 master weights, the states of ", request.optimizer,
                 ", gradients reduced in fp32, by recomputation:"),
             kColumns)
      << "\n\n";
  TextTable training({"strategy", "ranks", "precision", "none", "selective", "full"});
  for (const PlanRow& row : estimate.plans.rows) {
    std::vector<std::string> cells{row.strategy, std::to_string(row.ranks), row.precision};
    for (const std::int64_t bytes : row.device_bytes) cells.push_back(format_bytes(bytes));
    training.add(cells);
  }
  training.print(std::cout);
  for (const Impossible& one : estimate.plans.impossible) {
    std::cout << for_reader(inspect(stdout), "note: " + one.why(), 2) << "\n";
  }
  std::cout
      << "\n"
      << wrapped(
             "'tessera plan' has one of these by category, --device cuda counts what a GPU "
             "holds beside it, too; 'tessera train --auto-batch' chooses the largest micro-batch "
             "that fits.",
             kColumns)
      << "\n";
}

void check_settings(const Request& request) {
  Config config(trainer_settings());
  for (const std::string& precision : request.precisions) config.set_text("precision", precision);
  // Beyond that, sizes in bytes would not fit into an integer.
  constexpr std::int64_t kMost = 1 << 20;
  require(request.micro_batch <= kMost, ErrorCode::kConfig, "--micro-batch is ",
          request.micro_batch, "; it must be at most ", kMost);
}

int run_estimate(const CLI::App& app, Request request) {
  const std::vector<std::string> extras = app.remaining();
  if (!extras.empty()) {
    require(extras.front().starts_with("-"), ErrorCode::kConfig, "unexpected argument '",
            extras.front(), "'; one model at a time");
    refuse_flag(extras.front(), shown_flags(app));
  }
  check_settings(request);
  const auto asked = request.model.get<std::string>("model");
  const GptChoice choice = choose_gpt(request.model);
  const bool is_preset = choice.name == request.model.get<std::string>("model");
  const Model model = make_model(choice);
  const Estimate estimate{.model = is_preset ? asked : choice.name,
                          .sequence_length = choice.sequence_length,
                          .loads = load_rows(model, request),
                          .plans = plan_rows(model, choice.sequence_length, request)};
  (request.json ? print_json : print_text)(request, estimate);
  return kExitGood;
}

}  // namespace

std::function<int()> add_estimate_memory(CLI::App& app) {
  const auto request = std::make_shared<Request>();
  // In the limits and the words of `train`.
  app.add_option_function<std::string>(
         "MODEL,--model",
         [request](const std::string& text) { request->model.set_text("model", text); },
         "a preset: " + model_names())
      ->required();
  app.add_option("--dtypes", request->dtypes, "dtypes of the table for loading")->delimiter(',');
  app.add_option_function<std::vector<std::string>>(
         "--ranks",
         [request](const std::vector<std::string>& texts) {
           request->ranks.clear();
           for (const std::string& text : texts) {
             request->ranks.push_back(value_of<int>(trainer_settings(), "ranks", text));
           }
         },
         "numbers of ranks")
      ->delimiter(',')
      ->type_name("N");
  app.add_option_function<std::string>(
         "--ranks-per-node",
         [request](const std::string& text) {
           request->ranks_per_node = value_of<int>(trainer_settings(), "ranks_per_node", text);
         },
         "ranks of a node, by which hybrids choose their replicas [all ranks on one node]")
      ->type_name("N");
  app.add_option("--strategies", request->strategies, "[all]")->delimiter(',');
  app.add_option("--precision", request->precisions, "fp32, bf16, fp16: one or several")
      ->delimiter(',');
  app.add_option_function<std::string>(
         "--micro-batch",
         [request](const std::string& text) {
           request->micro_batch = value_of<std::int64_t>(trainer_settings(), "micro_batch", text);
         },
         "samples per micro-step and rank")
      ->type_name("N");
  app.add_option_function<std::string>(
         "--optimizer",
         [request](const std::string& text) {
           request->optimizer = value_of<std::string>(trainer_settings(), "optimizer", text);
         },
         "of the table for training [adamw]")
      ->type_name("TEXT");
  app.add_option_function<std::string>(
         "--device",
         [request](const std::string& text) {
           request->device =
               parse_device(value_of<std::string>(trainer_settings(), "device", text));
         },
         "of the table for training: cuda counts what a GPU holds beside the plan, too [cpu]")
      ->type_name("TEXT");
  for (const Setting& size : size_settings()) {
    const auto take = [request, name = size.name](const std::string& text) {
      request->model.set_text(name, text);
    };
    app.add_option_function<std::string>(flag_name(size.name), take, with_flags(size.help))
        ->type_name("N");
  }
  app.add_flag("--json", request->json, "print one JSON object");
  app.allow_extras();  // so that an unknown flag is answered
  accept_aliases(app);
  return [&app, request] { return run_estimate(app, *request); };
}

}  // namespace tessera::cli

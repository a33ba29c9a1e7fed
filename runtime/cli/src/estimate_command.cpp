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
#include "gpt_settings.h"
#include "terminal.h"
#include "tessera/core/error.h"
#include "tessera/trainer/byte_size.h"
#include "tessera/trainer/log.h"
#include "tessera/trainer/training_plan.h"
#include "text_table.h"

namespace tessera::cli {
namespace {

constexpr std::array kRecomputes{Recompute::kNone, Recompute::kSelective, Recompute::kFull};

struct Request {
  std::string model;
  std::vector<std::string> dtypes{"float32", "bfloat16", "float16", "int8", "int4"};
  std::vector<int> ranks{8};
  std::vector<std::string> strategies{};
  std::vector<std::string> precisions{"bf16"};
  std::int64_t micro_batch = 1;
  std::int64_t sequence_length = 0;  // the model's context
  bool json = false;
};

/// The names under which Hugging Face has our presets.
std::string preset_of(const std::string& name) {
  constexpr std::array<std::array<const char*, 2>, 4> kNames{{{"gpt2", "gpt2-124m"},
                                                              {"gpt2-medium", "gpt2-350m"},
                                                              {"gpt2-large", "gpt2-774m"},
                                                              {"gpt2-xl", "gpt2-1558m"}}};
  const std::size_t slash = name.rfind('/');
  const std::string last = slash == std::string::npos ? name : name.substr(slash + 1);
  for (const auto& [theirs, ours] : kNames) {
    if (last == theirs) return ours;
  }
  return last;
}

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
      const bool block = layer->type() == "TransformerBlock";
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

/// The peak of one rank, from the plan.
struct PlanRow {
  std::string strategy, precision;
  int ranks = 1;
  std::array<MemoryPeak, kRecomputes.size()> peaks{};
};

std::vector<std::string> strategies_of(const Request& request) {
  if (!request.strategies.empty()) return request.strategies;
  std::vector<std::string> names;
  for (const Strategy& strategy : strategies()) names.push_back(strategy.name);
  return names;
}

std::vector<PlanRow> plan_rows(const Model& model, const Request& request,
                               std::int64_t sequence_length) {
  const TokenShapes shapes(sequence_length);
  std::vector<PlanRow> rows;
  for (const int ranks : request.ranks) {
    for (const std::string& precision : request.precisions) {
      for (const std::string& name : strategies_of(request)) {
        const Strategy& strategy = find_strategy(name);
        // A hybrid needs at least two replicas, of two ranks each.
        if (strategy.hybrid && (ranks < 4 || ranks % 2 != 0)) continue;
        PlanRow row{.strategy = strategy.name, .precision = precision, .ranks = ranks};
        for (std::size_t r = 0; r < kRecomputes.size(); ++r) {
          row.peaks[r] = make_training_plan(model, shapes,
                                            {.strategy = strategy.name,
                                             .ranks = ranks,
                                             .replicas = strategy.hybrid ? 2 : 0,
                                             .micro_batch = request.micro_batch,
                                             .recompute = kRecomputes[r],
                                             .precision = parse_dtype(precision)})
                             .memory;
        }
        rows.push_back(std::move(row));
      }
    }
  }
  return rows;
}

void print_json(const Request& request, const std::vector<LoadRow>& loads,
                const std::vector<PlanRow>& plans, std::int64_t sequence_length) {
  auto loading = nlohmann::ordered_json::array();
  for (const LoadRow& row : loads) {
    loading.push_back({{"dtype", row.dtype},
                       {"largest_layer_bytes", row.largest},
                       {"total_bytes", row.total},
                       {"training_bytes", row.training > 0 ? nlohmann::ordered_json(row.training)
                                                           : nlohmann::ordered_json()}});
  }
  auto training = nlohmann::ordered_json::array();
  for (const PlanRow& row : plans) {
    for (std::size_t r = 0; r < kRecomputes.size(); ++r) {
      training.push_back({{"strategy", row.strategy},
                          {"ranks", row.ranks},
                          {"precision", row.precision},
                          {"recompute", to_string(kRecomputes[r])},
                          {"peak_bytes", to_json(row.peaks[r])}});
    }
  }
  const nlohmann::ordered_json object{{"kind", "estimate-memory"},
                                      {"model", request.model},
                                      {"micro_batch", request.micro_batch},
                                      {"sequence_length", sequence_length},
                                      {"loading", loading},
                                      {"training", training}};
  std::cout << object.dump(2) << "\n";
}

void print_text(const Request& request, const std::vector<LoadRow>& loads,
                const std::vector<PlanRow>& plans, std::int64_t sequence_length) {
  std::cout << "Memory Usage for loading `" << request.model << "`\n";
  TextTable loading({"dtype", "Largest Layer", "Total Size", "Training using Adam"});
  for (const LoadRow& row : loads) {
    loading.add({row.dtype, format_bytes(row.largest), format_bytes(row.total),
                 row.training > 0 ? format_bytes(row.training) : "N/A"});
  }
  loading.print(std::cout);
  std::cout
      << "\nThat table is Accelerate's (and bfloat16, which that lacks), without activations or "
         "sharding.\nWhat one rank needs in training, from the plan (what a run measures, to "
         "the byte): micro-batch "
      << request.micro_batch << ",\nsequences of " << sequence_length
      << ", fp32 master weights and moments, gradients reduced in fp32, by recomputation:\n\n";
  TextTable training({"strategy", "ranks", "precision", "none", "selective", "full"});
  for (const PlanRow& row : plans) {
    std::vector<std::string> cells{row.strategy, std::to_string(row.ranks), row.precision};
    for (const MemoryPeak& peak : row.peaks) cells.push_back(format_bytes(peak.total));
    training.add(cells);
  }
  training.print(std::cout);
  std::cout
      << "\n'tessera plan' has one of these by category; 'tessera train --auto-batch' chooses the "
         "largest\nmicro-batch that fits.\n";
}

int run_estimate(Request request) {
  const GptConfig config = gpt_preset(preset_of(request.model));
  if (request.sequence_length == 0) request.sequence_length = config.context_length;
  require(request.sequence_length > 0 && request.sequence_length <= config.context_length,
          ErrorCode::kConfig, "--sequence-length is ", request.sequence_length,
          "; it must be from 1 to the model's context of ", config.context_length);
  for (const int ranks : request.ranks) {
    require(ranks >= 1, ErrorCode::kConfig, "--ranks is ", ranks, "; it must be at least 1");
  }
  const Model model = make_model(
      {.name = request.model, .config = config, .sequence_length = request.sequence_length});
  const auto loads = load_rows(model, request);
  const auto plans = plan_rows(model, request, request.sequence_length);
  (request.json ? print_json : print_text)(request, loads, plans, request.sequence_length);
  return kExitGood;
}

}  // namespace

Command add_estimate_memory(CLI::App& program) {
  const auto request = std::make_shared<Request>();
  CLI::App* app = program.add_subcommand(
      "estimate-memory", "Print what loading and training a model would need, by strategy");
  app->add_option("MODEL", request->model, "a preset, or gpt2, gpt2-medium, gpt2-large, gpt2-xl")
      ->required();
  app->add_option("--dtypes", request->dtypes, "of the table for loading")->delimiter(',');
  app->add_option("--ranks", request->ranks, "numbers of ranks")->delimiter(',');
  app->add_option("--strategies", request->strategies, "[all]")->delimiter(',');
  app->add_option("--precision", request->precisions, "fp32, bf16 or both")->delimiter(',');
  app->add_option("--micro-batch", request->micro_batch, "samples per micro-step and rank")
      ->check(CLI::PositiveNumber);
  app->add_option("--sequence-length", request->sequence_length, "[the model's context]");
  app->add_flag("--json", request->json, "print one JSON object");
  return {app, [request] { return run_estimate(*request); }};
}

}  // namespace tessera::cli

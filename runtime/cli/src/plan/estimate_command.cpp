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
#include "output/terminal.h"
#include "output/text_output.h"
#include "plan/planned_run.h"
#include "settings/command_line.h"
#include "settings/gpt_choice.h"
#include "settings/gpt_settings.h"
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

/// The settings of a model that estimates depend on, all but its name.
std::vector<Setting> size_settings() {
  std::vector<Setting> sizes = model_settings();
  std::erase_if(sizes, [](const Setting& setting) {
    return setting.name == "model" || setting.name == "init" || setting.name == "dropout" ||
           setting.name == "tokenizer" || setting.name == "resize_vocabulary" ||
           setting.name.starts_with("chat_template");
  });
  return sizes;
}

void print_text(const MemoryRequest& request, const MemoryEstimate& estimate) {
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

struct Request {
  MemoryRequest memory{};
  bool json = false;
};

int run_estimate(const CLI::App& app, const Request& request) {
  const std::vector<std::string> extras = app.remaining();
  if (!extras.empty()) {
    require(extras.front().starts_with("-"), ErrorCode::kConfig, "unexpected argument '",
            extras.front(), "'; one model at a time");
    refuse_flag(extras.front(), shown_flags(app));
  }
  const MemoryEstimate estimate = estimate_memory(request.memory);
  if (request.json) {
    write_json(std::cout, to_json(request.memory, estimate));
  } else {
    print_text(request.memory, estimate);
  }
  return kExitGood;
}

}  // namespace

std::function<int()> add_estimate_memory(CLI::App& app) {
  const auto request = std::make_shared<Request>();
  // A setting, in the limits and the words of `train`.
  const auto add = [&](const std::string& flags, const std::string& name, const std::string& help) {
    const auto take = [request, name](const std::string& text) {
      request->memory.config.set_text(name, text);
    };
    return app.add_option_function<std::string>(flags, take, help);
  };
  add("MODEL,--model", "model", "a preset: " + model_names())->required();
  app.add_option("--dtypes", request->memory.dtypes, "dtypes of the table for loading")
      ->delimiter(',');
  app.add_option("--ranks", request->memory.ranks, "numbers of ranks")
      ->delimiter(',')
      ->type_name("N");
  add("--ranks-per-node", "ranks_per_node",
      "ranks of a node, by which hybrids choose their replicas [all ranks on one node]")
      ->type_name("N");
  app.add_option("--strategies", request->memory.strategies, "[all]")->delimiter(',');
  app.add_option("--precision", request->memory.precisions, "fp32, bf16, fp16, fp8: one or several")
      ->delimiter(',');
  const auto add_fp8 = [&](const std::string& name, const std::string& help) {
    const auto take = [request, name](const std::string& text) {
      request->memory.of_fp8.push_back({name, text});
    };
    return app.add_option_function<std::string>(flag_name(name), take, "of precision fp8: " + help);
  };
  add_fp8("fp8_recipe", "current or delayed [current]")->type_name("TEXT");
  add_fp8("fp8_history", "with recipe delayed, steps that a scale is made of [1024]")
      ->type_name("N");
  add_fp8("gather_format", "how matrices travel, as codes (e4m3) or in bf16 [e4m3]")
      ->type_name("TEXT");
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
    add(flag_name(size.name), size.name, with_flags(size.help))->type_name(type_name(size));
  }
  app.add_flag("--json", request->json, "print one JSON object");
  app.allow_extras();  // so that an unknown flag is answered
  accept_aliases(app);
  return [&app, request] { return run_estimate(app, *request); };
}

}  // namespace tessera::cli

#include "compare/compared_cells.h"

#include <algorithm>
#include <limits>
#include <ostream>

#include "commands.h"
#include "env/reports.h"
#include "output/run_report.h"
#include "output/terminal.h"
#include "settings/data_choice.h"
#include "settings/gpt_choice.h"
#include "settings/gpt_settings.h"
#include "settings/option_names.h"
#include "simulate/simulation.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/core/format_bytes.h"
#include "tessera/core/utc_text.h"
#include "tessera/lab/comparison_figures.h"
#include "tessera/lab/profile_trust.h"
#include "tessera/sharding/groups.h"
#include "tessera/trainer/gpu_overhead.h"
#include "tessera/trainer/trainer.h"
#include "tessera/trainer/trainer_settings.h"
#include "tessera/trainer/training_plan.h"

namespace tessera::cli {
namespace {

/// Settings of the runs' own table; the others are compare's.
bool is_of_a_run(const std::string& name) {
  static const std::vector<Setting> all =
      joined({model_settings(), without(trainer_settings(), "ranks_per_node"), data_settings()});
  return find_setting(all, name) != nullptr;
}

std::string text_of_value(const nlohmann::ordered_json& value) {
  return value.is_null() ? "-" : plain_text(value);
}

/// Figures of fp8 name their recipe and how parameters travel, whatever is given.
void add_fp8_default(const std::string& name, std::vector<NamedText>& settings) {
  const Fp8Options usual;
  if (name == "fp8_recipe") settings.push_back({name, std::string(to_string(usual.recipe))});
  if (name == "gather_format") {
    settings.push_back({name, std::string(to_string(usual.gather_format))});
  }
}

std::vector<NamedText> settings_of(const Config& config, const std::vector<Swept>& axes) {
  std::vector<NamedText> settings;
  const bool in_fp8 = config.get<std::string>("precision") == "fp8";
  for (const Swept& axis : axes) {
    settings.push_back({axis.name, text_of_value(config.value(axis.name))});
  }
  for (const Setting& setting : config.table()) {
    const bool is_axis = std::ranges::find(axes, setting.name, &Swept::name) != axes.end();
    const auto& value = config.value(setting.name);
    if (!is_axis && in_fp8 && value.is_null()) add_fp8_default(setting.name, settings);
    if (is_axis || !is_of_a_run(setting.name) || value.is_null()) continue;
    if (nlohmann::json(value) == setting.fallback) continue;
    settings.push_back({setting.name, text_of_value(value)});
  }
  return settings;
}

/// The facts of the machine that timings depend on; none differs from one moment to the next.
std::vector<NamedText> fingerprint() {
  const Machine machine = probe_machine();
  std::vector<NamedText> rows{
      {"host", machine.host},
      {"system", machine.system + ", " + machine.kernel},
      {"processor", machine.processor},
      {"cores", concat(machine.logical_cores, " usable, ", machine.physical_cores, " physical")},
      {"vector units", listed(machine.vector_units)},
      {"memory", format_bytes(machine.memory_bytes)},
      {"built by", TESSERA_BUILT_BY}};
  for (const CudaGpu& gpu : cuda_status().gpus) {
    rows.push_back({concat("GPU ", gpu.ordinal), concat(gpu.name, ", sm_", gpu.major, gpu.minor,
                                                        ", ", format_bytes(gpu.total_bytes))});
  }
  return rows;
}

/// The facts of a machine that is simulated.
std::vector<NamedText> simulated_machine(const HardwareProfile& profile,
                                         std::int64_t ranks_per_node) {
  std::vector<NamedText> rows{
      {"profile", profile.name},
      {"trust", "as " + trust_in(profile.name)},
      {"memory", format_bytes(static_cast<std::int64_t>(profile.memory_bytes.value))}};
  if (profile.device == "cuda") rows.push_back({"GPUs of a node", concat(ranks_per_node)});
  for (const auto& [dtype, peak] : profile.peak) {
    rows.push_back({"peak in " + dtype, with_prefix(peak.value) + "FLOP/s"});
  }
  return rows;
}

/// The spans of all pipeline ranks.
std::vector<LaneSpan> spans_of(const StepPlan& step,
                               const std::vector<std::vector<ActionSpan>>& spans) {
  double begin = std::numeric_limits<double>::infinity();
  for (const std::vector<ActionSpan>& of_rank : spans) {
    for (const ActionSpan& span : of_rank) begin = std::min(begin, span.begin);
  }
  std::vector<LaneSpan> result;
  const bool is_staged = spans.size() > 1;
  for (std::size_t rank = 0; rank < spans.size(); ++rank) {
    const Schedule& schedule = step.ranks[rank];
    for (const ActionSpan& span : spans[rank]) {
      if (span.end <= span.begin) continue;
      const Action& action = schedule.actions[static_cast<std::size_t>(span.action)];
      result.push_back({std::string(to_string(span.lane)), describe(schedule, action),
                        span.begin - begin, span.end - begin, static_cast<int>(rank),
                        is_staged ? stage_of(schedule, action) : -1,
                        is_staged ? action.micro_step : -1});
    }
  }
  return result;
}

/// Predicts memory and traffic of a cell on this machine.
void predict_here(Config config, const DataMixture& dataset, ComparedCell& cell) {
  config.set_effective("ranks_per_node", 0);  // of the simulated machine, not of this one
  const GptChoice choice = choose_gpt(config);
  const Model model = make_model(choice);
  // A trainer compares the plan with the memory of this machine.
  const Trainer trainer(model, dataset, trainer_options(config));
  const TrainingPlan& plan = trainer.plan();
  cell.predicted = CellPrediction{
      .peak = plan.memory, .traffic = plan.traffic, .device_bytes = device_bytes(plan)};
  cell.tokens_per_step = sample_division(plan.options).samples_per_step() * choice.sequence_length;
}

/// Predicts a cell on the profile's machine. Ranks of a CPU are all on one node.
SimulatedRun simulate_cell(const CompareRequest& request, const Config& config) {
  const bool is_gpu = request.profile->device == "cuda";
  const auto per_node = config.get<std::int64_t>(is_gpu ? "ranks_per_node" : "ranks");
  return simulate_run(config, *request.profile, static_cast<int>(per_node));
}

SimulatedTime time_of_step(const SimulatedRun& run) {
  return {.step_seconds = run.step.seconds,
          .exposed_seconds = run.step.communication.exposed,
          .communication_seconds = run.step.communication.busy,
          .spans = spans_of(run.plan().step, run.step.spans),
          .exposed_message_seconds = run.step.exposed_messages(),
          .bubble_seconds = run.step.bubble(),
          .half_width = run.step.half_width};
}

/// Ranks of a CPU share its memory.
void require_fit(const HardwareProfile& profile, std::int64_t device_bytes, std::int64_t ranks) {
  const std::int64_t sharing = profile.device == "cuda" ? 1 : ranks;
  const auto needed = static_cast<double>(device_bytes) * static_cast<double>(sharing);
  require(needed <= profile.memory_bytes.value, ErrorCode::kOutOfMemory, "each rank needs ",
          format_bytes(device_bytes), sharing > 1 ? concat(", all ", sharing, " on one node") : "",
          ", and ", profile.name, " has ",
          format_bytes(static_cast<std::int64_t>(profile.memory_bytes.value)));
}

void predict_elsewhere(const CompareRequest& request, const Config& config, ComparedCell& cell) {
  const SimulatedRun run = simulate_cell(request, config);
  require_fit(*request.profile, run.memory, cell.ranks);
  cell.predicted = CellPrediction{.peak = run.plan().memory,
                                  .traffic = run.plan().traffic,
                                  .device_bytes = run.memory,
                                  .time = time_of_step(run)};
  cell.tokens_per_step = run.tokens;
  cell.state = CellState::kPredicted;
}

/// Adds the simulated time to a cell that can run; without it, it runs all the same.
void add_simulated_time(const CompareRequest& request, const Config& config,
                        const std::string& label, ComparedCell& cell) {
  cell.predicted->time.reset();
  try {
    cell.predicted->time = time_of_step(simulate_cell(request, config));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kConfig && error.code() != ErrorCode::kOutOfMemory) throw;
    print_note(concat("no predicted time: ", label, ": ", error.what()));
  }
}

}  // namespace

Config cell_config(const CompareRequest& request, const std::vector<std::string>& values) {
  Config config = request.config;
  const auto set = [&](bool of_pipeline, bool of_fp8) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto& [name, all, is_of_pipeline, is_of_fp8] = request.axes[i];
      if (is_of_pipeline != of_pipeline || is_of_fp8 != of_fp8) continue;
      config.set_text(name, values[i]);
      if (name == "prefetch_forward") config.set_text("prefetch_backward", values[i]);
    }
  };
  set(false, false);
  if (config.get<std::int64_t>("pipeline") > 1) set(true, false);  // one stage has its own order
  if (config.get<std::string>("precision") == "fp8") set(false, true);
  return config;
}

namespace {

/// Whether another combination is the same run: of values that change nothing the first is taken.
bool is_repeated(const CompareRequest& request, const Config& config,
                 const std::vector<std::string>& values) {
  const bool in_stages = config.get<std::int64_t>("pipeline") > 1;
  const bool in_fp8 = config.get<std::string>("precision") == "fp8";
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Swept& axis = request.axes[i];
    const bool is_idle = (axis.of_pipeline && !in_stages) || (axis.of_fp8 && !in_fp8);
    if (is_idle && values[i] != axis.values.front()) return true;
  }
  return false;
}

/// The settings of each cell, in their order.
std::vector<Config> configs_of(const CompareRequest& request) {
  std::vector<Config> all;
  for (const std::vector<std::string>& values : combinations(request.axes)) {
    Config config = cell_config(request, values);
    if (!is_repeated(request, config, values)) all.push_back(std::move(config));
  }
  return all;
}

}  // namespace

Comparison plan_matrix(const CompareRequest& request) {
  Config base = request.config;
  const GptChoice choice = choose_gpt(base);
  const Model model = make_model(choice);
  Comparison all{.version = TESSERA_VERSION, .date = utc_now()};
  all.machine = request.only_simulates
                    ? simulated_machine(*request.profile, base.get<std::int64_t>("ranks_per_node"))
                    : fingerprint();
  all.command = request.command;
  all.model = model.name;
  all.steps = request.config.get<std::int64_t>("steps");
  all.warmup_steps = request.config.get<std::int64_t>("untimed_steps");
  all.repeats = request.only_simulates ? 0 : request.config.get<std::int64_t>("repeats");
  for (const Swept& axis : request.axes) all.axes.push_back(axis.name);
  if (request.profile) all.profile = request.profile->name;
  if (request.measures_profile) all.profile = kMeasuredProfile;
  all.profile_source = request.profile_source;
  std::optional<DataMixture> dataset;
  if (!request.only_simulates) {
    dataset = open_dataset(base, choice);
    all.data = concat(request.config.get<std::string>("data"), ", ", with_commas(dataset->tokens()),
                      " tokens");
  }
  for (const Config& config : configs_of(request)) {
    ComparedCell cell{.settings = settings_of(config, request.axes)};
    cell.ranks = config.get<std::int64_t>("ranks");
    try {
      if (dataset) {
        predict_here(config, *dataset, cell);
      } else {
        predict_elsewhere(request, config, cell);
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kConfig && error.code() != ErrorCode::kOutOfMemory) throw;
      cell.state = CellState::kImpossible;
      cell.why = with_flags(error.what());
    }
    all.cells.push_back(std::move(cell));
  }
  if (dataset && request.profile) predict_times(request, all);
  return all;
}

void predict_times(const CompareRequest& request, Comparison& planned) {
  std::size_t i = 0;
  for (const Config& config : configs_of(request)) {
    ComparedCell& cell = planned.cells[i++];
    if (!cell.predicted) continue;
    add_simulated_time(request, config, cell_label(planned, cell), cell);
  }
}

std::vector<std::string> train_flags(const ComparedCell& cell) {
  std::vector<std::string> flags{"train", "--no-default-config", "--sample-tokens", "0", "--quiet"};
  for (const NamedText& setting : cell.settings) {
    if (setting.value == "-") continue;  // an axis that this cell does not have
    flags.push_back(flag_name(setting.name) + "=" + setting.value);
  }
  return flags;
}

}  // namespace tessera::cli

#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <limits>
#include <memory>

#include "commands.h"
#include "output/run_report.h"
#include "output/terminal.h"
#include "output/text_output.h"
#include "settings/command_line.h"
#include "settings/gpt_settings.h"
#include "settings/sweep.h"
#include "simulate/simulation.h"
#include "tessera/core/error.h"
#include "tessera/lab/profile_trust.h"
#include "tessera/lab/simulate_step.h"
#include "tessera/sharding/operation.h"
#include "tessera/trainer/byte_size.h"
#include "tessera/trainer/gpu_overhead.h"
#include "tessera/trainer/trainer_settings.h"
#include "tessera/trainer/training_plan.h"

namespace tessera::cli {
namespace {

char sign_of(const Action& action) {
  if (action.operation == &operations::kOptimizerStep) return '+';
  if (!action.operation->is_pass) return '.';
  const int digit = action.micro_step % 10;
  return static_cast<char>(
      (action.operation->parts.backward || action.operation->parts.gradients ? 'a' : '0') + digit);
}

bool works(Lane lane) { return lane == Lane::kCompute || lane == Lane::kOptimizer; }

/// A line for each pipeline rank, whose columns are equal parts of the step: what its compute lane
/// does in the middle of each. A digit is a forward, the last of its micro-step's number; a letter
/// a backward, "a" of the micro-steps 0, 10, ...; "+" an update; "." nothing. `spans`: of one step,
/// by pipeline rank.
std::vector<std::string> pipeline_picture(const StepPlan& step,
                                          const std::vector<std::vector<ActionSpan>>& spans) {
  double begin = std::numeric_limits<double>::infinity(), end = 0.0;
  for (const std::vector<ActionSpan>& own : spans) {
    for (const ActionSpan& span : own) {
      begin = std::min(begin, span.begin);
      end = std::max(end, span.end);
    }
  }
  std::vector<std::string> lines;
  const std::size_t label = std::to_string(spans.size() - 1).size() + 2;
  const std::size_t columns = static_cast<std::size_t>(kColumns) - label;
  const double width = (end - begin) / static_cast<double>(columns);
  for (std::size_t rank = 0; rank < spans.size(); ++rank) {
    std::string line(columns, '.');
    for (const ActionSpan& span : spans[rank]) {
      const Action& action = step.ranks[rank].actions[static_cast<std::size_t>(span.action)];
      if (!works(span.lane) || sign_of(action) == '.') continue;
      // The columns whose middle is in the span.
      const auto column_after = [&](double time) {
        return static_cast<std::size_t>(std::max(0.0, (time - begin) / width + 0.5));
      };
      const std::size_t last = std::min(columns, column_after(span.end));
      for (std::size_t c = column_after(span.begin); c < last; ++c) line[c] = sign_of(action);
    }
    std::string name = std::to_string(rank);
    name.resize(label, ' ');
    lines.push_back(name + line);
  }
  return lines;
}

std::vector<Setting> machine_settings() {
  return joined(
      {in_group(
           "Machine", MustAgree::kNone,
           {{.name = "profile",
             .fallback = "h100-sxm",
             .help = "what the machine achieves: " + tessera::joined(builtin_profiles()) +
                     ", or a file like those"},
            flag_setting("show_profile",
                         "print the profile, with the source of every number, and end"),
            {.name = "ranks_per_node",
             .type = SettingType::kInteger,
             .fallback = 8,
             .help = "GPUs of a node; others are reached over the network",
             .minimum = 1},
            {.name = "sweep",
             .fallback = "",
             .help =
                 "simulate every combination, and mark the Pareto front, where nothing else is "
                 "both smaller and faster: --sweep \"ranks=8,64,512 strategy=zero2,full_shard\"; "
                 "any setting "
                 "of the run can be swept"},
            {.name = "check",
             .fallback = "",
             .help =
                 "predict the runs of a comparison ('tessera compare' writes its results.json), or "
                 "of several, A.json,B.json, and print how far off each prediction is, and all "
                 "together"},
            flag_setting(
                "learn",
                "with --check: write how far off predictions were into the profile, which gives "
                "later predictions their intervals; check those by other runs")}),
       in_group(
           "Output", MustAgree::kNone,
           {{.name = "format",
             .fallback = "text",
             .help =
                 "text, json, or csv: a row for each run, with the settings that are the same in "
                 "all",
             .choices = {"text", "json", "csv"}}})});
}

/// "12.3" for a share, under a heading that has the unit.
std::string percents(double share) { return fixed(100.0 * share, 1); }

/// Where the time of each stage goes, and a picture of it.
void print_stages(std::ostream& out, const SimulatedCell& cell) {
  const double seconds = cell.step.seconds;
  TextTable table({"pipeline rank", "busy %", "exposed %", "messages %", "bubble %"});
  for (std::size_t rank = 0; rank < cell.step.stages.size(); ++rank) {
    const StageTime& time = cell.step.stages[rank];
    table.add({concat(rank), percents(time.compute / seconds), percents(time.exposed / seconds),
               percents(time.exposed_messages / seconds), percents(time.bubble / seconds)});
  }
  table.print(out);
  out << "\n";
  for (const std::string& line : pipeline_picture(cell.plan().step, cell.step.spans)) {
    out << line << "\n";
  }
  out << "\n";
  print_paragraph(
      out,
      "busy: the compute lane works; exposed: collectives run and no computation; messages: the "
      "same of messages between stages; bubble: the rank waits for other stages. In the picture "
      "digits are forwards by the last digit of their micro-step, letters backwards: a of the "
      "micro-steps 0, 10, ..., b of 1, 11, ...; + an update, . nothing.");
  out << "\n";
}

/// " (18.1 to 19.9)", if nine of ten measured steps are expected there; " (..., assumed)".
std::string interval_words(const SimulatedStep& step) {
  if (step.half_width <= 0.0) return "";
  return concat(" (", in_ms(step.seconds * (1.0 - step.half_width)), " to ",
                in_ms(step.seconds * (1.0 + step.half_width)),
                step.assumes_half_width ? ", assumed)" : ")");
}

/// "92 % measured in steps, 8 % corrected": the evidence on which the time of kernels rests.
std::string evidence_words(const PredictedSeconds& kernels) {
  std::vector<std::string> words;
  for (int i = 0; i < kEvidences; ++i) {
    const double share = kernels.by[static_cast<std::size_t>(i)] / kernels.total();
    if (share >= 0.0005) {
      const auto evidence = static_cast<Evidence>(i);
      words.push_back(concat(in_percent(share), " ", to_string(evidence),
                             evidence == Evidence::kMeasured ? " in steps" : ""));
    }
  }
  return tessera::joined(words);
}

/// Prints the lines of a step's power and energy, if the profile knows them.
void print_power(std::ostream& out, const SimulatedCell& cell) {
  const SimulatedStep& step = cell.step;
  if (step.joules <= 0.0) return;
  const char* const where = step.stages.size() > 1 ? " on the stage that takes most" : "";
  std::string words = concat("power          ", fixed(step.watts, 0), " W", where);
  if (step.throttled > 1.0) {
    words += concat(", the limit: the clock falls, and kernels take ",
                    in_percent(step.throttled - 1.0), " longer");
  }
  print_paragraph(out, words, 15);
  out << "energy         " << fixed(1e3 * cell.joules() / static_cast<double>(cell.tokens), 1)
      << " mJ per token, of the GPUs\n";
}

void print_cell(std::ostream& out, const SimulatedCell& cell, const HardwareProfile& profile) {
  const TrainerOptions& options = cell.plan().options;
  out << describe_model(cell.plan()) << "\n"
      << wrapped(describe_ranks(options), kColumns, 2) << "\n"
      << "profile " << profile.name << "; nothing was measured here\n";
  print_paragraph(out, concat("trust it as ", trust_in(profile.name)), 2);
  out << "\n"
      << "step           " << in_ms(cell.step.seconds) << " ms" << interval_words(cell.step)
      << " of " << with_commas(cell.tokens) << " tokens\n"
      << "kernels        " << evidence_words(cell.step.kernels) << "\n"
      << "tokens/s       " << with_prefix(cell.tokens_per_second()) << ", "
      << with_prefix(cell.tokens_per_second() / static_cast<double>(options.ranks))
      << " per rank\n";
  if (cell.mfu > 0.0) {
    print_paragraph(
        out,
        concat("MFU            ", in_percent(cell.mfu), " causal (attention's lower half counts), ",
               in_percent(cell.full_mfu), " full (all of it, as PaLM and torchtitan count), of ",
               with_prefix(cell.peak_flops), "FLOP/s in ", to_string(options.precision),
               "; what is computed again does not count"),
        15);
  }
  print_power(out, cell);
  out << "exposed        " << in_ms(cell.step.communication.exposed) << " ms of "
      << in_ms(cell.step.communication.busy) << " ms communication, "
      << in_percent(cell.step.communication.exposed / cell.step.seconds) << " of the step\n";
  if (cell.step.host_updates > 0.0) {
    print_paragraph(
        out,
        concat("host           ", in_ms(cell.step.host_updates),
               " ms of optimizer steps on the host, at its memory's bandwidth; the GPU computes as "
               "long for ",
               with_commas(std::llround(cell.tokens_to_hide_updates())),
               " tokens of a rank, and with fewer a step waits for the host"),
        15);
  }
  if (cell.step.stages.size() > 1) {
    out << "bubble         " << in_percent(cell.step.bubble() / cell.step.seconds)
        << " of the step; messages are exposed for " << in_ms(cell.step.exposed_messages())
        << " ms of it\n";
  }
  out << "\n";
  if (cell.step.stages.size() > 1) print_stages(out, cell);
  TextTable lanes({"lane", "busy ms", "exposed ms"});
  for (const Lane lane : kAllLanes) {
    if (cell.step.of(lane).busy <= 0.0) continue;
    lanes.add(
        {std::string(to_string(lane)), in_ms(cell.step.of(lane).busy),
         is_communication(lane) || is_copying(lane) ? in_ms(cell.step.of(lane).exposed) : "-"});
  }
  lanes.print(out);
  out << "\n";
  print_memory(out, cell.plan());
  print_gpu_overhead(out, cell.plan());
  out << "\n";
  print_traffic(out, cell.plan().traffic);
  if (static_cast<double>(cell.memory) > profile.memory_bytes.value) {
    out << "\n";
    print_paragraph(
        out, concat("It does not fit: a device of ", profile.name, " has ",
                    format_bytes(static_cast<std::int64_t>(profile.memory_bytes.value)), "."));
  }
}

std::string fixed_in_words(const std::vector<NamedText>& settings) {
  std::vector<std::string> words;
  for (const NamedText& setting : settings) words.push_back(setting.name + " " + setting.value);
  return tessera::joined(words);
}

void print_sweep(std::ostream& out, const Config& config, const std::vector<Swept>& sweep,
                 const std::vector<SimulatedCell>& cells, const HardwareProfile& profile) {
  out << describe_model(cells.front().plan()) << "\n";
  print_paragraph(out, concat("profile ", profile.name, ": ", trust_in(profile.name)), 2);
  print_paragraph(out, "fixed: " + fixed_in_words(fixed_settings(config, sweep, cells)), 2);
  out << "\n";
  print_sweep_table(out, sweep, cells, profile);
}

int run_simulate(const Config& config) {
  const HardwareProfile profile = find_profile(config.get<std::string>("profile"));
  if (config.get<bool>("show_profile")) {
    std::cout << to_text(profile);
    return kExitGood;
  }
  note_noise(profile);
  if (const auto results = config.get<std::string>("check"); !results.empty()) {
    // A path may have a comma.
    const bool is_one = holds_something(results);
    return check_simulation(std::cout, config, profile,
                            is_one ? std::vector{results} : split(results, ','));
  }
  const std::vector<Swept> sweep =
      parse_sweep(config.get<std::string>("sweep"), config.table(), "simulate");
  const bool traces = !config.is_null("trace");
  if (traces) {
    require(sweep.empty(), ErrorCode::kConfig,
            "--trace is of one run, and --sweep of many; leave one of them out");
    check_writable(config.get<std::string>("trace"), "--trace");
  }
  const SimulatedSweep all_cells = simulate_sweep(config, profile, sweep);
  const std::vector<SimulatedCell>& cells = all_cells.cells;
  note_left_out(all_cells.left_out, cells.empty(), "simulated");
  if (traces) write_trace(config.get<std::string>("trace"), cells.front());
  const auto format = config.get<std::string>("format");
  if (format == "csv") {
    std::cout << to_csv(fixed_settings(config, sweep, cells), sweep, cells);
  } else if (format == "json") {
    auto all = nlohmann::ordered_json::array();
    for (const SimulatedCell& cell : cells) all.push_back(to_json(sweep, cell));
    write_json(std::cout, {{"kind", "simulation"}, {"profile", profile.name}, {"runs", all}});
  } else if (sweep.empty()) {
    print_cell(std::cout, cells.front(), profile);
  } else {
    print_sweep(std::cout, config, sweep, cells, profile);
  }
  return kExitGood;
}

}  // namespace

std::vector<Setting> simulate_settings() {
  return joined(
      {model_settings(), without(trainer_settings(), "ranks_per_node"), machine_settings()});
}

namespace {

/// Whether a setting of a run changes how long its step takes, what it needs or what is printed.
bool concerns_a_prediction(const Setting& setting) {
  constexpr std::array kWithoutEffect{"chat_template",  "chat_template_kwargs",
                                      "tokenizer",      "steps",
                                      "seed",           "timeout",
                                      "time_actions",   "check_collectives",
                                      "trace_steps",    "bind",
                                      "bind_core_list", "allow_non_finite",
                                      "dump_folder",    "parameters_hash",
                                      "gemm_table",     "offload_path",
                                      "memory_limit"};
  constexpr std::array kGroupsWithoutEffect{"Loss scaling", "Evaluation", "Checkpoints"};
  if (std::ranges::find(kGroupsWithoutEffect, setting.group) != kGroupsWithoutEffect.end()) {
    return false;
  }
  if (setting.group == "Optimizer")
    return setting.name == "optimizer" || setting.name == "clip_norm";
  return std::ranges::find(kWithoutEffect, setting.name) == kWithoutEffect.end();
}

}  // namespace

std::function<int()> add_simulate(CLI::App& app) {
  std::vector<Setting> settings = simulate_settings();
  for (Setting& setting : settings) {
    if (!concerns_a_prediction(setting)) setting.group = "";  // the help leaves it out
  }
  const auto command =
      std::make_shared<SettingsCommand>(app, std::move(settings), train_only_settings());
  app.footer(app.get_footer() +
             "\nOther flags of 'tessera train' that say what a run is, such as --steps or "
             "--learning-rate, are taken as well; they do not change the prediction.");
  return [command] {
    const Config config = command->config(kForAnyMachine);
    print_announcements(config);
    return run_simulate(config);
  };
}

}  // namespace tessera::cli

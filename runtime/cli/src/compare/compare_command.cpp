#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>
#include <memory>

#include "command_line.h"
#include "commands.h"
#include "compare/child_run.h"
#include "compare/matrix.h"
#include "gpt_settings.h"
#include "interrupt.h"
#include "terminal.h"
#include "tessera/core/error.h"
#include "tessera/core/format_bytes.h"
#include "tessera/core/storage.h"
#include "tessera/lab/comparison_figures.h"
#include "tessera/lab/report.h"
#include "tessera/sharding/placement.h"
#include "tessera/trainer/output_file.h"
#include "tessera/trainer/trainer_settings.h"
#include "text_table.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

std::vector<Setting> compare_settings() {
  const auto of = [](const char* group, Setting setting) {
    setting.group = group;
    setting.must_agree = MustAgree::kNone;
    return setting;
  };
  const auto text = [&](const char* name, const char* help) {
    return of("Matrix", {.name = name, .help = help});
  };
  return {
      text("strategies", "strategies to compare, like zero1,full_shard; all: every preset [the one "
                         "of --strategy]"),
      text("precisions", "precisions to compare, like fp32,bf16"),
      text("recomputes", "recomputations to compare, like none,full"),
      text("prefetches", "prefetch depths to compare, of forward and backward, like 0,1,2"),
      of("Matrix", {.name = "repeats",
                    .type = SettingType::kInteger,
                    .fallback = 3,
                    .help = "runs of each cell; those of all cells take turns",
                    .minimum = 1}),
      of("Matrix", {.name = "untimed_steps",
                    .type = SettingType::kInteger,
                    .fallback = 1,
                    .help = "steps at the beginning of a run that are not timed",
                    .minimum = 0}),
      of("Matrix", {.name = "out",
                    .help = "folder for results.json, report.html and the logs of all runs"}),
      of("Prediction", {.name = "simulate",
                        .help = "a hardware profile by which step times are predicted beside the "
                                "measured ones; see tessera simulate"}),
      of("Prediction", {.name = "only_simulate",
                        .type = SettingType::kFlag,
                        .fallback = false,
                        .help = "predict and run nothing"}),
      of("Prediction", {.name = "ranks_per_node",
                        .type = SettingType::kInteger,
                        .fallback = 8,
                        .help = "of the simulated machine",
                        .minimum = 1})};
}

/// What compare gives to a run itself, or what makes no sense in a series of short ones.
bool is_left_to_compare(const Setting& setting) {
  constexpr std::array kNames{"ranks", "resume", "save", "save_every", "save_total_limit",
                              "save_async", "save_failures", "stop_after", "eval_every",
                              "eval_data", "eval_tokens"};
  return std::ranges::find(kNames, setting.name) != kNames.end();
}

std::vector<Setting> settings_of_runs(bool left_to_compare) {
  std::vector<Setting> all = joined({model_settings(), trainer_settings(), data_settings()});
  std::erase_if(all, [&](const Setting& s) { return is_left_to_compare(s) != left_to_compare; });
  return all;
}

/// The settings of which there is a list, and always strategy and ranks.
std::vector<Swept> axes_of(const Config& config, const std::string& ranks) {
  const auto listed_or_own = [&](const char* list, const char* setting) {
    std::vector<std::string> values;
    if (!config.is_null(list)) values = split(config.get<std::string>(list), ',');
    const auto& own = config.value(setting);
    if (values.empty()) values = {own.is_string() ? own.get<std::string>() : own.dump()};
    return values;
  };
  Swept strategies{"strategy", listed_or_own("strategies", "strategy")};
  if (strategies.values == std::vector<std::string>{"all"}) {
    strategies.values.clear();
    for (const Strategy& strategy : tessera::strategies()) {
      strategies.values.push_back(strategy.name);
    }
  }
  Swept of_ranks{"ranks", split(ranks, ',')};
  if (of_ranks.values.empty()) of_ranks.values = {config.value("ranks").dump()};
  std::vector<Swept> axes{strategies, of_ranks};
  for (const auto& [list, setting] : {std::pair{"precisions", "precision"},
                                      std::pair{"recomputes", "recompute"},
                                      std::pair{"prefetches", "prefetch_forward"}}) {
    if (!config.is_null(list)) axes.push_back({setting, listed_or_own(list, setting)});
  }
  return axes;
}

std::string path_in(const std::string& folder, const char* name) {
  return (fs::path(folder) / name).string();
}

/// Before hours are spent.
void check_folder(const std::string& folder) {
  for (const char* name : {"results.json", "report.html", "runs/cell-1-repeat-1.jsonl"}) {
    check_writable(path_in(folder, name), "--out", Writing::kByReplacing);
  }
}

/// All of it or nothing.
void replace(const std::string& path, const std::string& text) {
  write_file(disk(), path + ".new", text);
  disk().rename(path + ".new", path);
}

/// The same matrix on the same machine with the same program, whatever is done of it.
Comparison as_planned(Comparison comparison) {
  comparison.date.clear();
  comparison.command.clear();
  for (ComparedCell& cell : comparison.cells) {
    if (cell.state != CellState::kImpossible) cell.state = CellState::kMissing;
    cell.why.clear();
    cell.runs.clear();
    cell.timeline.clear();
  }
  return comparison;
}

/// What an earlier call has done of the matrix, or nothing of it.
Comparison begin_or_resume(const CompareRequest& request, Comparison planned) {
  const std::string path = path_in(request.folder, "results.json");
  if (!holds_something(path)) return planned;
  require(request.resumes, ErrorCode::kConfig, path,
          " holds results already; give --resume to go on with them, or --out another folder");
  Comparison earlier = read_comparison(path);
  require(as_planned(earlier) == as_planned(planned), ErrorCode::kConfig, path,
          " is of another matrix, machine or version of tessera; give the arguments that began it (",
          "they are in its report), or --out another folder");
  for (ComparedCell& cell : earlier.cells) {
    if (cell.state == CellState::kFailed) cell.state = CellState::kMissing;
  }
  return earlier;
}

std::string in_milliseconds(double seconds) {
  return fixed(seconds * 1e3, seconds < 0.01 ? 3 : 1) + " ms";
}

/// Runs what is missing, and keeps each run at once.
class Matrix {
 public:
  Matrix(const CompareRequest& request, Comparison& results)
      : request_(request), results_(results) {
    for (const ComparedCell& cell : results_.cells) {
      if (cell.state == CellState::kMissing) {
        left_ += results_.repeats - static_cast<std::int64_t>(cell.runs.size());
      }
    }
  }

  /// The signal that ended it, or 0. Repeats of all cells take turns, each in another order, so
  /// that a machine that grows slower is no disadvantage of the last.
  int run() {
    const auto count = results_.cells.size();
    for (std::int64_t repeat = 0; repeat < results_.repeats; ++repeat) {
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t index = (i + static_cast<std::size_t>(repeat)) % count;
        ComparedCell& cell = results_.cells[index];
        const bool is_due = cell.state == CellState::kMissing &&
                            static_cast<std::int64_t>(cell.runs.size()) == repeat;
        if (is_due) run_cell(cell, index, repeat);
        if (interrupt_.signal() != 0) return interrupt_.signal();
      }
    }
    return 0;
  }

 private:
  void run_cell(ComparedCell& cell, std::size_t index, std::int64_t repeat) {
    const std::string label =
        concat(++done_, "/", left_, "  repeat ", repeat + 1, ", ", cell_label(results_, cell));
    if (inspect(stderr).interactive) std::cerr << label << " ..." << std::flush;
    const std::string path = path_in(
        request_.folder, concat("runs/cell-", index + 1, "-repeat-", repeat + 1).c_str());
    ChildResult result = run_child(train_flags(cell), path, results_.warmup_steps, interrupt_);
    if (inspect(stderr).interactive) std::cerr << "\r\033[K";
    if (result.run) {
      std::cerr << label << ": " << in_milliseconds(median(result.run->step_seconds))
                << " per step\n";
      cell.runs.push_back(std::move(*result.run));
      if (static_cast<std::int64_t>(cell.runs.size()) == results_.repeats) {
        cell.state = CellState::kDone;
      }
    } else if (!result.why.empty()) {
      std::cerr << for_reader(inspect(stderr), concat(label, ": failed: ", result.why), 4) << "\n";
      cell.state = CellState::kFailed;
      cell.why = result.why;
    }
    replace(path_in(request_.folder, "results.json"), to_text(results_));
  }

  const CompareRequest& request_;
  Comparison& results_;
  const InterruptGuard interrupt_;
  std::int64_t left_ = 0;
  std::int64_t done_ = 0;
};

void print_table(std::ostream& out, const Comparison& results) {
  const std::vector<std::string> groups = bit_groups(results);
  const std::vector<bool> best = best_cells(results);
  TextTable table({"cell", "ms/step", "+/-", "tokens/s", "peak", "exposed", "bits", ""});
  for (std::size_t i = 0; i < results.cells.size(); ++i) {
    const ComparedCell& cell = results.cells[i];
    if (cell.state == CellState::kImpossible) continue;
    const std::optional<Estimate> time = shown_step_time(cell);
    const std::optional<double> exposed = shown_exposed(cell);
    table.add({cell_label(results, cell), time ? fixed(time->value * 1e3, 1) : "-",
               time && time->half_width ? fixed(*time->half_width * 1e3, 1) : "-",
               time ? with_prefix(static_cast<double>(cell.tokens_per_step) / time->value) : "-",
               format_bytes(shown_peak(cell).total),
               exposed ? fixed(*exposed * 1e3, 2) + " ms" : "-",
               groups[i].empty() ? "-" : groups[i],
               cell.state == CellState::kDone ? (best[i] ? "best" : "")
                                              : std::string(to_string(cell.state))});
  }
  table.print(out);
  out << "\n" << wrapped(std::string(kMethod), kColumns) << "\n";
  for (const ComparedCell& cell : results.cells) {
    if (cell.why.empty()) continue;
    out << wrapped(concat(to_string(cell.state), ": ", cell_label(results, cell), ": ", cell.why),
                   kColumns, 2)
        << "\n";
  }
}

/// The arguments that ask for the same matrix, in full.
std::vector<std::string> command_line_of(const Config& config, const std::string& ranks) {
  std::vector<std::string> words{"compare"};
  if (!ranks.empty()) words.insert(words.end(), {"--ranks", ranks});
  for (const Setting& setting : config.table()) {
    if (!config.given(setting.name) || is_left_to_compare(setting)) continue;
    const auto& value = config.value(setting.name);
    words.push_back(flag_name(setting.name));
    words.push_back(value.is_string() ? value.get<std::string>() : value.dump());
  }
  return words;
}

int run_compare(const CompareRequest& request) {
  check_folder(request.folder);
  Comparison results = begin_or_resume(request, plan_matrix(request));
  const bool none_can_run = std::ranges::all_of(results.cells, [](const ComparedCell& cell) {
    return cell.state == CellState::kImpossible;
  });
  require(!none_can_run, ErrorCode::kConfig, "no cell of the matrix can run: ",
          results.cells.front().why);
  for (const ComparedCell& cell : results.cells) {
    if (cell.state != CellState::kImpossible) continue;
    std::cerr << for_reader(inspect(stderr),
                            concat("note: impossible: ", cell_label(results, cell), ": ", cell.why),
                            2)
              << "\n";
  }
  fs::create_directories(fs::path(request.folder) / "runs");
  replace(path_in(request.folder, "results.json"), to_text(results));
  const int signal = request.only_simulates ? 0 : Matrix(request, results).run();
  replace(path_in(request.folder, "report.html"), to_html(results));
  print_table(std::cout, results);
  std::cout << "\n" << path_in(request.folder, "report.html") << " shows it, "
            << path_in(request.folder, "results.json") << " has the numbers\n";
  if (signal != 0) {
    std::cout << "stopped; the same command with --resume goes on\n";
    return kExitSignal + signal;
  }
  const bool failed = std::ranges::any_of(
      results.cells, [](const ComparedCell& cell) { return cell.state == CellState::kFailed; });
  return failed ? kExitRunTime : kExitGood;
}

}  // namespace

Command add_compare(CLI::App& program) {
  struct Given {
    std::string ranks;
    bool resumes = false;
  };
  const auto given = std::make_shared<Given>();
  const auto command = std::make_shared<SettingsCommand>(
      program, "compare", "Run or predict a matrix of strategies, ranks and more, with a report",
      joined({compare_settings(), settings_of_runs(false)}), settings_of_runs(true));
  command->command()
      .add_option("--ranks", given->ranks, "numbers of ranks to compare, like 2,4")
      ->type_name("N,...")
      ->group("Matrix");
  command->command()
      .add_flag("--resume", given->resumes, "go on with the matrix that --out holds")
      ->group("Matrix");
  return {&command->command(), [command, given] {
            CompareRequest request{.config = command->config(std::cerr, kForAnyMachine)};
            print_announcements(std::cerr, request.config);
            const Config& config = request.config;
            request.axes = axes_of(config, given->ranks);
            require(!config.is_null("out") && !config.get<std::string>("out").empty(),
                    ErrorCode::kConfig, "nowhere to write the results: give --out a folder");
            request.folder = config.get<std::string>("out");
            request.resumes = given->resumes;
            request.only_simulates = config.get<bool>("only_simulate");
            if (!config.is_null("simulate")) {
              request.profile = find_profile(config.get<std::string>("simulate"));
            }
            require(request.profile || !request.only_simulates, ErrorCode::kConfig,
                    "--only-simulate needs --simulate, a hardware profile");
            require(request.only_simulates || config.get<std::int64_t>("untimed_steps") <
                                                  config.get<std::int64_t>("steps"),
                    ErrorCode::kConfig, "--untimed-steps ",
                    config.get<std::int64_t>("untimed_steps"), " leaves no step of --steps ",
                    config.get<std::int64_t>("steps"), " to time; raise --steps");
            request.command = command_line_of(config, given->ranks);
            return run_compare(request);
          }};
}

}  // namespace tessera::cli

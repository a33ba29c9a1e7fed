#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>

#include "commands.h"
#include "compare/compared_cells.h"
#include "compare/measured_profile.h"
#include "compare/run_log.h"
#include "output/run_report.h"
#include "output/terminal.h"
#include "run/interrupt.h"
#include "settings/command_line.h"
#include "settings/gpt_settings.h"
#include "settings/option_names.h"
#include "tessera/core/error.h"
#include "tessera/lab/comparison_figures.h"
#include "tessera/lab/report.h"
#include "tessera/sharding/strategies.h"
#include "tessera/trainer/output_file.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

/// A list of values of a setting, which makes it an axis of the matrix.
struct ListedAxis {
  const char* list;
  const char* setting;
  const char* help;
  bool of_pipeline = false;
  bool of_fp8 = false;
};
/// To add an axis: a row. Those of strategy and ranks are there always.
constexpr std::array kListedAxes{
    ListedAxis{"precisions", "precision", "precisions to compare, like fp32,bf16,fp8"},
    ListedAxis{"fp8_recipes", "fp8_recipe", "recipes of fp8 to compare, like current,delayed",
               false, true},
    ListedAxis{"gather_formats", "gather_format",
               "formats of gathers in fp8 to compare, like e4m3,bf16", false, true},
    ListedAxis{"micro_batches", "micro_batch", "micro-batches to compare, like 1,4,16"},
    ListedAxis{"replica_counts", "replicas",
               "numbers of copies of the sharded state to compare, like 0,2,4; 0: the strategy's "
               "own"},
    ListedAxis{"recomputes", "recompute", "recomputations to compare, like none,full"},
    ListedAxis{"prefetches", "prefetch_forward",
               "prefetch depths to compare, of forward and backward, like 0,1,2"},
    ListedAxis{"pipelines", "pipeline", "numbers of pipeline ranks to compare, like 1,2,4"},
    ListedAxis{"pipeline_schedules", "pipeline_schedule",
               "orders of a pipeline to compare, like 1f1b,interleaved,zb-v", true},
    ListedAxis{"virtual_stage_counts", "virtual_stages",
               "numbers of stages on a pipeline rank to compare, like 1,2,4", true}};

std::vector<Setting> compare_settings() {
  std::vector<Setting> lists{{.name = "strategies",
                              .help = "strategies to compare, like zero1,full_shard; all: every "
                                      "preset [the one of --strategy]"}};
  for (const ListedAxis& axis : kListedAxes)
    lists.push_back({.name = axis.list, .help = axis.help});
  const std::vector<Setting> runs{
      {.name = "repeats",
       .type = SettingType::kInteger,
       .fallback = 3,
       .help = "runs of each cell; those of all cells take turns",
       .minimum = 1},
      {.name = "untimed_steps",
       .type = SettingType::kInteger,
       .fallback = 1,
       .help = "steps at the beginning of a run that are not timed",
       .minimum = 0},
      {.name = "out", .help = "folder for results.json, report.html and the logs of all runs"}};
  const std::vector<Setting> prediction{
      {.name = "simulate",
       .help = "a hardware profile by which step times are predicted beside the measured ones; see "
               "tessera simulate; measured: calibrate this machine between the runs, and keep the "
               "profile as measured.json in --out (a file of that name is ./measured)"},
      {.name = "time_budget",
       .type = SettingType::kNumber,
       .fallback = 180.0,
       .help = "with --simulate measured: seconds that timing kernels alone and collectives may "
               "take, which each repeat does again while others disturb them; kernels inside of "
               "steps take a thirtieth of it in each of four runs, for "
               "each repeat, precision and micro-batch",
       .minimum = 0},
      flag_setting("only_simulate",
                   "predict and run nothing; with a profile that is there already, so not with "
                   "--simulate measured"),
      {.name = "ranks_per_node",
       .type = SettingType::kInteger,
       .fallback = 8,
       .help = "of the simulated machine",
       .minimum = 1}};
  return joined({in_group("Matrix", MustAgree::kNone, joined({lists, runs})),
                 in_group("Prediction", MustAgree::kNone, prediction)});
}

/// True of a setting that compare gives to a run itself, or that makes no sense in a series of
/// short runs.
bool is_left_to_compare(const Setting& setting) {
  constexpr std::array kNames{"ranks",      "ranks_per_node",   "resume",     "save",
                              "save_every", "save_total_limit", "save_async", "save_failures",
                              "stop_after", "eval_every",       "eval_data",  "eval_tokens",
                              "trace",      "trace_steps"};
  return std::ranges::find(kNames, setting.name) != kNames.end();
}

std::vector<Setting> settings_of_runs() {
  std::vector<Setting> all = joined({model_settings(), trainer_settings(), data_settings()});
  std::erase_if(all, is_left_to_compare);
  return all;
}

/// A config file of `tessera train` may have them, without effect but for ranks.
std::vector<Setting> settings_of_files() {
  const std::vector<Setting> flags = settings_of_runs();
  std::vector<Setting> all =
      joined({without(trainer_settings(), "ranks_per_node"), train_only_settings()});
  std::erase_if(
      all, [&](const Setting& setting) { return find_setting(flags, setting.name) != nullptr; });
  return all;
}

/// A cell would be there twice.
void refuse_repetition(const Swept& axis) {
  for (auto value = axis.values.begin(); value != axis.values.end(); ++value) {
    require(std::find(value + 1, axis.values.end(), *value) == axis.values.end(),
            ErrorCode::kConfig, axis.name, ": '", *value, "' is listed twice; leave one out");
  }
}

/// The settings of which there is a list, and always strategy and ranks.
std::vector<Swept> axes_of(const Config& config, const std::string& ranks) {
  const auto listed_or_own = [&](const char* list, const char* setting) {
    std::vector<std::string> values;
    if (!config.is_null(list)) values = split(config.get<std::string>(list), ',');
    if (values.empty()) values = {plain_text(config.value(setting))};
    return values;
  };
  Swept strategies{"strategy", listed_or_own("strategies", "strategy"), false};
  if (strategies.values == std::vector<std::string>{"all"}) {
    strategies.values.clear();
    for (const Strategy& strategy : tessera::strategies()) {
      strategies.values.push_back(strategy.name);
    }
  }
  Swept of_ranks{"ranks", split(ranks, ','), false};
  if (of_ranks.values.empty()) of_ranks.values = {config.value("ranks").dump()};
  std::vector<Swept> axes{strategies, of_ranks};
  for (const ListedAxis& axis : kListedAxes) {
    if (config.is_null(axis.list)) continue;
    axes.push_back(
        {axis.setting, listed_or_own(axis.list, axis.setting), axis.of_pipeline, axis.of_fp8});
  }
  for (const Swept& axis : axes) refuse_repetition(axis);
  return axes;
}

std::string path_in(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

/// Refuses a folder that cannot take the results, before anything is planned or written.
void check_folder(const std::string& folder) {
  for (const char* name : {"results.json", "report.html", "runs/cell-1-repeat-1.jsonl"}) {
    check_writable(path_in(folder, name), "--out", Writing::kByReplacing);
  }
}

/// The matrix with the results of an earlier call, or without any.
Comparison begin_or_resume(const CompareRequest& request, Comparison planned) {
  const std::string path = path_in(request.folder, "results.json");
  if (!holds_something(path)) return planned;
  require(request.resumes, ErrorCode::kConfig, path,
          " holds results already; give --resume to go on with them, or --out another folder");
  const Comparison earlier = read_comparison(path);
  const std::string why = difference(earlier, planned);
  require(why.empty(), ErrorCode::kConfig, path, " ", why,
          "; give the arguments that began it, which are in its report, or --out another folder");
  return gone_on(earlier, std::move(planned));
}

/// Runs what is missing, and keeps each run at once.
class Matrix {
 public:
  /// `profile`: to be measured between the runs; null: none is.
  Matrix(const CompareRequest& request, Comparison& results, MeasuredProfile* profile)
      : request_(request), results_(results), profile_(profile) {
    for (const ComparedCell& cell : results_.cells) left_ += runs_left(cell);
    if (profile_ != nullptr) left_ += calibrations_left();
  }

  /// The signal that ended it, or 0. Throws Error{kUnavailable} if kernels cannot be timed.
  int run() {
    run_repeats();
    for (std::size_t i = 0; i < results_.cells.size() && interrupt_.signal() == 0; ++i) {
      ComparedCell& cell = results_.cells[i];
      if (cell.state == CellState::kDone && cell.timeline.empty()) trace_cell(cell, i);
    }
    return interrupt_.signal();
  }

 private:
  std::int64_t runs_left(const ComparedCell& cell) const {
    if (cell.state != CellState::kMissing) return 0;
    return results_.repeats - static_cast<std::int64_t>(cell.runs.size());
  }

  std::int64_t calibrations_left() const {
    std::int64_t left = 0;  // and kernels alone, as often as they are disturbed
    for (std::size_t kind = 0; kind < profile_->kinds(); ++kind) {
      for (std::int64_t repeat = 0; repeat < results_.repeats; ++repeat) {
        left += profile_->has_steps(kind, repeat) ? 0 : 1;
      }
    }
    return left;
  }

  /// Repeats of all cells take turns, each in another order, so that a machine that grows slower is
  /// no disadvantage of the last. Kinds of steps are timed at even distances between them.
  void run_repeats() {
    const std::size_t count = results_.cells.size();
    const std::size_t kinds = profile_ == nullptr ? 0 : profile_->kinds();
    for (std::int64_t repeat = 0; repeat < results_.repeats; ++repeat) {
      if (profile_ != nullptr && profile_->needs_kernels(repeat)) {
        ++left_;
        time_kernels();
        if (interrupt_.signal() != 0) return;
      }
      std::size_t timed = 0;
      for (std::size_t i = 0; i < count; ++i) {
        for (; timed < kinds && (2 * timed + 1) * count <= 2 * kinds * i; ++timed) {
          time_steps((timed + static_cast<std::size_t>(repeat)) % kinds, repeat);
          if (interrupt_.signal() != 0) return;
        }
        const std::size_t index = (i + static_cast<std::size_t>(repeat)) % count;
        ComparedCell& cell = results_.cells[index];
        const bool is_due = cell.state == CellState::kMissing &&
                            static_cast<std::int64_t>(cell.runs.size()) == repeat;
        if (is_due) run_cell(cell, index, repeat);
        if (interrupt_.signal() != 0) return;
      }
      for (; timed < kinds; ++timed) {
        time_steps((timed + static_cast<std::size_t>(repeat)) % kinds, repeat);
        if (interrupt_.signal() != 0) return;
      }
    }
  }

  void time_kernels() {
    const ChildResult child = profile_->time_kernels(calibrate());
    require(child.why.empty() || profile_->has_kernels(), ErrorCode::kUnavailable,
            "kernels cannot be timed: ", child.why, "; ", in_folder("runs/kernels.txt"),
            " has all that was printed");
    if (!child.why.empty()) tell(concat("note: kernels are not timed again: ", child.why));
  }

  /// Without the times of a step the comparison goes on: its predictions rest on others.
  void time_steps(std::size_t kind, std::int64_t repeat) {
    if (profile_->has_steps(kind, repeat)) return;
    const ChildResult child = profile_->time_steps(kind, repeat, calibrate());
    if (!child.why.empty()) tell(concat("note: these steps are not timed: ", child.why));
  }

  MeasuredProfile::RunCalibration calibrate() {
    return [this](const std::string& what, std::vector<std::string> flags,
                  const std::string& printed) {
      const std::string label = concat(++done_, "/", left_, "  ", what);
      const auto begin = std::chrono::steady_clock::now();
      ChildResult child = run_shown(label, std::move(flags), printed);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      if (child.trained) tell(concat(label, ": timed in ", fixed(took.count(), 1), " s"));
      return child;
    };
  }

  void run_cell(ComparedCell& cell, std::size_t index, std::int64_t repeat) {
    const std::string label =
        concat(++done_, "/", left_, "  repeat ", repeat + 1, ", ", cell_label(results_, cell));
    const std::string path = in_folder(concat("runs/cell-", index + 1, "-repeat-", repeat + 1));
    ChildResult child = train(label, train_flags(cell), path);
    if (child.trained) {
      try {
        cell.runs.push_back(read_run_log(path + ".jsonl", results_.steps, results_.warmup_steps));
        tell(concat(label, ": ", in_ms(median(cell.runs.back().step_seconds)), " ms per step"));
        if (runs_left(cell) == 0) cell.state = CellState::kDone;
      } catch (const Error& error) {
        child.why = with_flags(error.what());
      }
    }
    if (!child.why.empty()) {
      tell(concat(label, ": failed: ", child.why));
      left_ -= runs_left(cell) - 1;
      cell.state = CellState::kFailed;
      cell.why = child.why;
    }
    keep_results();
  }

  /// A run of its own, since what is traced may be slower: on a GPU it is no CUDA graph. Without
  /// its timeline a cell is done all the same.
  void trace_cell(ComparedCell& cell, std::size_t index) {
    constexpr std::int64_t kSteady = 3;
    const std::int64_t step =
        std::min(results_.steps, std::max(results_.warmup_steps + 1, kSteady));
    const std::string label = concat("timeline of ", cell_label(results_, cell));
    const std::string path = in_folder(concat("runs/cell-", index + 1));
    const std::string trace = path + ".trace.json";
    std::vector<std::string> flags = train_flags(cell);
    flags.insert(flags.end(), {concat("--trace=", trace), concat("--trace-steps=", step),
                               concat("--stop-after=", step)});
    ChildResult child = train(label, std::move(flags), path);
    if (child.trained) {
      try {
        cell.timeline = read_timeline(trace, cell.ranks / pipeline_ranks(cell));
      } catch (const Error& error) {
        child.why = with_flags(error.what());
      }
    }
    if (!child.why.empty()) tell(concat("note: no ", label, ": ", child.why));
    keep_results();
  }

  ChildResult train(const std::string& label, std::vector<std::string> flags,
                    const std::string& path) const {
    flags.insert(flags.end(), {concat("--log=", path, ".jsonl"), "--overwrite"});
    return run_shown(label, std::move(flags), path + ".txt");
  }

  ChildResult run_shown(const std::string& label, std::vector<std::string> flags,
                        const std::string& printed) const {
    const Terminal terminal = inspect(stderr);
    if (terminal.interactive) {  // in one line, which is erased
      const auto room = static_cast<std::size_t>(std::max(terminal.columns - 5, 0));
      std::cerr << label.substr(0, room) << " ..." << std::flush;
    }
    ChildResult child = run_child(std::move(flags), printed, interrupt_);
    if (terminal.interactive) std::cerr << "\r\033[K";
    return child;
  }

  void tell(const std::string& line) const { print_line(stderr, line, 4); }
  std::string in_folder(const std::string& name) const { return path_in(request_.folder, name); }
  void keep_results() const { replace_file(in_folder("results.json"), "--out", to_text(results_)); }

  const CompareRequest& request_;
  Comparison& results_;
  MeasuredProfile* const profile_;
  const InterruptGuard interrupt_;
  std::int64_t left_ = 0;
  std::int64_t done_ = 0;
};

/// The arguments that ask for the same matrix, in full, whatever a config file said.
std::vector<std::string> command_line_of(const Config& config, const std::string& ranks) {
  std::vector<std::string> words{"compare"};
  const auto add = [&](const std::string& flag, const std::string& value) {
    words.push_back(concat(flag, "=", value));
  };
  if (!ranks.empty()) {
    add("--ranks", ranks);
  } else if (config.given("ranks")) {
    add("--ranks", config.value("ranks").dump());
  }
  const std::vector<Setting> of_files = settings_of_files();
  for (const Setting& setting : config.table()) {
    const bool is_flag = find_setting(of_files, setting.name) == nullptr;
    if (!is_flag || !config.given(setting.name)) continue;
    add(flag_name(setting.name), plain_text(config.value(setting.name)));
  }
  return words;
}

/// Makes the folder and writes what is planned, so that what cannot be written is known before
/// hours are spent.
void begin_folder(const CompareRequest& request, const Comparison& results) {
  const fs::path runs = fs::path(request.folder) / "runs";
  std::error_code error;
  fs::create_directories(runs, error);
  require(!error, ErrorCode::kIo, runs.string(), ": cannot be made (", error.message(),
          "); give --out a folder that is writable");
  replace_file(path_in(request.folder, "results.json"), "--out", to_text(results));
  replace_file(path_in(request.folder, "report.html"), "--out", to_html(results));
}

void print_outcome(const CompareRequest& request, const Comparison& results, int signal) {
  print_table(std::cout, results);
  std::cout << "\nreport   " << path_in(request.folder, "report.html") << "\nresults  "
            << path_in(request.folder, "results.json") << "\n";
  if (signal != 0) std::cout << "stopped; the same command with --resume goes on\n";
}

int run_compare(CompareRequest request) {
  check_folder(request.folder);
  const bool has_earlier = holds_something(path_in(request.folder, "results.json"));
  Comparison results = begin_or_resume(request, plan_matrix(request));
  const bool none_can_run = std::ranges::all_of(
      results.cells, [](const ComparedCell& cell) { return cell.state == CellState::kImpossible; });
  require(!none_can_run, ErrorCode::kConfig,
          "no cell of the matrix can run: ", results.cells.front().why);
  const auto impossible =
      std::ranges::count(results.cells, CellState::kImpossible, &ComparedCell::state);
  if (impossible > 0 && !request.only_simulates) {
    print_note(concat(impossible, " of ", counted(std::ssize(results.cells), "cell"),
                      " cannot run; the table at the end and the report say why"));
  }
  std::optional<MeasuredProfile> measured;
  if (request.measures_profile) measured.emplace(request, results, has_earlier);
  begin_folder(request, results);
  const int signal =
      request.only_simulates ? 0 : Matrix(request, results, measured ? &*measured : nullptr).run();
  if (measured && measured->has_kernels()) {
    request.profile = measured->write();
    note_noise(*request.profile);
    predict_times(request, results);
    replace_file(path_in(request.folder, "results.json"), "--out", to_text(results));
  }
  replace_file(path_in(request.folder, "report.html"), "--out", to_html(results));
  print_outcome(request, results, signal);
  if (signal != 0) return kExitSignal + signal;
  const bool failed = std::ranges::any_of(
      results.cells, [](const ComparedCell& cell) { return cell.state == CellState::kFailed; });
  return failed ? kExitRunTime : kExitGood;
}

/// Reads the profile of --simulate, or notes that it is to be measured.
void choose_profile(CompareRequest& request) {
  if (request.config.is_null("simulate")) return;
  const auto name = request.config.get<std::string>("simulate");
  request.measures_profile = name == kMeasuredProfile;
  if (request.measures_profile) {
    require(!request.only_simulates, ErrorCode::kConfig,
            "--only-simulate runs nothing, and --simulate measured measures this machine; leave "
            "one of them out, or give the file measured.json that an earlier comparison wrote");
    request.profile_source =
        "which this comparison measured: kernels alone and collectives before its runs, kernels "
        "inside of steps between them in each repeat";
    return;
  }
  request.profile = find_profile(name);
  const std::vector<std::string> builtin = builtin_profiles();
  if (std::ranges::find(builtin, name) == builtin.end()) {
    request.profile_source = "of the file " + name;
  }
  note_noise(*request.profile);
}

}  // namespace

std::function<int()> add_compare(CLI::App& app) {
  struct Given {
    std::string ranks;
    bool resumes = false;
  };
  const auto given = std::make_shared<Given>();
  const auto command = std::make_shared<SettingsCommand>(
      app, joined({compare_settings(), settings_of_runs()}), settings_of_files());
  app.add_option("--ranks", given->ranks, "numbers of ranks to compare, like 2,4")
      ->type_name("N,...")
      ->group("Matrix");
  app.add_flag("--resume", given->resumes,
               "go on with the matrix that --out holds, also with more --repeats than before")
      ->group("Matrix");
  return [command, given] {
    CompareRequest request{.config = command->config(kForAnyMachine)};
    print_announcements(request.config);
    const Config& config = request.config;
    request.axes = axes_of(config, given->ranks);
    request.folder = config.text("out");
    require(!request.folder.empty(), ErrorCode::kConfig,
            "nowhere to write the results: give --out a folder");
    request.resumes = given->resumes;
    request.only_simulates = config.get<bool>("only_simulate");
    choose_profile(request);
    require(request.profile || request.measures_profile || !request.only_simulates,
            ErrorCode::kConfig, "--only-simulate needs --simulate, a hardware profile");
    require(request.only_simulates ||
                config.get<std::int64_t>("untimed_steps") < config.get<std::int64_t>("steps"),
            ErrorCode::kConfig, "--untimed-steps ", config.get<std::int64_t>("untimed_steps"),
            " leaves no step of --steps ", config.get<std::int64_t>("steps"),
            " to time; raise --steps");
    request.command = command_line_of(config, given->ranks);
    return run_compare(std::move(request));
  };
}

}  // namespace tessera::cli

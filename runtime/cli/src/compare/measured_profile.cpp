#include "compare/measured_profile.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <utility>

#include "commands.h"
#include "settings/gpt_settings.h"
#include "tessera/core/error.h"
#include "tessera/lab/calibrate.h"
#include "tessera/lab/comparison_figures.h"
#include "tessera/lab/measurement_noise.h"
#include "tessera/lab/step_times.h"
#include "tessera/trainer/output_file.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

/// Settings of a run that its steps have nothing of where they are timed (see calibrate_steps()),
/// and the table of GEMMs, which `tessera calibrate` would make.
constexpr std::array kOfNoKind{"strategy",          "trainable_strategy", "ranks",
                               "replicas",          "accumulate",         "recompute",
                               "prefetch_forward",  "prefetch_backward",  "pipeline",
                               "pipeline_schedule", "virtual_stages",     "gather_format",
                               "threads_per_rank",  "gemm_table"};

bool is_of_a_kind(const std::string& name) {
  static const std::vector<Setting> all =
      joined({model_settings(), without(trainer_settings(), "ranks_per_node")});
  return find_setting(all, name) != nullptr &&
         std::ranges::find(kOfNoKind, name) == kOfNoKind.end();
}

/// The flags of the steps that a cell needs. A model is always named: without one, `tessera
/// calibrate` times no steps.
std::vector<std::string> step_flags(const ComparedCell& cell, const std::string& model) {
  std::vector<std::string> flags;
  if (cell.setting("model").empty() && cell.setting("init").empty()) {
    flags.push_back("--model=" + model);
  }
  for (const NamedText& setting : cell.settings) {
    if (setting.value == "-" || !is_of_a_kind(setting.name)) continue;
    flags.push_back(flag_name(setting.name) + "=" + setting.value);
  }
  std::ranges::sort(flags);  // cells have their settings in the order of the axes
  return flags;
}

}  // namespace

MeasuredProfile::MeasuredProfile(const CompareRequest& request, const Comparison& planned,
                                 bool goes_on)
    : path_((fs::path(request.folder) / concat(kMeasuredProfile, ".json")).string()),
      runs_((fs::path(request.folder) / "runs").string()),
      repeats_(planned.repeats) {
  const Config& config = request.config;
  of_all_ = {"calibrate", "--no-default-config", "--anyway",
             "--time-budget=" + plain_text(config.value("time_budget"))};
  of_kernels_ = of_all_;
  if (config.given("device")) of_kernels_.push_back("--device=" + config.text("device"));
  Comparison of_kinds{.axes = planned.axes};  // in whose words kinds are named
  std::erase_if(of_kinds.axes, [](const std::string& axis) { return !is_of_a_kind(axis); });
  for (const ComparedCell& cell : planned.cells) {
    if (cell.state == CellState::kImpossible) continue;
    StepKind kind{.flags = step_flags(cell, config.text("model")),
                  .label = "kernels inside of steps",
                  .file = "steps"};
    if (std::ranges::find(kinds_, kind.flags, &StepKind::flags) != kinds_.end()) continue;
    for (const std::string& axis : of_kinds.axes) kind.file += "-" + cell.setting(axis);
    if (!of_kinds.axes.empty()) kind.label += ", " + cell_label(of_kinds, cell);
    kinds_.push_back(std::move(kind));
  }
  has_kernels_ = holds_something(path_);
  require(!has_kernels_ || request.resumes, ErrorCode::kConfig, path_,
          " holds a profile already; give --resume to keep its kernels and collectives, remove it, "
          "or give --out another folder");
  if (!has_kernels_) return;
  without_steps();  // a file that is no profile is refused before the first run
  for (StepKind& kind : kinds_) {
    for (std::int64_t repeat = 0; goes_on && repeat < repeats_; ++repeat) {
      const std::string file = file_of(kind, repeat);
      if (holds_something(file) && !find_profile(file).steps.empty()) kind.timed.insert(repeat);
    }
  }
}

std::string MeasuredProfile::file_of(const StepKind& kind, std::int64_t repeat) const {
  return (fs::path(runs_) / concat(kind.file, "-repeat-", repeat + 1, ".json")).string();
}

HardwareProfile MeasuredProfile::without_steps() const {
  HardwareProfile profile = find_profile(path_);
  profile.steps.clear();
  return profile;
}

bool MeasuredProfile::needs_kernels(std::int64_t repeat) const {
  if (!has_kernels_) return true;
  const bool is_done = std::ranges::all_of(
      kinds_, [&](const StepKind& kind) { return kind.timed.contains(repeat); });
  if (repeat == 0 || is_done) return false;
  const HardwareProfile profile = without_steps();
  return profile.device == "cpu" && profile.noise && !disturbances(*profile.noise).empty();
}

ChildResult MeasuredProfile::time_kernels(const RunCalibration& run) {
  std::vector<std::string> flags = of_kernels_;
  flags.push_back("--profile=" + path_);
  if (has_kernels_) flags.emplace_back("--again");
  const ChildResult child =
      run(has_kernels_ ? "kernels alone and collectives again" : "kernels alone and collectives",
          std::move(flags), (fs::path(runs_) / "kernels.txt").string());
  has_kernels_ = has_kernels_ || child.trained;
  return child;
}

ChildResult MeasuredProfile::time_steps(std::size_t number, std::int64_t repeat,
                                        const RunCalibration& run) {
  StepKind& kind = kinds_[number];
  const std::string file = file_of(kind, repeat);
  replace_file(file, "--out", to_text(without_steps()));
  std::vector<std::string> flags = of_all_;
  flags.push_back("--profile=" + file);
  flags.insert(flags.end(), kind.flags.begin(), kind.flags.end());
  ChildResult child = run(concat("repeat ", repeat + 1, ", ", kind.label), std::move(flags),
                          fs::path(file).replace_extension(".txt").string());
  if (child.trained) kind.timed.insert(repeat);
  return child;
}

HardwareProfile MeasuredProfile::write() const {
  HardwareProfile profile = without_steps();
  profile.name = kMeasuredProfile;  // whoever has put it there
  std::map<std::pair<std::string, int>, std::vector<StepTimes>> repeats;
  for (const StepKind& kind : kinds_) {
    for (const std::int64_t repeat : kind.timed) {
      HardwareProfile timed = find_profile(file_of(kind, repeat));
      for (StepTimes& steps : timed.steps) {
        restate_alone(steps, timed, profile);
        repeats[{steps.model, steps.threads}].push_back(std::move(steps));
      }
    }
  }
  for (auto& [run, times] : repeats) profile.steps.push_back(joined_repeats(std::move(times)));
  replace_file(path_, "--out", to_text(profile));
  return find_profile(path_);
}

}  // namespace tessera::cli

#include "train/run_outputs.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/trainer/metrics.h"
#include "tessera/trainer/output_file.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

/// A Markdown table of all settings, as TensorBoard's text tab shows it.
std::string settings_table(const Config& config) {
  std::string text = "| setting | value |\n|---|---|\n";
  for (const auto& [name, value] : config.values().items()) {
    text += "| " + name + " | " + value.dump() + " |\n";
  }
  return text;
}

/// Whether two paths lead to one file. A device or a pipe may be shared.
bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code none;
  if (fs::is_other(a, none)) return false;
  const auto whole = [&](const std::string& path) {
    return fs::weakly_canonical(fs::absolute(path), none);
  };
  return fs::equivalent(a, b, none) || whole(a) == whole(b);
}

/// The settings that name what a run writes.
std::vector<std::string> written_settings() {
  std::vector<std::string> names{"trace"};
  for (const Setting& setting : output_settings()) names.push_back(setting.name);
  return names;
}

/// Refuses a run that would write over what it reads, or write two things to one file.
void check_paths(const Config& config, const std::vector<std::string>& data_files) {
  std::vector<std::pair<std::string, std::string>> written;  // paths and their flags
  for (const std::string& name : written_settings()) {
    if (config.is_null(name)) continue;
    const auto path = config.get<std::string>(name);
    const std::string flag = flag_name(name);
    const auto require_other = [&](const std::string& read, const char* what) {
      require(!is_same_file(path, read), ErrorCode::kConfig, flag, " would write over ", path,
              ", from which ", what, " are read; give ", flag, " another path");
    };
    for (const std::string& file : data_files) require_other(file, "the data");
    for (const auto& file : config.translations()) require_other(file.path, "the settings");
    for (const auto& [other, its_flag] : written) {
      require(!is_same_file(path, other), ErrorCode::kConfig, flag, " and ", its_flag,
              " would both write to ", path, "; give each a path of its own");
    }
    written.emplace_back(path, flag);
  }
}

bool scales_loss(const Config& config) {
  if (config.is_null("loss_scale")) return config.get<std::string>("precision") == "fp16";
  return config.get<std::string>("loss_scale") != "none";
}

/// Earlier runs are kept unless somebody says otherwise.
void check_file(const std::string& path, const std::string& flag, const Config& config) {
  if (config.get<bool>("append") && flag == "--trace") {
    require(!holds_something(path), ErrorCode::kConfig, flag, ": ", path,
            " holds something already, and --append cannot make one trace of two; give another ",
            "path");
    return;
  }
  if (config.get<bool>("append")) {
    if (flag == "--csv") check_csv_columns(path, scales_loss(config));
    return;
  }
  require(config.get<bool>("overwrite") || !holds_something(path), ErrorCode::kConfig, flag, ": ",
          path,
          " holds something already; give --append to write after it, --overwrite to replace ",
          "it, or another path");
}

void check_events(const std::string& folder, const Config& config) {
  if (config.get<bool>("append")) return;
  const std::vector<std::string> files = event_files(folder);
  require(config.get<bool>("overwrite") || files.empty(), ErrorCode::kConfig,
          "--tensorboard: ", folder,
          " holds the event files of an earlier run, whose curves would be mixed with this ",
          "one's; give a new folder, --overwrite to remove them, or --append to have them side by ",
          "side");
  const auto other = std::ranges::find_if_not(files, is_our_event_file);
  require(other == files.end(), ErrorCode::kConfig, "--tensorboard: --overwrite removes what ",
          "tessera has written, and another program has written ",
          other == files.end() ? "" : *other, "; give a new folder, or --append");
}

}  // namespace

void RunOutputs::check(const Config& config, const std::vector<std::string>& data_files) {
  check_paths(config, data_files);
  require(!config.get<bool>("append") || !config.get<bool>("overwrite"), ErrorCode::kConfig,
          "--append keeps what an earlier run has written, and --overwrite does not; give one of "
          "them");
  for (const std::string& name : written_settings()) {
    if (config.is_null(name)) continue;
    const auto path = config.get<std::string>(name);
    // TensorBoard's is a folder, for a file whose name its time decides.
    const bool is_folder = name == "tensorboard";
    const std::string flag = flag_name(name);
    check_writable(is_folder ? path + "/events.out.tfevents" : path, flag);
    if (is_folder) {
      check_events(path, config);
    } else {
      check_file(path, flag, config);
    }
  }
}

void RunOutputs::open() {
  if (std::exchange(is_open_, true)) return;
  const Existing existing = config_.get<bool>("append") ? Existing::kExtend : Existing::kReplace;
  std::vector<std::string> earlier;
  // The output that is opened first destroys least: an event file is always a new one.
  if (!config_.is_null("log")) log_.emplace(config_.get<std::string>("log"), existing);
  if (!config_.is_null("tensorboard")) {
    const auto folder = config_.get<std::string>("tensorboard");
    if (config_.get<bool>("overwrite")) earlier = event_files(folder);
    board_.emplace(folder);
    board_->text("settings", settings_table(config_));
  }
  if (!config_.is_null("csv")) {
    csv_.emplace(config_.get<std::string>("csv"), existing, scales_loss(config_));
  }
  if (log_) {
    log_->run({.version = TESSERA_VERSION, .parameters = parameter_count(model_)},
              config_.values());
  }
  for (const std::string& path : earlier) {
    if (!is_our_event_file(path)) continue;
    std::error_code failed;
    fs::remove(path, failed);
    require(!failed, ErrorCode::kIo, "--tensorboard: ", path, ", of an earlier run, cannot be ",
            "removed (", failed.message(), "); give a new folder");
  }
}

void RunOutputs::note(const std::string& text) {
  open();
  if (log_) log_->note(text);
}

void RunOutputs::step(const StepRecord& record, double peak_flops) {
  open();
  const std::optional<double> mfu =
      model_flops_utilisation(model_, record.tokens_per_second, peak_flops);
  if (log_) log_->step(record, mfu, samples_ ? samples_(record.step) : std::vector<std::int64_t>());
  if (csv_) csv_->step(record, mfu);
  if (!board_) return;
  std::vector<std::pair<std::string_view, double>> values{
      {"train/loss", record.loss},
      {"train/learning_rate", record.learning_rate},
      {"train/gradient_norm", record.gradient_norm},
      {"speed/tokens_per_second", record.tokens_per_second},
      {"speed/positions_per_second", record.positions_per_second},
      {"memory/peak_bytes", static_cast<double>(record.peak_bytes)}};
  if (mfu) values.emplace_back("speed/mfu", *mfu);
  if (record.exposed_seconds) {
    values.emplace_back("speed/exposed_communication_seconds", *record.exposed_seconds);
  }
  if (record.loss_scale) {
    values.emplace_back("train/loss_scale", *record.loss_scale);
    values.emplace_back("train/skipped_steps", static_cast<double>(record.skipped_steps));
  }
  board_->scalars(record.step, values);
}

void RunOutputs::evaluation(const EvaluationRecord& record) {
  open();
  if (log_) log_->evaluation(record);
  if (csv_) csv_->evaluation(record);
  if (board_) board_->evaluation(record);
}

void RunOutputs::checkpoint(const SaveRecord& record) {
  open();
  if (log_) log_->checkpoint(record);
}

void RunOutputs::end(const TrainingPlan& plan, const TrainingSummary& summary,
                     const RunMeasurements& measurements) {
  if (log_) log_->summary(plan, summary, measurements);
}

}  // namespace tessera::cli

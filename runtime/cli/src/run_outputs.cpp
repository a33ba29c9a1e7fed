#include "run_outputs.h"

#include <string>
#include <string_view>
#include <utility>

#include "tessera/trainer/metrics.h"
#include "tessera/trainer/output_file.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

/// A Markdown table of all settings, as TensorBoard's text tab shows it.
std::string settings_table(const Config& config) {
  std::string text = "| setting | value |\n|---|---|\n";
  for (const auto& [name, value] : config.values().items()) {
    text += "| " + name + " | " + value.dump() + " |\n";
  }
  return text;
}

}  // namespace

RunOutputs::RunOutputs(const Config& config, const Model& model) : config_(config), model_(model) {
  for (const Setting& setting : output_settings()) {
    if (config.is_null(setting.name)) continue;
    const auto path = config.get<std::string>(setting.name);
    // TensorBoard's is a folder, for a file whose name its time decides.
    const bool is_folder = setting.name == "tensorboard";
    check_writable(is_folder ? path + "/events.out.tfevents" : path, flag_name(setting.name));
  }
}

void RunOutputs::open() {
  if (std::exchange(is_open_, true)) return;
  // What is written first destroys least: an event file is always a new one.
  if (!config_.is_null("log")) log_.emplace(config_.get<std::string>("log"));
  if (!config_.is_null("tensorboard")) {
    board_.emplace(config_.get<std::string>("tensorboard"));
    board_->text("settings", settings_table(config_));
  }
  if (!config_.is_null("csv")) csv_.emplace(config_.get<std::string>("csv"));
  if (log_) log_->run(config_.values());
}

void RunOutputs::note(const std::string& text) {
  open();
  if (log_) log_->note(text);
}

void RunOutputs::step(const StepRecord& record, double peak_flops) {
  open();
  const double mfu = model_flops_utilisation(model_, record.tokens_per_second, peak_flops);
  if (log_) log_->step(record);
  if (csv_) csv_->step(record, mfu);
  if (!board_) return;
  std::vector<std::pair<std::string_view, double>> values{
      {"train/loss", record.loss},
      {"train/learning_rate", record.learning_rate},
      {"train/gradient_norm", record.gradient_norm},
      {"speed/tokens_per_second", record.tokens_per_second},
      {"speed/mfu", mfu},
      {"memory/peak_bytes", static_cast<double>(record.peak_bytes)}};
  if (record.exposed_seconds) {
    values.emplace_back("speed/exposed_communication_seconds", *record.exposed_seconds);
  }
  board_->scalars(record.step, values);
}

void RunOutputs::end(const TrainingPlan& plan, const TrainingSummary& summary,
                     const RunMeasurements& measurements) {
  if (log_) log_->summary(plan, summary, measurements);
}

}  // namespace tessera::cli

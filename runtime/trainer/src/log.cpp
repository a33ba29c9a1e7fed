#include "tessera/trainer/log.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/core/host_name.h"
#include "tessera/core/utc_text.h"
#include "tessera/kernels/numerics.h"

namespace tessera {
namespace {

/// The keys that RunLog::run writes before the settings.
constexpr std::array<std::string_view, 6> kRunKeys{"kind", "version", "numerics",
                                                   "date", "host",    "parameters"};

}  // namespace

bool is_of_run_line(std::string_view key) {
  return std::ranges::find(kRunKeys, key) != kRunKeys.end();
}

RunLog::RunLog(std::string path, Existing existing) : file_(std::move(path), "`log`", existing) {}

void RunLog::line(const nlohmann::ordered_json& line) {
  // A name or path that is not UTF-8 must not end the run.
  file_.write(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void RunLog::run(const RunIdentity& identity, const nlohmann::ordered_json& settings) {
  nlohmann::ordered_json line{
      {"kind", "run"},     {"version", identity.version}, {"numerics", kNumericsVersion},
      {"date", utc_now()}, {"host", host_name()},         {"parameters", identity.parameters}};
  line.update(settings);
  this->line(line);
}

void RunLog::note(const std::string& text) { line({{"kind", "note"}, {"text", text}}); }

nlohmann::ordered_json to_json(const StepRecord& record, std::optional<double> mfu) {
  nlohmann::ordered_json line{{"kind", "step"},
                              {"step", record.step},
                              {"loss", record.loss},
                              {"grad_norm", record.gradient_norm},
                              {"learning_rate", record.learning_rate},
                              {"tokens", record.tokens},
                              {"seconds", record.seconds},
                              {"tokens_per_second", record.tokens_per_second},
                              {"positions_per_second", record.positions_per_second},
                              {"mfu", or_null(mfu)},
                              {"peak_bytes", record.peak_bytes},
                              {"exposed_seconds", or_null(record.exposed_seconds)}};
  if (record.loss_scale) {
    line["loss_scale"] = *record.loss_scale;
    line["skipped"] = record.skipped;
  }
  return line;
}

void RunLog::step(const StepRecord& record, std::optional<double> mfu,
                  const std::vector<std::int64_t>& samples_by_source) {
  nlohmann::ordered_json of_step = to_json(record, mfu);
  if (!samples_by_source.empty()) of_step["samples_by_source"] = samples_by_source;
  line(of_step);
}

nlohmann::ordered_json to_json(const EvaluationRecord& record) {
  nlohmann::ordered_json line{{"kind", "evaluation"},
                              {"step", record.step},
                              {"loss", record.loss},
                              {"perplexity", record.perplexity},
                              {"tokens", record.tokens}};
  if (const auto accuracy = record.token_accuracy()) {
    line["mean_token_accuracy"] = *accuracy;
    line["correct_tokens"] = *record.correct;
  }
  if (const auto f1 = record.macro_f1()) line["macro_f1"] = *f1;
  if (const auto f1 = record.f1()) line["f1"] = *f1;
  if (record.best) {
    line["best_loss"] = record.best->loss;
    line["best_step"] = record.best->step;
    line["without_improvement"] = record.best->without_improvement;
  }
  return line;
}

nlohmann::ordered_json to_json(const MultipleChoiceRecord& record) {
  const double accuracy = record.accuracy(), normalised = record.normalised_accuracy();
  return {{"kind", "multiple_choice"},
          {"questions", record.questions},
          {"choices", record.choices},
          {"correct", record.correct},
          {"correct_by_length", record.correct_by_length},
          {"acc", accuracy},
          {"acc_stderr", or_null(record.standard_error(accuracy))},
          {"acc_norm", normalised},
          {"acc_norm_stderr", or_null(record.standard_error(normalised))}};
}

void RunLog::evaluation(const EvaluationRecord& record) { line(to_json(record)); }

void RunLog::checkpoint(const SaveRecord& record) {
  line({{"kind", "checkpoint"},
        {"step", record.step},
        {"path", record.path},
        {"bytes", record.bytes},
        {"waited_seconds", record.waited_seconds},
        {"seconds", record.seconds}});
}

void RunLog::summary(const TrainingPlan& plan, const TrainingSummary& summary,
                     const RunMeasurements& measurements) {
  const Traffic& counted = summary.counted_traffic.front();
  nlohmann::ordered_json line{{"kind", "summary"},
                              {"strategy", plan.options.strategy},
                              {"ranks", plan.options.ranks},
                              {"device", to_string(plan.options.device)},
                              {"cuda_graph", plan.cuda_graph},
                              {"steps", summary.steps},
                              {"seconds", summary.seconds},
                              {"tokens_per_second", summary.tokens_per_second},
                              {"positions_per_second", summary.positions_per_second},
                              {"mfu", or_null(measurements.mfu)},
                              {"matmul_flops_per_second", measurements.matmul_flops_per_second},
                              {"peak_bytes",
                               {{"predicted", to_json(summary.predicted_memory)},
                                {"measured", to_json(summary.measured_memory)}}},
                              {"sent_bytes",
                               {{"predicted", sent_bytes_to_json(summary.predicted_traffic)},
                                {"counted", sent_bytes_to_json(counted)}}},
                              {"collectives", calls_to_json(counted)},
                              {"copied_bytes", counted.copied_bytes},
                              {"parameters_sha256", nullptr}};
  if (moves_between_tiers(summary.predicted_traffic) || moves_between_tiers(counted)) {
    line["tier_copy_bytes"] = {{"predicted", tier_copies_to_json(summary.predicted_traffic)},
                               {"counted", tier_copies_to_json(counted)}};
  }
  if (summary.predicted_host_memory.total > 0) {
    line["host_peak_bytes"] = {{"predicted", to_json(summary.predicted_host_memory)},
                               {"measured", to_json(summary.measured_host_memory)}};
  }
  if (summary.predicted_disk_bytes > 0) {
    line["disk_bytes"] = {{"predicted", summary.predicted_disk_bytes},
                          {"measured", summary.measured_disk_bytes}};
  }
  if (moves_to_or_from_disk(summary.predicted_traffic) || moves_to_or_from_disk(counted)) {
    line["disk_copy_bytes"] = {{"predicted", disk_copies_to_json(summary.predicted_traffic)},
                               {"counted", disk_copies_to_json(counted)}};
  }
  if (loss_scaling(plan.options.loss_scale)) line["skipped_steps"] = summary.skipped_steps;
  if (plan.options.patience > 0) line["stopped_early"] = summary.stopped_early;
  if (plan.options.hash_parameters) line["parameters_sha256"] = summary.parameters_sha256;
  if (summary.timeline) {
    line["exposed_seconds_per_step"] = summary.timeline->exposed_seconds;
    line["communication_seconds_per_step"] = summary.timeline->communication_seconds;
  }
  this->line(line);
}

}  // namespace tessera

#include "tessera/trainer/csv_log.h"

#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <utility>

#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr std::string_view kHeading =
    "step,loss,grad_norm,learning_rate,tokens,seconds,tokens_per_second,mfu,peak_bytes,"
    "exposed_seconds,eval_loss,eval_perplexity,eval_tokens,positions_per_second,"
    "eval_mean_token_accuracy";
constexpr std::string_view kLossScaleHeading = ",loss_scale,skipped";
constexpr std::string_view kNoStep = ",,,,,,,,,";  // the cells between "step" and "eval_loss"
constexpr std::string_view kNoEvaluation = ",,,";

/// The shortest text that reads back as the same number.
std::string text_of(double number) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  return {text.data(), end};
}

std::string heading_of(bool loss_scaling) {
  return concat(kHeading, loss_scaling ? kLossScaleHeading : "");
}

}  // namespace

void check_csv_columns(const std::string& path, bool loss_scaling) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) return;
  std::ifstream file(path, std::ios::binary);
  std::string heading;
  std::getline(file, heading);
  if (heading.ends_with('\r')) heading.pop_back();  // a spreadsheet has written it
  if (file.eof() && heading.empty()) return;
  require(heading == heading_of(loss_scaling), ErrorCode::kConfig,
          "`csv`: no rows can be added to ", path, ", which has other columns than '",
          heading_of(loss_scaling), "'; give another path, or `overwrite` to replace it");
}

CsvLog::CsvLog(std::string path, Existing existing, bool loss_scaling)
    : file_(std::move(path), "`csv`", existing), loss_scaling_(loss_scaling) {
  if (existing == Existing::kExtend) check_csv_columns(file_.path(), loss_scaling);
  if (file_.size() == 0) file_.write(heading_of(loss_scaling) + "\n");
}

void CsvLog::step(const StepRecord& record, std::optional<double> mfu) {
  std::string row = std::to_string(record.step);
  const auto add = [&row](const std::string& cell) { row += "," + cell; };
  for (const double number : {record.loss, record.gradient_norm, record.learning_rate}) {
    add(text_of(number));
  }
  add(std::to_string(record.tokens));
  for (const double number : {record.seconds, record.tokens_per_second}) add(text_of(number));
  add(mfu ? text_of(*mfu) : "");
  add(std::to_string(record.peak_bytes));
  add(record.exposed_seconds ? text_of(*record.exposed_seconds) : "");
  row += kNoEvaluation;
  add(text_of(record.positions_per_second));
  add("");  // of an evaluation
  if (loss_scaling_) {
    add(text_of(record.loss_scale.value_or(1.0)));
    add(record.skipped ? "1" : "0");
  }
  file_.write(row + "\n");
}

void CsvLog::evaluation(const EvaluationRecord& record) {
  file_.write(concat(record.step, kNoStep, ",", text_of(record.loss), ",",
                     text_of(record.perplexity), ",", record.tokens, ",,",
                     record.token_accuracy() ? text_of(*record.token_accuracy()) : "",
                     loss_scaling_ ? ",," : "", "\n"));
}

}  // namespace tessera

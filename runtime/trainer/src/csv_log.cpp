#include "tessera/trainer/csv_log.h"

#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/core/text.h"
#include "tessera/trainer/log.h"

namespace tessera {
namespace {

constexpr std::string_view kHeading =
    "step,loss,grad_norm,learning_rate,tokens,seconds,tokens_per_second,mfu,peak_bytes,"
    "exposed_seconds,eval_loss,eval_perplexity,eval_tokens,positions_per_second,"
    "eval_mean_token_accuracy";
constexpr std::string_view kLossScaleHeading = ",loss_scale,skipped";
/// The shortest text that reads back as the same number.
std::string text_of(double number) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  return {text.data(), end};
}

std::string heading_of(bool loss_scaling) {
  return concat(kHeading, loss_scaling ? kLossScaleHeading : "");
}

std::string cell(const nlohmann::ordered_json& value) {
  if (value.is_null()) return "";
  if (value.is_boolean()) return value ? "1" : "0";
  return value.is_number_float() ? text_of(value.get<double>()) : value.dump();
}

/// The row of a log's line, whose keys are columns behind `prefix`.
std::string row_of(const nlohmann::ordered_json& line, std::string_view prefix, bool loss_scaling) {
  std::string row;
  for (const std::string& column : split_text(heading_of(loss_scaling), ',')) {
    const bool is_own = column.starts_with("eval_") ? prefix == "eval_" : prefix.empty();
    const std::string key = is_own ? column.substr(prefix.size()) : column;
    if (!row.empty()) row += ",";
    if (is_own || column == "step") row += cell(line.value(key, nlohmann::ordered_json()));
  }
  return row + "\n";
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
  file_.write(row_of(to_json(record, mfu), "", loss_scaling_));
}

void CsvLog::evaluation(const EvaluationRecord& record) {
  file_.write(row_of(to_json(record), "eval_", loss_scaling_));
}

}  // namespace tessera

#include "tessera/trainer/csv_log.h"

#include <array>
#include <charconv>
#include <utility>

namespace tessera {
namespace {

constexpr const char* kHeading =
    "step,loss,grad_norm,learning_rate,tokens,seconds,tokens_per_second,mfu,peak_bytes,"
    "exposed_seconds\n";

/// The shortest text that reads back as the same number.
std::string text_of(double number) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  return {text.data(), end};
}

}  // namespace

CsvLog::CsvLog(std::string path) : file_(std::move(path), "--csv") { file_.write(kHeading); }

void CsvLog::step(const StepRecord& record, double mfu) {
  std::string row = std::to_string(record.step);
  const auto add = [&row](const std::string& cell) { row += "," + cell; };
  for (const double number : {record.loss, record.gradient_norm, record.learning_rate}) {
    add(text_of(number));
  }
  add(std::to_string(record.tokens));
  for (const double number : {record.seconds, record.tokens_per_second, mfu}) add(text_of(number));
  add(std::to_string(record.peak_bytes));
  add(record.exposed_seconds ? text_of(*record.exposed_seconds) : "");
  file_.write(row + "\n");
}

}  // namespace tessera

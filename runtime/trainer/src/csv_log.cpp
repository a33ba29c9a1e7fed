#include "tessera/trainer/csv_log.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <utility>

#include "tessera/core/error.h"

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

CsvLog::CsvLog(std::string path) : path_(std::move(path)) {
  const auto folder = std::filesystem::path(path_).parent_path();
  std::error_code failed;  // if there is no folder in the end, the file cannot be opened
  if (!folder.empty()) std::filesystem::create_directories(folder, failed);
  errno = 0;
  file_.open(path_, std::ios::binary | std::ios::trunc);
  require(file_.is_open(), ErrorCode::kIo, path_, ": cannot be written (", std::strerror(errno),
          "); give --csv a path that is writable");
  write(kHeading);
}

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
  write(row + "\n");
}

void CsvLog::write(const std::string& row) {
  errno = 0;
  file_.write(row.data(), static_cast<std::streamsize>(row.size()));
  file_.flush();
  require(file_.good(), ErrorCode::kIo, path_, ": writing failed (", std::strerror(errno), ")");
}

}  // namespace tessera

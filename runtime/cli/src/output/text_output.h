#pragma once

#include <chrono>
#include <iosfwd>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "output/terminal.h"

namespace tessera::cli {

/// On several lines. Bytes that are no UTF-8, which names of files and the environment may have,
/// become U+FFFD.
void write_json(std::ostream& out, const nlohmann::ordered_json& value);

/// Rows of cells under each other: the first column to the left, numbers to the right.
class TextTable {
 public:
  /// All columns are to the left.
  TextTable() : has_texts_(true) {}
  explicit TextTable(std::vector<std::string> heading) { add(std::move(heading)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void print(std::ostream& out) const;

 private:
  bool has_texts_ = false;
  std::vector<std::vector<std::string>> rows_;
};

/// Shows on stderr how far work is: in a terminal one line that rewrites itself and is erased at
/// the end; in a file a line now and then. Safe from several threads.
class LiveLine {
 public:
  /// When a file gets its first line: a short run then has none.
  enum class Begins { kAtOnce, kAfterAWhile };

  explicit LiveLine(Begins begins = Begins::kAtOnce);
  ~LiveLine() { erase(); }
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;

  /// `is_last`: the line is shown however soon it follows another.
  void show(const std::string& text, bool is_last = false);
  void erase();

 private:
  const Terminal terminal_ = inspect(stderr);
  std::mutex mutex_;
  std::chrono::steady_clock::time_point shown_{};
  bool open_ = false;
};

}  // namespace tessera::cli

#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::cli {

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

}  // namespace tessera::cli

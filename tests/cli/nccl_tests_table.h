#pragma once

#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace tessera::test {

/// A row of numbers by column: "size", "count", "type", ..., and of each place "time", "algbw",
/// "busbw", "#wrong".
struct NcclTestsRow {
  std::string operator[](const std::string& column) const { return words.at(column); }
  double number(const std::string& column) const { return std::stod(words.at(column)); }
  std::map<std::string, std::string> words{};    ///< before the places
  std::map<std::string, double> out_of_place{};  ///< columns that are numbers
  std::map<std::string, double> in_place{};
};

/// Reads what nccl-tests print, as scripts for it do: lines that begin with '#' are comments, of
/// which the one with "size" names the columns; all others are numbers in that order, and what
/// comes after "root" is there twice, out of place and in place.
inline std::vector<NcclTestsRow> read_nccl_tests(const std::string& output) {
  std::vector<NcclTestsRow> rows;
  std::vector<std::string> columns;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::vector<std::string> row;
    for (std::string word; words >> word;) row.push_back(word);
    if (row.size() > 1 && row[0] == "#" && row[1] == "size") columns = {row.begin() + 1, row.end()};
    if (row.empty() || row[0].front() == '#') continue;
    EXPECT_EQ(row.size(), columns.size()) << line;
    if (row.size() != columns.size()) continue;
    NcclTestsRow& result = rows.emplace_back();
    constexpr std::size_t kShared = 5;
    const std::size_t places = kShared + (columns.size() - kShared) / 2;
    for (std::size_t i = 0; i < row.size(); ++i) {
      auto& place = i < places ? result.out_of_place : result.in_place;
      if (i < kShared) {
        result.words[columns[i]] = row[i];
      } else if (row[i] != "N/A") {
        place[columns[i]] = std::stod(row[i]);
      }
    }
  }
  return rows;
}

/// The number behind "# NAME : " in the last lines.
inline double nccl_tests_summary(const std::string& output, const std::string& name) {
  const std::size_t place = output.find("# " + name);
  EXPECT_NE(place, std::string::npos) << name;
  return place == std::string::npos ? -1.0 : std::stod(output.substr(output.find(':', place) + 1));
}

}  // namespace tessera::test

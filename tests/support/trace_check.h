#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tessera::test {

/// A trace, read by the rules of the Trace Event Format as Perfetto applies them. Whatever breaks
/// one is a failure of the test.
class CheckedTrace {
 public:
  using Json = nlohmann::json;
  using Row = std::pair<int, int>;  ///< process, thread

  explicit CheckedTrace(const Json& trace) {
    EXPECT_TRUE(trace.at("otherData").is_object());
    for (const Json& event : trace.at("traceEvents")) read(event);
    check_rows();
    check_arrows();
  }

  const std::vector<Json>& slices() const { return slices_; }
  /// Of lanes, not hosts.
  std::vector<Json> actions() const {
    std::vector<Json> found;
    for (const Json& slice : slices_) {
      if (slice.at("tid") != 0) found.push_back(slice);
    }
    return found;
  }
  std::size_t arrows() const { return arrow_ends_.size(); }
  const std::set<int>& ranks() const { return processes_; }
  std::string row_name(const Json& event) const { return row_names_.at(row_of(event)); }
  /// By counter and series, of a rank: values in order.
  std::vector<std::int64_t> counter(int rank, const std::string& name,
                                    const std::string& series) const {
    std::vector<std::int64_t> values;
    for (const Json& event : counters_) {
      if (event.at("pid") != rank || event.at("name") != name) continue;
      values.push_back(event.at("args").value(series, std::int64_t{0}));
    }
    return values;
  }

 private:
  static constexpr std::int64_t kTicks = 8;  // of a microsecond; sums of them are exact

  static Row row_of(const Json& event) { return {event.at("pid"), event.at("tid")}; }
  static std::int64_t ticks(const Json& number) {
    const double micros = number.get<double>();
    EXPECT_EQ(micros * kTicks, std::floor(micros * kTicks)) << "not exact in all readers";
    return static_cast<std::int64_t>(micros * kTicks);
  }

  void read(const Json& event) {
    const auto phase = event.at("ph").get<std::string>();
    EXPECT_TRUE(event.at("name").is_string());
    EXPECT_TRUE(event.at("pid").is_number_integer() && event.at("tid").is_number_integer());
    EXPECT_GE(ticks(event.at("ts")), 0);
    if (phase == "X") {
      EXPECT_GT(ticks(event.at("dur")), 0);
      slices_.push_back(event);
    } else if (phase == "M") {
      const std::set<std::string> known{"process_name", "thread_name", "process_sort_index",
                                        "thread_sort_index"};
      const auto name = event.at("name").get<std::string>();
      EXPECT_TRUE(known.contains(name)) << name;
      if (name == "process_name") {
        EXPECT_TRUE(processes_.insert(event.at("pid").get<int>()).second);
      }
      if (name == "thread_name") {
        EXPECT_TRUE(row_names_.emplace(row_of(event), event.at("args").at("name")).second);
      }
    } else if (phase == "C") {
      EXPECT_FALSE(event.at("args").empty());
      for (const auto& [series, value] : event.at("args").items()) {
        EXPECT_TRUE(value.is_number()) << series;
        EXPECT_GE(value.get<double>(), 0.0) << series;
      }
      const auto track = std::pair(event.at("pid").get<int>(), event.at("name").get<std::string>());
      const std::int64_t at = ticks(event.at("ts"));
      if (counted_.contains(track)) {
        EXPECT_GE(at, counted_[track]) << "not in order of time";
      }
      counted_[track] = at;
      counters_.push_back(event);
    } else if (phase == "s" || phase == "f") {
      auto& ends = phase == "s" ? arrow_begins_ : arrow_ends_;
      EXPECT_TRUE(ends.emplace(event.at("id").get<std::int64_t>(), event).second) << event;
      if (phase == "f") {
        EXPECT_EQ(event.at("bp"), "e");
      }
    } else {
      ADD_FAILURE() << "an event of phase " << phase;
    }
  }

  /// Slices of a row follow one another: those of a lane do not nest.
  void check_rows() {
    for (const Json& slice : slices_) {
      ASSERT_TRUE(row_names_.contains(row_of(slice))) << slice;
      const std::int64_t begin = ticks(slice.at("ts"));
      rows_[row_of(slice)].emplace_back(begin, begin + ticks(slice.at("dur")));
    }
    for (auto& [row, all] : rows_) {
      std::ranges::sort(all);
      for (std::size_t i = 1; i < all.size(); ++i) ASSERT_LE(all[i - 1].second, all[i].first);
    }
  }

  bool is_inside(const Json& end) const {
    const std::int64_t at = ticks(end.at("ts"));
    return std::ranges::any_of(rows_.at(row_of(end)), [&](const auto& slice) {
      return slice.first <= at && at < slice.second;
    });
  }

  void check_arrows() {
    ASSERT_EQ(arrow_begins_.size(), arrow_ends_.size());
    for (const auto& [id, begin] : arrow_begins_) {
      ASSERT_TRUE(arrow_ends_.contains(id)) << begin;
      const Json& end = arrow_ends_.at(id);
      EXPECT_EQ(begin.at("cat"), end.at("cat"));
      EXPECT_EQ(begin.at("name"), end.at("name"));
      EXPECT_LE(ticks(begin.at("ts")), ticks(end.at("ts")));
      EXPECT_TRUE(is_inside(begin)) << begin;
      EXPECT_TRUE(is_inside(end)) << end;
    }
  }

  std::vector<Json> slices_, counters_;
  std::map<std::int64_t, Json> arrow_begins_, arrow_ends_;
  std::set<int> processes_;
  std::map<Row, std::string> row_names_;
  std::map<Row, std::vector<std::pair<std::int64_t, std::int64_t>>> rows_;
  std::map<std::pair<int, std::string>, std::int64_t> counted_;
};

}  // namespace tessera::test

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "report_figures.h"
#include "report_parts.h"
#include "tessera/core/error.h"
#include "tessera/core/format_bytes.h"
#include "tessera/lab/comparison_figures.h"

namespace tessera {
namespace {

/// A line across a bar, and a short one at its lower edge.
constexpr std::string_view kAcross = "M0-11V11";
constexpr std::string_view kBelow = "M0 3V11";
/// An end of the interval of a predicted time.
constexpr std::string_view kEnd = "M0-7V7";
/// The interval goes on beyond the axis.
constexpr std::string_view kArrow = "M-7-4L0 0L-7 4";

/// "unsharded parameters" for the log's key.
std::string in_words(std::string_view key) {
  std::string words(key);
  std::ranges::replace(words, '_', ' ');
  return words;
}

std::string category_name(int index) {
  return in_words(to_string(static_cast<MemoryCategory>(index)));
}

std::string collective_name(int index) {
  std::string name(to_string(static_cast<CollectiveKind>(index)));
  std::ranges::replace(name, '_', '-');
  return name;
}

bool has_plan(const ComparedCell& cell) { return !cell.runs.empty() || cell.predicted; }

std::string peak_words(const ComparedCell& cell) {
  const std::string shown = format_bytes(shown_peak(cell).total);
  if (cell.runs.empty()) return shown + " predicted";
  if (!cell.predicted) return shown;
  if (cell.predicted->peak == cell.runs.front().peak) return shown + ", as predicted";
  return concat(shown, ", predicted ", format_bytes(cell.predicted->peak.total));
}

BarRow memory_row(const Comparison& comparison, const ComparedCell& cell) {
  BarRow row{.label = cell_label(comparison, cell), .value = peak_words(cell)};
  double shown = 0.0;
  double predicted = 0.0;
  const MemoryPeak peak = shown_peak(cell);
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    const std::int64_t bytes = peak.by_category[category];
    if (bytes > 0) {
      const double end = shown + static_cast<double>(bytes);
      row.parts.push_back({shown, end, colour(static_cast<std::size_t>(i)),
                           concat(category_name(i), ": ", format_bytes(bytes))});
      shown = end;
    }
    if (!cell.predicted || cell.predicted->peak.by_category[category] == 0) continue;
    const std::int64_t planned = cell.predicted->peak.by_category[category];
    predicted += static_cast<double>(planned);
    row.marks.push_back({predicted, std::string(kBelow), "predicted",
                         concat(category_name(i), ", predicted: ", format_bytes(planned))});
  }
  if (!row.marks.empty()) row.marks.back().path = kAcross;
  return row;
}

Table memory_table(const Comparison& comparison) {
  Table table{.caption = "Peak memory of rank 0 in bytes, measured / predicted",
              .header = {"cell", "peak"}};
  for (int i = 0; i < kMemoryCategories; ++i) table.header.push_back(category_name(i));
  for (const ComparedCell& cell : comparison.cells) {
    if (!has_plan(cell)) continue;
    const auto both = [&](const auto& bytes_of) {
      return concat(cell.runs.empty() ? "-" : std::to_string(bytes_of(cell.runs.front().peak)),
                    " / ", cell.predicted ? std::to_string(bytes_of(cell.predicted->peak)) : "-");
    };
    std::vector<std::string> row{cell_label(comparison, cell),
                                 both([](const MemoryPeak& peak) { return peak.total; })};
    for (int i = 0; i < kMemoryCategories; ++i) {
      row.push_back(both([&](const MemoryPeak& peak) {
        return peak.by_category[static_cast<MemoryCategory>(i)];
      }));
    }
    table.rows.push_back(row);
  }
  return table;
}

/// The farthest end of a part or a mark.
double reach(const std::vector<BarRow>& rows) {
  double end = 0.0;
  for (const BarRow& row : rows) {
    for (const BarPart& part : row.parts) end = std::max(end, part.end);
    for (const BarMark& mark : row.marks) end = std::max(end, mark.at);
  }
  return end;
}

/// The nearest end of a part or a mark.
double least_end(const std::vector<BarRow>& rows) {
  double end = reach(rows);
  for (const BarRow& row : rows) {
    for (const BarPart& part : row.parts) {
      end = std::min(end, part.css == "whisker" ? part.begin : part.end);
    }
    for (const BarMark& mark : row.marks) end = std::min(end, mark.at);
  }
  return end;
}

std::string interval_words(const Estimate& time) {
  if (!time.half_width) return short_number(time.value * 1e3) + " ms";
  return concat(short_number(time.value * 1e3), " ± ", short_number(*time.half_width * 1e3), " ms");
}

BarRow time_row(const Comparison& comparison, const ComparedCell& cell) {
  BarRow row{.label = cell_label(comparison, cell), .value = ""};
  const std::optional<Estimate> measured = step_time(cell);
  const std::optional<Estimate> simulated = simulated_step_time(cell);
  if (measured) {
    row.value = interval_words(*measured);
    row.parts.push_back({0.0, measured->value * 1e3, "c1", "measured: " + row.value});
  }
  if (simulated) {
    const std::string words = "simulated " + interval_words(*simulated);
    row.value += (measured ? ", " : "") + words;
    row.marks.push_back({simulated->value * 1e3, std::string(kDiamond), "simulated", words});
    for (const double side : {-1.0, 1.0}) {
      if (!simulated->half_width) continue;
      const double end = simulated->value + side * *simulated->half_width;
      row.marks.push_back({end * 1e3, std::string(kEnd), "simulated", words});
    }
  }
  return row;
}

/// The line of the interval is a thin part of the bar. An interval can be many times its mean, so
/// it is cut at twice the longest of the others, with an arrow.
void add_interval(BarRow& row, const Estimate& time, double cut) {
  if (!time.half_width) return;
  const double low = std::max(0.0, time.value - *time.half_width) * 1e3;
  const double high = (time.value + *time.half_width) * 1e3;
  constexpr std::string_view kCap = "M0-6V6";
  row.parts.push_back({low, std::min(high, cut), "whisker", ""});
  row.marks.push_back({low, std::string(kCap), "predicted", ""});
  row.marks.push_back(
      {std::min(high, cut), std::string(high > cut ? kArrow : kCap), "predicted", ""});
}

Table time_table(const Comparison& comparison) {
  Table table{.caption = "Milliseconds of a step",
              .header = {"cell", "measured", "+/-", "repeats", "simulated", "+/-"}};
  for (const ComparedCell& cell : comparison.cells) {
    const std::optional<Estimate> time = step_time(cell);
    const std::optional<Estimate> simulated = simulated_step_time(cell);
    if (!time && !simulated) continue;
    table.rows.push_back({cell_label(comparison, cell),
                          milliseconds(time ? std::optional(time->value) : std::nullopt),
                          milliseconds(time ? time->half_width : std::nullopt),
                          std::to_string(cell.runs.size()),
                          milliseconds(simulated ? std::optional(simulated->value) : std::nullopt),
                          milliseconds(simulated ? simulated->half_width : std::nullopt)});
  }
  return table;
}

BarRow traffic_row(const Comparison& comparison, const ComparedCell& cell) {
  BarRow row{.label = cell_label(comparison, cell), .value = ""};
  const Traffic traffic = shown_traffic(cell);
  std::int64_t sum = 0;
  for (int i = 0; i < kCollectiveKinds; ++i) {
    const std::int64_t bytes = traffic.sent_of(static_cast<CollectiveKind>(i));
    if (bytes == 0) continue;
    row.parts.push_back({static_cast<double>(sum), static_cast<double>(sum + bytes),
                         colour(static_cast<std::size_t>(i)),
                         concat(collective_name(i), ": ", format_bytes(bytes))});
    sum += bytes;
  }
  row.value = format_bytes(sum);
  if (!cell.predicted) return row;
  std::int64_t predicted = 0;
  for (const std::int64_t bytes : cell.predicted->traffic.sent_bytes) predicted += bytes;
  row.value += cell.runs.empty() ? " predicted" : predicted == sum ? ", as predicted" : "";
  row.marks.push_back({static_cast<double>(predicted), std::string(kAcross), "predicted",
                       "predicted: " + format_bytes(predicted)});
  return row;
}

Table traffic_table(const Comparison& comparison, const std::vector<int>& kinds) {
  Table table{.caption = "Bytes that rank 0 sends in a step (calls)", .header = {"cell"}};
  for (const int kind : kinds) table.header.push_back(collective_name(kind));
  table.header.insert(table.header.end(), {"all", "predicted", "copied for staging"});
  for (const ComparedCell& cell : comparison.cells) {
    if (!has_plan(cell)) continue;
    const Traffic traffic = shown_traffic(cell);
    std::vector<std::string> row{cell_label(comparison, cell)};
    std::int64_t sum = 0;
    std::int64_t predicted = 0;
    for (int i = 0; i < kCollectiveKinds; ++i) {
      const auto kind = static_cast<CollectiveKind>(i);
      sum += traffic.sent_of(kind);
      if (cell.predicted) predicted += cell.predicted->traffic.sent_of(kind);
      if (std::ranges::find(kinds, i) == kinds.end()) continue;
      row.push_back(concat(traffic.sent_of(kind), " (", traffic.calls_of(kind), ")"));
    }
    row.insert(row.end(), {std::to_string(sum), cell.predicted ? std::to_string(predicted) : "-",
                           std::to_string(traffic.copied_bytes)});
    table.rows.push_back(row);
  }
  return table;
}

}  // namespace

std::string memory_figure(const Comparison& comparison) {
  FigureText text{"memory", "Memory by category",
                  "Peak memory of rank 0: each category's own peak, one after the other. Lines "
                  "below a bar mark where the plan puts the end of each category, the long one the "
                  "end of all. Categories peak at different times, so a bar is longer than the "
                  "peak of their sum, which stands above it."};
  std::vector<BarRow> rows;
  MemoryUse highest;
  for (const ComparedCell& cell : comparison.cells) {
    if (!has_plan(cell)) continue;
    rows.push_back(memory_row(comparison, cell));
    const MemoryPeak peak = shown_peak(cell);
    for (std::size_t i = 0; i < kMemoryCategories; ++i) {
      highest.bytes[i] = std::max(highest.bytes[i], peak.by_category.bytes[i]);
    }
  }
  if (rows.empty()) return empty_figure(text, "No cell has been measured or predicted.");
  for (std::size_t i = 0; i < kMemoryCategories; ++i) {
    if (highest.bytes[i] > 0) {
      text.legend.push_back({colour(i), category_name(static_cast<int>(i))});
    }
  }
  return bar_figure(text, rows, byte_ticks(reach(rows)), memory_table(comparison));
}

std::string step_time_figure(const Comparison& comparison) {
  FigureText text{"step-time", "Step time",
                  "Milliseconds of a step. Bars are measured: the mean over repeats of each run's "
                  "median step, without the warm-up. The line is the 95 % confidence interval by "
                  "Student's t over the repeats; an arrow says that it goes on."};
  if (comparison.repeats == 0) {
    text.sentence =
        "Milliseconds of a step, simulated. Lines on both sides, where a profile knows them, are "
        "the "
        "ends of the interval in which nine of ten measured steps are expected.";
  }
  std::vector<BarRow> rows;
  std::vector<std::optional<Estimate>> times;
  for (const ComparedCell& cell : comparison.cells) {
    if (!step_time(cell) && !simulated_step_time(cell)) continue;
    rows.push_back(time_row(comparison, cell));
    times.push_back(step_time(cell));
  }
  if (rows.empty()) return empty_figure(text, "No cell has been timed or simulated.");
  const double cut = 2.0 * reach(rows);
  bool is_measured = false;
  bool is_simulated = false;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    is_measured = is_measured || !rows[i].parts.empty();
    is_simulated = is_simulated || !rows[i].marks.empty();
    if (times[i]) add_interval(rows[i], *times[i], cut);
  }
  if (is_measured) text.legend.push_back({"c1", "measured"});
  if (is_simulated) {
    text.legend.push_back({"simulated", "simulated by the profile " + comparison.profile});
  }
  return bar_figure(text, rows, ticks_around(least_end(rows), reach(rows)), time_table(comparison));
}

std::string traffic_figure(const Comparison& comparison) {
  FigureText text{"traffic", "Bytes by collective",
                  "Bytes that rank 0 sends in a step; the line across a bar marks what the plan "
                  "predicts."};
  std::vector<BarRow> rows;
  std::vector<int> kinds;
  for (const ComparedCell& cell : comparison.cells) {
    if (!has_plan(cell)) continue;
    rows.push_back(traffic_row(comparison, cell));
    const Traffic traffic = shown_traffic(cell);
    for (int i = 0; i < kCollectiveKinds; ++i) {
      if (traffic.calls_of(static_cast<CollectiveKind>(i)) > 0) kinds.push_back(i);
    }
  }
  if (rows.empty()) return empty_figure(text, "No cell has been measured or predicted.");
  std::ranges::sort(kinds);
  kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
  for (const int kind : kinds) {
    text.legend.push_back({colour(static_cast<std::size_t>(kind)), collective_name(kind)});
  }
  return bar_figure(text, rows, byte_ticks(reach(rows)), traffic_table(comparison, kinds));
}

std::string communication_figure(const Comparison& comparison) {
  FigureText text{"communication", "Exposed communication",
                  "Milliseconds of a step in which rank 0 communicates, and the part of them that "
                  "no computation hides. Measured where the cell has run, otherwise simulated."};
  text.legend = {{"c2", "exposed"}, {"hidden", "hidden"}};
  std::vector<BarRow> rows;
  Table table{.caption = "Milliseconds of a step",
              .header = {"cell", "exposed", "communication", "simulated: exposed",
                         "simulated: communication"}};
  for (const ComparedCell& cell : comparison.cells) {
    const std::optional<double> exposed = shown_exposed(cell);
    if (!exposed) continue;
    const double all = std::max(shown_communication(cell).value_or(0.0), *exposed);
    const std::string label = cell_label(comparison, cell);
    const std::string value = concat(milliseconds(exposed), " of ", short_number(all * 1e3), " ms",
                                     cell.runs.empty() ? ", simulated" : "");
    rows.push_back({.label = label,
                    .value = value,
                    .parts = {{0.0, *exposed * 1e3, "c2", "exposed: " + value},
                              {*exposed * 1e3, all * 1e3, "hidden", ""}}});
    std::optional<double> simulated_exposed;
    std::optional<double> simulated_all;
    if (cell.predicted && cell.predicted->time) {
      simulated_exposed = cell.predicted->time->exposed_seconds;
      simulated_all = cell.predicted->time->communication_seconds;
      rows.back().marks.push_back({*simulated_exposed * 1e3, std::string(kDiamond), "simulated",
                                   "simulated: " + milliseconds(simulated_exposed) + " ms"});
    }
    table.rows.push_back({label, milliseconds(exposed_seconds(cell)),
                          milliseconds(communication_seconds(cell)),
                          milliseconds(simulated_exposed), milliseconds(simulated_all)});
  }
  if (rows.empty()) return empty_figure(text, "No cell has timed its communication.");
  if (std::ranges::any_of(rows, [](const BarRow& row) { return !row.marks.empty(); })) {
    text.legend.push_back({"simulated", "exposed, simulated"});
  }
  return bar_figure(text, rows, round_ticks(reach(rows)), table);
}

}  // namespace tessera

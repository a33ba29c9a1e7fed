#include "tessera/lab/report.h"

#include <algorithm>
#include <optional>

#include "report_figures.h"
#include "report_parts.h"
#include "report_style.h"
#include "tessera/core/error.h"
#include "tessera/core/format_bytes.h"
#include "tessera/lab/comparison_figures.h"

namespace tessera {
namespace {

std::vector<std::string> summary_row(const Comparison& comparison, const ComparedCell& cell,
                                     const std::string& group, FrontPlace place) {
  const std::optional<Estimate> time = step_time(cell);
  const std::optional<Estimate> simulated = simulated_step_time(cell);
  const auto percents = [](const std::optional<double>& share) {
    return share ? short_number(100.0 * *share) : "-";
  };
  return {cell_label(comparison, cell),
          std::string(to_string(cell.state)),
          milliseconds(time ? std::optional(time->value) : std::nullopt),
          milliseconds(time ? time->half_width : std::nullopt),
          milliseconds(simulated ? std::optional(simulated->value) : std::nullopt),
          milliseconds(simulated ? simulated->half_width : std::nullopt),
          percents(exposed_share(cell)),
          percents(message_share(cell)),
          percents(bubble_share(cell)),
          cell.runs.empty() ? "-" : format_bytes(cell.runs.front().peak.total),
          cell.predicted ? format_bytes(cell.predicted->peak.total) : "-",
          cell.predicted ? format_bytes(shown_device_bytes(cell)) : "-",
          group.empty() ? "-" : group,
          concat(place.best ? "best" : "", place.open ? "~" : "")};
}

/// Without the columns of which no row says anything.
void drop_empty_columns(Table& table) {
  for (std::size_t column = table.header.size(); column-- > 1;) {
    const bool says_something = std::ranges::any_of(
        table.rows, [&](const auto& row) { return row[column] != "-" && !row[column].empty(); });
    if (says_something) continue;
    const auto at = static_cast<std::ptrdiff_t>(column);
    table.header.erase(table.header.begin() + at);
    for (std::vector<std::string>& row : table.rows) row.erase(row.begin() + at);
  }
}

std::string missing_list(const Comparison& comparison) {
  const std::vector<MissingCells> missing = missing_cells(comparison);
  if (missing.empty()) return "";
  std::string html = "<ul class=\"key\">";
  for (const MissingCells& one : missing) {
    html += concat("<li><b>", to_string(one.state), "</b>: ", escaped(one.cells), ": ",
                   escaped(one.why), "</li>");
  }
  return html + "</ul>\n";
}

std::string summary(const Comparison& comparison) {
  Table table{.caption = "All cells",
              .header = {"cell", "state", "ms per step", "+/-", "simulated ms", "+/- simulated",
                         "exposed %", "messages %", "bubble %", "peak", "predicted peak",
                         "device memory", "bits", "best"}};
  const std::vector<std::string> groups = bit_groups(comparison);
  const std::vector<FrontPlace> places = front_places(comparison);
  for (std::size_t i = 0; i < comparison.cells.size(); ++i) {
    if (comparison.cells[i].state == CellState::kImpossible) continue;  // the list has it
    table.rows.push_back(summary_row(comparison, comparison.cells[i], groups[i], places[i]));
  }
  drop_empty_columns(table);
  const bool any_done = std::ranges::any_of(comparison.cells, [](const ComparedCell& cell) {
    return cell.state == CellState::kDone || cell.state == CellState::kPredicted;
  });
  return concat(
      "<section id=\"cells\" aria-labelledby=\"cells-name\"><h2 id=\"cells-name\">"
      "All cells</h2>\n<p>",
      escaped(method_of(comparison)), "</p>\n",
      any_done ? "" : "<p class=\"empty\">No cell is done; the list says why.</p>\n",
      to_html(table), missing_list(comparison), "</section>\n");
}

/// "20 steps (5 of them warm-up), 3 repeats of each cell".
std::string in_short(const Comparison& comparison) {
  if (comparison.repeats == 0) return "nothing has run: all is predicted";
  return concat(comparison.steps, " steps, of which the first ", comparison.warmup_steps,
                comparison.warmup_steps == 1 ? " is" : " are", " not timed; ", comparison.repeats,
                comparison.repeats == 1 ? " run" : " runs", " of each cell, in turns");
}

std::string header(const Comparison& comparison) {
  std::string html = concat(
      "<a class=\"skip\" href=\"#plots\">To the plots</a>\n<header><h1>", escaped(comparison.model),
      "</h1>\n<p>", comparison.cells.size(), comparison.cells.size() == 1 ? " cell; " : " cells; ",
      escaped(in_short(comparison)), ".",
      comparison.data.empty() ? "" : " Data: ", escaped(comparison.data),
      comparison.data.empty() ? "" : ".",
      comparison.profile.empty() ? "" : " Simulated times: profile ", escaped(comparison.profile),
      comparison.profile.empty() ? "" : ".", "</p>\n<nav aria-label=\"Contents\"><ul>");
  for (const auto& [id, name] : std::initializer_list<std::pair<const char*, const char*>>{
           {"cells", "All cells"},
           {"memory", "Memory"},
           {"step-time", "Step time"},
           {"traffic", "Bytes"},
           {"communication", "Exposed communication"},
           {"pareto", "Pareto front"},
           {"losses", "Loss"},
           {"timeline", "Timeline"},
           {"machine", "Machine"},
           {"command", "Command"}}) {
    html += concat("<li><a href=\"#", id, "\">", name, "</a></li>");
  }
  return html + "</ul></nav></header>\n";
}

std::string machine(const Comparison& comparison) {
  const bool nothing_runs = comparison.repeats == 0;
  Table table{.caption = nothing_runs ? "What the predictions are for" : "What the runs ran on",
              .header = {"of", "value"}};
  for (const NamedText& fact : comparison.machine) table.rows.push_back({fact.name, fact.value});
  return concat("<section id=\"machine\" aria-labelledby=\"machine-name\"><h2 id=\"machine-name\">",
                nothing_runs ? "Simulated machine" : "Machine", "</h2>\n", to_html(table),
                "</section>\n");
}

std::string command(const Comparison& comparison) {
  return concat(
      "<section id=\"command\" aria-labelledby=\"command-name\"><h2 id=\"command-name\">"
      "Command</h2>\n<p>This makes the report again:</p>\n<pre tabindex=\"0\">",
      escaped(shell_command(comparison)), "</pre></section>\n");
}

}  // namespace

std::string to_html(const Comparison& comparison) {
  return concat(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\">\n<link rel=\"icon\" href=\"data:,\">\n"
      "<title>tessera compare: ",
      escaped(comparison.model), "</title>\n<style>", kReportStyle, "</style></head>\n<body>\n",
      header(comparison), "<main>\n", summary(comparison), "<div class=\"plots\" id=\"plots\">\n",
      memory_figure(comparison), step_time_figure(comparison), traffic_figure(comparison),
      communication_figure(comparison), pareto_figure(comparison), loss_figure(comparison),
      timeline_figure(comparison), "</div>\n", machine(comparison), command(comparison),
      "</main>\n<footer><p>tessera ", escaped(comparison.version), ", ", escaped(comparison.date),
      "</p></footer>\n</body></html>\n");
}

}  // namespace tessera

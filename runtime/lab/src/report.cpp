#include "tessera/lab/report.h"

#include <cstdio>
#include <optional>
#include <string_view>
#include <vector>

#include "tessera/core/format_bytes.h"
#include "tessera/lab/comparison_figures.h"

namespace tessera {
namespace {

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string milliseconds(std::optional<double> seconds) {
  if (!seconds) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g", *seconds * 1e3);
  return text;
}

std::string row(const std::vector<std::string>& cells) {
  std::string html = "<tr>";
  for (const std::string& cell : cells) html += "<td>" + escaped(cell) + "</td>";
  return html + "</tr>\n";
}

std::string cells_table(const Comparison& comparison) {
  std::string html =
      "<table><caption>All cells</caption><tr><th>cell</th><th>state</th><th>ms per step</th>"
      "<th>+/-</th><th>simulated ms</th><th>exposed ms</th><th>peak</th><th>predicted peak</th>"
      "<th>bits</th><th>best</th></tr>\n";
  const std::vector<std::string> groups = bit_groups(comparison);
  const std::vector<bool> best = best_cells(comparison);
  for (std::size_t i = 0; i < comparison.cells.size(); ++i) {
    const ComparedCell& cell = comparison.cells[i];
    const std::optional<Estimate> time = step_time(cell);
    std::optional<double> simulated;
    if (cell.predicted && cell.predicted->time) simulated = cell.predicted->time->step_seconds;
    html += row({cell_label(comparison, cell),
                 std::string(to_string(cell.state)) + (cell.why.empty() ? "" : ": " + cell.why),
                 milliseconds(time ? std::optional(time->value) : std::nullopt),
                 milliseconds(time ? time->half_width : std::nullopt), milliseconds(simulated),
                 milliseconds(exposed_seconds(cell)), format_bytes(shown_peak(cell).total),
                 cell.predicted ? format_bytes(cell.predicted->peak.total) : "-",
                 groups[i].empty() ? "-" : "bit-identical " + groups[i], best[i] ? "best" : ""});
  }
  return html + "</table>\n";
}

}  // namespace

std::string to_html(const Comparison& comparison) {
  std::string machine;
  for (const NamedText& fact : comparison.machine) machine += row({fact.name, fact.value});
  std::string command = "tessera";
  for (const std::string& word : comparison.command) command += " " + word;
  return "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
         "<meta name=\"viewport\" content=\"width=device-width\"><title>tessera compare</title>"
         "<style>:root{color-scheme:light dark}body{font:16px/1.5 system-ui;margin:1rem auto;"
         "max-width:70rem;padding:0 1rem}td,th{text-align:left;padding:.2rem .8rem .2rem 0}"
         "table{display:block;overflow-x:auto}</style></head>\n<body><main><h1>" +
         escaped(comparison.model) + "</h1>\n<p>" + escaped(kMethod) + "</p>\n" +
         cells_table(comparison) + "<h2>Machine</h2><table>" + machine +
         "</table>\n<h2>Command</h2><pre>" + escaped(command) + "</pre></main></body></html>\n";
}

}  // namespace tessera

#include "simulate/sweep_table.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <ostream>
#include <string>

#include "output/run_report.h"
#include "output/terminal.h"
#include "output/text_table.h"
#include "tessera/core/error.h"
#include "tessera/core/format_bytes.h"
#include "tessera/trainer/training_plan.h"

namespace tessera::cli {
namespace {

/// A column with a heading of two rows.
struct SweepColumn {
  std::string upper, lower;
  std::function<std::string(const SimulatedCell&)> text;
  int leaves = 0;  ///< the higher, the sooner the column is left out for want of room; 0: never
  std::string meaning{};

  std::size_t width(const std::vector<SimulatedCell>& cells) const {
    std::size_t most = std::max(upper.size(), lower.size());
    for (const SimulatedCell& cell : cells) most = std::max(most, text(cell).size());
    return most;
  }
};

/// The columns of swept settings, in whose headings the last word stands below the others.
std::vector<SweepColumn> setting_columns(const std::vector<Swept>& sweep) {
  std::vector<SweepColumn> columns;
  for (std::size_t i = 0; i < sweep.size(); ++i) {
    const std::string& name = sweep[i].name;
    const std::size_t last = name.rfind('_') == name.npos ? name.size() : name.rfind('_') + 1;
    columns.push_back({name.substr(0, last), name.substr(last),
                       [i](const SimulatedCell& cell) { return cell.values[i]; }});
  }
  return columns;
}

SweepColumn share_column(const char* name, int leaves, double (*seconds)(const SimulatedStep&),
                         const char* meaning) {
  const auto text = [seconds](const SimulatedCell& cell) {
    return fixed(100.0 * seconds(cell.step) / cell.step.seconds, 1);
  };
  return {name, "%", text, leaves, meaning};
}

SweepColumn mfu_column(const char* name, int leaves, double SimulatedCell::*mfu,
                       const char* meaning) {
  const auto text = [mfu](const SimulatedCell& cell) -> std::string {
    return cell.*mfu > 0.0 ? fixed(100.0 * cell.*mfu, 1) : "-";
  };
  return {name, "%", text, leaves, meaning};
}

std::vector<SweepColumn> result_columns(bool has_stages, bool has_open, double memory_bytes) {
  std::vector<SweepColumn> columns{
      {"mesh", "",
       [=](const SimulatedCell& cell) {
         return describe_mesh(mesh_of(cell.plan().options), has_stages);
       },
       3,
       has_stages ? "mesh: stages x replicas x ranks that share one"
                  : "mesh: replicas x ranks that share one"},
      {"step", "ms", [](const SimulatedCell& cell) { return in_ms(cell.step.seconds); }},
      {"tokens/s", "/rank",
       [](const SimulatedCell& cell) {
         return with_prefix(cell.tokens_per_second() /
                            static_cast<double>(cell.plan().options.ranks));
       },
       1},
      mfu_column("MFU", 2, &SimulatedCell::mfu, "MFU: with attention's causal half"),
      mfu_column("full", 6, &SimulatedCell::full_mfu,
                 "full: MFU with all of attention, as PaLM and torchtitan count"),
      share_column(
          "exposed", 4, [](const SimulatedStep& step) { return step.communication.exposed; },
          has_stages ? "exposed: the share of a step in which a stage only runs collectives"
                     : "exposed: the share of a step in which only communication runs")};
  if (has_stages) {
    columns.push_back(share_column(
        "messages", 5, [](const SimulatedStep& step) { return step.exposed_messages(); },
        "messages: in which it only sends and receives"));
    columns.push_back(share_column(
        "bubble", 4, [](const SimulatedStep& step) { return step.bubble(); },
        "bubble: in which it waits for other stages"));
  }
  columns.push_back({"memory", "",
                     [](const SimulatedCell& cell) { return format_bytes(cell.memory); }, 0,
                     "memory: of one device, with what it takes beside the plan"});
  columns.push_back({"", "",
                     [=](const SimulatedCell& cell) -> std::string {
                       if (static_cast<double>(cell.memory) > memory_bytes) return "too much";
                       return concat(cell.is_best ? "best" : "", cell.is_open ? "~" : "");
                     },
                     0,
                     concat("best: the Pareto front: nothing else is both smaller and faster, by "
                            "tokens per second and rank",
                            has_open ? "; ~: its time and that of a cell which needs no more "
                                       "memory cannot be told apart by their intervals"
                                     : "")});
  return columns;
}

/// Leaves columns out until the others fit. Their names.
std::vector<std::string> fit(std::vector<SweepColumn>& columns,
                             const std::vector<SimulatedCell>& cells) {
  std::size_t width = 2 * (columns.size() - 1);
  for (const SweepColumn& column : columns) width += column.width(cells);
  std::vector<std::string> left_out;
  while (width > static_cast<std::size_t>(kColumns)) {
    const auto first = std::ranges::max_element(columns, {}, &SweepColumn::leaves);
    if (first->leaves == 0) break;
    width -= first->width(cells) + 2;
    left_out.push_back(first->upper);
    columns.erase(first);
  }
  return left_out;
}

template <typename Text>
std::vector<std::string> row_of(const std::vector<SweepColumn>& columns, const Text& text) {
  std::vector<std::string> row;
  for (const SweepColumn& column : columns) row.push_back(text(column));
  return row;
}

}  // namespace

void print_sweep_table(std::ostream& out, const std::vector<Swept>& sweep,
                       const std::vector<SimulatedCell>& cells, const HardwareProfile& profile) {
  const bool has_stages = std::ranges::any_of(
      cells, [](const SimulatedCell& cell) { return cell.step.stages.size() > 1; });
  const bool has_open = std::ranges::any_of(cells, &SimulatedCell::is_open);
  std::vector<SweepColumn> columns = setting_columns(sweep);
  std::ranges::move(result_columns(has_stages, has_open, profile.memory_bytes.value),
                    std::back_inserter(columns));
  const std::vector<std::string> left_out = fit(columns, cells);
  TextTable table(row_of(columns, [](const SweepColumn& column) { return column.upper; }));
  table.add(row_of(columns, [](const SweepColumn& column) { return column.lower; }));
  for (const SimulatedCell& cell : cells) {
    table.add(row_of(columns, [&](const SweepColumn& column) { return column.text(cell); }));
  }
  table.print(out);
  out << "\n";
  std::vector<std::string> meanings =
      row_of(columns, [](const SweepColumn& column) { return column.meaning; });
  std::erase(meanings, "");
  print_paragraph(out, tessera::joined(meanings, "; ") + ".");
  if (!left_out.empty()) {
    print_paragraph(out, concat("Columns without room: ", tessera::joined(left_out),
                                "; --format csv prints all."));
  }
}

}  // namespace tessera::cli

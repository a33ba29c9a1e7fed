#include "simulate/simulation_check.h"

#include <algorithm>
#include <cmath>
#include <ostream>
#include <vector>

#include "commands.h"
#include "output/json_output.h"
#include "output/terminal.h"
#include "output/text_table.h"
#include "settings/command_line.h"
#include "simulate/simulated_run.h"
#include "tessera/core/error.h"
#include "tessera/lab/comparison_figures.h"

namespace tessera::cli {
namespace {

/// A cell of the comparison, measured and predicted.
struct Checked {
  std::vector<std::string> values;  ///< of the comparison's axes
  double measured = 0.0;            ///< seconds of a step: the median of all runs' steps
  double spread = 0.0;              ///< the farthest median of a run, relative to that
  double predicted = 0.0;

  double error() const { return predicted / measured - 1.0; }
  /// Farther off than both 15 % and the runs among themselves.
  bool is_off() const { return std::abs(error()) > std::max(0.15, spread); }
};

Checked check_cell(const Config& base, const HardwareProfile& profile, const Comparison& comparison,
                   const ComparedCell& cell) {
  Config config = base;
  for (const NamedText& setting : cell.settings) config.set_text(setting.name, setting.value);
  Checked checked;
  for (const std::string& axis : comparison.axes) checked.values.push_back(cell.setting(axis));
  std::vector<double> all, medians;
  for (const CellRun& run : cell.runs) {
    if (run.step_seconds.empty()) continue;
    all.insert(all.end(), run.step_seconds.begin(), run.step_seconds.end());
    medians.push_back(median(run.step_seconds));
  }
  checked.measured = median(std::move(all));
  for (const double one : medians) {
    checked.spread = std::max(checked.spread, std::abs(one / checked.measured - 1.0));
  }
  const auto here = static_cast<int>(std::max<std::int64_t>(cell.ranks, 1));  // on one machine
  checked.predicted = simulate_run(std::move(config), profile, here).step.seconds;
  return checked;
}

std::string signed_percent(double share) {
  return concat(share > 0.0 ? "+" : "", in_percent(share));
}

struct Errors {
  double mean = 0.0, worst = 0.0, spread = 0.0;  ///< relative; `spread`: the mean of the cells
  int off = 0;
};

Errors errors_of(const std::vector<Checked>& cells) {
  Errors errors;
  for (const Checked& cell : cells) {
    errors.mean += std::abs(cell.error()) / static_cast<double>(cells.size());
    errors.spread += cell.spread / static_cast<double>(cells.size());
    errors.worst = std::max(errors.worst, std::abs(cell.error()));
    errors.off += cell.is_off() ? 1 : 0;
  }
  return errors;
}

void print_text(std::ostream& out, const Comparison& comparison, const HardwareProfile& profile,
                const std::vector<Checked>& cells) {
  std::vector<std::string> heading = comparison.axes;
  heading.insert(heading.end(), {"measured, ms", "spread", "predicted, ms", "error", ""});
  TextTable table(heading);
  for (const Checked& cell : cells) {
    std::vector<std::string> row = cell.values;
    row.insert(row.end(), {fixed(cell.measured * 1e3, 1), in_percent(cell.spread),
                           fixed(cell.predicted * 1e3, 1), signed_percent(cell.error()),
                           cell.is_off() ? "off" : ""});
    table.add(std::move(row));
  }
  const Errors errors = errors_of(cells);
  out << comparison.model << "\nprofile " << profile.name << ", " << cells.size()
      << " configurations of " << comparison.date << "\n\n";
  table.print(out);
  out << "\n";
  print_paragraph(
      out, concat("error: mean ", in_percent(errors.mean), ", worst ", in_percent(errors.worst),
                  "; the runs' own spread: mean ", in_percent(errors.spread),
                  ". measured: the median step of all runs; spread: how far the median of a "
                  "run is from that at most; off: more than 15 % and more than the spread."));
}

}  // namespace

int check_simulation(std::ostream& out, const Config& config, const HardwareProfile& profile,
                     const std::string& results) {
  const Comparison comparison = read_comparison(results);
  std::vector<Checked> cells;
  for (const ComparedCell& cell : comparison.cells) {
    const bool measured = std::ranges::any_of(
        cell.runs, [](const CellRun& run) { return !run.step_seconds.empty(); });
    if (measured) cells.push_back(check_cell(config, profile, comparison, cell));
  }
  require(!cells.empty(), ErrorCode::kConfig, "--check: '", results,
          "' has no measured runs; 'tessera compare' without --only-simulate measures them");
  if (config.get<std::string>("format") != "json") {
    print_text(out, comparison, profile, cells);
    return kExitGood;
  }
  auto all = nlohmann::ordered_json::array();
  for (const Checked& cell : cells) {
    nlohmann::ordered_json json = nlohmann::ordered_json::object();
    for (std::size_t i = 0; i < comparison.axes.size(); ++i) {
      json[comparison.axes[i]] = cell.values[i];
    }
    json.update({{"measured_seconds", cell.measured},
                 {"spread", cell.spread},
                 {"predicted_seconds", cell.predicted},
                 {"error", cell.error()},
                 {"off", cell.is_off()}});
    all.push_back(std::move(json));
  }
  const Errors errors = errors_of(cells);
  write_json(out, {{"kind", "simulation_check"},
                   {"profile", profile.name},
                   {"mean_error", errors.mean},
                   {"worst_error", errors.worst},
                   {"mean_spread", errors.spread},
                   {"runs", std::move(all)}});
  return kExitGood;
}

}  // namespace tessera::cli

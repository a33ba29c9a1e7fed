#include "simulate/simulation.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <ostream>
#include <sstream>
#include <utility>
#include <vector>

#include "commands.h"
#include "output/terminal.h"
#include "output/text_output.h"
#include "settings/command_line.h"
#include "tessera/core/error.h"
#include "tessera/core/quantile.h"
#include "tessera/lab/comparison_figures.h"
#include "tessera/trainer/output_file.h"

namespace tessera::cli {
namespace {

/// A cell whose two halves of runs differ by more than this says little of how long its step takes.
constexpr double kSteady = 0.03;
/// A half width is the distance of a checked step: rounding must not put that step outside.
constexpr double kRounding = 1e-9;
/// Predictions that must have been checked before their errors say what to expect of others.
constexpr std::size_t kLeastChecked = 4;

/// A cell of the comparison, measured and predicted.
struct Checked {
  std::vector<std::string> values;  ///< of the comparison's axes
  std::size_t runs = 0;
  double measured = 0.0;  ///< seconds of a step, as typical() has them of all runs
  double spread = 0.0;    ///< between every second run and the others, relative; of one run 0
  double predicted = 0.0;
  double half_width = 0.0;                      ///< of the prediction, relative; 0: it has none
  Evidence evidence = Evidence::kInterpolated;  ///< on which most of it rests
  bool meets = false;                           ///< several ranks

  double error() const { return predicted / measured - 1.0; }
  /// The measured step over the predicted one.
  double ratio() const { return measured / predicted; }
  /// Relative to the prediction, as its half width is.
  double surprise() const { return std::abs(ratio() - 1.0); }
  bool is_steady() const { return spread <= kSteady; }
  bool is_expected() const { return surprise() <= half_width * (1.0 + kRounding); }
};

/// A comparison, and the cells of it that were measured.
struct CheckedComparison {
  std::string path;
  Comparison comparison;
  std::vector<Checked> cells;
};

/// The steps of every `stride`-th run from `first` on, in one number: as in calibrations, of which
/// predictions are made, the mean of the middle half of runs, and of each the middle half of steps.
double typical(const ComparedCell& cell, std::size_t first, std::size_t stride) {
  std::vector<double> runs;
  for (std::size_t i = first; i < cell.runs.size(); i += stride) {
    runs.push_back(interquartile_mean(cell.runs[i].step_seconds));
  }
  return interquartile_mean(std::move(runs));
}

Checked check_cell(const Config& base, const HardwareProfile& profile, const Comparison& comparison,
                   const ComparedCell& cell) {
  Config config = base;
  for (const NamedText& setting : cell.settings) {
    if (setting.value == "-") continue;  // an axis that this cell does not have
    config.set_text(setting.name, setting.value);
  }
  Checked checked;
  for (const std::string& axis : comparison.axes) checked.values.push_back(cell.setting(axis));
  checked.runs = cell.runs.size();
  checked.measured = typical(cell, 0, 1);
  if (checked.runs > 1) {
    checked.spread = std::abs(typical(cell, 0, 2) - typical(cell, 1, 2)) / checked.measured;
  }
  const auto here = static_cast<int>(std::max<std::int64_t>(cell.ranks, 1));  // on one machine
  const SimulatedStep step = simulate_run(std::move(config), profile, here).step;
  checked.predicted = step.seconds;
  checked.half_width = step.half_width;
  checked.evidence = step.kernels.most();
  checked.meets = cell.ranks > 1;
  return checked;
}

std::string signed_percent(double share) {
  return concat(share > 0.0 ? "+" : "", in_percent(share));
}

/// Pairs of cells that differ in the strategy alone, and by more than their spreads.
struct Ranking {
  int pairs = 0, right = 0;
};

Ranking ranking_of(const Comparison& comparison, const std::vector<Checked>& cells) {
  Ranking ranking;
  const auto without_strategy = [&](const Checked& cell) {
    std::vector<std::string> values = cell.values;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (comparison.axes[i] == "strategy") values[i].clear();
    }
    return values;
  };
  for (std::size_t i = 0; i < cells.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const Checked &a = cells[i], &b = cells[j];
      if (without_strategy(a) != without_strategy(b)) continue;
      if (std::abs(a.measured / b.measured - 1.0) <= a.spread + b.spread) continue;
      ranking.pairs += 1;
      ranking.right += (a.measured < b.measured) == (a.predicted < b.predicted) ? 1 : 0;
    }
  }
  return ranking;
}

/// The figures of cells whose own runs agree.
struct Errors {
  int all = 0, cells = 0;                        ///< with those that are unsteady, and without
  int alone = 0;                                 ///< of one run
  double mean = 0.0, worst = 0.0, spread = 0.0;  ///< relative; `spread`: the mean of the cells
  int expected = 0;                              ///< within their interval
  double half_width = 0.0;                       ///< the median of theirs
  Ranking ranking;                               ///< within each comparison
};

std::vector<Checked> steady_of(const std::vector<Checked>& cells) {
  std::vector<Checked> steady;
  std::ranges::copy_if(cells, std::back_inserter(steady), &Checked::is_steady);
  return steady;
}

Errors errors_of(const std::vector<CheckedComparison>& all) {
  Errors errors;
  std::vector<double> widths;
  for (const auto& [path, comparison, cells] : all) {
    const std::vector<Checked> steady = steady_of(cells);
    for (const Checked& cell : steady) {
      errors.mean += std::abs(cell.error());
      errors.spread += cell.spread;
      errors.worst = std::max(errors.worst, std::abs(cell.error()));
      errors.expected += cell.is_expected() ? 1 : 0;
      widths.push_back(cell.half_width);
    }
    const Ranking ranking = ranking_of(comparison, steady);
    errors.ranking.pairs += ranking.pairs;
    errors.ranking.right += ranking.right;
    errors.all += static_cast<int>(cells.size());
    errors.alone += static_cast<int>(std::ranges::count(cells, 1U, &Checked::runs));
    errors.cells += static_cast<int>(steady.size());
  }
  errors.mean /= std::max(errors.cells, 1);
  errors.spread /= std::max(errors.cells, 1);
  errors.half_width = median(std::move(widths));
  return errors;
}

std::string remark(const Checked& cell) {
  if (!cell.is_steady()) return "unsteady";
  return cell.half_width > 0.0 && !cell.is_expected() ? "off" : "";
}

void print_cells(std::ostream& out, const CheckedComparison& one, const HardwareProfile& profile) {
  const auto& [path, comparison, cells] = one;
  std::vector<std::string> heading = comparison.axes;
  heading.insert(heading.end(), {"measured, ms", "spread", "predicted, ms", "+-", "error", ""});
  TextTable table(heading);
  for (const Checked& cell : cells) {
    std::vector<std::string> row = cell.values;
    row.insert(
        row.end(),
        {fixed(cell.measured * 1e3, 1), cell.runs > 1 ? in_percent(cell.spread) : "-",
         fixed(cell.predicted * 1e3, 1), cell.half_width > 0.0 ? in_percent(cell.half_width) : "-",
         signed_percent(cell.error()), remark(cell)});
    table.add(std::move(row));
  }
  out << comparison.model << "\nprofile " << profile.name << ", "
      << counted(std::ssize(cells), "configuration") << " of " << comparison.date << "\n\n";
  table.print(out);
  out << "\n";
}

void print_text(std::ostream& out, const std::vector<CheckedComparison>& all,
                const HardwareProfile& profile) {
  for (const CheckedComparison& one : all) print_cells(out, one, profile);
  const Errors errors = errors_of(all);
  if (all.size() > 1) {
    out << "all " << all.size() << " comparisons, " << errors.all << " configurations\n\n";
  }
  const int unsteady = errors.all - errors.cells;
  if (unsteady > 0) {
    print_paragraph(out, concat(unsteady, " of ", errors.all, " are unsteady: two halves of ",
                                "their runs are more than ", in_percent(kSteady),
                                " apart. They are left ", "out of what follows",
                                unsteady * 10 > errors.all
                                    ? "; more than one in ten: measure again while nothing else "
                                      "runs."
                                    : "."));
  }
  if (errors.alone > 0) {
    print_paragraph(out, concat(errors.alone, " of ", errors.all, " have one run each, which does ",
                                "not say how steady they are; compare with --repeats 3."));
  }
  if (errors.cells == 0) return;
  print_paragraph(
      out, concat("error: mean ", in_percent(errors.mean), ", worst ", in_percent(errors.worst),
                  "; the runs' own spread: mean ", in_percent(errors.spread), "."));
  if (errors.half_width > 0.0) {
    print_paragraph(out, concat("interval: ", errors.expected, " of ", errors.cells,
                                " measured steps are within the prediction's, whose half is ",
                                in_percent(errors.half_width), " at the median."));
  }
  if (errors.ranking.pairs > 0) {
    print_paragraph(out, concat("ranking: of ", errors.ranking.pairs, " pairs that differ in the ",
                                "strategy alone, and by more than their spreads, ",
                                errors.ranking.right, " are predicted in the right order."));
  }
  print_paragraph(
      out,
      concat("measured: the mean step of the runs between the quartiles, of each the steps between "
             "them",
             "; spread: how far every second run and the others are apart; +-: half of "
             "the interval in which nine of ten measured steps are expected; off: "
             "outside of it."));
}

/// "predictions checked of gpt2-tiny, 2026-01-01T00:00:00Z; gpt2-124m, ...".
std::string source_of(const std::vector<CheckedComparison>& all) {
  std::vector<std::string> words;
  for (const CheckedComparison& one : all) {
    words.push_back(concat(one.comparison.model, ", ", one.comparison.date));
  }
  return concat("predictions checked of ", tessera::joined(words, "; "));
}

/// Replaces what the profile knows of its errors by those of all these cells together, of one rank
/// and of several, and says so. What disturbs a measured cell widens the interval.
void keep_residuals(std::ostream& out, HardwareProfile profile, const std::string& path,
                    const std::vector<CheckedComparison>& all) {
  for (const bool meets : {false, true}) {
    std::vector<double> ratios;
    Evidence least = Evidence::kMeasured;
    for (const CheckedComparison& one : all) {
      for (const Checked& cell : one.cells) {
        if (cell.meets != meets) continue;
        ratios.push_back(cell.ratio());
        least = std::max(least, cell.evidence);
      }
    }
    if (ratios.empty()) continue;
    const char* const words = meets ? "several ranks" : "one rank";
    if (ratios.size() < kLeastChecked) {
      print_paragraph(out, concat(words, ": ", ratios.size(), " configurations, fewer than ",
                                  kLeastChecked, ", which says too little"));
      continue;
    }
    // Nine of ten that are drawn alike are within the value of this rank, also of few.
    const double ratio = median(ratios);
    std::vector<double> off;
    for (const double one : ratios) off.push_back(std::abs(one / ratio - 1.0));
    std::ranges::sort(off);
    const auto rank =
        static_cast<std::size_t>(std::ceil(0.9 * static_cast<double>(off.size() + 1))) - 1;
    std::erase_if(profile.residuals,
                  [&](const Residual& residual) { return residual.meets == meets; });
    profile.residuals.push_back({.evidence = least,
                                 .meets = meets,
                                 .half_width = std::max(off[std::min(rank, off.size() - 1)], 0.01),
                                 .ratio = ratio,
                                 .cells = static_cast<std::int64_t>(ratios.size()),
                                 .source = source_of(all)});
    print_paragraph(out, concat(words, ": steps take ", fixed(ratio, 3),
                                " times as long as predicted so far; nine of ten steps are "
                                "expected within ",
                                in_percent(profile.residuals.back().half_width), " of that, by ",
                                ratios.size(), " configurations"));
  }
  replace_file(path, "--profile", to_text(profile));
}

CheckedComparison check_comparison(const Config& config, const HardwareProfile& profile,
                                   const std::string& path) {
  CheckedComparison checked{.path = path, .comparison = read_comparison(path), .cells = {}};
  for (const ComparedCell& cell : checked.comparison.cells) {
    const bool measured = std::ranges::any_of(
        cell.runs, [](const CellRun& run) { return !run.step_seconds.empty(); });
    if (measured) {
      checked.cells.push_back(check_cell(config, profile, checked.comparison, cell));
    }
  }
  require(!checked.cells.empty(), ErrorCode::kConfig, "--check: '", path,
          "' has no measured runs; 'tessera compare' without --only-simulate measures them");
  return checked;
}

nlohmann::ordered_json json_of(const CheckedComparison& one, const Checked& cell) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (std::size_t i = 0; i < one.comparison.axes.size(); ++i) {
    json[one.comparison.axes[i]] = cell.values[i];
  }
  json.update({{"results", one.path},
               {"measured_seconds", cell.measured},
               {"spread", cell.spread},
               {"steady", cell.is_steady()},
               {"predicted_seconds", cell.predicted},
               {"half_width", cell.half_width},
               {"evidence", to_string(cell.evidence)},
               {"error", cell.error()},
               {"off", remark(cell) == "off"}});
  return json;
}

/// The figures of all comparisons together, the comparisons, and the runs of all.
void print_json(std::ostream& out, const std::vector<CheckedComparison>& all,
                const HardwareProfile& profile) {
  auto comparisons = nlohmann::ordered_json::array();
  auto runs = nlohmann::ordered_json::array();
  for (const CheckedComparison& one : all) {
    comparisons.push_back({{"results", one.path},
                           {"model", one.comparison.model},
                           {"date", one.comparison.date},
                           {"configurations", one.cells.size()}});
    for (const Checked& cell : one.cells) runs.push_back(json_of(one, cell));
  }
  const Errors errors = errors_of(all);
  write_json(out, {{"kind", "simulation_check"},
                   {"profile", profile.name},
                   {"steady", errors.cells},
                   {"mean_error", errors.mean},
                   {"worst_error", errors.worst},
                   {"mean_spread", errors.spread},
                   {"expected", errors.expected},
                   {"median_half_width", errors.half_width},
                   {"ranked_pairs", errors.ranking.pairs},
                   {"ranked_right", errors.ranking.right},
                   {"comparisons", std::move(comparisons)},
                   {"runs", std::move(runs)}});
}

}  // namespace

int check_simulation(std::ostream& out, const Config& config, const HardwareProfile& profile,
                     const std::vector<std::string>& results) {
  const bool learns = config.get<bool>("learn");
  const auto path = config.get<std::string>("profile");
  if (learns) {
    require(std::ranges::count(builtin_profiles(), path) == 0, ErrorCode::kConfig,
            "--learn writes into the profile, and ", path,
            " comes with Tessera; calibrate this machine, or copy it by --show-profile");
    check_writable(path, "--profile", Writing::kByReplacing);
  }
  HardwareProfile of_kernels = profile;  // learning begins with predictions that nothing corrects
  if (learns) of_kernels.residuals.clear();
  std::vector<CheckedComparison> all;
  for (const std::string& one : results) {
    all.push_back(check_comparison(config, of_kernels, one));
  }
  const bool is_text = config.get<std::string>("format") != "json";
  is_text ? print_text(out, all, profile) : print_json(out, all, profile);
  std::ostringstream unsaid;
  if (learns) keep_residuals(is_text ? out : unsaid, profile, path, all);
  return kExitGood;
}

}  // namespace tessera::cli

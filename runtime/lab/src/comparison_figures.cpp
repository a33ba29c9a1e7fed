#include "tessera/lab/comparison_figures.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>

#include "shell_word.h"
#include "tessera/core/error.h"
#include "tessera/lab/pareto.h"
#include "tessera/lab/profile_trust.h"

namespace tessera {
namespace {

/// The 97.5 % quantile of Student's t.
double student_t(std::size_t freedom) {
  constexpr std::array kQuantiles{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365,
                                  2.306,  2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
                                  2.131,  2.120, 2.110, 2.101, 2.093, 2.086};
  if (freedom <= kQuantiles.size()) return kQuantiles[freedom - 1];
  const auto n = static_cast<double>(freedom);
  return 1.960 + 2.372 / n + 2.82 / (n * n);  // Cornish and Fisher's expansion
}

template <typename Value>
std::optional<double> mean_over_runs(const ComparedCell& cell, const Value& value) {
  std::vector<double> values;
  for (const CellRun& run : cell.runs) {
    if (const std::optional<double> one = value(run)) values.push_back(*one);
  }
  if (values.empty()) return std::nullopt;
  return mean_of(values).value;
}

bool has_same_bits(const CellRun& a, const CellRun& b) {
  return !a.parameters_sha256.empty() && a.parameters_sha256 == b.parameters_sha256 &&
         std::ranges::equal(a.losses, b.losses, [](double x, double y) {
           return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
         });
}

/// All repeats of it have the same bits.
bool repeats_its_bits(const ComparedCell& cell) {
  return !cell.runs.empty() && std::ranges::all_of(cell.runs, [&](const CellRun& run) {
    return has_same_bits(run, cell.runs.front());
  });
}

/// The words around an axis' value, where it does not speak for itself.
struct AxisWords {
  std::string_view axis;
  std::string before, after_one, after;
};
const std::array<AxisWords, 7> kAxisWords{
    {{"ranks", "", " rank", " ranks"},
     {"micro_batch", "micro-batch ", "", ""},
     {"replicas", "", " replica", " replicas"},
     {"recompute", "recompute ", "", ""},
     {"prefetch_forward", "prefetch ", "", ""},
     {"pipeline", "pipeline ", "", ""},
     {"virtual_stages", "", " stage on each", " stages on each"}}};

constexpr const char* kMeasured =
    "A step time is the mean over a cell's repeats of each run's median step, the untimed first "
    "steps left out; +/- is half of its 95 % confidence interval (Student's t over the repeats). "
    "Memory is what a rank needs of its device: rank 0's peak, and on a GPU what is beside the "
    "plan. Cells with the same letter under bits have bit-identical losses and "
    "parameters. Best: the Pareto front: nothing else is both smaller and faster, by tokens per "
    "second and rank.";
constexpr const char* kPredicted =
    "Nothing has run: all is predicted. Memory is what a rank needs of its device, with what a GPU "
    "takes beside the plan. Best: the Pareto front: nothing else is both smaller and faster, by "
    "tokens per second and rank.";
constexpr const char* kOfIntervals =
    " +/-: nine of ten measured steps are expected within it; ~: whether a cell is on the front is "
    "open, since another one that needs no more memory may be as fast.";
constexpr const char* kOfPipelines =
    " Messages: the share of a step in which a stage only sends or receives; bubble: in which it "
    "waits for other stages. Both are simulated, and means over the stages.";

}  // namespace

std::string method_of(const Comparison& comparison) {
  std::string text = comparison.repeats > 0 ? kMeasured : kPredicted;
  if (!comparison.profile.empty()) {
    const std::string& source = comparison.profile_source;
    text += concat(" Simulated times are of the profile ", comparison.profile,
                   source.empty() ? "" : ", ", source, "; trust them as ",
                   trust_in(comparison.profile), ".");
  }
  if (comparison.repeats == 0 && std::ranges::any_of(front_places(comparison), &FrontPlace::open)) {
    text += kOfIntervals;
  }
  text += " Exposed: the share of a step in which only communication runs.";
  const bool has_stages = std::ranges::any_of(
      comparison.cells, [](const ComparedCell& cell) { return bubble_share(cell).has_value(); });
  return has_stages ? text + kOfPipelines : text;
}

std::vector<MissingCells> missing_cells(const Comparison& comparison) {
  std::vector<MissingCells> all;
  for (const ComparedCell& cell : comparison.cells) {
    if (cell.why.empty()) continue;
    const std::string label = cell_label(comparison, cell);
    const auto known = std::ranges::find_if(all, [&](const MissingCells& one) {
      return one.state == cell.state && one.why == cell.why;
    });
    if (known == all.end()) {
      all.push_back({cell.state, cell.why, label});
    } else {
      known->cells += "; " + label;
    }
  }
  return all;
}

Estimate mean_of(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  Estimate estimate;
  for (const double value : values) estimate.value += value / count;
  if (values.size() < 2) return estimate;
  double squares = 0.0;
  for (const double value : values) squares += std::pow(value - estimate.value, 2);
  estimate.half_width =
      student_t(values.size() - 1) * std::sqrt(squares / (count - 1.0)) / std::sqrt(count);
  return estimate;
}

std::optional<Estimate> step_time(const ComparedCell& cell) {
  std::vector<double> medians;
  for (const CellRun& run : cell.runs) {
    if (!run.step_seconds.empty()) medians.push_back(median(run.step_seconds));
  }
  if (medians.empty()) return std::nullopt;
  return mean_of(medians);
}

std::optional<double> exposed_seconds(const ComparedCell& cell) {
  return mean_over_runs(cell, [](const CellRun& run) { return run.exposed_seconds; });
}

std::optional<double> communication_seconds(const ComparedCell& cell) {
  return mean_over_runs(cell, [](const CellRun& run) { return run.communication_seconds; });
}

std::optional<Estimate> shown_step_time(const ComparedCell& cell) {
  if (const auto measured = step_time(cell)) return measured;
  return simulated_step_time(cell);
}

std::optional<Estimate> simulated_step_time(const ComparedCell& cell) {
  if (!cell.predicted || !cell.predicted->time) return std::nullopt;
  const SimulatedTime& time = *cell.predicted->time;
  if (time.half_width <= 0.0) return Estimate{.value = time.step_seconds};
  return Estimate{.value = time.step_seconds, .half_width = time.half_width * time.step_seconds};
}

std::optional<double> shown_exposed(const ComparedCell& cell) {
  if (!cell.runs.empty()) return exposed_seconds(cell);
  if (!cell.predicted || !cell.predicted->time) return std::nullopt;
  return cell.predicted->time->exposed_seconds;
}

std::optional<double> exposed_share(const ComparedCell& cell) {
  const std::optional<double> exposed = shown_exposed(cell);
  const std::optional<Estimate> time = shown_step_time(cell);
  if (!exposed || !time) return std::nullopt;
  return *exposed / time->value;
}

std::optional<double> shown_communication(const ComparedCell& cell) {
  if (!cell.runs.empty()) return communication_seconds(cell);
  if (!cell.predicted || !cell.predicted->time) return std::nullopt;
  return cell.predicted->time->communication_seconds;
}

MemoryPeak shown_peak(const ComparedCell& cell) {
  if (!cell.runs.empty()) return cell.runs.front().peak;
  return cell.predicted ? cell.predicted->peak : MemoryPeak{};
}

std::int64_t shown_device_bytes(const ComparedCell& cell) {
  const std::int64_t beside =
      cell.predicted ? cell.predicted->device_bytes - cell.predicted->peak.total : 0;
  return shown_peak(cell).total + std::max<std::int64_t>(beside, 0);
}

Traffic shown_traffic(const ComparedCell& cell) {
  if (!cell.runs.empty()) return cell.runs.front().traffic;
  return cell.predicted ? cell.predicted->traffic : Traffic{};
}

std::int64_t pipeline_ranks(const ComparedCell& cell) {
  const std::string value = cell.setting("pipeline");
  std::int64_t ranks = 1;
  std::from_chars(value.data(), value.data() + value.size(), ranks);
  return std::max<std::int64_t>(ranks, 1);
}

std::optional<double> bubble_share(const ComparedCell& cell) {
  if (!cell.predicted || !cell.predicted->time || pipeline_ranks(cell) == 1) return std::nullopt;
  return cell.predicted->time->bubble_seconds / cell.predicted->time->step_seconds;
}

std::optional<double> message_share(const ComparedCell& cell) {
  if (!cell.predicted || !cell.predicted->time || pipeline_ranks(cell) == 1) return std::nullopt;
  return cell.predicted->time->exposed_message_seconds / cell.predicted->time->step_seconds;
}

std::string cell_label(const Comparison& comparison, const ComparedCell& cell) {
  std::string label;
  for (const std::string& axis : comparison.axes) {
    const std::string value = cell.setting(axis);
    const auto words = std::ranges::find(kAxisWords, axis, &AxisWords::axis);
    label += label.empty() ? "" : ", ";
    if (axis == "replicas" && value == "0") {
      label += "its own replicas";
      continue;
    }
    if (words == kAxisWords.end()) {
      label += value;
      continue;
    }
    label += words->before + value;
    label += value == "1" ? words->after_one : words->after;
  }
  return label;
}

std::string shell_command(const Comparison& comparison) {
  std::string command = "tessera";
  for (const std::string& word : comparison.command) command += " " + shell_word(word);
  return command;
}

std::vector<std::string> bit_groups(const Comparison& comparison) {
  const auto& cells = comparison.cells;
  std::vector<std::string> groups(cells.size());
  std::size_t made = 0;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (!groups[i].empty() || !repeats_its_bits(cells[i])) continue;
    std::vector<std::size_t> members{i};
    for (std::size_t j = i + 1; j < cells.size(); ++j) {
      if (repeats_its_bits(cells[j]) &&
          has_same_bits(cells[i].runs.front(), cells[j].runs.front())) {
        members.push_back(j);
      }
    }
    if (members.size() < 2 && cells[i].runs.size() < 2) continue;
    std::string name(1, static_cast<char>('A' + made % 26));
    if (made >= 26) name += std::to_string(made / 26);
    ++made;
    for (const std::size_t member : members) groups[member] = name;
  }
  return groups;
}

std::vector<FrontPlace> front_places(const Comparison& comparison) {
  std::vector<ParetoPoint> points;
  std::vector<std::size_t> of_cell;
  for (std::size_t i = 0; i < comparison.cells.size(); ++i) {
    const ComparedCell& cell = comparison.cells[i];
    const std::optional<Estimate> time = shown_step_time(cell);
    if (!time || cell.tokens_per_step == 0) continue;
    points.push_back(
        {static_cast<double>(shown_device_bytes(cell)),
         time->value * static_cast<double>(cell.ranks) / static_cast<double>(cell.tokens_per_step),
         time->half_width.value_or(0.0) / time->value});
    of_cell.push_back(i);
  }
  std::vector<FrontPlace> places(comparison.cells.size());
  const std::vector<bool> front = pareto_front(points), open = cannot_be_told_apart(points);
  for (std::size_t i = 0; i < of_cell.size(); ++i) places[of_cell[i]] = {front[i], open[i]};
  return places;
}

}  // namespace tessera

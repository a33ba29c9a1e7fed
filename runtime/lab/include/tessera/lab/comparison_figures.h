#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/core/quantile.h"
#include "tessera/lab/comparison.h"

// The figures of a comparison that tables and plots show.
namespace tessera {

/// A mean of repeats.
struct Estimate {
  double value = 0.0;
  /// Half of the 95 % confidence interval, by Student's t; nothing with fewer than two repeats.
  std::optional<double> half_width{};
};

/// How the figures of tables came about, their units, and how far to trust simulated times.
std::string method_of(const Comparison& comparison);

/// Why cells have failed or are impossible: cells with the same reason stand together.
struct MissingCells {
  CellState state = CellState::kFailed;
  std::string why;
  std::string cells;  ///< their labels
};
std::vector<MissingCells> missing_cells(const Comparison& comparison);

Estimate mean_of(const std::vector<double>& values);

/// Measured; nothing if no run is done.
std::optional<Estimate> step_time(const ComparedCell& cell);
/// Mean over the runs; nothing if it was not measured.
std::optional<double> exposed_seconds(const ComparedCell& cell);
std::optional<double> communication_seconds(const ComparedCell& cell);

// Measured, or else predicted.
std::optional<Estimate> shown_step_time(const ComparedCell& cell);
/// The predicted step, with its interval if it has one; nothing: none was predicted.
std::optional<Estimate> simulated_step_time(const ComparedCell& cell);
std::optional<double> shown_exposed(const ComparedCell& cell);
std::optional<double> exposed_share(const ComparedCell& cell);  ///< of the step time
std::optional<double> shown_communication(const ComparedCell& cell);
MemoryPeak shown_peak(const ComparedCell& cell);
/// The memory that a rank must have of its device: that peak, and a GPU's items beside the plan.
std::int64_t shown_device_bytes(const ComparedCell& cell);
Traffic shown_traffic(const ComparedCell& cell);

/// How many pipeline ranks a cell has.
std::int64_t pipeline_ranks(const ComparedCell& cell);
// Predicted, of a cell with several: the shares of a step in which a rank waits for other stages,
// and in which only messages run, means over the stages. See StageTime.
std::optional<double> bubble_share(const ComparedCell& cell);
std::optional<double> message_share(const ComparedCell& cell);

/// "zero1, 2 ranks, bf16": the values of the axes.
std::string cell_label(const Comparison& comparison, const ComparedCell& cell);

/// The command that asks for the same comparison, as a shell takes it.
std::string shell_command(const Comparison& comparison);

/// By cell: "A", "B", ... for those of which another, or another repeat, has the same bits in every
/// loss and in the parameters; "" for the others. A cell whose own repeats differ has none.
std::vector<std::string> bit_groups(const Comparison& comparison);

/// A cell and the Pareto front of memory and seconds per token and rank.
struct FrontPlace {
  bool best = false;  ///< it has a time and is on the front
  bool open = false;  ///< see cannot_be_told_apart()
};
std::vector<FrontPlace> front_places(const Comparison& comparison);

}  // namespace tessera

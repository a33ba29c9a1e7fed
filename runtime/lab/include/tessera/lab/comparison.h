#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/collectives/process_group.h"
#include "tessera/core/memory.h"
#include "tessera/core/named_text.h"

namespace tessera {

/// The outcome of a cell of a comparison.
enum class CellState : std::uint8_t {
  kMissing,     ///< not all of its repeats have run yet
  kDone,        ///< all have
  kPredicted,   ///< nothing is to run, and it is predicted
  kFailed,      ///< a run has failed; the cell says why
  kImpossible,  ///< it cannot be planned; the cell says why
};
std::string_view to_string(CellState state);

/// Work of a lane of rank 0, or of the first rank of another pipeline rank.
struct LaneSpan {
  std::string lane;    ///< "compute", "gather", ...
  std::string name;    ///< "forward h.0"
  double begin = 0.0;  ///< seconds from the step's begin
  double end = 0.0;
  int pipeline_rank = 0;
  // Passes through layers and messages have these.
  int stage = -1;       ///< whose pass it is, or whose message
  int micro_step = -1;  ///< from 0
  bool operator==(const LaneSpan&) const = default;
};

/// One run of a cell. Bytes are rank 0's.
struct CellRun {
  std::vector<double> step_seconds{};  ///< of each step after the warm-up
  std::vector<double> losses{};        ///< of every step; nan and infinity are read back as nan
  MemoryPeak peak{};
  Traffic traffic{};                              ///< of a step
  std::optional<double> exposed_seconds{};        ///< of a step; nothing: not measured
  std::optional<double> communication_seconds{};  ///< of a step; nothing: not measured
  std::string parameters_sha256{};                ///< after the last step
  bool operator==(const CellRun&) const = default;
};

/// A step on a virtual clock.
struct SimulatedTime {
  double step_seconds = 0.0;
  double exposed_seconds = 0.0;
  double communication_seconds = 0.0;
  std::vector<LaneSpan> spans{};
  // Means over the stages of a pipeline; see StageTime.
  double exposed_message_seconds = 0.0;
  double bubble_seconds = 0.0;
  /// It is relative to the step; see SimulatedStep::half_width. 0: there is none.
  double half_width = 0.0;
  bool operator==(const SimulatedTime&) const = default;
};

/// The prediction of a cell's plan.
struct CellPrediction {
  MemoryPeak peak{};
  Traffic traffic{};              ///< of a step
  std::int64_t device_bytes = 0;  ///< the peak, with what a device takes beside the plan
  std::optional<SimulatedTime> time{};
  bool operator==(const CellPrediction&) const = default;
};

/// One combination of settings.
struct ComparedCell {
  /// The run's settings, by the names and in the texts of a config: those of the cell first, then
  /// all others that are not at their defaults.
  std::vector<NamedText> settings{};
  CellState state = CellState::kMissing;
  std::string why{};  ///< it failed or is impossible
  std::int64_t ranks = 0;
  std::int64_t tokens_per_step = 0;  ///< of all ranks; 0 if it is impossible
  std::vector<CellRun> runs{};       ///< one for each repeat
  std::optional<CellPrediction> predicted{};
  std::vector<LaneSpan> timeline{};  ///< of a measured step; empty: none was recorded

  /// The value of a setting; "" if it is at its default.
  std::string setting(std::string_view name) const;
  bool operator==(const ComparedCell&) const = default;
};

/// A matrix of runs on one machine: what was asked for, and what is done of it.
struct Comparison {
  std::string version{};               ///< of the program
  std::string date{};                  ///< when it began, UTC, ISO 8601
  std::vector<NamedText> machine{};    ///< what it ran on; of predictions, what they are for
  std::vector<std::string> command{};  ///< the program's arguments
  std::string model{};                 ///< in words
  std::string data{};                  ///< in words; "": nothing runs
  std::string profile{};               ///< of the simulated times; "": there are none
  std::string profile_source{};        ///< in words; "": it comes with Tessera, or there is none
  std::int64_t steps = 0;              ///< of a run
  std::int64_t warmup_steps = 0;       ///< of them, the first, which are not timed
  std::int64_t repeats = 0;            ///< runs of each cell; 0: all is predicted
  std::vector<std::string> axes{};     ///< settings that make up a cell, "strategy", "ranks", ...
  std::vector<ComparedCell> cells{};
  bool operator==(const Comparison&) const = default;
};

/// Parses the text of results.json. Throws Error{kConfig} that names the file, the key and what
/// belongs there; keys that it does not know are refused.
Comparison parse_comparison(const std::string& text, const std::string& path);
/// The exact inverse.
std::string to_text(const Comparison& comparison);
/// A file. Throws Error{kNotFound, kConfig}.
Comparison read_comparison(const std::string& path);

}  // namespace tessera

#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/lab/flight_dump.h"

// Traces in the Trace Event Format, as JSON, which Perfetto and chrome://tracing open: a process
// for each rank, with a thread for its host and for each lane; a slice for each action, an arrow
// for each wait, counters of the rank's memory by category and of the bytes that its collectives in
// progress send. Times are in microseconds, in eighths, which all readers add up alike. A
// collective's slice says how much of it was exposed: see exposed_by_span.
namespace tessera {

/// The events of ranks, as their records come in.
class TraceEvents {
 public:
  /// `origin`: the trace's time 0, in the records' seconds.
  explicit TraceEvents(double origin) : origin_(origin) {}

  /// Adds the records of `dump`, later ones than any of the same ranks before. Arrows lead from
  /// records of this call to records of this call.
  void add(const FlightDump& dump);
  /// All events since the last call: an array.
  nlohmann::ordered_json take();

 private:
  friend class RankTrace;
  /// A rank so far.
  struct Rank {
    std::map<int, std::int64_t> row_ends;  ///< by row: where the last slice ends
    std::int64_t arrows = 0;
    std::optional<std::pair<MemoryUse, std::int64_t>> memory{};  ///< as last told, with its sum
  };

  const double origin_;
  std::map<int, Rank> ranks_;
  nlohmann::ordered_json events_ = nlohmann::ordered_json::array();
};

/// The timeline of the dumps of one run.
nlohmann::ordered_json to_trace(std::span<const FlightDump> dumps);

/// A trace of what is to come, but for its events: which run it is of. `began`: the trace's time 0
/// in seconds since 1970.
nlohmann::ordered_json trace_frame(const FlightDump& run, double began);

/// The command line of this process, as a shell would take it.
std::string command_of_process();

// A trace as text, one event a line: the head, events with kTraceComma between them, kTraceTail.
std::string trace_head(const nlohmann::ordered_json& frame);
std::string to_lines(const nlohmann::ordered_json& events);
inline constexpr std::string_view kTraceComma = ",\n";
inline constexpr std::string_view kTraceTail = "\n]}\n";
/// All of it.
std::string to_text(const nlohmann::ordered_json& trace);

}  // namespace tessera

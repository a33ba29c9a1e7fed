#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>

#include "tessera/lab/flight_dump.h"

namespace tessera {

/// What dumps of one run hold, as a trace in the JSON format that Perfetto and chrome://tracing
/// open: a process for each rank, with a thread for its host and for each lane; an arrow for each
/// wait; a counter of the bytes that the rank's collectives in progress send. Times are in
/// microseconds from the first record. A collective's slice says how much of it was exposed: no
/// other lane of the rank computed meanwhile.
nlohmann::ordered_json to_trace(std::span<const FlightDump> dumps);

}  // namespace tessera

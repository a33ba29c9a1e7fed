#pragma once

#include <vector>

#include "tessera/collectives/process_group.h"
#include "tessera/collectives/world.h"
#include "tessera/core/device.h"

namespace tessera::cli {

/// Two ranks that talk.
struct Pair {
  int first = 0;
  int second = 0;
};

/// The first ranks of every two machines, or of neighbours in a ring if there are many machines.
std::vector<Pair> pairs_of_machines(const World& world);

/// How fast two ranks exchange messages. Only the first one's clock is used.
struct Link {
  double round_trip_seconds = 0.0;  ///< of a message of 4 bytes and its answer, the median
  double bytes_per_second = 0.0;    ///< of 16 MiB there and back, the best
};

/// Every rank must call it and gets the result; those that are not of the pair wait.
Link measure_link(ProcessGroup& group, Device& device, const Pair& pair);

}  // namespace tessera::cli

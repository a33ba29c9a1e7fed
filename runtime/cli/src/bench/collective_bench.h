#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/collective_case.h"
#include "tessera/collectives/process_group.h"
#include "tessera/core/device.h"

namespace tessera::bench {

/// How each collective and size is measured, in the words of nccl-tests.
struct CollectiveOptions {
  std::int64_t min_bytes = std::int64_t{64} << 10;
  std::int64_t max_bytes = std::int64_t{64} << 20;
  std::int64_t step_bytes = 0;  ///< above 0: from one size to the next, instead of the factor
  int step_factor = 4;
  int iterations = 20;    ///< calls of a timing
  int warm_ups = 5;       ///< calls before the first timing of a size
  int repeats = 5;        ///< timings, in turns out of place, in place and as a memcpy
  bool check = true;      ///< compare every element with what it must be
  bool blocking = false;  ///< the time is the mean of calls that start together, not of a pipeline
  int root = 0;
  int unalign = 0;  ///< elements by which buffers begin behind an aligned address
  DType dtype = DType::kFloat32;
  int threads = 1;  ///< of a rank
  /// Hold a CPU rank of one thread to a core, where there are enough: left alone, the system now
  /// and then puts two ranks that wait for each other on one core.
  bool bind_threads = false;
  bool contended = false;  ///< measure once more beside GEMMs
};

/// A collective beside GEMMs of the same rank, and they beside it.
struct ContendedTimes {
  double seconds = 0.0;              ///< of a call
  double collective_slowdown = 0.0;  ///< over the same pipeline without GEMMs
  double gemm_slowdown = 0.0;        ///< of the slowest rank's, over GEMMs without the collective
};

/// Times of one call, each the longest of all ranks.
struct PlaceTimes {
  double seconds = 0.0;         ///< mean
  std::vector<double> repeats;  ///< of each timing, the mean of its calls in a pipeline
  std::vector<double> calls;    ///< each from a common start to its end on the slowest rank
  std::int64_t wrong = 0;       ///< elements, over all ranks
  double copy_seconds = 0.0;    ///< of a memcpy by all ranks of what the call reads; 0: reads none
  std::optional<ContendedTimes> contended{};

  /// The collective's share of memcpy's speed; 0 if it copies nothing.
  double fraction() const;
};

/// A line of the table.
struct CollectiveRow {
  const CollectiveCase* collective = nullptr;
  int ranks = 1;           ///< of the group
  std::int64_t bytes = 0;  ///< of the whole buffer
  std::int64_t count = 0;  ///< elements, as nccl-tests counts them
  DType dtype = DType::kFloat32;
  int root = -1;
  PlaceTimes out_of_place{}, in_place{};

  double algbw(const PlaceTimes& place) const;  ///< bytes per second
  double busbw(const PlaceTimes& place) const;
};

/// The groups of one rank: the collectives run over `group`, in all such groups at once; the start
/// of each timing and the exchange of times over `world`. They may be the same.
struct BenchGroups {
  ProcessGroup& world;
  ProcessGroup& group;
};

/// Measures a collective at each size of the options. Every rank of the world must call it, with
/// the same options; each gets the same rows. Throws Error{kConfig} if the collective does not take
/// the dtype or the root.
std::vector<CollectiveRow> measure_collective(
    const CollectiveCase& collective, const BenchGroups& groups, Device& device,
    const CollectiveOptions& options, const std::function<void(const CollectiveRow&)>& on_row = {});

}  // namespace tessera::bench

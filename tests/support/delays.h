#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include "tessera/sharding/schedule.h"

namespace tessera::test {

/// What one rank sleeps before the tasks of its lanes: nothing before three of four, less than
/// `longest` before the others. Before a lane's n-th task it is a pure function of seed, rank, lane
/// and n, so that a failure can be looked for again with its seed. For
/// ExecutorOptions::before_task.
inline std::function<void(Lane)> random_delays(
    std::uint32_t seed, int rank,
    std::chrono::microseconds longest = std::chrono::microseconds{2000}) {
  // Each generator belongs to the one thread that runs its lane.
  auto lanes = std::make_shared<std::array<std::mt19937, kLanes>>();
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    std::seed_seq sequence{seed, static_cast<std::uint32_t>(rank),
                           static_cast<std::uint32_t>(lane)};
    (*lanes)[lane].seed(sequence);
  }
  return [lanes, longest](Lane lane) {
    std::mt19937& random = (*lanes)[static_cast<std::size_t>(lane)];
    if (random() % 4 != 0) return;
    std::this_thread::sleep_for(
        std::chrono::microseconds(random() % static_cast<std::uint64_t>(longest.count())));
  };
}

}  // namespace tessera::test

#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
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
  // Each state belongs to the one thread that runs its lane. SplitMix64 (Steele, Lea, Flood, 2014):
  // tests make thousands of these, and a Mersenne twister takes longer to seed than a small step to
  // run.
  auto states = std::make_shared<std::array<std::uint64_t, kLanes>>();
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    (*states)[lane] = std::uint64_t{seed} << 32U | static_cast<std::uint64_t>(rank) << 8U | lane;
  }
  return [states, longest](Lane lane) {
    std::uint64_t value = (*states)[static_cast<std::size_t>(lane)] += 0x9E3779B97F4A7C15U;
    value = (value ^ value >> 30U) * 0xBF58476D1CE4E5B9U;
    value = (value ^ value >> 27U) * 0x94D049BB133111EBU;
    value ^= value >> 31U;
    if (value % 4 != 0) return;
    std::this_thread::sleep_for(
        std::chrono::microseconds(value / 4 % static_cast<std::uint64_t>(longest.count())));
  };
}

}  // namespace tessera::test

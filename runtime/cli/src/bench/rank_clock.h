#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tessera/collectives/process_group.h"
#include "tessera/core/device.h"
#include "tessera/core/memory.h"

namespace tessera::bench {

/// Seconds of the steady clock.
double now();

/// Times what every rank of `world` issues on its own stream from a common start. Every rank must
/// make the same calls. Times are those of this rank; `longest` makes them everybody's.
///
/// On the CPU the stream itself takes the time, between a barrier and the end of the work, and all
/// is issued before: the thread that issues would take a core from one that works. On a GPU the
/// host takes it, around work that it issues and waits for.
class RankClock {
 public:
  RankClock(ProcessGroup& world, Device& device, Stream& stream)
      : world_(world), device_(device), stream_(stream), memory_(device) {}

  /// Seconds per call of `calls` that follow each other.
  double pipelined(int calls, const std::function<void()>& issue);
  /// Seconds of each of `calls`, which all ranks start together.
  std::vector<double> one_by_one(int calls, const std::function<void()>& issue);
  /// Blocks until all ranks are here.
  void meet();
  /// Gives the largest of each value over ranks; all pass as many. A host operation.
  std::vector<double> longest(std::vector<double> values);
  /// The sum over ranks.
  double total(double value);

 private:
  std::vector<double> gathered(const std::vector<double>& values);

  ProcessGroup& world_;
  Device& device_;
  Stream& stream_;
  Memory memory_;
};

}  // namespace tessera::bench

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "lanes.h"
#include "tessera/core/cuda_device.h"

namespace tessera {

/// A step as a CUDA graph: issued once while the lanes record it, and replayed with one call ever
/// after. The first step always runs as it is: CUDA loads kernels when they are first launched, and
/// NCCL connects its ranks, which cannot be captured.
class StepGraph {
 public:
  /// Null unless the options ask for it and the device can. Throws Error{kInvalidArgument} if a
  /// trace is asked for, too: a replay has no actions to time.
  static std::unique_ptr<StepGraph> make(Device& device, Lanes& lanes, const RankGroups& groups,
                                         const ExecutorOptions& options);
  StepGraph(Lanes& lanes, const RankGroups& groups) : lanes_(lanes), groups_(groups) {}

  /// One step. `number` counts from 1; `longest` is what the longest before it took.
  struct Step {
    std::int64_t number = 1;
    std::chrono::milliseconds longest{};
  };
  /// Runs a step that `issue` puts on the lanes. What differs from step to step must lie in memory
  /// that `issue` sends to the device: the arguments of kernels are those of the second step for
  /// ever.
  void run(const Step& step, const std::function<void()>& issue);

 private:
  void replay(const Step& step);
  void capture(const std::function<void()>& issue);
  CudaStream& origin();

  Lanes& lanes_;
  const RankGroups& groups_;
  std::unique_ptr<CudaGraph> graph_;
  bool warm_ = false;
};

}  // namespace tessera

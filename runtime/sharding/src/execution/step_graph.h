#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "execution/lanes.h"
#include "execution/step_exchange.h"
#include "tessera/core/cuda_device.h"

namespace tessera {

/// A step as CUDA graphs: issued once while the lanes record it, and replayed ever after. The first
/// step always runs as it is: CUDA loads kernels when they are first launched, and NCCL connects
/// its ranks, which cannot be captured.
///
/// A graph does not run beside itself. So where the optimizer has a lane of its own, what is issued
/// from its first action on is a second graph, the *tail*, that runs beside the next replay of the
/// first, the *head*. Between the two, events order what the schedule's previous_waits name.
class StepGraph {
 public:
  /// Null unless the options ask for it and the device can. Throws Error{kInvalidArgument} if a
  /// trace is asked for, too: a replay has no actions to time.
  static std::unique_ptr<StepGraph> make(Device& device, const Schedule& schedule, Lanes& lanes,
                                         const RankGroups& groups, const ExecutorOptions& options);
  StepGraph(const Schedule& schedule, Lanes& lanes, const RankGroups& groups);

  /// One step. `number` counts from 1; `longest` is what the longest before it took.
  struct Step {
    std::int64_t number = 1;
    std::chrono::milliseconds longest{};
  };
  /// Runs a step whose actions `issue` puts on the lanes, one by one. What differs from step to
  /// step must lie in memory that was sent to the device before: the arguments of kernels are those
  /// of the second step for ever. Returns when its results are in the host's memory.
  Event run(const Step& step, StepExchange& exchange, const std::function<void(int action)>& issue);

  // These are for actions that are issued while their graph is captured.
  bool capturing() const { return capturing_; }
  /// True if an action waits for this earlier one within its graph; else the graphs' order sees to
  /// it.
  bool waits_inside(int action, int earlier) const { return in_tail(action) == in_tail(earlier); }
  /// Waits for what the tail of the previous step has done, and tells the next head.
  void wait_for_previous(int action, Stream& stream) const;
  void tell_next(int action, Stream& stream) const;

 private:
  bool in_tail(int action) const { return action >= tail_; }
  bool uses(Lane lane, bool tail) const;
  void order_across(int head, int tail);
  std::unique_ptr<CudaGraph> capture(bool tail, const std::function<void(int action)>& issue);
  void replay(const Step& step, CudaGraph& graph, CudaStream& origin);
  CudaStream& stream_of(Lane lane) const;
  CudaStream& origin(bool tail) const {
    return stream_of(tail ? Lane::kOptimizer : Lane::kCompute);
  }

  const Schedule& schedule_;
  Lanes& lanes_;
  const RankGroups& groups_;
  int tail_ = 0;                   ///< its first action; their number if there is none
  std::multimap<int, int> waits_;  ///< of the head's actions for the tail's
  std::map<int, Event> events_;    ///< by action of the tail that these name
  std::unique_ptr<CudaGraph> head_graph_, tail_graph_;
  bool warm_ = false;
  bool capturing_ = false;
};

}  // namespace tessera

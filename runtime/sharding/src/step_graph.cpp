#include "step_graph.h"

#include <utility>

#include "tessera/collectives/nccl_group.h"
#include "tessera/core/error.h"

namespace tessera {

std::unique_ptr<StepGraph> StepGraph::make(Device& device, Lanes& lanes, const RankGroups& groups,
                                           const ExecutorOptions& options) {
  if (!options.graph) return nullptr;
  require(device.kind() == DeviceKind::kCuda, ErrorCode::kInvalidArgument,
          "a step can be captured as a graph on a CUDA device only, not on ",
          to_string(device.kind()));
  require(!options.trace, ErrorCode::kInvalidArgument,
          "a captured step has no actions to time: trace without graphs");
  return std::make_unique<StepGraph>(lanes, groups);
}

CudaStream& StepGraph::origin() { return dynamic_cast<CudaStream&>(lanes_.of(Lane::kCompute)); }

void StepGraph::run(const Step& step, const std::function<void()>& issue) {
  if (!std::exchange(warm_, true)) return issue();
  if (graph_ == nullptr) capture(issue);
  replay(step);
}

/// What a graph holds cannot be watched piece by piece. A whole step takes as long as its work, for
/// which the longest so far is a measure, and as long as it waits for others, for which there is a
/// timeout.
void StepGraph::replay(const Step& step) {
  auto* const nccl = dynamic_cast<NcclGroup*>(groups_.control());
  const auto launch = [this] { origin().launch(*graph_); };
  if (nccl == nullptr) return launch();
  nccl->watch_replay(concat("step ", step.number, ", replayed as a CUDA graph,"), step.longest,
                     origin(), launch);
}

void StepGraph::capture(const std::function<void()>& issue) {
  CudaStream& compute = origin();
  compute.begin_capture();
  try {
    const Event begin = compute.record();
    for (const Lane lane : kAllLanes) {
      if (lane != Lane::kCompute) lanes_.of(lane).wait(begin);
    }
    issue();
    for (const Lane lane : kAllLanes) {
      if (lane != Lane::kCompute) compute.wait(lanes_.of(lane).record());
    }
  } catch (...) {
    try {
      compute.end_capture(nullptr);
    } catch (const Error&) {  // NOLINT: a consequence of what is about to be rethrown
    }
    throw;
  }
  graph_ = compute.end_capture(nullptr);
}

}  // namespace tessera

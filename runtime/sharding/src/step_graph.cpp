#include "step_graph.h"

#include "tessera/core/error.h"

namespace tessera {

std::unique_ptr<StepGraph> StepGraph::make(Device& device, Lanes& lanes,
                                           const ExecutorOptions& options) {
  if (!options.graph) return nullptr;
  require(device.kind() == DeviceKind::kCuda, ErrorCode::kInvalidArgument,
          "a step can be captured as a graph on a CUDA device only, not on ",
          to_string(device.kind()));
  require(!options.trace, ErrorCode::kInvalidArgument,
          "a captured step has no actions to time: trace without graphs");
  return std::make_unique<StepGraph>(lanes);
}

CudaStream& StepGraph::origin() { return dynamic_cast<CudaStream&>(lanes_.of(Lane::kCompute)); }

void StepGraph::run(const std::function<void()>& issue, bool values_change) {
  if (!warm_) {
    issue();
    warm_ = true;
    return;
  }
  if (graph_ == nullptr || values_change) capture(issue);
  origin().launch(*graph_);
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
  graph_ = compute.end_capture(std::move(graph_));
}

}  // namespace tessera

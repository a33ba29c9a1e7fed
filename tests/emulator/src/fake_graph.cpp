#include "fake_graph.h"

#include <algorithm>

#include "fake_runtime.h"

// Captures and graphs. A graph keeps the streams that it was captured from: launched, each of its
// branches has a worker of its own again, and only what was ordered then is ordered now.

using namespace tessera::emulator;

struct CUgraph_st {
  std::vector<GraphNode> nodes;
  std::size_t branches;
};
struct CUgraphExec_st {
  CUgraph_st graph;
  bool node_priorities;               ///< else every node has that of the stream of the launch
  std::vector<cudaStream_t> helpers;  ///< for branches 1, 2, ...
};

namespace tessera::emulator {

void Capture::add(cudaStream_t stream, GraphNode node) {
  Member& member = members.at(stream);
  node.branch = member.branch;
  node.priority = stream->priority();
  node.after = std::exchange(member.frontier, {nodes.size()});
  nodes.push_back(std::move(node));
}

bool Capture::joined() const {
  std::set<std::size_t> reached = members.at(origin).frontier;
  for (std::size_t i = nodes.size(); i-- > 0;) {  // a node comes after earlier ones only
    if (!reached.contains(i)) return false;
    reached.insert(nodes[i].after.begin(), nodes[i].after.end());
  }
  return true;
}

std::shared_ptr<Capture> capture_of(cudaStream_t stream) {
  const auto found = runtime().captures.find(stream);
  return found != runtime().captures.end() ? found->second : nullptr;
}

cudaError_t invalidate(Capture& capture, cudaError_t error) {
  capture.invalidated = true;
  return error;
}

cudaError_t forbid_while_capturing() {
  for (const auto& [stream, capture] : runtime().captures) {
    if (capture->mode == cudaStreamCaptureModeRelaxed) continue;
    if (capture->mode == cudaStreamCaptureModeGlobal ||
        capture->thread == std::this_thread::get_id()) {
      return invalidate(*capture, cudaErrorStreamCaptureUnsupported);
    }
  }
  return cudaSuccess;
}

namespace {

void end(const std::shared_ptr<Capture>& capture) {
  std::erase_if(runtime().captures, [&](const auto& entry) { return entry.second == capture; });
}

/// Recordings and waits of events take effect in the order of the calls that launch graphs, as if
/// the host had recorded and waited at that call.
void launch(CUgraphExec_st& executable, cudaStream_t origin) {
  const std::vector<GraphNode>& nodes = executable.graph.nodes;
  const auto stream_of = [&](std::size_t branch) {
    return branch == 0 ? origin : executable.helpers[branch - 1];
  };
  Moment* begin = origin->enqueue_moment();
  for (cudaStream_t helper : executable.helpers) helper->enqueue_wait(begin->share());
  begin->release();
  std::vector<Moment*> moments;
  for (const GraphNode& node : nodes) {
    cudaStream_t stream = stream_of(node.branch);
    for (const std::size_t before : node.after) {
      if (nodes[before].branch != node.branch) stream->enqueue_wait(moments[before]->share());
    }
    if (node.kind == GraphNode::Kind::kRecordEvent) {
      forget_recording(*node.event);
      node.event->moment = stream->enqueue_moment();
    } else if (node.kind == GraphNode::Kind::kWaitEvent) {
      if (node.event->moment != nullptr) stream->enqueue_wait(node.event->moment->share());
    } else {
      enqueue(stream, node, executable.node_priorities ? node.priority : origin->priority());
    }
    moments.push_back(stream->enqueue_moment());
  }
  for (Moment* moment : moments) moment->release();
  for (cudaStream_t helper : executable.helpers) origin->enqueue_wait(helper->enqueue_moment());
}

bool same_topology(const CUgraph_st& a, const CUgraph_st& b) {
  if (a.nodes.size() != b.nodes.size() || a.branches != b.branches) return false;
  for (std::size_t i = 0; i < a.nodes.size(); ++i) {
    if (a.nodes[i].kind != b.nodes[i].kind || a.nodes[i].branch != b.nodes[i].branch ||
        a.nodes[i].after != b.nodes[i].after) {
      return false;
    }
  }
  return true;
}

bool same_priorities(const CUgraph_st& a, const CUgraph_st& b) {
  return std::equal(a.nodes.begin(), a.nodes.end(), b.nodes.begin(), b.nodes.end(),
                    [](const auto& x, const auto& y) { return x.priority == y.priority; });
}

bool events_exist(const CUgraph_st& graph) {
  return std::all_of(graph.nodes.begin(), graph.nodes.end(), [](const GraphNode& node) {
    return node.event == nullptr || runtime().events.contains(node.event);
  });
}

}  // namespace
}  // namespace tessera::emulator

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  if (const cudaError_t error = begin_call("cudaStreamBeginCapture")) return report(error);
  if (stream == nullptr) return report(cudaErrorStreamCaptureUnsupported);
  if (!state.streams.contains(stream)) return report(cudaErrorInvalidResourceHandle);
  if (capture_of(stream)) return report(cudaErrorIllegalState);
  ++state.counters.captures;
  auto capture = std::make_shared<Capture>(
      Capture{.origin = stream, .mode = mode, .thread = std::this_thread::get_id()});
  capture->members[stream] = {.branch = capture->branches++, .frontier = {}};
  state.captures[stream] = std::move(capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  *graph = nullptr;
  if (const cudaError_t error = begin_call("cudaStreamEndCapture")) return report(error);
  const auto capture = capture_of(stream);
  if (!capture) return report(cudaErrorIllegalState);
  if (capture->origin != stream) {
    return report(invalidate(*capture, cudaErrorStreamCaptureUnmatched));
  }
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    return report(cudaErrorStreamCaptureWrongThread);
  }
  end(capture);
  if (capture->invalidated) return report(cudaErrorStreamCaptureInvalidated);
  if (!capture->joined()) return report(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st{.nodes = std::move(capture->nodes), .branches = capture->branches};
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  if (const cudaError_t error = begin_call("cudaStreamIsCapturing")) return report(error);
  stream = state.find(stream);
  if (stream == nullptr) return report(cudaErrorInvalidResourceHandle);
  const auto capture = capture_of(stream);
  *status = !capture               ? cudaStreamCaptureStatusNone
            : capture->invalidated ? cudaStreamCaptureStatusInvalidated
                                   : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long flags) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  if (const cudaError_t error = begin_call("cudaGraphInstantiate")) return report(error);
  const bool node_priorities = flags == cudaGraphInstantiateFlagUseNodePriority;
  if (graph == nullptr || (flags != 0 && !node_priorities)) return report(cudaErrorInvalidValue);
  *executable =
      new CUgraphExec_st{.graph = *graph, .node_priorities = node_priorities, .helpers = {}};
  for (std::size_t branch = 1; branch < graph->branches; ++branch) {
    (*executable)->helpers.push_back(state.new_stream(current_device(), 0));
  }
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  if (const cudaError_t error = begin_call("cudaGraphLaunch")) return report(error);
  stream = state.find(stream);
  if (stream == nullptr) return report(cudaErrorInvalidResourceHandle);
  if (executable == nullptr || !events_exist(executable->graph)) {
    return report(cudaErrorInvalidValue);
  }
  if (const auto capture = capture_of(stream)) {  // CUDA would make a child graph
    return report(invalidate(*capture, cudaErrorStreamCaptureUnsupported));
  }
  ++state.counters.graph_launches;
  launch(*executable, stream);
  return cudaSuccess;
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo* result) {
  const std::lock_guard lock(runtime().mutex);
  if (const cudaError_t error = begin_call("cudaGraphExecUpdate")) return report(error);
  if (executable == nullptr || graph == nullptr) return report(cudaErrorInvalidValue);
  *result = {};
  if (!same_topology(executable->graph, *graph)) {
    result->result = cudaGraphExecUpdateErrorTopologyChanged;
    return report(cudaErrorGraphExecUpdateFailure);
  }
  if (executable->node_priorities && !same_priorities(executable->graph, *graph)) {
    result->result = cudaGraphExecUpdateErrorAttributesChanged;
    return report(cudaErrorGraphExecUpdateFailure);
  }
  executable->graph = *graph;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const std::lock_guard lock(runtime().mutex);
  if (const cudaError_t error = begin_call("cudaGraphDestroy")) return report(error);
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  if (const cudaError_t error = begin_call("cudaGraphExecDestroy")) return report(error);
  if (executable == nullptr) return report(cudaErrorInvalidValue);
  for (cudaStream_t helper : executable->helpers) {
    state.streams.erase(helper);
    helper->close();
  }
  delete executable;
  return cudaSuccess;
}

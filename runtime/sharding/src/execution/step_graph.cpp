#include "execution/step_graph.h"

#include <algorithm>
#include <array>

#include "tessera/collectives/nccl_group.h"
#include "tessera/core/error.h"

namespace tessera {

std::unique_ptr<StepGraph> StepGraph::make(Device& device, const Schedule& schedule, Lanes& lanes,
                                           const RankGroups& groups,
                                           const ExecutorOptions& options) {
  if (!options.graph) return nullptr;
  require(device.kind() == DeviceKind::kCuda, ErrorCode::kInvalidArgument,
          "a step can be captured as a graph on a CUDA device only, not on ",
          to_string(device.kind()));
  require(!options.trace, ErrorCode::kInvalidArgument,
          "a captured step has no actions to time: trace without graphs");
  return std::make_unique<StepGraph>(schedule, lanes, groups);
}

StepGraph::StepGraph(const Schedule& schedule, Lanes& lanes, const RankGroups& groups)
    : schedule_(schedule), lanes_(lanes), groups_(groups) {
  const auto first = std::ranges::find(schedule.actions, Lane::kOptimizer, &Action::lane);
  tail_ = static_cast<int>(first - schedule.actions.begin());
  const auto count = static_cast<int>(schedule.actions.size());
  std::array<std::pair<int, int>, kLanes>
      ends{};  // of each lane: the head's first, the tail's last
  ends.fill({-1, -1});
  for (int i = 0; i < count; ++i) {
    const Action& action = schedule.actions[static_cast<std::size_t>(i)];
    auto& [head, tail] = ends[static_cast<std::size_t>(action.lane)];
    if (in_tail(i)) tail = i;
    if (in_tail(i)) continue;
    if (head < 0) head = i;
    for (const int wait : action.previous_waits) {
      if (in_tail(wait)) order_across(i, wait);
    }
  }
  for (const auto& [head, tail] : ends) {
    if (head >= 0 && tail >= 0) order_across(head, tail);
  }
}

void StepGraph::order_across(int head, int tail) {
  waits_.emplace(head, tail);
  Event& event = events_[tail];
  if (event.state() == nullptr) event = origin(true).make_event();
}

CudaStream& StepGraph::stream_of(Lane lane) const {
  return dynamic_cast<CudaStream&>(lanes_.of(lane));
}

bool StepGraph::uses(Lane lane, bool tail) const {
  const auto split = schedule_.actions.begin() + tail_;
  const auto begin = tail ? split : schedule_.actions.begin();
  const auto end = tail ? schedule_.actions.end() : split;
  return std::find_if(begin, end, [&](const Action& action) { return action.lane == lane; }) != end;
}

void StepGraph::wait_for_previous(int action, Stream& stream) const {
  const auto [begin, end] = waits_.equal_range(action);
  for (auto wait = begin; wait != end; ++wait) stream.wait(events_.at(wait->second));
}

void StepGraph::tell_next(int action, Stream& stream) const {
  const auto found = events_.find(action);
  if (found != events_.end()) dynamic_cast<CudaStream&>(stream).record_again(found->second);
}

/// Around the graphs the host's data is copied, on the reduce lane: to the head, and before the
/// updates of the tail to it. The tail follows the head as a whole, even where its updates do not
/// wait for the results. Scalars of the optimizer that the previous tail reads are not overwritten:
/// the head, which writes what it reads, results or the token count, has waited for it.
Event StepGraph::run(const Step& step, StepExchange& exchange,
                     const std::function<void(int action)>& issue) {
  const auto count = static_cast<int>(schedule_.actions.size());
  const bool has_tail = tail_ < count;
  const bool first = !std::exchange(warm_, true);
  if (!first && head_graph_ == nullptr) {
    lanes_.synchronize();  // no event tells of what the first step's tail has done
    head_graph_ = capture(false, issue);
    if (has_tail) tail_graph_ = capture(true, issue);
  }
  CudaStream& compute = origin(false);
  CudaStream& reduce = stream_of(Lane::kReduce);
  const auto run_part = [&](bool tail) {
    CudaStream& from = origin(tail);
    from.wait(reduce.record());
    if (!first) return replay(step, tail ? *tail_graph_ : *head_graph_, from);
    for (int i = tail ? tail_ : 0; i < (tail ? count : tail_); ++i) issue(i);
  };
  exchange.send(reduce);
  if (!has_tail) exchange.send_to_optimizer(reduce);
  run_part(false);
  reduce.wait(compute.record());
  if (has_tail) exchange.send_to_optimizer(reduce);
  exchange.receive(reduce);
  const Event results = reduce.record();
  if (has_tail) run_part(true);
  return results;
}

/// A graph's actions cannot be watched one by one. A whole step takes as long as its work, for
/// which the longest so far is a measure, and as long as it waits for others, for which there is a
/// timeout.
void StepGraph::replay(const Step& step, CudaGraph& graph, CudaStream& origin) {
  auto* const nccl = dynamic_cast<NcclGroup*>(groups_.control());
  const auto launch = [&] { origin.launch(graph); };
  if (nccl == nullptr) return launch();
  nccl->watch_replay(concat("step ", step.number, ", replayed as a CUDA graph,"), step.longest,
                     origin, launch);
}

std::unique_ptr<CudaGraph> StepGraph::capture(bool tail,
                                              const std::function<void(int action)>& issue) {
  CudaStream& from = origin(tail);
  const auto for_each_other = [&](const auto& visit) {
    for (const Lane lane : kAllLanes) {
      Stream& stream = lanes_.of(lane);
      if (&stream != &from && uses(lane, tail)) visit(stream);
    }
  };
  from.begin_capture();
  capturing_ = true;
  try {
    const Event begin = from.record();
    for_each_other([&](Stream& stream) { stream.wait(begin); });
    const int end = tail ? static_cast<int>(schedule_.actions.size()) : tail_;
    for (int i = tail ? tail_ : 0; i < end; ++i) issue(i);
    for_each_other([&](Stream& stream) { from.wait(stream.record()); });
  } catch (...) {
    capturing_ = false;
    try {
      from.end_capture(nullptr);
    } catch (const Error&) {  // NOLINT: a consequence of what is about to be rethrown
    }
    throw;
  }
  capturing_ = false;
  return from.end_capture(nullptr);
}

}  // namespace tessera

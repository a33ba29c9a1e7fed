#include "tessera/lab/simulate_step.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/sharding/operation.h"

namespace tessera {
namespace {

using Interval = std::pair<double, double>;

/// Disjoint and ascending, with the same points.
std::vector<Interval> united(std::vector<Interval> intervals) {
  std::ranges::sort(intervals);
  std::vector<Interval> result;
  for (const Interval& interval : intervals) {
    if (interval.second <= interval.first) continue;
    if (!result.empty() && interval.first <= result.back().second) {
      result.back().second = std::max(result.back().second, interval.second);
    } else {
      result.push_back(interval);
    }
  }
  return result;
}

/// Of disjoint intervals, the length within [begin, end].
double length_within(const std::vector<Interval>& disjoint, double begin, double end) {
  double sum = 0.0;
  for (const auto& [from, to] : disjoint) {
    sum += std::max(0.0, std::min(to, end) - std::max(from, begin));
  }
  return sum;
}

/// When collectives run on a lane.
std::vector<Interval> collectives_on(Lane lane, const Schedule& schedule,
                                     const std::vector<ActionSpan>& spans) {
  std::vector<Interval> intervals;
  for (const ActionSpan& span : spans) {
    const Action& action = schedule.actions[static_cast<std::size_t>(span.action)];
    if (span.lane == lane && is_collective(action)) intervals.emplace_back(span.begin, span.end);
  }
  return united(std::move(intervals));
}

/// The ranks that meet in an action; the first stands for all.
std::vector<int> members_of(const Schedule& schedule, const Action& action) {
  if (action.operation->meeting == Meeting::kAlongAxes) {
    return schedule.mesh.group(action.axes, 0);
  }
  std::vector<int> all(static_cast<std::size_t>(schedule.mesh.world_size()));
  for (std::size_t rank = 0; rank < all.size(); ++rank) all[rank] = static_cast<int>(rank);
  return all;
}

/// What each action costs if nothing disturbs it.
std::vector<double> costs_of(const Program& program, const ModelLayout& layout, const Model& model,
                             const ExecutorOptions& options, const Cluster& cluster) {
  const Schedule& schedule = *program.schedule;
  const HardwareProfile& profile = cluster.profile;
  const auto kernels = record_kernels(program, layout, model, options);
  std::map<std::pair<Meeting, std::string>, std::vector<int>> groups;
  std::vector<double> costs;
  for (std::size_t i = 0; i < schedule.actions.size(); ++i) {
    const Action& action = schedule.actions[i];
    double seconds = 0.0;
    if (is_collective(action)) {
      Traffic traffic;
      action.operation->charge(schedule, action, traffic);
      auto& members = groups[{action.operation->meeting, to_string(action.axes)}];
      if (members.empty()) members = members_of(schedule, action);
      for (int k = 0; k < kCollectiveKinds; ++k) {
        const auto kind = static_cast<CollectiveKind>(k);
        const auto calls = static_cast<double>(traffic.calls_of(kind));
        if (calls > 0.0) {
          seconds += calls * seconds_of(kind, traffic.sent_of(kind) / traffic.calls_of(kind),
                                        members, cluster);
        }
      }
    } else if (action.operation->is_pass) {
      for (const KernelCall& call : kernels[i]) seconds += seconds_of(call, profile);
    } else if (action.operation == &operations::kCopy) {
      seconds = 0.5 * static_cast<double>(operand_bytes(schedule, action)) /
                profile.copy_out.value;  // read once, written once
    } else if (action.operation->run != nullptr) {
      seconds = profile.launch.value + static_cast<double>(operand_bytes(schedule, action)) /
                                           profile.memory_bandwidth.value;
    }
    costs.push_back(seconds);
  }
  return costs;
}

std::vector<ActionSpan> spans_of(const Program& program, const ModelLayout& layout,
                                 const Model& model, const ExecutorOptions& options,
                                 const std::vector<double>& costs) {
  ExecutorOptions timed = options;
  timed.cost = [&](const Schedule& schedule, const Action& action) {
    return costs[static_cast<std::size_t>(&action - schedule.actions.data())];
  };
  return simulate(std::span(&program, 1), layout, model, state_options(*program.schedule), timed)
      .spans;
}

/// Slows down what runs beside collectives.
std::vector<double> contended(const std::vector<double>& costs, const Schedule& schedule,
                              const std::vector<ActionSpan>& spans, const Cluster& cluster) {
  const std::pair<std::vector<Interval>, double> lanes[] = {
      {collectives_on(Lane::kGather, schedule, spans), cluster.profile.under_gather.value},
      {collectives_on(Lane::kReduce, schedule, spans), cluster.profile.under_reduce.value}};
  std::vector<double> result = costs;
  for (const ActionSpan& span : spans) {
    const bool computes = span.lane == Lane::kCompute || span.lane == Lane::kOptimizer;
    if (!computes || span.step != spans.front().step || span.end <= span.begin) continue;
    double rate = 1.0;  // undisturbed work that is done in a second of the span
    for (const auto& [busy, factor] : lanes) {
      const double share = length_within(busy, span.begin, span.end) / (span.end - span.begin);
      rate *= 1.0 - share * (1.0 - 1.0 / factor);
    }
    result[static_cast<std::size_t>(span.action)] =
        costs[static_cast<std::size_t>(span.action)] / rate;
  }
  return result;
}

}  // namespace

double seconds_of(const KernelCall& call, const HardwareProfile& profile) {
  const double moved = call.bytes / profile.memory_bandwidth.value;
  double computed = 0.0;
  if (call.flops > 0.0) {
    const double rate = call.kernel == "attention_forward" ? profile.attention_forward.value
                        : call.kernel == "attention_backward"
                            ? profile.attention_backward.value
                            : profile.gemm_rate(std::string(to_string(call.dtype)), call.flops);
    computed = call.flops / rate;
  }
  return profile.launch.value + std::max(moved, computed);
}

double seconds_of(CollectiveKind kind, std::int64_t sent_bytes, const std::vector<int>& members,
                  const Cluster& cluster) {
  require(cluster.ranks_per_node >= 1, ErrorCode::kConfig, "a node has ", cluster.ranks_per_node,
          " ranks; it must have at least 1");
  const auto ranks = static_cast<double>(members.size());
  if (ranks < 2.0) return 0.0;
  const int node = members.front() / cluster.ranks_per_node;
  const auto here = static_cast<double>(std::ranges::count_if(
      members, [&](int rank) { return rank / cluster.ranks_per_node == node; }));
  const double nodes = std::max(1.0, ranks / here);
  const LinkProfile& inside = cluster.profile.node;
  const LinkProfile& across = cluster.profile.network;
  const bool spans = nodes > 1.0;
  // A ring passes from node to node once for each node but one; its members on a node share that
  // many adapters. An all-reduce goes round twice, or up and down a tree of nodes, whichever is
  // shorter.
  double hops = (ranks - nodes) * inside.hop.value + (nodes - 1.0) * across.hop.value;
  if (kind == CollectiveKind::kAllReduce) {
    const double tree =
        (here - 1.0) * inside.hop.value + std::ceil(std::log2(nodes)) * across.hop.value;
    hops = 2.0 * std::min(hops, tree);
  }
  double bandwidth = inside.bandwidth.value;
  if (spans) {
    bandwidth = here * across.bandwidth.value;
    if (here > 1.0) bandwidth = std::min(bandwidth, inside.bandwidth.value);
  }
  return (spans ? across : inside).latency.value + hops +
         static_cast<double>(sent_bytes) / bandwidth;
}

SimulatedStep simulate_step(const Program& program, const ModelLayout& layout, const Model& model,
                            const ExecutorOptions& options, const Cluster& cluster) {
  constexpr int kPasses = 3;  // contention moves what it depends on; it settles at once or nearly
  const std::vector<double> costs = costs_of(program, layout, model, options, cluster);
  std::vector<ActionSpan> spans = spans_of(program, layout, model, options, costs);
  for (int pass = 0; pass < kPasses; ++pass) {
    spans = spans_of(program, layout, model, options,
                     contended(costs, *program.schedule, spans, cluster));
  }
  // By step: where it ends. A step alone begins at 0.
  std::map<std::int64_t, double> ends;
  for (const ActionSpan& span : spans) ends[span.step] = std::max(ends[span.step], span.end);
  SimulatedStep step;
  const auto last = std::prev(ends.end());
  step.seconds = last->second - (last == ends.begin() ? 0.0 : std::prev(last)->second);
  const auto steps = static_cast<double>(ends.size());
  const auto per_step = [&](std::initializer_list<Lane> lanes) {
    const LaneTime all = time_of(lanes, spans);
    return LaneTime{all.busy / steps, all.exposed / steps};
  };
  for (const Lane lane : kAllLanes) step.lanes[static_cast<std::size_t>(lane)] = per_step({lane});
  step.communication = per_step({Lane::kGather, Lane::kReduce});
  std::erase_if(spans, [&](const ActionSpan& span) { return span.step != last->first; });
  step.spans = std::move(spans);
  return step;
}

}  // namespace tessera

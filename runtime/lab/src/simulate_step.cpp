#include "tessera/lab/simulate_step.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <utility>

#include "cpu_contention.h"
#include "stage_times.h"
#include "tessera/core/error.h"
#include "tessera/core/sim_device.h"
#include "tessera/sharding/operation.h"

namespace tessera {
namespace {

/// The ranks that meet in an action; the first stands for all.
std::vector<int> members_of(const Schedule& schedule, const Action& action) {
  if (action.operation->meeting == Meeting::kPair) {
    const int of_stage = schedule.mesh.world_size() / schedule.pipeline_ranks();
    return {schedule.pipeline.rank * of_stage, action.peer * of_stage};
  }
  const bool some = action.operation->meeting == Meeting::kAlongAxes;
  return schedule.mesh.group(some ? action.axes : schedule.mesh.axes(), 0);
}

/// Whether an action waits for work of another lane.
bool waits_for_others(const Schedule& schedule, const Action& action) {
  return std::ranges::any_of(action.waits, [&](int wait) {
    return schedule.actions[static_cast<std::size_t>(wait)].lane != action.lane;
  });
}

/// Whether an action of a GPU's rank runs on the host.
bool runs_on_host(const Schedule& schedule, const Action& action) {
  return action.operation == &operations::kOptimizerStep &&
         schedule.buffer(action.reads.front()).tier == Tier::kHost;
}

/// Whether a copy reads or writes the disk.
bool reaches_disk(const Schedule& schedule, const Action& action) {
  return tier_of(schedule, action.reads.front()) == Tier::kDisk ||
         tier_of(schedule, action.writes.front()) == Tier::kDisk;
}

/// The cost of each action if nothing disturbs it, and what they rest on.
struct Costs {
  std::vector<double> seconds;
  std::vector<bool> is_handed_over;    ///< it begins when another lane lets it, see hand_over()
  std::vector<double> kernel_seconds;  ///< those of them that a lower clock stretches
  std::vector<double> memory_share;    ///< of these, that of kernels bound by memory
  PredictedSeconds kernels;
  double handover = 0.0;  ///< by so much an action takes longer that is handed over
  double between = 0.0;   ///< two steps
  double flops = 0.0, bytes = 0.0;
  double host_updates = 0.0;
  double flops_by_energy = 0.0;  ///< `flops` as so many of bf16 that need the same joules
};

/// Joules of a FLOP in fp8, beside those of one in bf16: 8192^3 on an H100, which draws 128 W idle,
/// took 703 W for 1228 TFLOP/s and 718 W for 681 (bench/results/h100/first_run/products.json).
constexpr double kFp8Joules = (703.0 - 128.0) / 1228.0 / ((718.0 - 128.0) / 681.0);

Costs costs_of(const Program& program, const ModelLayout& layout, const Model& model,
               const ExecutorOptions& options, const Cluster& cluster) {
  const Schedule& schedule = *program.schedule;
  const HardwareProfile& profile = cluster.profile;
  const KernelTimes times(profile, options.threads);
  const auto kernels = record_kernels(program, layout, model, options);
  std::map<std::pair<Meeting, std::string>, std::vector<int>> groups;
  Costs costs;
  if (options.steps_in_flight == 1) costs.between = times.between();
  costs.handover = std::max(0.0, profile.handover.value - times.gap());
  for (std::size_t i = 0; i < schedule.actions.size(); ++i) {
    const Action& action = schedule.actions[i];
    costs.kernel_seconds.push_back(0.0);
    costs.memory_share.push_back(0.0);
    costs.is_handed_over.push_back(waits_for_others(schedule, action));
    double seconds = times.gap();
    if (is_collective(action)) {
      Traffic traffic;
      action.operation->charge(schedule, action, traffic);
      auto& members =
          groups[{action.operation->meeting, concat(to_string(action.axes), action.peer)}];
      if (members.empty()) members = members_of(schedule, action);
      for (int k = 0; k < kCollectiveKinds; ++k) {
        const auto kind = static_cast<CollectiveKind>(k);
        const auto calls = static_cast<double>(traffic.calls_of(kind));
        if (calls > 0.0) {
          seconds += calls * seconds_of(kind, traffic.sent_of(kind) / traffic.calls_of(kind),
                                        members, cluster);
        }
      }
    } else if (action.operation == &operations::kCopy) {
      const bool disk = reaches_disk(schedule, action);
      const int sharing = std::min(schedule.mesh.world_size(), cluster.ranks_per_node);
      const double rate = disk ? profile.disk_bandwidth.value / sharing : profile.copy_out.value;
      seconds += static_cast<double>(copied_bytes(schedule, action)) / rate;
    } else if (profile.device != "cpu" && runs_on_host(schedule, action)) {
      const int sharing = std::min(schedule.mesh.world_size(), cluster.ranks_per_node);
      const double update = static_cast<double>(operand_bytes(schedule, action)) * sharing /
                            profile.host_bandwidth.value;
      costs.host_updates += update;
      seconds += update;
    } else {
      PredictedSeconds predicted;
      double bound_by_memory = 0.0;
      for (const KernelCall& call : kernels[i]) {
        const PredictedSeconds of_call = times.of(call, action.operation->name);
        predicted += of_call;
        if (call.flops <= 0.0) bound_by_memory += of_call.total();
        costs.flops += call.flops;
        const bool in_fp8 = call.gemm && is_fp8(*call.gemm);
        costs.flops_by_energy += call.flops * (in_fp8 ? kFp8Joules : 1.0);
        costs.bytes += call.bytes;
        if (action.operation->is_pass) seconds += times.beside();
      }
      costs.kernels += predicted;
      costs.kernel_seconds.back() = predicted.total();
      if (predicted.total() > 0.0) costs.memory_share.back() = bound_by_memory / predicted.total();
      seconds += predicted.total();
    }
    costs.seconds.push_back(seconds);
  }
  return costs;
}

/// How far off predictions were, of one rank or of several that meet, of which some rested on no
/// better evidence; null: none were checked.
const Residual* residual_of(const HardwareProfile& profile, Evidence most, bool meets) {
  const Residual* found = nullptr;
  for (const Residual& residual : profile.residuals) {
    if (residual.meets != meets || residual.evidence < most) continue;
    if (found == nullptr || residual.evidence < found->evidence) found = &residual;
  }
  return found;
}

/// The interval of nine of ten steps: how far off checked predictions were. Before any predictions
/// of a machine were checked, this is as on the processors of runtime/lab/README.md, and to it
/// comes, as an independent error, how far repeats of its kernels were apart; errors of checked
/// predictions have that in them.
void set_interval(SimulatedStep& step, const HardwareProfile& profile, const Residual* checked) {
  if (profile.device != "cpu" && profile.steps.empty() && profile.residuals.empty()) return;
  constexpr double kAssumed[kEvidences] = {0.10, 0.15, 0.25};
  /// Nine of ten normal numbers are within so many distances between quartiles of their mean.
  constexpr double kQuartilesDistances = 1.645 / 1.349;
  step.assumes_half_width = checked == nullptr;
  const double kernels = step.kernels.total();
  const double apart = kernels > 0.0 ? kQuartilesDistances * step.kernels.spread / kernels : 0.0;
  step.half_width = step.assumes_half_width
                        ? std::hypot(kAssumed[static_cast<std::size_t>(step.kernels.most())], apart)
                        : checked->half_width;
}

/// Whether actions begin when another lane lets them is known once they have run: those that begin
/// right behind the one before them on their lane are not handed over. Those of the last step
/// stand for all. Returns whether this is new.
bool hand_over(Costs& costs, const Schedule& schedule, const std::vector<ActionSpan>& spans) {
  if (costs.handover == 0.0) return false;
  std::vector<bool> is_late(schedule.actions.size());
  for (const Lane lane : kAllLanes) {
    std::vector<ActionSpan> of_lane;
    std::ranges::copy_if(spans, std::back_inserter(of_lane),
                         [&](const ActionSpan& span) { return span.lane == lane; });
    std::ranges::sort(of_lane, std::less<>(), &ActionSpan::begin);
    double end = 0.0;
    for (const ActionSpan& span : of_lane) {
      is_late[static_cast<std::size_t>(span.action)] = span.begin > end;
      end = span.end;
    }
  }
  bool is_new = false;
  for (std::size_t i = 0; i < is_late.size(); ++i) {
    const bool now = is_late[i] && waits_for_others(schedule, schedule.actions[i]);
    is_new = is_new || now != costs.is_handed_over[i];
    costs.is_handed_over[i] = now;
  }
  return is_new;
}

/// The joules of a step's kernels, beside idling.
double joules_of(const Costs& costs, const PowerProfile& power) {
  return power.per_flop.value * costs.flops_by_energy + power.per_byte.value * costs.bytes;
}

/// How often kernels are made slower: what runs beside them hides a part of it each time.
constexpr int kThrottlings = 6;

/// Makes the kernels of ranks whose step would take more than the limit of power slower, each by a
/// factor of its own; false: the power suffices.
bool throttle(std::vector<double>& slower, const std::vector<Costs>& costs, double step_seconds,
              const HardwareProfile& profile) {
  if (!profile.power) return false;
  const PowerProfile& power = *profile.power;
  bool changed = false;
  for (std::size_t rank = 0; rank < costs.size(); ++rank) {
    const double kernels = costs[rank].kernels.total();
    const double least = joules_of(costs[rank], power) / (power.limit.value - power.idle.value);
    if (kernels <= 0.0 || least <= 1.0005 * step_seconds) continue;
    slower[rank] += (least - step_seconds) / kernels;
    changed = true;
  }
  return changed;
}

/// Cores that a rank has, if ranks share them; else 0.
double cores_of_a_rank(const Cluster& cluster, int world_size) {
  return cluster.profile.cores.value / std::min(world_size, cluster.ranks_per_node);
}

/// The actions that run on the lanes at the same time, by their effect on each other.
struct Running {
  bool gathers = false, reduces = false;
  double threads = 0.0;
};

/// By how much work is slower beside a collective, of whose kernels such a share is bound by
/// memory.
double slowed(const Quantity& all, const std::optional<Quantity>& of_memory, double memory_share) {
  return all.value + memory_share * (of_memory.value_or(all).value - all.value);
}

/// `memory_share` gives that of an action, by its index.
SimSpeeds speeds_of(const Schedule& schedule, const Cluster& cluster, int threads,
                    std::function<double(std::size_t action)> memory_share) {
  const double cores = cores_of_a_rank(cluster, schedule.mesh.world_size());
  return [&schedule, &profile = cluster.profile, cores, threads,
          memory_share = std::move(memory_share)](std::span<const Work> running,
                                                  std::span<double> speeds) {
    const auto action_of = [&](const Work& work) -> const Action* {
      return work.action < 0 ? nullptr : &schedule.actions[static_cast<std::size_t>(work.action)];
    };
    Running all;
    for (const Work& work : running) {
      const Action* const action = action_of(work);
      if (action == nullptr) continue;
      const bool meets = is_collective(*action);
      all.gathers |= meets && action->lane == Lane::kGather;
      all.reduces |= meets && action->lane == Lane::kReduce;
      const bool copies = action->lane == Lane::kGather || is_copying(action->lane);
      all.threads += copies ? 1.0 : static_cast<double>(threads);
    }
    const double share = cores > 0.0 ? share_of_cores(cores, all.threads) : 1.0;
    for (std::size_t i = 0; i < running.size(); ++i) {
      const Action* const action = action_of(running[i]);
      speeds[i] = share;
      const bool computes = action != nullptr &&
                            (action->lane == Lane::kCompute || action->lane == Lane::kOptimizer) &&
                            (cores > 0.0 || !runs_on_host(schedule, *action));
      if (!computes) continue;
      const double bytes = memory_share(static_cast<std::size_t>(running[i].action));
      if (all.gathers)
        speeds[i] /= slowed(profile.under_gather, profile.memory_under_gather, bytes);
      if (all.reduces)
        speeds[i] /= slowed(profile.under_reduce, profile.memory_under_reduce, bytes);
    }
  };
}

}  // namespace

double seconds_of(CollectiveKind kind, std::int64_t sent_bytes, const std::vector<int>& members,
                  const Cluster& cluster) {
  require(cluster.ranks_per_node >= 1, ErrorCode::kConfig, "a node has ", cluster.ranks_per_node,
          " ranks; it must have at least 1");
  const auto ranks = static_cast<double>(members.size());
  if (ranks < 2.0) return 0.0;
  const auto are_together = [&](int count) {
    return std::ranges::all_of(members,
                               [&](int rank) { return rank / count == members.front() / count; });
  };
  const bool spans = !are_together(cluster.ranks_per_node);
  const LinkProfile& inside =
      cluster.ranks_per_process > 1 && are_together(cluster.ranks_per_process)
          ? cluster.profile.process
          : cluster.profile.node;
  const LinkProfile& across = cluster.profile.network;
  const LinkProfile& link = spans ? across : inside;
  if (const auto* times = link.find(to_string(kind), static_cast<int>(members.size()))) {
    // They were measured by `times->ranks` ranks that shared all cores, or had one each.
    const double cores = cluster.profile.cores.value;
    const double share = cores > 0.0 ? std::min(1.0, cores / times->ranks) : 1.0;
    return share * times->at(static_cast<double>(sent_bytes));
  }
  const int node = members.front() / cluster.ranks_per_node;
  const auto here = static_cast<double>(std::ranges::count_if(
      members, [&](int rank) { return rank / cluster.ranks_per_node == node; }));
  const double nodes = std::max(1.0, ranks / here);
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
  return link.latency.value + hops + static_cast<double>(sent_bytes) / bandwidth;
}

SimulatedStep simulate_step(const Program& program, const ModelLayout& layout, const Model& model,
                            const ExecutorOptions& options, const Cluster& cluster) {
  return simulate_step({{program}}, layout, model, options, cluster);
}

SimulatedStep simulate_step(const std::vector<std::vector<Program>>& ranks,
                            const ModelLayout& layout, const Model& model,
                            const ExecutorOptions& options, const Cluster& cluster) {
  std::vector<std::vector<Program>> steps_alone;
  std::vector<Costs> costs;
  std::vector<double> slower(ranks.size(), 1.0);
  double ratio = 1.0;  // of checked steps to their predictions
  std::vector<ExecutorOptions> timed;
  for (const std::vector<Program>& programs : ranks) {
    steps_alone.push_back({programs.front()});
    costs.push_back(costs_of(programs.front(), layout, model, options, cluster));
    ExecutorOptions own = options;
    own.one_stream =
        options.device == DeviceKind::kCpu && programs.front().schedule->mesh.world_size() == 1;
    own.cost = [&costs, &slower, &ratio, rank = costs.size() - 1](const Schedule& schedule,
                                                                  const Action& action) {
      const auto i = static_cast<std::size_t>(&action - schedule.actions.data());
      const Costs& cost = costs[rank];
      return ratio * (cost.seconds[i] + (cost.is_handed_over[i] ? cost.handover : 0.0) +
                      (slower[rank] - 1.0) * cost.kernel_seconds[i]);
    };
    own.speeds = speeds_of(
        *programs.front().schedule, cluster, options.threads,
        [&costs, rank = costs.size() - 1](std::size_t i) { return costs[rank].memory_share[i]; });
    timed.push_back(std::move(own));
  }
  std::vector<Simulation> simulated;
  std::map<std::int64_t, double> ends;  // by step; a step alone begins at 0
  SimulatedStep step;
  const auto run = [&] {
    simulated =
        simulate(steps_alone, layout, model, state_options(*ranks.front().front().schedule), timed);
    ends.clear();
    for (const Simulation& rank : simulated) {
      for (const ActionSpan& span : rank.spans) {
        ends[span.step] = std::max(ends[span.step], span.end);
      }
    }
    const auto last = std::prev(ends.end());
    step.seconds = last->second - (last == ends.begin() ? 0.0 : std::prev(last)->second) +
                   ratio * costs.front().between;
  };
  run();
  bool is_new = false;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    is_new |= hand_over(costs[rank], *ranks[rank].front().schedule, simulated[rank].spans);
  }
  const bool meets = ranks.front().front().schedule->mesh.world_size() > 1;
  const Residual* const checked = residual_of(cluster.profile, costs.front().kernels.most(), meets);
  if (checked != nullptr) ratio = checked->ratio;
  if (is_new || ratio != 1.0) run();
  for (int i = 0; i < kThrottlings && throttle(slower, costs, step.seconds, cluster.profile); ++i) {
    run();
  }
  const auto last = std::prev(ends.end());
  step.kernels = costs.front().kernels;
  step.flops = costs.front().flops;
  step.bytes = costs.front().bytes;
  step.host_updates = costs.front().host_updates;
  step.throttled = std::ranges::max(slower);
  if (const auto& power = cluster.profile.power) {
    for (const Costs& own : costs) {
      const double joules = power->idle.value * step.seconds + joules_of(own, *power);
      step.joules += joules;
      step.watts = std::max(step.watts, joules / step.seconds);
    }
  }
  set_interval(step, cluster.profile, checked);
  const auto steps = static_cast<double>(ends.size());
  for (Simulation& rank : simulated) step.spans.push_back(std::move(rank.spans));
  step.spans = without_waiting(std::move(step.spans), ranks);
  const auto per_step = [&](std::initializer_list<Lane> lanes) {
    const LaneTime all = time_of(lanes, step.spans.front());
    return LaneTime{all.busy / steps, all.exposed / steps};
  };
  for (const Lane lane : kAllLanes) step.lanes[static_cast<std::size_t>(lane)] = per_step({lane});
  step.communication = per_step({Lane::kGather, Lane::kReduce});
  for (std::vector<ActionSpan>& spans : step.spans) {
    step.stages.push_back(stage_time(spans, steps, step.seconds));
    if (ranks.size() == 1) step.stages.back().bubble = 0.0;  // there is none to wait for
    std::erase_if(spans, [&](const ActionSpan& span) { return span.step != last->first; });
  }
  return step;
}

double SimulatedStep::bubble() const {
  double sum = 0.0;
  for (const StageTime& stage : stages) sum += stage.bubble;
  return sum / static_cast<double>(std::max<std::size_t>(stages.size(), 1));
}

double SimulatedStep::exposed_messages() const {
  double sum = 0.0;
  for (const StageTime& stage : stages) sum += stage.exposed_messages;
  return sum / static_cast<double>(std::max<std::size_t>(stages.size(), 1));
}

}  // namespace tessera

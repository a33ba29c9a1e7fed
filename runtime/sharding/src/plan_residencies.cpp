#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <utility>

#include "planning.h"

namespace tessera {
namespace {

/// What a unit's parameters in slots are sharded over, where they come from.
AxisSet sharded_over(const Schedule& schedule, int unit) {
  return schedule.is_gathered(unit, Role::kParameter) ? schedule.placement.parameter
                                                      : schedule.placement.frozen_axes();
}

/// Elements of a unit that are in slots of a kind.
using NumelInSlots = std::function<std::int64_t(int unit)>;

class ParameterPlan {
 public:
  ParameterPlan(const Schedule& schedule, const PlanOptions& options,
                const std::vector<Compute>& computes, const NumelInSlots& numel)
      : schedule_(schedule), options_(options), computes_(computes), numel_(numel) {}

  std::vector<Residency> run(std::vector<std::int64_t>& slots);

 private:
  void merge_and_issue();
  bool keeps_between(int unit, int use, int next_use) const;
  const std::vector<int>& reads(const Compute& c) const {
    const ScheduleLayer& layer = schedule_.layers[static_cast<std::size_t>(c.layer)];
    static const std::vector<int> kNothing;
    if (c.pass->parts.forward) return layer.forward_reads;
    return c.pass->parts.backward ? layer.backward_reads : kNothing;
  }
  const Schedule& schedule_;
  const PlanOptions& options_;
  const std::vector<Compute>& computes_;
  const NumelInSlots& numel_;
  std::vector<Residency> parameters_;
};

std::vector<Residency> ParameterPlan::run(std::vector<std::int64_t>& slots) {
  std::vector<std::int64_t> gathered(schedule_.units.size());
  for (std::size_t u = 0; u < gathered.size(); ++u) {
    gathered[u] = numel_(static_cast<int>(u));
  }
  std::vector<int> open(schedule_.units.size(), -1);  // residency that a unit's last use is in
  for (int c = 0; c < static_cast<int>(computes_.size()); ++c) {
    for (const int unit : reads(computes_[static_cast<std::size_t>(c)])) {
      if (gathered[static_cast<std::size_t>(unit)] == 0) continue;
      int& current = open[static_cast<std::size_t>(unit)];
      if (current >= 0 &&
          keeps_between(unit, parameters_[static_cast<std::size_t>(current)].last, c)) {
        parameters_[static_cast<std::size_t>(current)].last = c;
        continue;
      }
      current = static_cast<int>(parameters_.size());
      parameters_.push_back({.unit = unit,
                             .numel = gathered[static_cast<std::size_t>(unit)],
                             .first = c,
                             .last = c,
                             .micro_step = computes_[static_cast<std::size_t>(c)].micro_step});
    }
  }
  merge_and_issue();
  for (Residency& r : parameters_) {
    r.begin = before(r.issue);
    r.end = during(r.last);
  }
  slots = assign_slots(parameters_);
  return std::move(parameters_);
}

bool ParameterPlan::keeps_between(int unit, int use, int next_use) const {
  if (next_use - use <= 2) return true;  // at most one action in between: as good as kept
  const Compute& a = computes_[static_cast<std::size_t>(use)];
  const Compute& b = computes_[static_cast<std::size_t>(next_use)];
  // What nothing shards is here because it comes from the host: it is not kept, to save memory.
  return !options_.reshard_after_forward && !sharded_over(schedule_, unit).empty() &&
         a.micro_step == b.micro_step;
}

/// Sets the issue points; merges a residency into the unit's previous one of the same micro-step
/// when it would be issued before that one ends. Merging renumbers, so it repeats until nothing
/// changes.
void ParameterPlan::merge_and_issue() {
  for (bool merged = true; merged;) {
    merged = false;
    std::vector<Residency> kept;
    std::vector<int> previous(schedule_.units.size(), -1);
    std::vector<int> firsts;  // by number: the action that it begins with
    int last_issue = 0;
    for (Residency r : parameters_) {
      if (firsts.empty() || firsts.back() != r.first) firsts.push_back(r.first);
      const std::size_t number = firsts.size() - 1;
      const bool backward = !computes_[static_cast<std::size_t>(r.first)].pass->parts.forward;
      const auto depth = static_cast<std::size_t>(backward ? options_.policy.prefetch_backward
                                                           : options_.policy.prefetch_forward);
      r.issue = std::max(last_issue, number < depth ? 0 : firsts[number - depth]);
      int& earlier = previous[static_cast<std::size_t>(r.unit)];
      if (earlier >= 0 && r.issue <= kept[static_cast<std::size_t>(earlier)].last) {
        Residency& last = kept[static_cast<std::size_t>(earlier)];
        if (computes_[static_cast<std::size_t>(last.last)].micro_step == r.micro_step) {
          last.last = r.last;
          merged = true;
          continue;
        }
        r.issue = last.last + 1;  // micro-steps gather anew: their bytes do not depend on depth
      }
      last_issue = r.issue;
      earlier = static_cast<int>(kept.size());
      kept.push_back(r);
    }
    parameters_ = std::move(kept);
  }
}

}  // namespace

std::vector<Residency> plan_parameters(const Schedule& schedule, const PlanOptions& options,
                                       const std::vector<Compute>& computes,
                                       std::vector<std::int64_t>& slots) {
  const NumelInSlots numel = [&](int unit) { return schedule.gathered_numel(unit); };
  return ParameterPlan(schedule, options, computes, numel).run(slots);
}

std::vector<Residency> plan_quantized(const Schedule& schedule, const PlanOptions& options,
                                      const std::vector<Compute>& computes,
                                      std::vector<std::int64_t>& slots) {
  const NumelInSlots numel = [&](int unit) {
    return schedule.is_gathered(unit, Role::kQuantized)
               ? schedule.unit_numel(unit, Role::kQuantized)
               : 0;
  };
  return ParameterPlan(schedule, options, computes, numel).run(slots);
}

std::vector<Residency> plan_decoded(const Schedule& schedule, const PlanOptions& options,
                                    const std::vector<Compute>& computes,
                                    std::vector<std::int64_t>& slots) {
  const NumelInSlots numel = [&](int unit) { return schedule.unit_numel(unit, Role::kDecoded); };
  PlanOptions around_each_use = options;
  around_each_use.reshard_after_forward = true;
  around_each_use.policy.prefetch_forward = around_each_use.policy.prefetch_backward = 0;
  return ParameterPlan(schedule, around_each_use, computes, numel).run(slots);
}

namespace {

/// `depth` + 1 slots, as large as the largest of the sizes that units have; none if all are 0.
std::vector<std::int64_t> ring(const Schedule& schedule, int depth, const NumelInSlots& numel) {
  std::int64_t largest = 0;
  for (int u = 0; u < static_cast<int>(schedule.units.size()); ++u) {
    largest = std::max(largest, numel(u));
  }
  if (largest == 0) return {};
  return std::vector<std::int64_t>(static_cast<std::size_t>(depth) + 1, largest);
}

/// What a unit has in slots of a role, on one rank before it is gathered.
struct Ungathered {
  Ungathered(const Schedule& schedule, int unit, Role slots) {
    const bool quantized = slots == Role::kQuantized;
    const bool trainable = !quantized && schedule.is_gathered(unit, Role::kParameter);
    home = schedule.home_of(unit, quantized   ? Role::kQuantized
                                  : trainable ? Role::kParameter
                                              : Role::kFrozen);
    sharded = trainable ? schedule.placement.parameter : schedule.placement.frozen_axes();
    const std::int64_t all =
        quantized ? schedule.unit_numel(unit, Role::kQuantized) : schedule.gathered_numel(unit);
    numel = all / schedule.mesh.size(sharded);
  }
  Tier home;
  AxisSet sharded;
  std::int64_t numel;
};

}  // namespace

std::vector<std::int64_t> plan_shard_slots(const Schedule& schedule, const PlanOptions& options,
                                           Role role) {
  return ring(schedule, options.policy.prefetch_host, [&](int u) -> std::int64_t {
    const Ungathered unit(schedule, u, role);
    return unit.home != Tier::kDevice && !unit.sharded.empty() ? unit.numel : 0;
  });
}

std::vector<std::int64_t> plan_staging_slots(const Schedule& schedule, const PlanOptions& options,
                                             Role role) {
  return ring(schedule, options.policy.prefetch_disk, [&](int u) -> std::int64_t {
    const Ungathered unit(schedule, u, role);
    return unit.home == Tier::kDisk ? unit.numel : 0;
  });
}

std::vector<std::int64_t> plan_update_slots(const Schedule& schedule, const PlanOptions& options,
                                            Tier tier) {
  const Placement& placement = schedule.placement;
  if (placement.parameter == placement.optimizer || options.purpose != Purpose::kTrain) return {};
  const StepPolicy& policy = options.policy;
  const int depth = tier == Tier::kDevice ? policy.prefetch_host : policy.prefetch_disk;
  return ring(schedule, depth, [&](int u) -> std::int64_t {
    const Tier home = schedule.home_of(u, Role::kParameter);
    if (home == Tier::kDevice || (tier == Tier::kHost && home != Tier::kDisk)) return 0;
    return schedule.unit_numel(u, Role::kParameter) / schedule.mesh.size(placement.parameter);
  });
}

std::vector<std::int64_t> plan_sum_slots(const Schedule& schedule, const PlanOptions& options,
                                         const GradientRoute& route) {
  std::int64_t largest = 0;
  for (std::size_t u = 0; u < schedule.units.size(); ++u) {
    if (route.on_host[u]) largest = std::max(largest, schedule.units[u].trainable_numel);
  }
  if (largest == 0 || options.purpose != Purpose::kTrain) return {};
  const auto slots = static_cast<std::size_t>(options.policy.prefetch_host) + 1;
  return std::vector<std::int64_t>(slots, largest / schedule.mesh.size(route.buffer_axes));
}

std::vector<Residency> plan_gradients(const Schedule& schedule, const PlanOptions& options,
                                      const GradientRoute& route,
                                      const std::vector<Compute>& computes,
                                      std::vector<std::int64_t>& slots) {
  std::vector<Residency> gradients;
  std::map<std::pair<int, int>, std::size_t> open;  // (micro-step, unit) -> residency
  for (int c = 0; c < static_cast<int>(computes.size()); ++c) {
    const Compute& compute = computes[static_cast<std::size_t>(c)];
    if (!compute.pass->parts.gradients) continue;
    for (const int unit : schedule.layers[static_cast<std::size_t>(compute.layer)].gradients) {
      const auto [it, is_new] = open.try_emplace({compute.micro_step, unit}, gradients.size());
      if (is_new) {
        gradients.push_back(
            {.unit = unit,
             .numel = schedule.units[static_cast<std::size_t>(unit)].trainable_numel,
             .first = c,
             .micro_step = compute.micro_step});
      }
      gradients[it->second].last = c;
    }
  }
  std::vector<Residency> in_slots;
  for (const Residency& r : gradients) {
    if (route.writes_to_slots(r.unit, r.micro_step)) in_slots.push_back(r);
  }
  const auto depth = static_cast<std::size_t>(options.policy.prefetch_backward);
  for (Residency& r : in_slots) {
    r.begin = before(r.first);
    r.end = during(r.last);
    if (!route.sends_from_slots(r.micro_step) || depth == 0) continue;
    // in_slots is ordered by first write: the residencies that begin after r's last write ...
    const auto later = std::ranges::upper_bound(in_slots, r.last, {}, &Residency::first);
    // ... may be `depth` ahead of r's reduction.
    const auto remaining = static_cast<std::size_t>(in_slots.end() - later);
    r.end = remaining > depth ? before((later + static_cast<std::ptrdiff_t>(depth))->first) - 1
                              : std::numeric_limits<std::int64_t>::max();
  }
  slots = assign_slots(in_slots);
  std::size_t next = 0;
  for (Residency& r : gradients) {
    if (route.writes_to_slots(r.unit, r.micro_step)) r.slot = in_slots[next++].slot;
  }
  return gradients;
}

}  // namespace tessera

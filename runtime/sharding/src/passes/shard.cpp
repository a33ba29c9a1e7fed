#include <algorithm>
#include <utility>
#include <vector>

#include "passes/pass_tools.h"
#include "tessera/core/error.h"
#include "tessera/sharding/passes.h"

namespace tessera {
namespace {

/// How a unit's gradient is kept and sent. Gradients travel in the reduce dtype; their sums are
/// kept in fp32, and travel in fp32 where a sum must: from the rank that took it to others. So a
/// micro-step's gradient is rounded once, by backward, whether it is sent or not, and all
/// strategies add up the same numbers. Only sums of several micro-steps that are taken before the
/// reduction are rounded again, as they leave.
struct GradientRoute {
  explicit GradientRoute(const Schedule& schedule, const ShardNesting& nesting)
      : every(!schedule.placement.gradient.empty() && !schedule.accumulate_unsharded),
        adds_up(!every && schedule.micro_steps > 1),
        by_rank(schedule.reduction_order == ReductionOrder::kRank),
        is_rounded(schedule.reduce_dtype != DType::kFloat32),
        last_micro_step(schedule.micro_steps - 1),
        all_axes(nesting.gradient_axes()),
        optimizer_axes(schedule.placement.optimizer) {
    if (every) buffer_axes = by_rank ? optimizer_axes : schedule.placement.gradient;
    if (by_rank || optimizer_axes.empty()) {
      sent_axes = all_axes;
    } else {
      sent_axes = every ? schedule.placement.gradient : optimizer_axes;
    }
  }

  bool every;       ///< reduced in every micro-step, else only in the last one
  bool adds_up;     ///< micro-steps are added up before they are sent
  bool by_rank;     ///< ReductionOrder::kRank
  bool is_rounded;  ///< on its way
  int last_micro_step;
  AxisSet all_axes;
  AxisSet optimizer_axes;
  AxisSet buffer_axes{};  ///< along which the fp32 gradient buffers are cut
  AxisSet sent_axes;  ///< over which a micro-step's is reduced: all at once, or the first of two
                      ///< levels

  /// True if what is reduced in `micro_step` is sent as layers wrote it; else from the gradient
  /// buffers.
  bool sends_as_written(int micro_step) const {
    return every || (micro_step == last_micro_step && !all_axes.empty() && is_rounded);
  }
};

/// Whether an action reads or brings a gradient that has all its contributions.
bool is_on_complete_gradients(const Schedule& schedule, const Action& action) {
  const auto of_gradient = [&](const Operand& operand) {
    return schedule.role(operand.buffer) == Role::kGradient;
  };
  if (action.operation == &operations::kSend) return of_gradient(action.reads.front());
  if (action.operation == &operations::kReceive) return of_gradient(action.writes.front());
  return action.operation == &operations::kNormPartial || action.operation == &operations::kAddTied;
}

class Sharding {
 public:
  explicit Sharding(Schedule& schedule)
      : schedule_(schedule),
        nesting_(schedule.mesh, schedule.placement),
        route_(schedule, nesting_) {}

  void run();

 private:
  void cut_buffers();
  void pass(Action action);
  Operand unshard(const std::vector<Operand>& flats, const Action& pass);
  void reduce(const Action& cast);
  void finish(const Operand& gradient);
  void finish_all(Action action);
  void step(Action action);

  Schedule& schedule_;
  const ShardNesting nesting_;
  const GradientRoute route_;
  std::vector<Action> actions_;
  std::vector<int> finished_;  ///< gradient buffers
};

void Sharding::cut_buffers() {
  set_state(schedule_, on_device(schedule_.state()));
  for (ScheduleBuffer& buffer : schedule_.buffers) {
    if (buffer.kind != BufferKind::kGradient) continue;
    buffer.sharded = route_.buffer_axes;
    buffer.numel /= schedule_.mesh.size(buffer.sharded);
  }
}

/// An all-gather of what is cut of a unit, in one format, into a buffer of its own; an operand that
/// reads it.
Operand Sharding::unshard(const std::vector<Operand>& flats, const Action& pass) {
  const int unit = flats.front().unit;
  const DType format = schedule_.buffer(flats.front()).format;
  FlatSet all;
  std::int64_t numel = 0;
  for (const Operand& flat : flats) {
    all = all | schedule_.flats(flat);
    numel += schedule_.numel(flat);
  }
  Operand whole{.buffer = add_buffer(
                    schedule_, {.name = concat(schedule_.units[static_cast<std::size_t>(unit)].name,
                                               format == DType::kUInt8 ? ".q" : ".p",
                                               schedule_.buffers.size()),
                                .kind = BufferKind::kWholeSlot,
                                .role = Role::kParameter,
                                .micro_step = pass.micro_step,
                                .format = format,
                                .numel = numel}),
                .unit = unit};
  schedule_.set_flats(whole, all);
  actions_.push_back({.operation = &operations::kAllGather,
                      .lane = Lane::kGather,
                      .reads = flats,
                      .writes = {whole},
                      .axes = flats.front().sharded});
  return whole;
}

/// A unit's flat parameters that are cut alike and in one format are gathered together.
void Sharding::pass(Action action) {
  std::vector<Operand> reads, gathered;
  for (std::size_t i = 0; i < action.reads.size();) {
    const int unit = action.reads[i].unit;
    if (unit < 0) {
      reads.push_back(action.reads[i++]);
      continue;
    }
    std::vector<std::vector<Operand>> cut;  // quantised ones come first
    std::vector<Operand> whole;
    for (; i < action.reads.size() && action.reads[i].unit == unit; ++i) {
      const Operand& flat = action.reads[i];
      if (flat.sharded.empty()) {
        const bool is_quantized = schedule_.flat(id_of(schedule_, flat)).is_quantized();
        (is_quantized ? reads : whole).push_back(flat);
        continue;
      }
      const auto alike = std::ranges::find_if(cut, [&](const std::vector<Operand>& flats) {
        return flats.front().sharded == flat.sharded &&
               schedule_.buffer(flats.front()).format == schedule_.buffer(flat).format;
      });
      if (alike != cut.end()) {
        alike->push_back(flat);
      } else {
        cut.push_back({flat});
      }
    }
    for (const std::vector<Operand>& flats : cut) {
      gathered.push_back(unshard(flats, action));
      reads.push_back(gathered.back());
    }
    reads.insert(reads.end(), whole.begin(), whole.end());
  }
  action.reads = std::move(reads);
  actions_.push_back(std::move(action));
  for (const Operand& content : gathered) {
    actions_.push_back({.operation = &operations::kReshard, .writes = {content}});
  }
}

/// A unit's gradient of one micro-step is complete: reduce it, or add it to the others.
void Sharding::reduce(const Action& cast) {
  const Operand written = cast.reads.front();
  const int micro_step = schedule_.buffer(written).micro_step;
  const bool adds = cast.writes.front().adds;
  const bool sends = route_.sends_as_written(micro_step);
  Operand sum = cast.writes.front();
  if (route_.adds_up || !sends) {
    actions_.push_back(cast);
    sum.adds = false;
    if (sends) {
      actions_.push_back({.operation = &operations::kCast, .reads = {sum}, .writes = {written}});
    }
  }
  if (!sends) return;
  sum.sharded = route_.sent_axes;
  sum.adds = route_.every && adds;
  actions_.push_back({.operation = &operations::kReduceScatter,
                      .lane = Lane::kReduce,
                      .reads = {written},
                      .writes = {sum},
                      .axes = route_.sent_axes});
}

/// Reduces once per step what remains.
void Sharding::finish(const Operand& gradient) {
  if (std::ranges::find(finished_, gradient.buffer) != finished_.end()) return;
  finished_.push_back(gradient.buffer);
  const AxisSet all = route_.all_axes, optimizer = route_.optimizer_axes;
  const AxisSet replicas = all - optimizer;
  const auto collective = [&](const Operation& operation, AxisSet axes, AxisSet from, AxisSet to) {
    if (axes.empty()) return;
    Operand before = gradient, after = gradient;
    before.adds = after.adds = false;
    before.sharded = from;
    after.sharded = to;
    actions_.push_back({.operation = &operation,
                        .lane = Lane::kReduce,
                        .reads = {before},
                        .writes = {after},
                        .axes = axes});
  };
  using namespace operations;  // NOLINT: rows of the table
  if (route_.sends_as_written(route_.last_micro_step)) {
    const AxisSet sent = route_.sent_axes;
    if (sent == all) {
      collective(kAllGather, replicas, all, optimizer);
    } else {
      collective(kReduceScatter, optimizer - sent, sent, optimizer);
      collective(kAllReduce, replicas, optimizer, optimizer);
    }
  } else if (optimizer.empty()) {
    collective(kAllReduce, all, {}, {});
  } else if (route_.by_rank) {
    collective(kReduceScatter, all, {}, all);
    collective(kAllGather, replicas, all, optimizer);
  } else {
    collective(kReduceScatter, optimizer, {}, optimizer);
    collective(kAllReduce, replicas, optimizer, optimizer);
  }
}

/// An action on gradients that are complete. Of what ranks keep, each reads its part for the
/// optimizer; of the norm, its share.
void Sharding::finish_all(Action action) {
  const bool is_norm = action.operation == &operations::kNormPartial;
  for (std::vector<Operand>* const operands : {&action.reads, &action.writes}) {
    for (Operand& operand : *operands) {
      ScheduleBuffer& buffer = schedule_.buffers[static_cast<std::size_t>(operand.buffer)];
      if (buffer.role != Role::kGradient) continue;
      if (buffer.kind == BufferKind::kGradient) finish(operand);
      operand.sharded = is_norm ? route_.all_axes : route_.optimizer_axes;
      if (action.operation == &operations::kReceive) {
        buffer.numel /= schedule_.mesh.size(operand.sharded);
      }
    }
  }
  actions_.push_back(std::move(action));
}

/// Each rank updates its part of a unit; ranks that keep more of the parameters gather it.
void Sharding::step(Action action) {
  const AxisSet optimizer = route_.optimizer_axes, parameter = schedule_.placement.parameter;
  for (std::vector<Operand>* const operands : {&action.reads, &action.writes}) {
    for (Operand& operand : *operands) {
      if (operand.unit >= 0) operand.sharded = optimizer;
    }
  }
  const Operand updated = action.writes.front();
  actions_.push_back(std::move(action));
  if (parameter == optimizer) return;
  Operand gathered = updated;
  gathered.sharded = parameter;
  actions_.push_back({.operation = &operations::kAllGather,
                      .lane = Lane::kGather,
                      .reads = {updated},
                      .writes = {gathered},
                      .axes = optimizer - parameter});
}

void Sharding::run() {
  cut_buffers();
  actions_.reserve(3 * schedule_.actions.size());
  for (Action& action : schedule_.actions) {
    if (action.operation->is_pass) {
      pass(std::move(action));
    } else if (action.operation == &operations::kCast) {
      reduce(action);
    } else if (is_on_complete_gradients(schedule_, action)) {
      finish_all(std::move(action));
    } else if (action.operation == &operations::kOptimizerStep) {
      step(std::move(action));
    } else {
      actions_.push_back(std::move(action));
    }
  }
  schedule_.actions = std::move(actions_);
}

}  // namespace

Schedule shard(Schedule schedule) {
  Sharding(schedule).run();
  return schedule;
}

}  // namespace tessera

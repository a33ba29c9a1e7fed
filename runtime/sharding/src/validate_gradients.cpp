#include <algorithm>

#include "validation.h"

namespace tessera {
namespace {

struct Stage {
  ActionKind kind;
  AxisSet axes;
};

AxisSet all_axes(const Mesh& mesh) {
  AxisSet axes;
  for (Axis axis : {Axis::kReplicate, Axis::kShard}) {
    if (mesh.size(axis) > 1) axes = axes | AxisSet{axis};
  }
  return axes;
}

// True if a sum is taken over all ranks at once, not inside replicas first.
bool reduces_at_once(const Schedule& s) {
  return s.reduction_order == ReductionOrder::kRank || s.placement.optimizer.empty();
}

// The axes of the reduce-scatters from slots.
AxisSet slot_axes(const Schedule& s) {
  if (reduces_at_once(s)) return all_axes(s.mesh);
  return s.reduces_every_micro_step() ? s.placement.gradient : s.placement.optimizer;
}

// The collectives that complete a gradient buffer, once per step, after the last micro-step's
// contribution is in. Together with the reduce-scatters from slots they sum over every axis once
// and leave the optimizer's shard.
std::vector<Stage> final_stages(const Schedule& s) {
  const AxisSet all = all_axes(s.mesh);
  const AxisSet optimizer = s.placement.optimizer;
  const bool sent_from_slots = s.sends_from_slots(s.micro_steps - 1);
  std::vector<Stage> stages;
  if (sent_from_slots) {
    stages.push_back({ActionKind::kReduceScatter, optimizer - slot_axes(s)});
  } else {
    stages.push_back({optimizer.empty() ? ActionKind::kAllReduce : ActionKind::kReduceScatter,
                      reduces_at_once(s) ? all : optimizer});
  }
  if (sent_from_slots || !optimizer.empty()) {
    stages.push_back({reduces_at_once(s) ? ActionKind::kGatherGradient : ActionKind::kAllReduce,
                      all - optimizer});
  }
  std::erase_if(stages, [](const Stage& stage) { return stage.axes.empty(); });
  return stages;
}

class GradientWalk {
 public:
  GradientWalk(const Schedule& schedule, Findings& findings)
      : s_(schedule),
        findings_(findings),
        writers_(gradient_writers(schedule)),
        targets_(gradient_slots_by_unit(schedule)),
        stages_(final_stages(schedule)),
        units_(schedule.units.size()),
        slots_(schedule.gradient_slots.size()) {}

  void run() {
    for (std::size_t i = 0; i < s_.actions.size(); ++i) {
      const int index = static_cast<int>(i);
      switch (s_.actions[i].kind) {
        case ActionKind::kLoss:
        case ActionKind::kBackward:
          write(index, s_.actions[i]);
          break;
        case ActionKind::kAccumulate:
          add_slot(index, s_.actions[i]);
          break;
        case ActionKind::kRound:
          round(index, s_.actions[i]);
          break;
        case ActionKind::kReduceScatter:
          s_.actions[i].slot >= 0 ? reduce_slot(index, s_.actions[i])
                                  : reduce_buffer(index, s_.actions[i]);
          break;
        case ActionKind::kAllReduce:
        case ActionKind::kGatherGradient:
          reduce_buffer(index, s_.actions[i]);
          break;
        default:
          break;
      }
    }
    for (std::size_t u = 0; u < units_.size(); ++u) report_missing(static_cast<int>(u));
  }

 private:
  struct UnitState {
    int written = 0;        // layers whose backward has written to the buffer itself
    int contributions = 0;  // micro-steps that the buffer has taken in
    std::size_t stages = 0;
  };
  struct SlotState {
    int unit = -1;
    int micro_step = -1;
    int written = 0;       // layers whose backward has added to it
    bool added = false;    // the buffer has taken it in, but it is still to be sent
    bool rounded = false;  // it holds the buffer's sum
  };

  UnitState& state(int unit) { return units_[static_cast<std::size_t>(unit)]; }
  SlotState& slot(int index) { return slots_[static_cast<std::size_t>(index)]; }
  int writer_count(int unit) const {
    return static_cast<int>(writers_[static_cast<std::size_t>(unit)].size());
  }
  int target(int unit, int micro_step) const {
    return targets_[static_cast<std::size_t>(unit * s_.micro_steps + micro_step)];
  }

  void write(int index, const Action& action) {
    for (int unit : s_.layers[static_cast<std::size_t>(action.layer)].gradients) {
      const int target_slot = target(unit, action.micro_step);
      if (target_slot >= 0) {
        write_slot(index, action.micro_step, unit, target_slot);
      } else if (++state(unit).written == writer_count(unit)) {
        ++state(unit).contributions;
      }
    }
  }

  void write_slot(int index, int micro_step, int unit, int target_slot) {
    SlotState& holder = slot(target_slot);
    if (holder.unit != unit || holder.micro_step != micro_step) {
      if (holder.unit >= 0) {
        findings_.add_at(index, Rule::kSlotReuse, "writes the gradient of ", findings_.unit(unit),
                         " to slot g", target_slot, ", which still holds that of ",
                         findings_.unit(holder.unit), " in m", holder.micro_step);
      }
      holder = {.unit = unit, .micro_step = micro_step};
    }
    ++holder.written;
  }

  // Gradients of several micro-steps that are sent once are added up before.
  bool adds_up() const { return !s_.reduces_every_micro_step() && s_.micro_steps > 1; }

  // Whether the slot holds the gradient that the action means, complete and next in order.
  bool check_slot(int index, const Action& action) {
    const UnitState& unit = state(action.unit);
    const SlotState& holder = slot(action.slot);
    const auto add = [&](const auto&... what) {
      findings_.add_at(index, Rule::kReduction, what...);
    };
    if (holder.unit != action.unit || holder.micro_step != action.micro_step) {
      add("slot g", action.slot, " does not hold the unit's gradient of m", action.micro_step,
          " (reduced already, or not yet written)");
      return false;
    }
    if (holder.written != writer_count(action.unit)) {
      const auto next = static_cast<std::size_t>(holder.written);
      const int layer = writers_[static_cast<std::size_t>(action.unit)][next];
      add("the gradient is incomplete: backward of ",
          s_.layers[static_cast<std::size_t>(layer)].name, " has not added its part");
    }
    if (action.micro_step != unit.contributions) {
      add("the buffer has the gradients of ", unit.contributions,
          " micro-steps; they must be added in order");
    }
    return true;
  }

  // Adds the micro-step's gradient to the buffer. The slot is free then, unless the sum is sent
  // from it.
  void add_slot(int index, const Action& action) {
    if (!check_slot(index, action)) return;
    SlotState& holder = slot(action.slot);
    const bool sends = s_.sends_from_slots(action.micro_step);
    if (sends && !adds_up()) {
      findings_.add_at(index, Rule::kReduction, "gradients are to be reduced in every micro-step");
    }
    if (holder.added) {
      findings_.add_at(index, Rule::kReduction, "the buffer has the gradient already");
    }
    if (sends) {
      holder.added = true;
    } else {
      holder = {};
      ++state(action.unit).contributions;
    }
  }

  void round(int index, const Action& action) {
    SlotState& holder = slot(action.slot);
    if (holder.unit == action.unit && holder.micro_step == action.micro_step && holder.added) {
      holder.rounded = true;
      return;
    }
    findings_.add_at(index, Rule::kReduction, "the buffer's sum is not to be sent from slot g",
                     action.slot, ", or lacks the gradient that lies there");
  }

  // Takes the micro-step's gradient, or the sum of all, out of its slot and into the buffer.
  void reduce_slot(int index, const Action& action) {
    const auto add = [&](const auto&... what) {
      findings_.add_at(index, Rule::kReduction, what...);
    };
    if (action.axes != slot_axes(s_)) add("must reduce over ", to_string(slot_axes(s_)));
    const bool accumulates = s_.reduces_every_micro_step() && action.micro_step > 0;
    if (action.accumulate && !accumulates) {
      add(action.micro_step > 0 ? "adds to the sum that it reduces"
                                : "adds to a buffer that holds nothing yet");
    }
    if (accumulates && !action.accumulate) add("overwrites the sum of earlier micro-steps");
    if (!check_slot(index, action)) return;
    if (!s_.sends_from_slots(action.micro_step)) {
      add("gradients are to be reduced in the last micro-step only");
    } else if (adds_up() && !slot(action.slot).rounded) {
      add("the slot does not hold the sum of all micro-steps");
    }
    slot(action.slot) = {};
    ++state(action.unit).contributions;
  }

  void reduce_buffer(int index, const Action& action) {
    UnitState& unit = state(action.unit);
    const auto add = [&](const auto&... what) {
      findings_.add_at(index, Rule::kReduction, what...);
    };
    if (action.micro_step != s_.micro_steps - 1) add("belongs to the last micro-step");
    if (action.accumulate) add("must not accumulate: the buffer is reduced in place");
    if (unit.contributions < s_.micro_steps) {
      add("the buffer has the gradients of ", unit.contributions, " of ", s_.micro_steps,
          " micro-steps");
    }
    if (unit.stages == stages_.size()) return add("the gradient is reduced already");
    const Stage& expected = stages_[unit.stages++];
    if (action.kind != expected.kind || action.axes != expected.axes) {
      add("the next reduction must be ", to_string(expected.kind), " over ",
          to_string(expected.axes));
    }
  }

  void report_missing(int index) {
    if (writer_count(index) == 0) return;
    const UnitState& unit = state(index);
    if (unit.contributions < s_.micro_steps) {
      findings_.add(Rule::kReduction, "the gradient of unit ", findings_.unit(index),
                    " is complete for ", unit.contributions, " of ", s_.micro_steps,
                    " micro-steps: the others never leave their slot");
    }
    for (std::size_t i = unit.stages; i < stages_.size(); ++i) {
      findings_.add(Rule::kReduction, "the gradient of unit ", findings_.unit(index), " lacks its ",
                    to_string(stages_[i].kind), " over ", to_string(stages_[i].axes));
    }
  }

  const Schedule& s_;
  Findings& findings_;
  const std::vector<std::vector<int>> writers_;
  const std::vector<int> targets_;
  const std::vector<Stage> stages_;
  std::vector<UnitState> units_;
  std::vector<SlotState> slots_;
};

}  // namespace

void check_gradients(const Schedule& schedule, Findings& findings) {
  GradientWalk(schedule, findings).run();
}

}  // namespace tessera

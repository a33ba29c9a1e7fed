#include <algorithm>
#include <set>

#include "schedule_words.h"
#include "validation.h"

namespace tessera {
namespace {

constexpr Rule kStructureRule = Rule::kStructure;

bool in_range(int index, std::size_t size) {
  return index >= 0 && static_cast<std::size_t>(index) < size;
}

// Which fields a kind uses. The others keep their defaults.
struct Fields {
  bool micro_step = false;
  bool axes = false;
  bool accumulate = false;
  char slot = ' ';               // 'p', 'g', or ' ' for none
  bool slot_may_be_none = true;  // -1 is a slot too: the buffer
};

Fields fields_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kCountItems:
    case ActionKind::kSquares:
    case ActionKind::kExchange:
    case ActionKind::kUpdate:
      return {};
    case ActionKind::kForward:
    case ActionKind::kLoss:
    case ActionKind::kBackward:
      return {.micro_step = true};
    case ActionKind::kUnshard:
      return {.micro_step = true, .axes = true, .slot = 'p', .slot_may_be_none = false};
    case ActionKind::kReshard:
      return {.micro_step = true, .slot = 'p', .slot_may_be_none = false};
    case ActionKind::kAccumulate:
    case ActionKind::kRound:
      return {.micro_step = true, .slot = 'g', .slot_may_be_none = false};
    case ActionKind::kReduceScatter:
      return {.micro_step = true, .axes = true, .accumulate = true, .slot = 'g'};
    case ActionKind::kAllReduce:
    case ActionKind::kGatherGradient:
      return {.micro_step = true, .axes = true};
    case ActionKind::kGatherParameter:
      return {.axes = true};
  }
  return {};
}

class StructureCheck {
 public:
  StructureCheck(const Schedule& schedule, Findings& findings)
      : s_(schedule), findings_(findings) {}

  // Each part relies on the ones before.
  void run() {
    check_mesh();
    check_units();
    if (findings_.empty()) check_layers();
    if (findings_.empty()) check_targets();
    if (!findings_.empty()) return;
    for (std::size_t i = 0; i < s_.actions.size(); ++i) check_action(static_cast<int>(i));
    if (findings_.empty()) check_computation();
    if (findings_.empty()) check_count_items();
  }

 private:
  void check_mesh() {
    const Placement& p = s_.placement;
    if (s_.mesh.replicate < 1 || s_.mesh.shard < 1) {
      findings_.add(kStructureRule, "the mesh has an axis without ranks");
    }
    if (!p.optimizer.contains(p.gradient) || !p.gradient.contains(p.parameter)) {
      findings_.add(kStructureRule,
                    "parameters must be cut along no more axes than gradients, and those "
                    "along no more than optimizer state");
    }
    for (Axis axis : {Axis::kReplicate, Axis::kShard}) {
      if (s_.mesh.size(axis) == 1 && p.optimizer.contains(axis)) {
        findings_.add(kStructureRule, "the placement names axis ", to_string(axis),
                      ", which has size 1");
      }
    }
    if (s_.micro_steps < 1)
      findings_.add(kStructureRule, "there are ", s_.micro_steps, " micro-steps");
  }

  void check_units() {
    std::set<std::string_view> names;
    const std::int64_t ranks = std::max(s_.mesh.world_size(), 1);
    for (const ScheduleUnit& unit : s_.units) {
      if (!names.insert(unit.name).second) {
        findings_.add(kStructureRule, "two units are named ", unit.name);
      }
      for (std::int64_t numel : {unit.trainable_numel, unit.frozen_numel}) {
        if (numel >= 0 && numel % ranks == 0) continue;
        findings_.add(kStructureRule, "unit ", unit.name, " has ", numel,
                      " elements, which cannot be cut evenly for ", ranks, " ranks");
      }
    }
    for (const auto* slots : {&s_.parameter_slots, &s_.gradient_slots}) {
      for (std::int64_t numel : *slots) {
        if (numel < 0) findings_.add(kStructureRule, "a slot has ", numel, " elements");
      }
    }
  }

  void check_layers() {
    if (!in_range(s_.first_backward_layer, s_.layers.size())) {
      findings_.add(kStructureRule, "the first layer with a backward, number ",
                    s_.first_backward_layer, ", is not one of the ", s_.layers.size(), " layers");
    }
    std::set<std::string_view> names;
    for (std::size_t i = 0; i < s_.layers.size(); ++i) {
      const ScheduleLayer& layer = s_.layers[i];
      if (!names.insert(layer.name).second) {
        findings_.add(kStructureRule, "two layers are named ", layer.name);
      }
      for (const auto* units : {&layer.forward_reads, &layer.backward_reads, &layer.gradients}) {
        const std::set<int> unique(units->begin(), units->end());
        if (unique.size() != units->size()) {
          findings_.add(kStructureRule, "layer ", layer.name, " lists a unit twice");
        }
        for (int unit : unique) {
          if (!in_range(unit, s_.units.size())) {
            findings_.add(kStructureRule, "layer ", layer.name, " names unit ", unit, " of ",
                          s_.units.size());
          }
        }
      }
      if (!layer.gradients.empty() && static_cast<int>(i) < s_.first_backward_layer) {
        findings_.add(kStructureRule, "layer ", layer.name,
                      " writes gradients but has no backward");
      }
    }
  }

  void check_targets() {
    const auto writers = gradient_writers(s_);
    std::set<std::pair<int, int>> seen;
    for (const GradientTarget& target : s_.gradient_targets) {
      if (!in_range(target.unit, s_.units.size()) || target.micro_step < 0 ||
          target.micro_step >= s_.micro_steps ||
          writers[static_cast<std::size_t>(target.unit)].empty()) {
        findings_.add(kStructureRule, "a gradient target names unit ", target.unit,
                      " in micro-step ", target.micro_step, ", whose gradient nobody writes");
        continue;
      }
      const std::string what =
          concat("the gradient of ", findings_.unit(target.unit), " in m", target.micro_step);
      if (!seen.insert({target.unit, target.micro_step}).second) {
        findings_.add(kStructureRule, what, " has two targets");
      }
      const bool wants_slot = s_.writes_to_slots(target.micro_step);
      if (wants_slot != (target.slot != -1)) {
        findings_.add(kStructureRule, what, " must be written to ",
                      wants_slot ? "a slot, not to the buffer" : "the buffer, not to a slot");
      } else if (wants_slot) {
        check_slot(-1, what, s_.gradient_slots, target.slot, 'g',
                   s_.units[static_cast<std::size_t>(target.unit)].trainable_numel);
      }
    }
    for (std::size_t u = 0; u < s_.units.size(); ++u) {
      if (writers[u].empty()) continue;
      if (s_.units[u].trainable_numel == 0) {
        findings_.add(kStructureRule, "unit ", s_.units[u].name,
                      " has a gradient but nothing to train");
      }
      for (int m = 0; m < s_.micro_steps; ++m) {
        if (seen.contains({static_cast<int>(u), m})) continue;
        findings_.add(kStructureRule, "the gradient of ", s_.units[u].name, " in m", m,
                      " has no target");
      }
    }
  }

  void check_slot(int action, const std::string& what, const std::vector<std::int64_t>& slots,
                  int slot, char letter, std::int64_t numel) {
    const auto add = [&](const auto&... text) {
      if (action < 0) {
        findings_.add(kStructureRule, what, ": ", text...);
      } else {
        findings_.add_at(action, kStructureRule, text...);
      }
    };
    if (!in_range(slot, slots.size())) {
      add("slot ", letter, slot, " does not exist: there are ", slots.size());
    } else if (slots[static_cast<std::size_t>(slot)] < numel) {
      add("slot ", letter, slot, " holds ", slots[static_cast<std::size_t>(slot)],
          " elements, but ", numel, " are needed");
    }
  }

  void check_action(int index) {
    const Action& action = s_.actions[static_cast<std::size_t>(index)];
    const auto add = [&](const auto&... what) { findings_.add_at(index, kStructureRule, what...); };
    const ActionSubject subject = subject_of(action.kind);
    const bool has_unit = subject == ActionSubject::kUnit;
    const bool has_layer = subject == ActionSubject::kLayer;
    if (has_unit ? !in_range(action.unit, s_.units.size()) : action.unit != -1) {
      return add("unit ", action.unit, has_unit ? " does not exist" : " means nothing here");
    }
    if (has_layer ? !in_range(action.layer, s_.layers.size()) : action.layer != -1) {
      return add("layer ", action.layer, has_layer ? " does not exist" : " means nothing here");
    }
    const Fields fields = fields_of(action.kind);
    if (fields.micro_step ? action.micro_step < 0 || action.micro_step >= s_.micro_steps
                          : action.micro_step != -1) {
      add("micro-step ", action.micro_step,
          fields.micro_step ? " does not exist" : " means nothing here");
    }
    if (action.accumulate && !fields.accumulate) add("there is nothing to accumulate");
    check_axes(index, fields);
    check_slot_field(index, fields);
    check_waits(index);
  }

  void check_axes(int index, const Fields& fields) {
    const Action& action = s_.actions[static_cast<std::size_t>(index)];
    const auto add = [&](const auto&... what) { findings_.add_at(index, kStructureRule, what...); };
    if (!fields.axes) {
      if (!action.axes.empty()) add("axes mean nothing here");
      return;
    }
    const AxisSet needed = action.kind == ActionKind::kUnshard
                               ? s_.placement.parameter
                               : s_.placement.optimizer - s_.placement.parameter;
    if (s_.mesh.size(action.axes) < 2) {
      add("a collective over ", to_string(action.axes), " has no peers");
    } else if (lane_of(action.kind) == Lane::kGather && action.axes != needed) {
      add("parameters are to be gathered over ", to_string(needed), ", not ",
          to_string(action.axes));
    }
  }

  void check_slot_field(int index, const Fields& fields) {
    const Action& action = s_.actions[static_cast<std::size_t>(index)];
    if (fields.slot == ' ' ? action.slot == -1 : fields.slot_may_be_none && action.slot == -1) {
      return;
    }
    if (fields.slot == ' ') {
      return findings_.add_at(index, kStructureRule, "slot ", action.slot, " means nothing here");
    }
    const ScheduleUnit& unit = s_.units[static_cast<std::size_t>(action.unit)];
    const bool parameters = fields.slot == 'p';
    check_slot(index, {}, parameters ? s_.parameter_slots : s_.gradient_slots, action.slot,
               fields.slot, unit.trainable_numel + (parameters ? unit.frozen_numel : 0));
  }

  void check_waits(int index) {
    const Action& action = s_.actions[static_cast<std::size_t>(index)];
    for (int wait : action.waits) {
      if (wait < 0 || wait >= index) {
        findings_.add_at(index, kStructureRule, "waits for action ", wait,
                         ", which is not issued before");
      } else if (s_.actions[static_cast<std::size_t>(wait)].lane() == action.lane()) {
        findings_.add_at(index, kStructureRule, "waits for action ", wait, " of its own lane");
      }
    }
  }

  // The compute lane is fixed by the model. The planner's own list is not used here on purpose: a
  // mistake in it would pass.
  void check_computation() {
    struct Pass {
      ActionKind kind;
      int layer;
      int micro_step;
    };
    std::vector<Pass> expected;
    const int last = static_cast<int>(s_.layers.size()) - 1;
    for (int m = 0; m < s_.micro_steps; ++m) {
      for (int l = 0; l < last; ++l) expected.push_back({ActionKind::kForward, l, m});
      expected.push_back({ActionKind::kLoss, last, m});
      for (int l = last - 1; l >= s_.first_backward_layer; --l) {
        expected.push_back({ActionKind::kBackward, l, m});
      }
    }
    std::size_t next = 0;
    const auto text = [&] {
      const Pass& pass = expected[next];
      return describe(s_, {.kind = pass.kind, .layer = pass.layer, .micro_step = pass.micro_step});
    };
    for (std::size_t i = 0; i < s_.actions.size(); ++i) {
      const Action& action = s_.actions[i];
      if (subject_of(action.kind) != ActionSubject::kLayer) continue;
      if (next == expected.size()) {
        return findings_.add_at(static_cast<int>(i), kStructureRule,
                                "the step's computation is over");
      }
      const Pass& pass = expected[next];
      if (action.kind != pass.kind || action.layer != pass.layer ||
          action.micro_step != pass.micro_step) {
        return findings_.add_at(static_cast<int>(i), kStructureRule, text(), " must come here");
      }
      ++next;
    }
    if (next < expected.size()) findings_.add(kStructureRule, text(), " is missing");
  }

  void check_count_items() {
    const auto is_count = [](const Action& a) { return a.kind == ActionKind::kCountItems; };
    const auto count = std::ranges::count_if(s_.actions, is_count);
    if (count != 1)
      findings_.add(kStructureRule, "there are ", count, " count-items; a step needs one");
  }

  const Schedule& s_;
  Findings& findings_;
};

}  // namespace

void check_structure(const Schedule& schedule, Findings& findings) {
  StructureCheck(schedule, findings).run();
}

}  // namespace tessera

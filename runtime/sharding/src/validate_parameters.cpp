#include "validation.h"

namespace tessera {
namespace {

class ParameterWalk {
 public:
  ParameterWalk(const Schedule& schedule, Findings& findings)
      : s_(schedule),
        findings_(findings),
        slot_of_(schedule.units.size(), -1),
        unit_in_(schedule.parameter_slots.size(), -1) {}

  void run() {
    for (std::size_t i = 0; i < s_.actions.size(); ++i) {
      const Action& action = s_.actions[i];
      const int index = static_cast<int>(i);
      switch (action.kind) {
        case ActionKind::kUnshard:
          unshard(index, action);
          break;
        case ActionKind::kReshard:
          reshard(index, action);
          break;
        case ActionKind::kForward:
        case ActionKind::kLoss:
        case ActionKind::kBackward:
          use(index, action);
          break;
        default:
          break;
      }
    }
    for (std::size_t slot = 0; slot < unit_in_.size(); ++slot) {
      if (unit_in_[slot] < 0) continue;
      findings_.add(Rule::kResidency, "unit ", findings_.unit(unit_in_[slot]),
                    " is still in slot p", slot, " when the step ends");
    }
  }

 private:
  int& slot_of(int unit) { return slot_of_[static_cast<std::size_t>(unit)]; }
  int& unit_in(int slot) { return unit_in_[static_cast<std::size_t>(slot)]; }

  void unshard(int index, const Action& action) {
    if (slot_of(action.unit) >= 0) {
      findings_.add_at(index, Rule::kResidency, "the unit is already in slot p",
                       slot_of(action.unit));
      unit_in(slot_of(action.unit)) = -1;
    }
    const int holder = unit_in(action.slot);
    if (holder >= 0) {
      findings_.add_at(index, Rule::kSlotReuse, "slot p", action.slot, " still holds unit ",
                       findings_.unit(holder));
      slot_of(holder) = -1;
    }
    slot_of(action.unit) = action.slot;
    unit_in(action.slot) = action.unit;
  }

  void reshard(int index, const Action& action) {
    if (slot_of(action.unit) != action.slot) {
      return findings_.add_at(index, Rule::kResidency, "the unit is not in slot p", action.slot);
    }
    slot_of(action.unit) = -1;
    unit_in(action.slot) = -1;
  }

  void use(int index, const Action& action) {
    if (s_.placement.parameter.empty()) return;  // whole, in the parameter buffer
    for (int unit : parameter_reads(s_, action)) {
      if (slot_of(unit) >= 0) continue;
      findings_.add_at(index, Rule::kResidency, "reads unit ", findings_.unit(unit),
                       ", which is not unsharded");
    }
  }

  const Schedule& s_;
  Findings& findings_;
  std::vector<int> slot_of_;  // by unit, -1: sharded
  std::vector<int> unit_in_;  // by slot, -1: free
};

}  // namespace

void check_parameters(const Schedule& schedule, Findings& findings) {
  ParameterWalk(schedule, findings).run();
}

}  // namespace tessera

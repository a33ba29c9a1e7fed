#include <algorithm>

#include "validation.h"

namespace tessera {
namespace {

constexpr Rule kUpdateRule = Rule::kUpdate;

class UpdateWalk {
 public:
  UpdateWalk(const Schedule& schedule, Findings& findings)
      : s_(schedule),
        findings_(findings),
        regathers_(!(schedule.placement.optimizer - schedule.placement.parameter).empty()),
        units_(schedule.units.size()) {
    const auto writers = gradient_writers(schedule);
    for (std::size_t u = 0; u < units_.size(); ++u) units_[u].trained = !writers[u].empty();
  }

  void run() {
    for (std::size_t i = 0; i < s_.actions.size(); ++i) visit(static_cast<int>(i), s_.actions[i]);
    if (exchanges_ == 0) findings_.add(kUpdateRule, "exchange is missing");
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const UnitState& unit = units_[u];
      const std::string name = findings_.unit(static_cast<int>(u));
      if (unit.trained && unit.updates == 0) {
        findings_.add(kUpdateRule, "unit ", name, " is never updated");
      }
      if (unit.trained && regathers_ && unit.regathers == 0) {
        findings_.add(kUpdateRule, "updated parameters of unit ", name, " are never gathered");
      }
    }
  }

 private:
  struct UnitState {
    bool trained = false;
    int squares = 0;
    int updates = 0;
    int regathers = 0;
  };

  UnitState& state(int unit) { return units_[static_cast<std::size_t>(unit)]; }

  void visit(int index, const Action& action) {
    switch (action.kind) {
      case ActionKind::kForward:
      case ActionKind::kBackward:
      case ActionKind::kLoss:
        use(index, parameter_reads(s_, action));
        if (exchanges_ > 0 && action.kind == ActionKind::kLoss) {
          findings_.add_at(index, kUpdateRule, "comes after the exchange, which needs every loss");
        }
        gradient_changes(index, s_.layers[static_cast<std::size_t>(action.layer)].gradients,
                         action.kind != ActionKind::kForward);
        break;
      case ActionKind::kUnshard:
        use(index, {action.unit});
        break;
      case ActionKind::kAccumulate:
      case ActionKind::kReduceScatter:
      case ActionKind::kAllReduce:
      case ActionKind::kGatherGradient:
        gradient_changes(index, {action.unit}, true);
        break;
      case ActionKind::kSquares:
        squares(index, action);
        break;
      case ActionKind::kExchange:
        exchange(index);
        break;
      case ActionKind::kUpdate:
        update(index, action);
        break;
      case ActionKind::kGatherParameter:
        regather(index, action);
        break;
      case ActionKind::kCountItems:
      case ActionKind::kReshard:
      case ActionKind::kRound:
        break;
    }
  }

  void use(int index, const std::vector<int>& units) {
    for (int unit : units) {
      if (state(unit).updates == 0) continue;
      findings_.add_at(index, kUpdateRule, "reads unit ", findings_.unit(unit),
                       ", which this step has updated already");
    }
  }

  void gradient_changes(int index, const std::vector<int>& units, bool writes) {
    for (int unit : units) {
      if (!writes || state(unit).squares == 0) continue;
      findings_.add_at(index, kUpdateRule, "changes the gradient of ", findings_.unit(unit),
                       " after its norm was taken");
    }
  }

  void squares(int index, const Action& action) {
    if (!state(action.unit).trained)
      findings_.add_at(index, kUpdateRule, "the unit has no gradient");
    if (++state(action.unit).squares > 1) {
      findings_.add_at(index, kUpdateRule, "the unit's norm was taken already");
    }
    if (exchanges_ > 0) findings_.add_at(index, kUpdateRule, "comes too late for the exchange");
  }

  void exchange(int index) {
    if (++exchanges_ > 1) findings_.add_at(index, kUpdateRule, "norms were exchanged already");
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (!units_[u].trained || units_[u].squares > 0) continue;
      findings_.add_at(index, kUpdateRule, "the norm of unit ", findings_.unit(static_cast<int>(u)),
                       " has not been taken");
    }
  }

  void update(int index, const Action& action) {
    UnitState& unit = state(action.unit);
    if (!unit.trained) findings_.add_at(index, kUpdateRule, "the unit has no gradient");
    if (++unit.updates > 1) findings_.add_at(index, kUpdateRule, "the unit was updated already");
    if (exchanges_ == 0) {
      findings_.add_at(index, kUpdateRule, "comes before the exchange that fixes the clip factor");
    }
  }

  void regather(int index, const Action& action) {
    UnitState& unit = state(action.unit);
    if (unit.updates == 0) findings_.add_at(index, kUpdateRule, "comes before the unit's update");
    if (++unit.regathers > 1) {
      findings_.add_at(index, kUpdateRule, "updated parameters were gathered already");
    }
  }

  const Schedule& s_;
  Findings& findings_;
  const bool regathers_;
  std::vector<UnitState> units_;
  int exchanges_ = 0;
};

}  // namespace

void check_updates(const Schedule& schedule, Findings& findings) {
  UpdateWalk(schedule, findings).run();
}

}  // namespace tessera

#include "validation.h"

#include <algorithm>

namespace tessera {

std::string Findings::name(int action) const {
  return concat("action ", action, " (",
                describe(schedule_, schedule_.actions[static_cast<std::size_t>(action)]), ")");
}

std::string Findings::unit(int index) const {
  return schedule_.units[static_cast<std::size_t>(index)].name;
}

std::vector<std::vector<int>> gradient_writers(const Schedule& schedule) {
  std::vector<std::vector<int>> writers(schedule.units.size());
  for (int layer = static_cast<int>(schedule.layers.size()) - 1; layer >= 0; --layer) {
    for (int unit : schedule.layers[static_cast<std::size_t>(layer)].gradients) {
      writers[static_cast<std::size_t>(unit)].push_back(layer);
    }
  }
  return writers;
}

std::vector<int> gradient_slots_by_unit(const Schedule& schedule) {
  const auto micro_steps = static_cast<std::size_t>(schedule.micro_steps);
  std::vector<int> slots(schedule.units.size() * micro_steps, -1);
  for (const GradientTarget& target : schedule.gradient_targets) {
    slots[static_cast<std::size_t>(target.unit) * micro_steps +
          static_cast<std::size_t>(target.micro_step)] = target.slot;
  }
  return slots;
}

std::vector<int> parameter_reads(const Schedule& schedule, const Action& action) {
  const ScheduleLayer& layer = schedule.layers[static_cast<std::size_t>(action.layer)];
  if (action.kind == ActionKind::kBackward) return layer.backward_reads;
  std::vector<int> units = layer.forward_reads;
  if (action.kind == ActionKind::kLoss) {
    for (int unit : layer.backward_reads) {
      if (std::ranges::find(units, unit) == units.end()) units.push_back(unit);
    }
  }
  return units;
}

}  // namespace tessera

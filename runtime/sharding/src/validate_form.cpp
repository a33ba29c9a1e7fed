#include <algorithm>
#include <set>
#include <tuple>

#include "tessera/core/error.h"
#include "tessera/sharding/operation.h"
#include "validation.h"

namespace tessera {
namespace {

bool in_range(int index, std::size_t size) {
  return index >= 0 && static_cast<std::size_t>(index) < size;
}

class FormCheck {
 public:
  FormCheck(const Schedule& schedule, std::vector<Violation>& violations)
      : s_(schedule), violations_(violations), before_(violations.size()) {}

  // Each part relies on the ones before.
  void run() {
    check_mesh();
    if (good()) check_units();
    if (good()) check_layers();
    if (good()) check_buffers();
    if (!good()) return;
    for (std::size_t i = 0; i < s_.actions.size(); ++i) check_action(static_cast<int>(i));
  }

 private:
  bool good() const { return violations_.size() == before_; }

  template <typename... Args>
  void add(const Args&... what) {
    violations_.push_back({Rule::kForm, -1, concat(what...)});
  }
  template <typename... Args>
  void add_at(int index, const Args&... what) {
    const Action& action = s_.actions[static_cast<std::size_t>(index)];
    violations_.push_back(
        {Rule::kForm, index, concat("action ", index, " (", describe(s_, action), "): ", what...)});
  }

  void check_mesh() {
    const Placement& p = s_.placement;
    if (s_.mesh.replicate < 1 || s_.mesh.shard < 1)
      return add("the mesh has an axis without ranks");
    if (!p.optimizer.contains(p.gradient) || !p.gradient.contains(p.parameter)) {
      add("parameters must be sharded over no more axes than gradients, and gradients over no more "
          "axes than optimizer state");
    }
    for (const Axis axis : {Axis::kReplicate, Axis::kShard}) {
      if (s_.mesh.size(axis) == 1 && p.optimizer.contains(axis)) {
        add("the placement names axis ", to_string(axis), ", which has size 1");
      }
    }
    if (s_.micro_steps < 1) add("there are ", s_.micro_steps, " micro-steps");
  }

  void check_units() {
    std::set<std::string_view> names;
    const int ranks = s_.mesh.world_size();
    for (const ScheduleUnit& unit : s_.units) {
      if (!names.insert(unit.name).second) add("two units are named ", unit.name);
      for (const std::int64_t numel : {unit.trainable_numel, unit.frozen_numel}) {
        if (numel >= 0 && numel % ranks == 0) continue;
        add("unit ", unit.name, " has ", numel, " elements, which cannot be divided evenly among ",
            ranks, " ranks");
      }
    }
  }

  void check_layers() {
    if (!in_range(s_.first_backward_layer, s_.layers.size())) {
      add("the first layer with a backward, number ", s_.first_backward_layer,
          ", is not one of the ", s_.layers.size(), " layers");
    }
    std::set<std::string_view> names;
    for (std::size_t i = 0; i < s_.layers.size(); ++i) {
      const ScheduleLayer& layer = s_.layers[i];
      if (!names.insert(layer.name).second) add("two layers are named ", layer.name);
      for (const auto* units : {&layer.forward_reads, &layer.backward_reads, &layer.gradients}) {
        check_unit_list(layer, *units);
      }
      if (!layer.gradients.empty() && static_cast<int>(i) < s_.first_backward_layer) {
        add("layer ", layer.name, " writes gradients but has no backward");
      }
    }
    if (good()) check_parts();
  }

  void check_unit_list(const ScheduleLayer& layer, const std::vector<int>& units) {
    for (std::size_t i = 0; i < units.size(); ++i) {
      if (!in_range(units[i], s_.units.size())) {
        add("layer ", layer.name, " names unit ", units[i], " of ", s_.units.size());
      } else if (std::find(units.begin(), units.begin() + static_cast<std::ptrdiff_t>(i),
                           units[i]) != units.begin() + static_cast<std::ptrdiff_t>(i)) {
        add("layer ", layer.name, " lists a unit twice");
      }
    }
  }

  /// A layer writes a unit's gradient if it contributes to one of its parts.
  void check_parts() {
    for (int u = 0; u < static_cast<int>(s_.units.size()); ++u) {
      const ScheduleUnit& unit = s_.units[static_cast<std::size_t>(u)];
      std::set<int> contributors;
      for (const GradientPart& part : unit.parts) {
        for (const int layer : part.layers) {
          contributors.insert(layer);
          if (!in_range(layer, s_.layers.size()) ||
              std::ranges::find(s_.layers[static_cast<std::size_t>(layer)].gradients, u) ==
                  s_.layers[static_cast<std::size_t>(layer)].gradients.end()) {
            add("part ", part.name, " of unit ", unit.name,
                " names a layer that does not write it");
          }
        }
      }
      std::size_t writers = 0;
      for (const ScheduleLayer& layer : s_.layers) {
        writers += std::ranges::find(layer.gradients, u) != layer.gradients.end() ? 1U : 0U;
      }
      if (writers != contributors.size()) {
        add("a layer writes the gradient of unit ", unit.name,
            " but contributes to none of its parts");
      }
      if (writers > 0 && unit.trainable_numel == 0)
        add("unit ", unit.name, " has nothing to train");
    }
  }

  void check_buffers() {
    std::set<std::string_view> names;
    for (const ScheduleBuffer& buffer : s_.buffers) {
      if (!names.insert(buffer.name).second) add("two buffers are named ", buffer.name);
      if (buffer.numel < 0) add(buffer.name, " has ", buffer.numel, " elements");
      if (buffer.role == Role::kActivation || buffer.role == Role::kActivationGradient) {
        add("activations are not listed, but ", buffer.name, " is");
      }
      if (buffer.role == Role::kScalars && buffer.unit >= 0) {
        add(buffer.name, " holds scalars and belongs to no unit");
      }
      if (buffer.role == Role::kScalars && buffer.tier != Tier::kDevice) {
        add(buffer.name, " holds scalars, which are on the device");
      }
      if (buffer.unit < 0) {
        check_shared(buffer);
        continue;
      }
      if (!in_range(buffer.unit, s_.units.size())) {
        add(buffer.name, " belongs to unit ", buffer.unit, " of ", s_.units.size());
        continue;
      }
      const std::int64_t numel =
          s_.unit_numel(buffer.unit, buffer.role) / s_.mesh.size(buffer.sharded);
      if (buffer.numel != numel) {
        add(buffer.name, " holds ", buffer.numel, " elements, but ", numel, " are needed");
      }
      if (buffer.persistent) check_state(buffer);
    }
  }

  /// A slot, or scalars.
  void check_shared(const ScheduleBuffer& buffer) {
    if (buffer.persistent) add(buffer.name, " belongs to no unit and cannot persist");
    if (buffer.role != Role::kScalars && !buffer.is_slot()) {
      add(buffer.name, " holds ", to_string(buffer.role), " elements of no unit");
    }
    if (!buffer.sharded.empty()) {
      add(buffer.name, " belongs to no unit and cannot be sharded over ",
          to_string(buffer.sharded));
    }
  }

  /// What is kept from step to step is sharded as the placement says.
  void check_state(const ScheduleBuffer& buffer) {
    const bool parameter = buffer.role == Role::kParameter || buffer.role == Role::kFrozen;
    if (!parameter && buffer.role != Role::kMaster && buffer.role != Role::kOptimizer) {
      return add(buffer.name, " holds a ", to_string(buffer.role), ", which cannot persist");
    }
    // Parameters may be where layers read them and where the optimizer writes them.
    const Tier tier = buffer.role == Role::kParameter ? buffer.tier : Tier::kDevice;
    const bool first = state_.insert({buffer.unit, buffer.role, tier}).second;
    if (!first && buffer.role != Role::kOptimizer) {
      add(buffer.name, " is the second ", to_string(buffer.role), " buffer that its unit keeps");
    }
    const bool layers_read = parameter && buffer.tier == Tier::kDevice;
    const AxisSet read =
        buffer.role == Role::kFrozen ? s_.placement.frozen_axes() : s_.placement.parameter;
    const AxisSet wanted = layers_read ? read : s_.placement.optimizer;
    if (buffer.sharded != wanted) {
      add(buffer.name, " is sharded over ", to_string(buffer.sharded), ", but its placement is ",
          to_string(wanted));
    }
    const DType format = parameter ? s_.parameter_dtype : DType::kFloat32;
    if (buffer.format != format) {
      add(buffer.name, " is kept in ", to_string(buffer.format), ", not in ", to_string(format));
    }
  }

  void check_action(int index) {
    const Action& action = s_.actions[static_cast<std::size_t>(index)];
    if (action.operation == nullptr || action.operation->rule == nullptr) {
      violations_.push_back({Rule::kForm, index, concat("action ", index, " has no operation")});
      return;
    }
    const Operation& operation = *action.operation;
    if (static_cast<std::size_t>(action.lane) >= kLanes) return add_at(index, "has no lane");
    if (operation.is_pass && action.lane != Lane::kCompute) {
      return add_at(index, "layers run on the compute lane, which has their kernels' memory");
    }
    if (operation.is_pass ? !in_range(action.layer, s_.layers.size()) : action.layer != -1) {
      return add_at(index, "layer ", action.layer,
                    operation.is_pass ? " does not exist" : " means nothing here");
    }
    if (operation.is_pass ? action.micro_step < 0 || action.micro_step >= s_.micro_steps
                          : action.micro_step != -1) {
      return add_at(index, "micro-step ", action.micro_step,
                    operation.is_pass ? " does not exist" : " means nothing here");
    }
    check_axes(index, action);
    for (const Operand& operand : action.reads) {
      if (operand.adds) add_at(index, "adds to what it only reads");
      check_operand(index, operation, operand);
    }
    for (const Operand& operand : action.writes) check_operand(index, operation, operand);
    if (good()) check_tiers(index, action);
    check_twice(index, action.reads);
    check_twice(index, action.writes);
    check_waits(index);
  }

  void check_axes(int index, const Action& action) {
    if (action.operation->meeting != Meeting::kAlongAxes) {
      if (!action.axes.empty()) add_at(index, "axes mean nothing here");
    } else if (action.axes.empty() || s_.mesh.size(action.axes) < 2 || !is_live(action.axes)) {
      add_at(index, "a collective over ", to_string(action.axes), " has no peers");
    }
  }

  bool is_live(AxisSet axes) const {
    for (int a = 0; a < kAxes; ++a) {
      if (axes.contains(static_cast<Axis>(a)) && s_.mesh.size(static_cast<Axis>(a)) < 2)
        return false;
    }
    return true;
  }

  void check_operand(int index, const Operation& operation, const Operand& operand) {
    if (operand.buffer < 0 || operand.buffer >= s_.buffer_count()) {
      return add_at(index, "buffer ", operand.buffer, " does not exist");
    }
    if (!is_live(operand.sharded)) {
      return add_at(index, describe(s_, operand), " is sharded over an axis of size 1");
    }
    const Role role = s_.role(operand.buffer);
    if (s_.is_activation(operand.buffer) || role == Role::kScalars) {
      if (s_.is_activation(operand.buffer) && !operation.is_pass) {
        add_at(index, s_.name_of(operand.buffer), " is touched by layers only");
      }
      if (operand.unit != -1 || !operand.sharded.empty()) {
        add_at(index, s_.name_of(operand.buffer), " holds no unit");
      }
      return;
    }
    if (!in_range(operand.unit, s_.units.size())) {
      return add_at(index, "unit ", operand.unit, " does not exist");
    }
    const ScheduleBuffer& buffer = s_.buffer(operand);
    if (!buffer.is_slot()) return;
    const std::int64_t needed = (role == Role::kParameter ? s_.gathered_numel(operand.unit)
                                                          : s_.unit_numel(operand.unit, role)) /
                                s_.mesh.size(operand.sharded);
    if (buffer.numel < needed) {
      add_at(index, "slot ", buffer.name, " holds ", buffer.numel, " elements, but ", needed,
             " are needed");
    }
  }

  /// A kernel reaches the memory of its own device.
  void check_tiers(int index, const Action& action) {
    if (action.operation->tiers == OperandTiers::kAny) return;
    const bool fixed = action.operation->tiers == OperandTiers::kDevice;
    const ScheduleBuffer* first = nullptr;
    for (const auto* operands : {&action.reads, &action.writes}) {
      for (const Operand& operand : *operands) {
        if (s_.is_activation(operand.buffer) || s_.role(operand.buffer) == Role::kScalars) continue;
        const ScheduleBuffer& buffer = s_.buffer(operand);
        if (first == nullptr) first = &buffer;
        if (fixed && buffer.tier != Tier::kDevice) {
          add_at(index, buffer.name,
                 " is on the host, which only copies and optimizer steps reach");
        } else if (buffer.tier != first->tier) {
          add_at(index, first->name, " is on the ", to_string(first->tier), ", and ", buffer.name,
                 " on the ", to_string(buffer.tier));
        }
      }
    }
  }

  void check_twice(int index, const std::vector<Operand>& operands) {
    for (std::size_t i = 0; i < operands.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (operands[i].buffer != operands[j].buffer) continue;
        add_at(index, s_.name_of(operands[i].buffer), " is named twice");
      }
    }
  }

  void check_waits(int index) {
    const Action& action = s_.actions[static_cast<std::size_t>(index)];
    for (const int wait : action.waits) {
      if (wait < 0 || wait >= index) {
        add_at(index, "waits for action ", wait, ", which is not issued before");
      } else if (s_.actions[static_cast<std::size_t>(wait)].lane == action.lane) {
        add_at(index, "waits for action ", wait, " of its own lane");
      }
    }
    for (const int wait : action.previous_waits) {
      if (!in_range(wait, s_.actions.size())) {
        add_at(index, "waits for action ", wait, " of the previous step, which does not exist");
      } else if (s_.actions[static_cast<std::size_t>(wait)].lane == action.lane) {
        add_at(index, "waits for action ", wait, " of the previous step, of its own lane");
      }
    }
  }

  const Schedule& s_;
  std::vector<Violation>& violations_;
  const std::size_t before_;
  std::set<std::tuple<int, Role, Tier>> state_;  ///< of units
};

}  // namespace

void check_form(const Schedule& schedule, std::vector<Violation>& violations) {
  FormCheck(schedule, violations).run();
}

}  // namespace tessera

#include <algorithm>
#include <set>
#include <tuple>

#include "tessera/core/error.h"
#include "tessera/sharding/factored_table.h"
#include "tessera/sharding/histories.h"
#include "tessera/sharding/layout.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/scales.h"
#include "validation/validation.h"

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
    check_model(s_, violations_);
    if (good()) scales_ = ScaleTable(s_);
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

  void check_buffers() {
    std::set<std::string_view> names;
    for (const ScheduleBuffer& buffer : s_.buffers) {
      if (!names.insert(buffer.name).second) add("two buffers are named ", buffer.name);
      if (buffer.numel < 0) add(buffer.name, " has ", buffer.numel, " elements");
      if (buffer.block != 1 && (buffer.block < 0 || buffer.role != Role::kOptimizer)) {
        add(buffer.name, " has an element for ", buffer.block, " of the unit's");
        continue;
      }
      check_kind(buffer);
      if (buffer.kind == BufferKind::kInput) check_input(buffer);
      if (buffer.is_activation() || buffer.kind == BufferKind::kBatch) check_activation(buffer);
      if (buffer.role == Role::kScalars && buffer.tier != Tier::kDevice) {
        add(buffer.name, " holds scalars, which are on the device");
      }
      const bool may_be_on_disk = buffer.role == Role::kMaster || buffer.role == Role::kOptimizer ||
                                  buffer.role == Role::kParameter;
      if (buffer.tier == Tier::kDisk && !(buffer.persistent && may_be_on_disk)) {
        add(buffer.name, " is on disk, where the training state can be");
      }
      if (buffer.unit < 0) {
        check_shared(buffer);
        continue;
      }
      if (!in_range(buffer.unit, s_.units.size())) {
        add(buffer.name, " belongs to unit ", buffer.unit, " of ", s_.units.size());
        continue;
      }
      const ScheduleUnit& unit = s_.units[static_cast<std::size_t>(buffer.unit)];
      if (!in_range(buffer.flat, unit.flats.size())) {
        add(buffer.name, " belongs to flat parameter ", buffer.flat, " of ", unit.flats.size(),
            " of unit ", unit.name);
        continue;
      }
      check_blocks(buffer);
      const std::int64_t numel = s_.own_numel(buffer) / s_.mesh.size(buffer.sharded);
      if (buffer.numel != numel) {
        add(buffer.name, " holds ", buffer.numel, " elements, but ", numel, " are needed");
      }
      if (buffer.persistent) check_state(buffer);
    }
  }

  /// A block lies in one shard: so its numbers depend on no number of ranks.
  void check_blocks(const ScheduleBuffer& buffer) {
    const std::int64_t numel = s_.flat(buffer.unit, buffer.flat).numel;
    if (buffer.block == 1 || buffer.is_factored() ||
        numel % (flat_parts(s_.mesh) * buffer.block) == 0)
      return;
    add(buffer.name, " is of blocks of ", buffer.block,
        " elements, and shards of the unit are not");
  }

  /// Checks what a layer keeps for its backward, on the host.
  void check_input(const ScheduleBuffer& buffer) {
    if (!in_range(buffer.layer, s_.layers.size())) {
      return add(buffer.name, " is for layer ", buffer.layer, " of ", s_.layers.size());
    }
    if (buffer.tier == Tier::kDevice || buffer.role != Role::kActivation || buffer.unit >= 0) {
      add(buffer.name, " must be an activation of no unit, in the host's memory");
    }
    const ScheduleBuffer& first =
        s_.buffers[static_cast<std::size_t>(s_.input_on_host(buffer.layer))];
    if (buffer.numel != first.numel) {
      add(buffer.name, " holds ", buffer.numel, " elements, and ", first.name,
          " for the same layer's input ", first.numel);
    }
    if (!s_.keeps_input(buffer.layer)) {
      add(buffer.name, " is for a layer that keeps more than its input");
    }
    if (buffer.format != s_.parameter_dtype) {
      add(buffer.name, " is in ", to_string(buffer.format), ", and activations in ",
          to_string(s_.parameter_dtype));
    }
  }

  /// Checks what a layer leaves on the device, or its gradient; or a micro-step's batch.
  void check_activation(const ScheduleBuffer& buffer) {
    const bool batch = buffer.kind == BufferKind::kBatch;
    if (!batch && !in_range(buffer.layer, s_.layers.size())) {
      return add(buffer.name, " is for layer ", buffer.layer, " of ", s_.layers.size());
    }
    if (buffer.tier != Tier::kDevice || buffer.numel != 0) {
      add(buffer.name, batch ? " must be on the device, and as large as the data say"
                             : " must be on the device, where its memory comes and goes");
    }
    if (!activations_.insert({buffer.kind, buffer.layer, buffer.micro_step}).second) {
      add(buffer.name, " is the second ", to_string(buffer.kind),
          batch ? " of its micro-step" : " of its layer and micro-step");
    }
  }

  /// The kind fits what else the buffer is.
  void check_kind(const ScheduleBuffer& buffer) {
    const bool input = buffer.kind == BufferKind::kInput;
    const bool scalar = buffer.kind >= BufferKind::kTokens && buffer.kind <= BufferKind::kResults;
    const bool activation = buffer.is_activation();
    const bool of_layer = input || activation;
    const bool batch = buffer.kind == BufferKind::kBatch;
    const bool scales = buffer.kind == BufferKind::kScales || buffer.kind == BufferKind::kHistory ||
                        buffer.kind == BufferKind::kMaxima;
    const bool statistics = buffer.role == Role::kStatistics;
    const bool of_no_unit = of_layer || scalar || batch || scales || statistics || buffer.is_slot();
    if (scalar != (buffer.role == Role::kScalars) || !kind_has(buffer.kind, buffer.role)) {
      add(buffer.name, " is a ", to_string(buffer.kind), ", which holds no ",
          to_string(buffer.role));
    }
    if (of_no_unit != (buffer.unit < 0)) {
      add(buffer.name, " is a ", to_string(buffer.kind), ", which ",
          of_no_unit ? "belongs to no unit" : "belongs to a unit");
    }
    if (of_layer != (buffer.layer >= 0)) {
      add(buffer.name, " is a ", to_string(buffer.kind), ", which ",
          of_layer ? "belongs to a layer" : "belongs to no layer");
    }
    if (activation || batch ? buffer.micro_step < 0 || buffer.micro_step >= s_.micro_steps
                            : buffer.micro_step != -1) {
      add(buffer.name, " is for micro-step ", buffer.micro_step, " of ", s_.micro_steps);
    }
    const bool optimizers = buffer.role == Role::kOptimizer;
    if (optimizers == buffer.tensor.empty()) {
      add(buffer.name, optimizers ? " must say which of the optimizer's tensors it is for"
                                  : " is for no tensor of the optimizer");
    }
  }

  static bool kind_has(BufferKind kind, Role role) {
    const bool gradient = role == Role::kGradient;
    const bool read = role == Role::kParameter;
    const bool updated =
        role == Role::kParameter || role == Role::kMaster || role == Role::kOptimizer;
    switch (kind) {
      case BufferKind::kState:
      case BufferKind::kSnapshot:
        return updated;
      case BufferKind::kCopy:
        return gradient || role == Role::kParameter;
      case BufferKind::kGradient:
      case BufferKind::kSumSlot:
        return gradient;
      case BufferKind::kInput:
      case BufferKind::kActivation:
        return role == Role::kActivation;
      case BufferKind::kActivationGradient:
        return role == Role::kActivationGradient;
      case BufferKind::kBatch:
        return role == Role::kBatch;
      case BufferKind::kScales:
        return role == Role::kScales;
      case BufferKind::kHistory:
        return role == Role::kHistory;
      case BufferKind::kMaxima:
        return role == Role::kMaxima;
      case BufferKind::kSquares:
      case BufferKind::kFactors:
      case BufferKind::kUpdateSquares:
        return role == Role::kStatistics;
      case BufferKind::kWholeSlot:
        return read || gradient || role == Role::kDecoded || role == Role::kCode;
      case BufferKind::kShardSlot:
        return read || role == Role::kCode;
      case BufferKind::kStagingSlot:
        return read;
      case BufferKind::kUpdateSlot:
        return role == Role::kParameter;
      case BufferKind::kStateSlot:
        return updated;
      case BufferKind::kSendSlot:
        return role == Role::kActivation || role == Role::kActivationGradient;
      case BufferKind::kReceiveSlot:
        return role == Role::kActivation || role == Role::kActivationGradient || gradient;
      default:
        return role == Role::kScalars;
    }
  }

  /// A slot, or scalars.
  void check_shared(const ScheduleBuffer& buffer) {
    if (buffer.persistent) add(buffer.name, " belongs to no unit and cannot persist");
    if (buffer.kind == BufferKind::kStateSlot && buffer.tier != Tier::kHost) {
      add(buffer.name, " must be in the host's memory");
    }
    if (buffer.kind == BufferKind::kScales) {
      const int group = scales_.group_in(s_, static_cast<int>(&buffer - s_.buffers.data()));
      if (group < 0) {
        add(buffer.name, " is for scales of no units");
      } else if (buffer.numel != scales_.groups()[static_cast<std::size_t>(group)].numel ||
                 buffer.format != DType::kInt32 || buffer.tier != Tier::kDevice) {
        add(buffer.name, " must hold ", scales_.groups()[static_cast<std::size_t>(group)].numel,
            " int32 on the device");
      }
    }
    if (buffer.kind == BufferKind::kHistory || buffer.kind == BufferKind::kMaxima) {
      check_history(buffer);
    }
    if (buffer.role == Role::kStatistics) check_statistics(buffer);
    if (!buffer.sharded.empty() && !buffer.keeps_places()) {
      add(buffer.name, " belongs to no unit and cannot be sharded over ",
          to_string(buffer.sharded));
    }
  }

  void check_history(const ScheduleBuffer& buffer) {
    const HistoryTable table(s_);
    const std::int64_t numel =
        buffer.kind == BufferKind::kHistory ? table.history_numel() : table.maxima_numel();
    if (table.empty()) return add(buffer.name, " is for histories of no tensors");
    if (buffer.numel != numel || buffer.format != DType::kInt32 || buffer.tier != Tier::kDevice) {
      add(buffer.name, " must hold ", numel, " int32 on the device");
    }
    const auto same = std::ranges::count(s_.buffers, buffer.kind, &ScheduleBuffer::kind);
    if (same > 1) add(buffer.name, " is one of ", same, " ", to_string(buffer.kind), " buffers");
  }

  void check_statistics(const ScheduleBuffer& buffer) {
    const FactoredTable table(s_);
    if (table.empty()) return add(buffer.name, " is for statistics of no matrices");
    const std::int64_t numel = table.numel(buffer.kind);
    const DType format = buffer.kind == BufferKind::kFactors ? DType::kFloat32 : DType::kInt64;
    if (buffer.numel != numel || buffer.format != format || buffer.tier != Tier::kDevice) {
      add(buffer.name, " must hold ", numel, ' ', to_string(format), " on the device");
    }
    const auto same = std::ranges::count(s_.buffers, buffer.kind, &ScheduleBuffer::kind);
    if (same > 1) add(buffer.name, " is one of ", same, " ", to_string(buffer.kind), " buffers");
  }

  /// State is sharded as the placement says.
  void check_state(const ScheduleBuffer& buffer) {
    const ScheduleFlat& flat = s_.flat(buffer.unit, buffer.flat);
    const bool parameter = buffer.role == Role::kParameter;
    if (!parameter && buffer.role != Role::kMaster && buffer.role != Role::kOptimizer) {
      return add(buffer.name, " holds a ", to_string(buffer.role), ", which cannot persist");
    }
    // Parameters may be where layers read them and where the optimizer writes them.
    const bool is_copy = buffer.kind == BufferKind::kCopy;
    const Tier tier = is_copy && buffer.role == Role::kParameter ? Tier::kHost : Tier::kDevice;
    if (!parameter && !flat.trainable) {
      add(buffer.name, " goes with ", flat.name, ", which is not trained");
    }
    const bool first = state_.insert({buffer.unit, buffer.flat, buffer.role, tier}).second;
    if (!first && buffer.role != Role::kOptimizer) {
      add(buffer.name, " is the second ", to_string(buffer.role), " buffer that its unit keeps");
    }
    const bool layers_read = parameter && !is_copy;
    const AxisSet wanted = buffer.is_factored() ? AxisSet()
                           : layers_read        ? s_.axes_of(flat)
                                                : s_.placement.optimizer;
    if (buffer.sharded != wanted) {
      add(buffer.name, " is sharded over ", to_string(buffer.sharded), ", but its placement is ",
          to_string(wanted));
    }
    const DType format = parameter ? flat.format : DType::kFloat32;
    const bool is_coded = buffer.role == Role::kOptimizer && buffer.format == DType::kUInt8;
    if (buffer.format != format && !is_coded) {
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
    if ((operation.is_pass || operation.changes_memory) && action.lane != Lane::kCompute) {
      return add_at(index, "layers run on the compute lane, which has their kernels' memory");
    }
    const bool of_layer = operation.is_pass || (operation.is_message && action.layer != -1);
    if (of_layer ? !in_range(action.layer, s_.layers.size()) : action.layer != -1) {
      return add_at(index, "layer ", action.layer,
                    of_layer ? " does not exist" : " means nothing here");
    }
    if (of_layer ? action.micro_step < 0 || action.micro_step >= s_.micro_steps
                 : action.micro_step != -1) {
      return add_at(index, "micro-step ", action.micro_step,
                    of_layer ? " does not exist" : " means nothing here");
    }
    if (operation.is_pass && !s_.is_here(action.layer)) {
      return add_at(index, "layer ", action.layer, " is pipeline rank ", s_.rank_of(action.layer),
                    "'s");
    }
    check_message(index, action);
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
    } else if (action.axes.empty() || !is_live(action.axes)) {
      add_at(index, "a collective over ", to_string(action.axes), " has no peers");
    }
  }

  /// A message has a peer and a lane of its direction; of a layer, it fits its slot.
  void check_message(int index, const Action& action) {
    if (!action.operation->is_message) {
      if (action.peer != -1) add_at(index, "peer ", action.peer, " means nothing here");
      return;
    }
    if (action.peer < 0 || action.peer >= s_.pipeline_ranks() || action.peer == s_.pipeline.rank) {
      return add_at(index, "pipeline rank ", action.peer, " is no peer of ", s_.pipeline.rank);
    }
    const bool sends = action.operation == &operations::kSend;
    const bool fits = sends ? action.lane == Lane::kSend || action.lane == Lane::kSendBack
                            : action.lane == Lane::kReceive || action.lane == Lane::kReceiveBack;
    if (!fits) add_at(index, "messages have lanes of their own, for each direction one");
    const std::vector<Operand>& operands = sends ? action.reads : action.writes;
    if (operands.size() != 1 || !in_range(operands.front().buffer, s_.buffers.size())) return;
    const ScheduleBuffer& buffer = s_.buffer(operands.front());
    const bool of_unit = operands.front().unit >= 0;
    if (of_unit != (action.layer < 0)) {
      return add_at(index, of_unit ? "is of a unit and of a layer" : "is of no unit and no layer");
    }
    if (of_unit || s_.is_last(action.layer)) return;
    if (buffer.numel < s_.message_numel(action.layer)) {
      add_at(index, "slot ", buffer.name, " holds ", buffer.numel,
             " elements, but the message has ", s_.message_numel(action.layer));
    }
  }

  bool is_live(AxisSet axes) const { return s_.mesh.axes().contains(axes); }

  void check_operand(int index, const Operation& operation, const Operand& operand) {
    if (!in_range(operand.buffer, s_.buffers.size())) {
      return add_at(index, "buffer ", operand.buffer, " does not exist");
    }
    if (!is_live(operand.sharded)) {
      return add_at(index, describe(s_, operand), " is sharded over an axis of size 1");
    }
    const Role role = s_.role(operand.buffer);
    const bool activation = s_.buffer(operand).is_activation();
    const bool batch = role == Role::kBatch;
    if (activation || batch || role == Role::kScalars || role == Role::kScales ||
        role == Role::kHistory || role == Role::kMaxima || role == Role::kStatistics ||
        role == Role::kActivation || role == Role::kActivationGradient) {
      if ((activation && !operation.is_pass && !operation.moves_activations) ||
          (batch && !operation.is_pass)) {
        add_at(index, s_.name_of(operand.buffer), " is touched by layers only");
      }
      if (!activation && operation.changes_memory && !s_.buffer(operand).is_slot()) {
        add_at(index, s_.name_of(operand.buffer), " is no activation on the device");
      }
      if (operand.unit != -1 || !operand.sharded.empty() || !operand.flats.empty()) {
        add_at(index, s_.name_of(operand.buffer), " holds no unit");
      }
      return;
    }
    if (!in_range(operand.unit, s_.units.size())) {
      return add_at(index, "unit ", operand.unit, " does not exist");
    }
    const ScheduleBuffer& buffer = s_.buffer(operand);
    const ScheduleUnit& unit = s_.units[static_cast<std::size_t>(operand.unit)];
    const FlatSet flats = s_.flats(operand);
    if (flats.empty()) {
      return add_at(index, describe(s_, operand), " has nothing of unit ", unit.name);
    }
    for (const int flat : flats_of(s_, operand)) {
      if (!in_range(flat, unit.flats.size())) {
        return add_at(index, "unit ", unit.name, " has no flat parameter ", flat);
      }
    }
    if (!buffer.is_slot()) return;
    const std::int64_t needed =
        s_.numel(operand) / s_.mesh.size(buffer.keeps_places() ? buffer.sharded : operand.sharded);
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
        const Role role = s_.role(operand.buffer);
        if (s_.buffer(operand).is_activation() || role == Role::kScalars || role == Role::kBatch)
          continue;
        const ScheduleBuffer& buffer = s_.buffer(operand);
        if (first == nullptr) first = &buffer;
        if (buffer.tier == Tier::kDisk) {
          add_at(index, buffer.name, " is on disk, which only copies reach");
        } else if (fixed && buffer.tier != Tier::kDevice) {
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
  ScaleTable scales_{Schedule()};
  std::set<std::tuple<int, int, Role, Tier>> state_;        ///< of flat parameters
  std::set<std::tuple<BufferKind, int, int>> activations_;  ///< of layers and micro-steps
};

}  // namespace

void check_form(const Schedule& schedule, std::vector<Violation>& violations) {
  FormCheck(schedule, violations).run();
}

}  // namespace tessera

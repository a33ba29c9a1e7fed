#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "passes/pass_tools.h"
#include "tessera/core/error.h"

namespace tessera {

/// The part of tiers() that is about gradients on their way to the optimizer and about what the
/// optimizer updates: where they are on the host or on disk, copies around each use.
class TierUpdates {
 public:
  /// Appends to `actions`.
  TierUpdates(Schedule& schedule, std::vector<Action>& actions)
      : schedule_(schedule), actions_(actions), flats_(per_flat(schedule.units, FlatTiers())) {}

  /// Once state has its tiers, before actions are placed.
  void begin();
  /// Appends the action that had number `index`, with what goes around it.
  void add(Action action, std::size_t index);

 private:
  /// Where a flat parameter is kept, and its gradient at this point of the walk.
  struct FlatTiers {
    int parameter = -1;
    int master = -1;
    std::vector<int> held{};  ///< by the optimizer: parameters on disk, master weights, its tensors
    int gradient = -1;        ///< its buffer on the device
    int host_gradient = -1;   ///< where the host has it, if it has
    int host_parameter = -1;  ///< written there, and copied to the device; -1: none
    Tier home = Tier::kDevice;
    bool is_updated_on_host = false;
    bool keeps_gradient_on_host = false;
    int sum = -1;         ///< where it is kept on the host, the buffer that has it just now
    int micro_step = -1;  ///< to which that belongs
    AxisSet kept_as{};    ///< along which the gradient on the host is sharded
  };

  void list_flats();
  void add_host_gradients();
  void find_last_uses();
  void copy(Lane lane, std::vector<Operand> from, const Operand& to);
  void use_buffer(Action& action, int from, int to, const FlatId& id) const;
  void use_sum(Action action, std::size_t index);
  void fetch_sum(const FlatId& id, int micro_step);
  void keep_sum(const FlatId& id, AxisSet sharded);
  void step(Action action);
  void step_on_host(const FlatId& id, const Operand& results);
  std::vector<int> read_state(const FlatId& id);
  void write_state(const FlatId& id, const std::vector<int>& held);
  void gather_updated(const FlatId& id, int from);
  void bring_message(Operand& sent);
  std::optional<FlatId> sum_of(const Action& action) const;
  FlatTiers& at(const FlatId& id) {
    return flats_[static_cast<std::size_t>(id.unit)][static_cast<std::size_t>(id.flat)];
  }
  const FlatTiers& at(const FlatId& id) const {
    return flats_[static_cast<std::size_t>(id.unit)][static_cast<std::size_t>(id.flat)];
  }
  /// The name of a new buffer for something of the flat parameter.
  std::string name_for(const FlatId& id, std::string_view what) const {
    return name_beside(schedule_.units[static_cast<std::size_t>(id.unit)], schedule_.flat(id),
                       concat(what, schedule_.buffers.size()));
  }
  Operand part(int buffer, const FlatId& id, AxisSet sharded) const {
    Operand operand{.buffer = buffer, .unit = id.unit, .sharded = sharded};
    schedule_.set_flats(operand, {id.flat});
    return operand;
  }
  Operand optimizer_part(int buffer, const FlatId& id) const {
    return part(buffer, id, schedule_.placement.optimizer);
  }

  Schedule& schedule_;
  std::vector<Action>& actions_;
  PerFlat<FlatTiers> flats_;
  std::vector<bool> last_use_;  ///< by action: of a sum in its micro-step
};

}  // namespace tessera

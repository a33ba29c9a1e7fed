#pragma once

#include <string>
#include <vector>

#include "tessera/sharding/operation.h"
#include "tessera/sharding/schedule.h"

// What passes of planning share.
namespace tessera {

/// Adds a buffer to the schedule's. Its index.
int add_buffer(Schedule& schedule, ScheduleBuffer buffer);

/// Puts the state buffers of `options` in place of those that are there. Operands follow them by
/// name, and those of all that a buffer held are of all that it holds then.
void set_state(Schedule& schedule, const StateOptions& options);

/// True of a unit's flat parameter as it is kept from step to step, quantised or not.
bool is_flat_parameter(const ScheduleBuffer& buffer);

/// True of a buffer that a micro-step's gradient of a unit is written to: until it has a slot, its
/// own.
inline bool is_written_gradient(const ScheduleBuffer& buffer) {
  return buffer.kind == BufferKind::kWholeSlot && buffer.role == Role::kGradient;
}

/// The unit's buffer of this kind and role; -1: none.
int find_of_unit(const Schedule& schedule, BufferKind kind, Role role, int unit);

/// By unit: whether it is among the share of the units with something to train, the last ones.
std::vector<bool> last_trained_units(const std::vector<ScheduleUnit>& units, double share);

/// Whether any unit has frozen parameters, quantised or not.
bool has_frozen(const std::vector<ScheduleUnit>& units);

/// Whether frozen parameters leave the device without trainable ones, being cut otherwise.
inline bool moves_frozen_alone(const Placement& placement, bool has_frozen) {
  return placement.frozen.has_value() && has_frozen;
}

/// Where buffer `index` of a content becomes another in an action.
void replace_buffer(Action& action, int from, int to);

}  // namespace tessera

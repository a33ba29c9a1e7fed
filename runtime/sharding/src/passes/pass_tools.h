#pragma once

#include <string>
#include <vector>

#include "tessera/sharding/operation.h"
#include "tessera/sharding/schedule.h"

// Tools that passes of planning share.
namespace tessera {

/// Adds a buffer to the schedule's. Its index.
int add_buffer(Schedule& schedule, ScheduleBuffer buffer);

/// Puts the state buffers of `options` in place of those that are there. Operands follow them by
/// name, and those of all that a buffer held are of all that it holds then.
void set_state(Schedule& schedule, const StateOptions& options);

/// Options of the state of ranks that keep all of it on the device.
StateOptions on_device(StateOptions options);

/// True of a unit's flat parameter as it is kept from step to step.
inline bool is_flat_parameter(const ScheduleBuffer& buffer) {
  return buffer.kind == BufferKind::kState && buffer.role == Role::kParameter;
}

/// By flat parameter of each unit.
template <typename T>
using PerFlat = std::vector<std::vector<T>>;

template <typename T>
PerFlat<T> per_flat(const std::vector<ScheduleUnit>& units, const T& value) {
  PerFlat<T> all;
  for (const ScheduleUnit& unit : units) all.emplace_back(unit.flats.size(), value);
  return all;
}

/// The flat parameter that an operand of one is of.
inline FlatId id_of(const Schedule& schedule, const Operand& operand) {
  return {operand.unit, schedule.flats(operand).front()};
}

/// True of a buffer that a micro-step's gradient of a unit is written to: until it has a slot, its
/// own.
inline bool is_written_gradient(const ScheduleBuffer& buffer) {
  return buffer.kind == BufferKind::kWholeSlot && buffer.role == Role::kGradient;
}

/// The name of what a flat parameter has beside itself: "h.3.master", "h.3.parameter-fp32.master".
std::string name_beside(const ScheduleUnit& unit, const ScheduleFlat& flat,
                        const std::string& what);

/// By unit: whether it is among the share of the pipeline rank's units with something to train, the
/// last ones.
std::vector<bool> last_trained_units(const std::vector<ScheduleUnit>& units, double share,
                                     int rank);

/// Whether any unit has frozen parameters, quantised or not.
bool has_frozen(const std::vector<ScheduleUnit>& units);

/// Whether frozen parameters leave the device without trainable ones, being cut where these are
/// not.
inline bool moves_frozen_alone(const Placement& placement, bool has_frozen) {
  return placement.frozen.has_value() && !placement.frozen->empty() && has_frozen;
}

/// The pipeline that the schedule is a part of, as orders know it.
PipelineShape pipeline_shape(const Schedule& schedule);

}  // namespace tessera

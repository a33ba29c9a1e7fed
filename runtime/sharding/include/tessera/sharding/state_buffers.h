#pragma once

#include <string>
#include <vector>

#include "tessera/sharding/layout.h"
#include "tessera/sharding/plan_options.h"
#include "tessera/sharding/schedule.h"

namespace tessera {

/// The alignment of a layout for an optimizer that keeps these: each block lies in one shard, and
/// belongs to one parameter.
std::int64_t flat_alignment(const std::vector<OptimizerTensor>& tensors);

/// The training state of one rank as buffers, unit by unit: "h.3.parameter" and "h.3.frozen" in the
/// parameter dtype, "h.3.quantized" in bytes, "h.3.master" in fp32 (where parameters are not, or
/// the optimizer's state is on the host), "h.3.first-moment", ... Empty ones are left out. Where
/// the optimizer's state is on the host and the parameters are not, the host has
/// "h.3.parameter@host" as well: the part of the parameters that the optimizer writes, unless they
/// are fp32, and so the master weights. A schedule's persistent buffers are these. Where master
/// weights and the optimizer's tensors are on disk, all else is as if they were on the host. A
/// pipeline rank keeps the units of its layers; shares that are away from the device are of these.
/// It keeps of a mirror the parameters alone, and those only if the unit is another rank's. Throws
/// Error{kConfig} where a placement does not allow for parameters away from the device, and
/// Error{kInvalidArgument} if the layout was made for an optimizer with smaller blocks.
std::vector<ScheduleBuffer> state_buffers(const ModelLayout& layout, const StateOptions& options);
/// Buffers of the state of units as a schedule knows them.
std::vector<ScheduleBuffer> state_buffers(const std::vector<ScheduleUnit>& units,
                                          const StateOptions& options);

/// A layout's units in such a run, without the parts of their gradients. Throws Error{kConfig} if a
/// unit has layers of several pipeline ranks.
std::vector<ScheduleUnit> schedule_units(const ModelLayout& layout, const StateOptions& options);

}  // namespace tessera

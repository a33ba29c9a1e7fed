#pragma once

#include <string>
#include <vector>

#include "tessera/sharding/layout.h"
#include "tessera/sharding/schedule.h"

namespace tessera {

/// The options that decide which training state a rank keeps, and which shards of it.
struct StateOptions {
  Mesh mesh;
  Placement placement;
  DType parameter_dtype = DType::kFloat32;
  /// The fp32 tensors that the optimizer keeps for each trainable parameter, by name.
  std::vector<std::string> optimizer_tensors{"first-moment", "second-moment"};
  /// Share of the units whose optimizer state is on the host: the last ones, to the nearest number
  /// of those that have something to train. The optimizer updates units in forward order, so these
  /// are the ones whose gradients are there first and whose parameters are needed last.
  double offload_optimizer = 0.0;
  /// Share of the units whose parameters are on the host, frozen ones among them, and with them
  /// their optimizer state: the last ones again. Layers read them from slots on the device. Such
  /// parameters are sharded as the optimizer's state is: other placements are refused.
  double offload_parameters = 0.0;
};

/// The training state of one rank as buffers, unit by unit: "h.3.parameter" and "h.3.frozen" in the
/// parameter dtype, "h.3.master" in fp32 (where parameters are not, or the optimizer's state is on
/// the host), "h.3.first-moment", ... Empty ones are left out. Where the optimizer's state is on
/// the host and the parameters are not, the host has "h.3.parameter@host" as well: the part of the
/// parameters that the optimizer writes, unless they are fp32, and so the master weights. A
/// schedule's persistent buffers are these. Throws Error{kConfig} where parameters on the host are
/// sharded otherwise than the optimizer's state.
std::vector<ScheduleBuffer> state_buffers(const ModelLayout& layout, const StateOptions& options);

}  // namespace tessera

#pragma once

#include <string>
#include <vector>

#include "tessera/sharding/layout.h"
#include "tessera/sharding/schedule.h"

namespace tessera {

/// A tensor that the optimizer keeps beside each trainable parameter; see OptimizerState.
struct OptimizerTensor {
  std::string name;
  DType format = DType::kFloat32;
  std::int64_t block = 1;  ///< elements of a parameter that it has one element for
  bool operator==(const OptimizerTensor&) const = default;
};

/// What make_layout() takes for an optimizer that keeps these: so each block lies in one shard, and
/// belongs to one parameter.
std::int64_t flat_alignment(const std::vector<OptimizerTensor>& tensors);

/// The options that decide which training state a rank keeps, and which shards of it.
struct StateOptions {
  Mesh mesh;
  Placement placement;
  DType parameter_dtype = DType::kFloat32;
  /// The tensors that the optimizer keeps for each trainable parameter.
  std::vector<OptimizerTensor> optimizer_tensors{{"first-moment"}, {"second-moment"}};
  /// Share of the units whose optimizer state is on the host: the last ones, to the nearest number
  /// of those that have something to train. The optimizer updates units in forward order, so these
  /// are the ones whose gradients are there first and whose parameters are needed last.
  double offload_optimizer = 0.0;
  /// Share of the units whose parameters are on the host, frozen ones among them, and with them
  /// their optimizer state: the last ones again. Layers read them from slots on the device. Where
  /// frozen parameters are sharded otherwise than trainable ones, the frozen ones are meant alone.
  double offload_parameters = 0.0;
  /// Share of the units whose master weights and optimizer tensors are on disk: the last ones, as
  /// with offload_optimizer. The optimizer updates them on the host.
  double disk_optimizer = 0.0;
  /// Share of the units whose parameters are on disk, as with offload_parameters, and read to the
  /// host ahead of use. Their optimizer state is on the host, or on disk as `disk_optimizer` says.
  double disk_parameters = 0.0;
};

/// The training state of one rank as buffers, unit by unit: "h.3.parameter" and "h.3.frozen" in the
/// parameter dtype, "h.3.quantized" in bytes, "h.3.master" in fp32 (where parameters are not, or
/// the optimizer's state is on the host), "h.3.first-moment", ... Empty ones are left out. Where
/// the optimizer's state is on the host and the parameters are not, the host has
/// "h.3.parameter@host" as well: the part of the parameters that the optimizer writes, unless they
/// are fp32, and so the master weights. A schedule's persistent buffers are these. Where master
/// weights and the optimizer's tensors are on disk, all else is as if they were on the host. Throws
/// Error{kConfig} where a placement does not allow for parameters away from the device, and
/// Error{kInvalidArgument} if the layout was made for an optimizer with smaller blocks.
std::vector<ScheduleBuffer> state_buffers(const ModelLayout& layout, const StateOptions& options);

}  // namespace tessera

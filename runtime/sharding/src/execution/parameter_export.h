#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "execution/device_array.h"
#include "tessera/autograd/layer.h"
#include "tessera/sharding/executor.h"
#include "tessera/sharding/groups.h"
#include "tessera/sharding/training_state.h"

namespace tessera {

/// Puts whole parameters together from the shards of all ranks. All ranks do it together, between
/// steps.
class ParameterExport {
 public:
  /// `schedule`: any of the state's. Runs on `stream`.
  ParameterExport(TrainingState& state, const Model& model, const Schedule& schedule,
                  RankGroups& groups, Device& device, const KernelTable& kernels, Stream& stream)
      : state_(state),
        model_(model),
        layout_(state.layout()),
        schedule_(schedule),
        groups_(groups),
        device_(device),
        kernels_(kernels),
        stream_(stream) {}

  /// Hands over one parameter after the other, in order of declaration; see
  /// Executor::gather_parameters.
  void run(const std::function<void(FullParameter)>& receive);

 private:
  std::span<const float> gather_flat(const FlatId& id, DeviceArray<float>& whole);
  std::vector<std::byte> gather_quantized(const FlatId& id);
  void gather_own_flat(const FlatId& id, std::int64_t numel, DeviceArray<float>& whole);
  void gather_own_bytes(const FlatId& id, DeviceArray<std::uint8_t>& whole);
  void share_flat(const FlatId& id, const TensorView& whole);
  std::vector<float> decoded(const FlatTensor& tensor, std::span<const std::byte> flat);
  /// Whether this pipeline rank keeps a unit.
  bool has_unit(int unit) const {
    return schedule_.is_here(schedule_.units[static_cast<std::size_t>(unit)]);
  }

  TrainingState& state_;
  const Model& model_;
  const ModelLayout& layout_;
  const Schedule& schedule_;
  RankGroups& groups_;
  Device& device_;
  const KernelTable& kernels_;
  Stream& stream_;
};

}  // namespace tessera

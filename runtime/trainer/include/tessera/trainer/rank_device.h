#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/collectives/process_group.h"
#include "tessera/core/device.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera {

/// kCpu or kCuda for kAuto: CUDA if a GPU can be used. Throws Error{kUnavailable} if kCuda is asked
/// for and none can.
DeviceChoice resolved_device(DeviceChoice choice);

/// Throws Error{kConfig} if there are fewer GPUs than ranks and sharing was not asked for.
void check_device(const TrainerOptions& options);

/// The device of the `local_rank`-th rank of this process.
std::unique_ptr<Device> make_rank_device(const TrainerOptions& options, int local_rank);

/// The ends of a process group of `options.ranks` ranks in this process, fit for their devices.
std::vector<std::unique_ptr<ProcessGroup>> make_local_world(const TrainerOptions& options);

/// Bytes that all ranks together may take: of the host, or of the GPUs.
std::int64_t available_bytes(const TrainerOptions& options);

}  // namespace tessera

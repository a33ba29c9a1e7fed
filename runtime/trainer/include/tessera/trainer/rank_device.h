#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/collectives/process_group.h"
#include "tessera/core/device.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera {

/// kCpu or kCuda for kAuto: CUDA if a GPU can be used. Throws Error{kUnavailable} if kCuda is asked
/// for and none can.
DeviceChoice resolved_device(DeviceChoice choice);

/// kThread or kNccl for kAuto, if options.device is kCuda: over NCCL ranks have a GPU each.
GroupChoice resolved_group(const TrainerOptions& options);

/// `options` with the device, on GPUs the group, and the binding decided. All processes of a run
/// must call it, for the same device: they tell each other which GPUs they have. Ranks of one
/// process share GPUs, over group thread, if there are fewer than ranks. Throws Error{kConfig} if
/// ranks of different processes would share a GPU, or if there are too few for group nccl.
TrainerOptions on_this_machine(TrainerOptions options);

/// A sentence that says that ranks share GPUs; empty if none does. For options on_this_machine.
std::string sharing_note(const TrainerOptions& options);

/// The ordinal of the GPU of a rank of this process, among `gpus` that the process sees. A GPU goes
/// by the rank's place among the ranks of this machine; or by its place in the process, if that
/// sees fewer GPUs (CUDA_VISIBLE_DEVICES).
int gpu_of_rank(const TrainerOptions& options, int rank, int gpus);

/// The device of a rank of this process. `pinned_bytes`: of the host's memory, see
/// CudaDeviceOptions; of use to a GPU alone.
std::unique_ptr<Device> make_rank_device(const TrainerOptions& options, int rank,
                                         std::int64_t pinned_bytes = 0);

/// This process's ends of a new group of all ranks, fit for their devices. Where CPU ranks are of
/// several processes, that is options.world, and there is nothing to make: empty, unless they are
/// checked.
std::vector<std::unique_ptr<ProcessGroup>> make_groups(const TrainerOptions& options);

/// Bytes that all ranks together may take: of the host, or of the GPUs.
std::int64_t available_bytes(const TrainerOptions& options);

}  // namespace tessera

#include "tessera/trainer/rank_device.h"

#include <algorithm>

#include "tessera/collectives/checked_group.h"
#include "tessera/collectives/nccl_group.h"
#include "tessera/collectives/thread_group.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/trainer/launch.h"

namespace tessera {
namespace {

bool uses_nccl(const TrainerOptions& options, int gpus) {
  if (options.group == GroupChoice::kAuto) return options.ranks > 1 && gpus >= options.ranks;
  return options.group == GroupChoice::kNccl;
}

/// A thread per GPU: the ends of an NCCL group can only be made at the same time.
std::vector<std::unique_ptr<ProcessGroup>> make_nccl_world(const TrainerOptions& options) {
  std::vector<std::unique_ptr<ProcessGroup>> world(static_cast<std::size_t>(options.ranks));
  const NcclId id = make_nccl_id();
  launch_ranks(options.ranks, [&](int rank) {
    world[static_cast<std::size_t>(rank)] =
        make_nccl_group(id, rank, options.ranks,
                        {.gpu = rank,
                         .timeout = options.timeout,
                         .deterministic = options.deterministic_collectives});
  });
  return world;
}

int gpu_count() { return static_cast<int>(cuda_status().gpus.size()); }

}  // namespace

DeviceChoice resolved_device(DeviceChoice choice) {
  if (choice == DeviceChoice::kCpu) return choice;
  const CudaStatus status = cuda_status();
  if (choice == DeviceChoice::kAuto) {
    return status.usable() ? DeviceChoice::kCuda : DeviceChoice::kCpu;
  }
  require(status.usable(), ErrorCode::kUnavailable, "device cuda: ", status.problem,
          "; use --device cpu, or auto, which takes a GPU only if there is one");
  return choice;
}

void check_device(const TrainerOptions& options) {
  require(options.device != DeviceChoice::kCuda || options.world == nullptr, ErrorCode::kConfig,
          "a run of several processes is on CPUs; use --device cpu, or one process with a rank for "
          "each GPU (--ranks)");
  if (options.device != DeviceChoice::kCuda) {
    require(options.group != GroupChoice::kNccl, ErrorCode::kConfig,
            "group nccl is for GPUs; ranks on the CPU use thread");
    return;
  }
  const int gpus = gpu_count();
  require(options.ranks <= gpus || options.group == GroupChoice::kThread || options.ranks == 1,
          ErrorCode::kConfig, "ranks is ", options.ranks, ", but this machine has ", gpus,
          gpus == 1 ? " GPU" : " GPUs",
          "; use as many ranks as GPUs, or let ranks share them with --group thread");
}

std::unique_ptr<Device> make_rank_device(const TrainerOptions& options, int local_rank) {
  if (options.world != nullptr) return options.world->make_device();
  if (options.device != DeviceChoice::kCuda) return make_cpu_device();
  return make_cuda_device({.ordinal = local_rank % std::max(gpu_count(), 1)});
}

std::vector<std::unique_ptr<ProcessGroup>> make_local_world(const TrainerOptions& options) {
  std::vector<std::unique_ptr<ProcessGroup>> world;
  if (options.device == DeviceChoice::kCuda && uses_nccl(options, gpu_count())) {
    world = make_nccl_world(options);
  } else {
    world = make_thread_group(options.ranks, {.timeout = options.timeout});
  }
  if (options.check_collectives) {
    for (auto& group : world) group = make_checked_group(std::move(group));
  }
  return world;
}

std::int64_t available_bytes(const TrainerOptions& options) {
  if (options.device != DeviceChoice::kCuda) return available_host_bytes();
  const std::vector<CudaGpu> gpus = cuda_status().gpus;
  require(!gpus.empty(), ErrorCode::kUnavailable, "there is no GPU");
  const int on_each =
      (options.ranks + static_cast<int>(gpus.size()) - 1) / static_cast<int>(gpus.size());
  std::int64_t least = gpus.front().free_bytes;
  for (const CudaGpu& gpu : gpus) least = std::min(least, gpu.free_bytes);
  return least / on_each * options.ranks;
}

}  // namespace tessera

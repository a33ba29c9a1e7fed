#include "tessera/trainer/rank_device.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <string>

#include "tessera/collectives/checked_group.h"
#include "tessera/collectives/nccl_group.h"
#include "tessera/collectives/thread_group.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/trainer/gather.h"
#include "tessera/trainer/launch.h"
#include "tessera/trainer/rank_binding.h"

namespace tessera {
namespace {

int gpu_count() { return static_cast<int>(cuda_status().gpus.size()); }

std::vector<std::unique_ptr<ProcessGroup>> make_nccl_world(const TrainerOptions& options) {
  const NcclGroupOptions nccl{.timeout = options.timeout,
                              .deterministic = options.deterministic_collectives};
  const int gpus = gpu_count();
  if (options.world != nullptr) {
    std::vector<int> ordinals;
    for (const auto& seat : options.world->groups()) {
      ordinals.push_back(gpu_of_rank(options, seat->rank(), gpus));
    }
    return make_nccl_groups(*options.world, ordinals, nccl);
  }
  // A thread for each GPU: the ends of an NCCL group can only be made at the same time.
  std::vector<std::unique_ptr<ProcessGroup>> world(static_cast<std::size_t>(options.ranks));
  const NcclId id = make_nccl_id();
  launch_ranks(options.ranks, [&](int rank) {
    NcclGroupOptions own = nccl;
    own.gpu = gpu_of_rank(options, rank, gpus);
    world[static_cast<std::size_t>(rank)] = make_nccl_group(id, rank, options.ranks, own);
  });
  return world;
}

/// Another group of all ranks.
std::vector<std::unique_ptr<ProcessGroup>> copy_of_world(World& world) {
  std::vector<std::unique_ptr<ProcessGroup>> groups(world.groups().size());
  launch_ranks(world.groups(), [&](int rank, ProcessGroup& seat) {
    groups[static_cast<std::size_t>(rank - world.first_rank())] = seat.split(0, rank);
  });
  return groups;
}

// ---- Several processes --------------------------------------------------------------------------

/// Where a rank would run, as its process tells the others.
struct Seat {
  int gpu = -1;               ///< as its process counts them
  int gpus = 0;               ///< that its process sees
  std::array<char, 64> id{};  ///< of the GPU as NCCL tells them apart, the same in all processes
};

/// The seats of all ranks.
std::vector<Seat> gather_seats(const TrainerOptions& options) {
  const std::vector<CudaGpu> gpus = cuda_status().gpus;
  const auto count = static_cast<int>(gpus.size());
  // Processes that say so are hosts to NCCL, which then lets them share a GPU: for tests.
  const char* const host = std::getenv("NCCL_HOSTID");
  return gather_ranks(*options.world, [&](int rank) {
    Seat seat{.gpu = gpu_of_rank(options, rank, count), .gpus = count};
    const std::string& gpu = gpus[static_cast<std::size_t>(seat.gpu)].uuid;
    const std::string id = host == nullptr ? gpu : concat(gpu, "@", host);
    id.copy(seat.id.data(), seat.id.size() - 1);
    return seat;
  });
}

void check_seats(const TrainerOptions& options, const std::vector<Seat>& seats) {
  std::map<std::string, std::size_t> rank_of;
  for (std::size_t r = 0; r < seats.size(); ++r) {
    const auto [other, fresh] = rank_of.emplace(seats[r].id.data(), r);
    require(fresh, ErrorCode::kConfig, "ranks ", other->second, " and ", r, " would share GPU ",
            seats[r].gpu, " (", seats[r].id.data(), "), of ", seats[r].gpus, " that rank ", r,
            "'s process sees, and NCCL joins several processes only with a GPU for each rank; use "
            "no more ranks than GPUs, let processes see more of them (CUDA_VISIBLE_DEVICES), or "
            "let the ranks of one process share: `ranks` ",
            options.ranks, " `group` thread; or `device` cpu");
  }
}

void check_processes(const TrainerOptions& options) {
  if (options.device != DeviceChoice::kCuda) return;
  require(options.group != GroupChoice::kThread, ErrorCode::kConfig,
          "group thread joins ranks of one process, and this run has ", options.world->processes(),
          "; leave `group` out, for nccl with a GPU for each rank, or train in one process whose "
          "ranks share GPUs: `ranks` ",
          options.ranks, " `group` thread");
  check_seats(options, gather_seats(options));
}

void check_gpus(const TrainerOptions& options, int gpus) {
  require(options.ranks <= gpus || options.group != GroupChoice::kNccl || options.ranks == 1,
          ErrorCode::kConfig, "ranks is ", options.ranks, ", but this machine has ", gpus,
          gpus == 1 ? " GPU" : " GPUs",
          ", and group nccl needs one for each rank; use as many ranks as GPUs, or leave `group` "
          "nccl out, so that ranks share them");
}

}  // namespace

int gpu_of_rank(const TrainerOptions& options, int rank, int gpus) {
  if (options.world == nullptr) return rank % std::max(gpus, 1);
  const int in_process = rank - options.world->first_rank();
  const bool sees_all = gpus >= options.world->ranks_on_host();
  return (sees_all ? options.world->first_local_rank() + in_process : in_process) %
         std::max(gpus, 1);
}

DeviceChoice resolved_device(DeviceChoice choice) {
  if (choice == DeviceChoice::kCpu) return choice;
  const CudaStatus status = cuda_status();
  if (choice == DeviceChoice::kAuto) {
    return status.usable() ? DeviceChoice::kCuda : DeviceChoice::kCpu;
  }
  require(status.usable(), ErrorCode::kUnavailable, "device cuda: ", status.problem,
          "; use `device` cpu, or auto, which takes a GPU only if there is one");
  return choice;
}

GroupChoice resolved_group(const TrainerOptions& options) {
  if (options.device != DeviceChoice::kCuda || options.group != GroupChoice::kAuto) {
    return options.group;
  }
  const bool own_gpus = options.world != nullptr || options.ranks <= gpu_count();
  return options.ranks > 1 && own_gpus ? GroupChoice::kNccl : GroupChoice::kThread;
}

TrainerOptions on_this_machine(TrainerOptions options) {
  options.device = resolved_device(options.device);
  const bool on_gpus = options.device == DeviceChoice::kCuda;
  require(on_gpus || options.group != GroupChoice::kNccl, ErrorCode::kConfig,
          "group nccl is for GPUs; ranks on the CPU use thread");
  if (options.world != nullptr) {
    check_processes(options);
  } else if (on_gpus) {
    check_gpus(options, gpu_count());
  }
  if (!on_gpus) {
    options.group = GroupChoice::kThread;
    options.attention = AttentionBackend::kOwn;
  }
  options.group = resolved_group(options);
  options.binding = std::make_shared<const CoreBinding>(decide_binding(options));
  const BindPolicy done = options.binding->policy;
  if (options.bind_core_list.empty() || done != BindPolicy::kNone) options.bind = done;
  return options;
}

std::string sharing_note(const TrainerOptions& options) {
  if (options.device != DeviceChoice::kCuda || options.world != nullptr) return "";
  const int gpus = gpu_count();
  if (options.ranks <= gpus) return "";
  return concat(options.ranks, " ranks share ",
                gpus == 1 ? std::string("GPU 0") : concat(gpus, " GPUs"),
                ", and talk through memory (group thread)");
}

std::unique_ptr<Device> make_rank_device(const TrainerOptions& options, int rank,
                                         std::int64_t pinned_bytes) {
  if (options.device == DeviceChoice::kCuda) {
    const int gpu = gpu_of_rank(options, rank, gpu_count());
    const bool nccl = options.group == GroupChoice::kNccl;
    return make_cuda_device({.ordinal = gpu,
                             .segments = nccl ? nccl_segments(gpu) : CudaSegments{},
                             .pinned_bytes = pinned_bytes,
                             .host_work = options.host_work.get()});
  }
  return options.world != nullptr ? options.world->make_device() : make_cpu_device();
}

std::vector<std::unique_ptr<ProcessGroup>> make_groups(const TrainerOptions& options) {
  std::vector<std::unique_ptr<ProcessGroup>> groups;
  if (options.device == DeviceChoice::kCuda && options.group == GroupChoice::kNccl) {
    groups = make_nccl_world(options);
  } else if (options.world == nullptr) {
    groups = make_thread_group(options.ranks, {.timeout = options.timeout});
  } else if (options.check_collectives) {
    groups = copy_of_world(*options.world);  // the world itself stays as it is
  }
  if (options.check_collectives) {
    for (auto& group : groups) group = make_checked_group(std::move(group));
  }
  return groups;
}

std::int64_t available_bytes(const TrainerOptions& options) {
  if (options.device != DeviceChoice::kCuda) return available_host_bytes();
  const std::vector<CudaGpu> gpus = cuda_status().gpus;
  require(!gpus.empty(), ErrorCode::kUnavailable, "there is no GPU");
  const int count = static_cast<int>(gpus.size());
  // Ranks of several processes do not share GPUs.
  const int on_each = options.world != nullptr ? 1 : (options.ranks + count - 1) / count;
  std::int64_t least = gpus.front().free_bytes;
  for (const CudaGpu& gpu : gpus) least = std::min(least, gpu.free_bytes);
  return least / on_each * ranks_on_host(options);
}

}  // namespace tessera

#include "tessera/trainer/rank_binding.h"

#include <algorithm>
#include <utility>

#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/core/usable_cores.h"
#include "tessera/trainer/gather.h"
#include "tessera/trainer/rank_device.h"

namespace tessera {
namespace {

/// Where a rank's process may run, and the rank's GPU.
struct Place {
  std::string cpus{};
  std::string gpu{};
};

std::string gpu_bus_id(const TrainerOptions& options, int rank) {
  if (options.device != DeviceChoice::kCuda) return "";
  const std::vector<CudaGpu> gpus = cuda_status().gpus;
  const auto gpu =
      static_cast<std::size_t>(gpu_of_rank(options, rank, static_cast<int>(gpus.size())));
  return gpu < gpus.size() ? gpus[gpu].pci : "";
}

/// The places of the ranks on this machine, in order, with the caller's first one at `own`.
std::vector<Place> places_here(const TrainerOptions& options, std::size_t& own) {
  const std::string cpus = to_string(usable_cpus());
  std::vector<Place> here;
  own = 0;
  if (options.world == nullptr) {
    for (int r = 0; r < options.ranks; ++r) here.push_back({cpus, gpu_bus_id(options, r)});
    return here;
  }
  const World& world = *options.world;
  const std::vector<std::string> all = gather_ranks(
      world, [&](int rank) { return concat(cpus, " ", gpu_bus_id(options, rank), " "); });
  own = static_cast<std::size_t>(world.first_local_rank());
  const int machine = world.machine_of(world.first_rank());
  for (int rank = 0; rank < world.size(); ++rank) {
    if (world.machine_of(rank) != machine) continue;
    const std::string& text = all[static_cast<std::size_t>(rank)];
    const std::size_t first = text.find(' ');
    const std::size_t second = text.find(' ', first + 1);
    here.push_back({text.substr(0, first), text.substr(first + 1, second - first - 1)});
  }
  return here;
}

/// It does not change while a process runs, and reading it takes milliseconds.
const CpuTopology& this_machine(bool devices) {
  static const CpuTopology without = read_topology();
  if (!devices) return without;
  static const CpuTopology with = read_topology({.devices = true});
  return with;
}

CoreBinding unbound(std::string why) {
  return {.policy = BindPolicy::kNone, .why = std::move(why), .ranks = {}};
}

}  // namespace

BindRequest bind_request(const TrainerOptions& options, int ranks, std::vector<std::string> gpus) {
  const bool given = !options.bind_core_list.empty();
  return {.policy = options.bind,
          .ranks = ranks,
          .cpus = given ? parse_cpu_list(options.bind_core_list) : CpuList(),
          .gpus = std::move(gpus),
          .quota = cgroup_cores(),
          .threads = options.device == DeviceChoice::kCuda ? 0 : options.threads_per_rank};
}

CoreBinding decide_binding(const TrainerOptions& options) {
  std::size_t own = 0;
  const std::vector<Place> places = places_here(options, own);
  if (options.bind == BindPolicy::kNone && options.bind_core_list.empty()) return unbound("");
  const bool on_gpus = options.device == DeviceChoice::kCuda;
  std::vector<CpuList> masks;
  std::vector<std::string> gpus;
  for (const Place& place : places) {
    masks.push_back(parse_cpu_list(place.cpus));
    if (on_gpus) gpus.push_back(place.gpu);
  }
  const BindRequest request =
      bind_request(options, static_cast<int>(places.size()), std::move(gpus));
  try {
    const CpuTopology& machine = this_machine(on_gpus);
    if (!machine.of_this_machine) return unbound("hwloc describes another machine");
    return divide_masks(machine, request, masks, own);
  } catch (const Error& error) {
    // Nobody has asked for it.
    if (error.code() == ErrorCode::kConfig || options.bind != BindPolicy::kAuto) throw;
    return unbound(error.what());
  }
}

void bind_rank(const TrainerOptions& options, int rank) {
  if (options.binding == nullptr || options.binding->policy == BindPolicy::kNone) {
    return bind_thread(usable_cpus());
  }
  const World* const world = options.world.get();
  const int place =
      world == nullptr ? rank : world->first_local_rank() + rank - world->first_rank();
  bind_thread(options.binding->ranks.at(static_cast<std::size_t>(place)).cpus);
}

std::string binding_note(const TrainerOptions& asked, const TrainerOptions& planned) {
  const CoreBinding& binding = *planned.binding;
  const bool none = binding.policy == BindPolicy::kNone;
  std::string note;
  if (asked.bind != BindPolicy::kAuto && asked.bind != binding.policy) {
    note = concat("`bind` ", to_string(asked.bind),
                  none ? " binds nothing: " : " binds to NUMA nodes: ", binding.why);
  }
  if (none || planned.device == DeviceChoice::kCuda) return note;
  std::size_t least = binding.ranks.front().cpus.size();
  for (const RankCores& own : binding.ranks) least = std::min(least, own.cpus.size());
  if (static_cast<std::size_t>(planned.threads_per_rank) <= least) return note;
  return concat(note, note.empty() ? "" : "; ", "ranks have ", planned.threads_per_rank,
                " threads and are bound to ", least, least == 1 ? " CPU" : " CPUs",
                ", which they share; use `threads_per_rank` ", least);
}

}  // namespace tessera

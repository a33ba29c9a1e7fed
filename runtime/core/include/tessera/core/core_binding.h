#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/cpu_topology.h"

namespace tessera {

/// To what ranks are bound: each runs, with all its threads, on CPUs of its own.
enum class BindPolicy : std::uint8_t {
  kAuto,   ///< where there is something to gain and nobody else has bound the process
  kCores,  ///< to physical cores, which no other rank of the machine has
  kNuma,   ///< to NUMA nodes, which ranks share if there are more ranks than nodes
  kNone,
};

std::string_view to_string(BindPolicy policy);

struct BindRequest {
  BindPolicy policy = BindPolicy::kAuto;
  int ranks = 1;                    ///< that divide the topology's cores
  CpuList cpus{};                   ///< only these, by rank, wherever GPUs are; empty: all
  std::vector<std::string> gpus{};  ///< PCI bus ids of the ranks' GPUs; empty: ranks are on CPUs
  int quota = 0;                    ///< cores' worth of time; see cgroup_cores(). 0: no limit
  int threads = 0;                  ///< of a rank; 0: one for each core that it gets
};

/// CPUs and cores that a rank gets.
struct RankCores {
  CpuList cpus{};
  int cores = 0;             ///< physical ones of those CPUs
  std::vector<int> nodes{};  ///< of the cores
};

struct CoreBinding {
  BindPolicy policy = BindPolicy::kNone;  ///< what is done: kCores, kNuma or kNone
  std::string why{};                      ///< if that is not what was asked for, or kAuto
  std::vector<RankCores> ranks{};         ///< with kNone each has all cores
};

/// Divides the cores of a machine among its ranks; a pure function.
///
/// kCores: on CPUs, rank r of n gets the cores from number r/n to number (r+1)/n of all, neighbours
/// with as many as the others or one more; with GPUs, ranks divide the cores of their GPU's node in
/// this way. Under a quota a rank gets no more than its share of it. More ranks than cores are
/// bound to nodes. kNuma: to the nodes of which a rank has the middle under kCores; with GPUs to
/// the GPU's node. kNone wherever each would get all there is, and where the node of a GPU is not
/// known.
///
/// kAuto is kCores if CPUs are given; kNone if the topology is partial, or if there is a quota for
/// less than its cores: then somebody else has decided, or shares the machine with this run; kCores
/// if ranks on the CPUs of one node get equally many cores, and no more threads than CPUs; else
/// kNuma. Linux wakes a thread on the core where another one computes, and moves it some
/// milliseconds later, while the other ranks wait. Where all get equally many cores, a second run
/// on the machine finds each of them as busy as the others.
/// Throws Error{kConfig} if a CPU of `cpus` is not in the topology.
CoreBinding divide_cores(const CpuTopology& topology, const BindRequest& request);

/// Binds where each rank's process may run on a part of the machine, masks[rank]: ranks with the
/// same mask divide it. If masks overlap nobody is bound. Policy and reason are those of the ranks
/// whose mask rank `own` has.
CoreBinding divide_masks(const CpuTopology& topology, const BindRequest& request,
                         const std::vector<CpuList>& masks, std::size_t own);

/// "cores, 4 per rank", "NUMA nodes, 8 cores per rank", "none (one NUMA node)".
std::string describe(const CoreBinding& binding);

}  // namespace tessera

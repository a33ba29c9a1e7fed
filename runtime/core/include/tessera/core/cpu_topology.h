#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/cpu_list.h"

namespace tessera {

/// A physical core.
struct Core {
  CpuList cpus{};  ///< those of its hardware threads that may be used; never empty
  int node = 0;    ///< the NUMA node of its memory, as Linux numbers them
};

/// The cores that may be used, as hwloc finds them.
struct CpuTopology {
  std::vector<Core> cores{};    ///< those of a NUMA node, and of a cache, stand together
  bool partial = false;         ///< CPUs have been left out by within()
  bool of_this_machine = true;  ///< false: a description, with which no thread can be bound
  /// NUMA nodes of PCI devices, by bus id as "0000:1b:00.0"; -1: near to none or to several.
  std::map<std::string, int, std::less<>> device_nodes{};

  /// Nodes that have cores here, in the order of the cores.
  std::vector<int> nodes() const;
  /// The node of a PCI device; -1 if it is not known. On a machine of one node that one.
  int node_of_device(std::string_view bus_id) const;
};

struct TopologySource {
  bool devices = false;     ///< PCI devices are looked for, which takes some milliseconds
  std::string synthetic{};  ///< a description of hwloc's kind: "pack:2 [numa] core:8 pu:2"
  std::string xml{};        ///< the text of a file that lstopo has written
};

/// This machine's topology, unless the source describes another. CPUs that its cgroup forbids this
/// process are not in it; the mask of a thread is not considered. Variables of hwloc
/// (HWLOC_SYNTHETIC, HWLOC_XMLFILE) describe another machine as well.
/// Throws Error{kUnavailable} if hwloc fails.
CpuTopology read_topology(const TopologySource& source = {});

/// The cores that have CPUs among `cpus`, with these only.
CpuTopology within(const CpuTopology& topology, const CpuList& cpus);

}  // namespace tessera

#include "tessera/core/cpu_topology.h"

#include <hwloc.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>

#include "tessera/core/error.h"

namespace tessera {
namespace {

using Topology = std::unique_ptr<hwloc_topology, void (*)(hwloc_topology_t)>;

/// Components that ask graphics drivers, GPUs' libraries and libpciaccess, which never frees its
/// list of devices; Linux itself knows where PCI devices are.
constexpr std::array kNotAsked{"pci", "gl", "opencl", "cuda", "nvml", "rsmi", "levelzero"};

void describe_source(hwloc_topology_t topology, const TopologySource& source) {
  if (!source.synthetic.empty()) {
    require(hwloc_topology_set_synthetic(topology, source.synthetic.c_str()) == 0,
            ErrorCode::kInvalidArgument, "hwloc does not understand the topology '",
            source.synthetic, "'");
  } else if (!source.xml.empty()) {
    require(hwloc_topology_set_xmlbuffer(topology, source.xml.c_str(),
                                         static_cast<int>(source.xml.size()) + 1) == 0,
            ErrorCode::kInvalidArgument, "hwloc does not understand the XML of a topology");
  }
  if (!source.devices) return;
  for (const char* const component : kNotAsked) {
    hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
  }
  hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  hwloc_topology_set_type_filter(topology, HWLOC_OBJ_OS_DEVICE, HWLOC_TYPE_FILTER_KEEP_NONE);
}

Topology load_topology(const TopologySource& source) {
  hwloc_topology_t raw = nullptr;
  require(hwloc_topology_init(&raw) == 0, ErrorCode::kOutOfMemory,
          "there is no memory for the topology of the machine");
  Topology topology(raw, hwloc_topology_destroy);
  describe_source(raw, source);
  require(hwloc_topology_load(raw) == 0, ErrorCode::kUnavailable,
          "hwloc cannot read the topology of the machine: ", std::strerror(errno),
          "; train with `bind` none");
  return topology;
}

CpuList cpus_of(hwloc_const_bitmap_t set) {
  CpuList cpus;
  for (int cpu = hwloc_bitmap_first(set); cpu >= 0; cpu = hwloc_bitmap_next(set, cpu)) {
    cpus.push_back(cpu);
  }
  return cpus;
}

/// "0000:1b:00.0".
std::string bus_id_of(const hwloc_obj_attr_u::hwloc_pcidev_attr_s& device) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%04x:%02x:%02x.%01x",
                static_cast<unsigned>(device.domain), static_cast<unsigned>(device.bus),
                static_cast<unsigned>(device.dev), static_cast<unsigned>(device.func));
  return text.data();
}

int node_near(hwloc_topology_t topology, hwloc_obj_t device) {
  const hwloc_obj_t around = hwloc_get_non_io_ancestor_obj(topology, device);
  if (around == nullptr || around->nodeset == nullptr) return -1;
  return hwloc_bitmap_weight(around->nodeset) == 1 ? hwloc_bitmap_first(around->nodeset) : -1;
}

}  // namespace

std::vector<int> CpuTopology::nodes() const {
  std::vector<int> nodes;
  for (const Core& core : cores) {
    if (std::ranges::find(nodes, core.node) == nodes.end()) nodes.push_back(core.node);
  }
  return nodes;
}

int CpuTopology::node_of_device(std::string_view bus_id) const {
  std::string id(bus_id);
  std::ranges::transform(id, id.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto found = device_nodes.find(id);
  if (found != device_nodes.end() && found->second >= 0) return found->second;
  const std::vector<int> all = nodes();
  return all.size() == 1 ? all.front() : -1;
}

CpuTopology read_topology(const TopologySource& source) {
  const Topology topology = load_topology(source);
  CpuTopology result;
  result.of_this_machine = hwloc_topology_is_thissystem(topology.get()) != 0;
  // Some virtual machines tell of CPUs only.
  const bool has_cores = hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_CORE) > 0;
  const hwloc_obj_type_t type = has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_obj_by_type(topology.get(), type, object)) != nullptr) {
    const int node = object->nodeset == nullptr ? -1 : hwloc_bitmap_first(object->nodeset);
    result.cores.push_back({.cpus = cpus_of(object->cpuset), .node = std::max(node, 0)});
  }
  object = nullptr;
  while ((object = hwloc_get_next_pcidev(topology.get(), object)) != nullptr) {
    result.device_nodes[bus_id_of(object->attr->pcidev)] = node_near(topology.get(), object);
  }
  require(!result.cores.empty(), ErrorCode::kUnavailable,
          "hwloc finds no cores in this machine; train with `bind` none");
  return result;
}

CpuTopology within(const CpuTopology& topology, const CpuList& cpus) {
  CpuTopology part = topology;
  part.cores.clear();
  for (const Core& core : topology.cores) {
    Core kept{.cpus = {}, .node = core.node};
    std::ranges::set_intersection(core.cpus, cpus, std::back_inserter(kept.cpus));
    part.partial = part.partial || kept.cpus.size() < core.cpus.size();
    if (!kept.cpus.empty()) part.cores.push_back(std::move(kept));
  }
  return part;
}

}  // namespace tessera

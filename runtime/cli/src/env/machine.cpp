#include "env/reports.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include "tessera/core/cpu_device.h"
#include "tessera/core/usable_cores.h"

namespace tessera::cli {
namespace {

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The value of a line "key<blanks>: value".
std::string value_of(const std::string& line) {
  const std::size_t colon = line.find(':');
  if (colon == std::string::npos) return "";
  const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
  return begin == std::string::npos ? "" : line.substr(begin);
}

void read_cpuinfo(Machine& machine) {
  std::ifstream file("/proc/cpuinfo");
  std::set<std::pair<std::string, std::string>> cores;  // (socket, core)
  std::string line, socket;
  while (std::getline(file, line)) {
    if (line.rfind("model name", 0) == 0 && machine.processor.empty()) {
      machine.processor = value_of(line);
    } else if (line.rfind("physical id", 0) == 0) {
      socket = value_of(line);
    } else if (line.rfind("core id", 0) == 0) {
      cores.emplace(socket, value_of(line));
    } else if (line.rfind("flags", 0) == 0 && machine.vector_units.empty()) {
      std::istringstream flags(value_of(line));
      std::set<std::string> all;
      for (std::string flag; flags >> flag;) all.insert(flag);
      for (const char* unit : {"avx2", "avx512f", "avx512_bf16", "amx_bf16"}) {
        if (all.count(unit) != 0) machine.vector_units.emplace_back(unit);
      }
    }
  }
  machine.physical_cores = static_cast<int>(cores.size());
}

std::string operating_system() {
  std::ifstream file("/etc/os-release");
  const std::string key = "PRETTY_NAME=";
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key, 0) != 0) continue;
    std::string name = line.substr(key.size());
    if (name.size() >= 2 && name.front() == '"') name = name.substr(1, name.size() - 2);
    return name;
  }
  return "";
}

std::vector<std::string> numa_nodes() {
  std::vector<std::string> nodes;
  for (int node = 0;; ++node) {
    const std::filesystem::path folder = "/sys/devices/system/node/node" + std::to_string(node);
    std::error_code ignored;
    if (!std::filesystem::exists(folder, ignored)) return nodes;
    nodes.push_back(first_line(folder / "cpulist"));
  }
}

}  // namespace

Machine probe_machine() {
  Machine machine;
  machine.system = operating_system();
  utsname name{};
  if (uname(&name) == 0) {
    machine.kernel = std::string(name.sysname) + " " + name.release + " " + name.machine;
    machine.host = name.nodename;
  }
  read_cpuinfo(machine);
  machine.logical_cores = usable_cores();
  machine.numa_nodes = numa_nodes();
  machine.memory_bytes = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  machine.available_bytes = available_host_bytes();
  return machine;
}

}  // namespace tessera::cli

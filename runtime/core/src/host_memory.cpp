#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

#include "tessera/core/cpu_device.h"

namespace tessera {
namespace {

constexpr std::int64_t kUnknown = -1;

/// MemAvailable of /proc/meminfo, which is in KiB.
std::int64_t available_in_meminfo() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("MemAvailable:", 0) == 0) return std::stoll(line.substr(13)) * 1024;
  }
  return kUnknown;
}

/// A file that holds one number, or "max".
std::int64_t read_number(const std::string& path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  return file >> value ? value : kUnknown;
}

/// Memory that the control groups (v2) around this process leave; unlimited without any. A limit
/// may sit on any ancestor of the process's own group.
std::int64_t available_in_cgroup() {
  std::int64_t available = std::numeric_limits<std::int64_t>::max();
  std::ifstream membership("/proc/self/cgroup");
  std::string line;
  std::string path;
  while (std::getline(membership, line)) {
    if (line.rfind("0::", 0) == 0) path = line.substr(3);
  }
  while (true) {
    const std::string folder = "/sys/fs/cgroup" + path;
    const std::int64_t limit = read_number(folder + "/memory.max");
    const std::int64_t used = read_number(folder + "/memory.current");
    if (limit >= 0) available = std::min(available, std::max<std::int64_t>(limit - used, 0));
    if (path.empty()) return available;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

std::int64_t available_host_bytes() {
  std::int64_t available = available_in_meminfo();
  if (available == kUnknown) {
    available = static_cast<std::int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  }
  return std::min(available, available_in_cgroup());
}

}  // namespace tessera

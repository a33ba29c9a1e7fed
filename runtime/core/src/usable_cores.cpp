#include "tessera/core/usable_cores.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "tessera/core/cpu_list.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// Microseconds of CPU time per period.
struct Quota {
  std::int64_t time = 0;
  std::int64_t period = 0;
};

std::optional<std::int64_t> read_number(const fs::path& path) {
  std::int64_t number = 0;
  std::ifstream file(path);
  return file >> number ? std::optional(number) : std::nullopt;
}

/// Version 2: "200000 100000", or "max 100000".
std::optional<Quota> read_cpu_max(const fs::path& group) {
  Quota quota;
  std::ifstream file(group / "cpu.max");
  if (!(file >> quota.time >> quota.period)) return std::nullopt;
  return quota;
}

/// Version 1: two files; -1 is no quota.
std::optional<Quota> read_cfs_quota(const fs::path& group) {
  const auto time = read_number(group / "cpu.cfs_quota_us");
  const auto period = read_number(group / "cpu.cfs_period_us");
  if (!time || !period) return std::nullopt;
  return Quota{.time = *time, .period = *period};
}

/// The smallest number of cores that `group` or one above it grants, up to the mount point; 0: no
/// quota. A container may see only its own group, as the mount point, under the host's path of it:
/// then the groups between are not there, and the mount point tells.
template <typename Read>
int smallest(const fs::path& mount, fs::path group, const Read& read) {
  int cores = 0;
  for (;; group = group.parent_path()) {
    const auto quota = read(mount / group);
    if (quota && quota->time > 0 && quota->period > 0) {
      const int here =
          static_cast<int>(std::clamp<std::int64_t>(quota->time / quota->period, 1, 1 << 20));
      cores = cores == 0 ? here : std::min(cores, here);
    }
    if (group.empty()) return cores;
  }
}

bool contains(const std::string& list, const std::string& name) {
  std::istringstream names(list);
  for (std::string one; std::getline(names, one, ',');) {
    if (one == name) return true;
  }
  return false;
}

}  // namespace

int cgroup_cores(const CgroupPlaces& places) {
  const fs::path root = places.root;
  int cores = 0;
  std::ifstream membership(places.membership);
  // A line for each hierarchy: "4:cpu,cpuacct:/batch/job", and "0::/batch/job" for version 2.
  for (std::string line; std::getline(membership, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = fs::path(line.substr(second + 1)).relative_path();
    int here = 0;
    if (controllers.empty()) {
      here = smallest(root, group, read_cpu_max);
    } else if (contains(controllers, "cpu")) {
      for (const std::string& mount : {controllers, std::string("cpu")}) {
        here = std::max(here, smallest(root / mount, group, read_cfs_quota));
      }
    }
    if (here > 0) cores = cores == 0 ? here : std::min(cores, here);
  }
  return cores;
}

int usable_cores() {
  const int affinity = static_cast<int>(usable_cpus().size());
  const int quota = cgroup_cores();
  return quota == 0 ? affinity : std::min(affinity, quota);
}

}  // namespace tessera

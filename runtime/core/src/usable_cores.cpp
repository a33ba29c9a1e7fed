#include "tessera/core/usable_cores.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

#include "cgroup_folders.h"

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

/// The smallest number of cores that one of the groups grants; 0: none has a quota.
template <typename Read>
int smallest(const std::vector<fs::path>& groups, const Read& read) {
  int cores = 0;
  for (const fs::path& group : groups) {
    const std::optional<Quota> quota = read(group);
    if (!quota || quota->time <= 0 || quota->period <= 0) continue;
    const int here =
        static_cast<int>(std::clamp<std::int64_t>(quota->time / quota->period, 1, 1 << 20));
    cores = cores == 0 ? here : std::min(cores, here);
  }
  return cores;
}

}  // namespace

int cgroup_cores(const CgroupPlaces& places) {
  const CgroupFolders folders = cgroup_folders(places);
  const int by_2 = smallest(folders.version_2, read_cpu_max);
  const int by_1 = smallest(folders.version_1, read_cfs_quota);
  return by_1 == 0 || by_2 == 0 ? std::max(by_1, by_2) : std::min(by_1, by_2);
}

int usable_cores() {
  const int affinity = static_cast<int>(usable_cpus().size());
  const int quota = cgroup_cores();
  return quota == 0 ? affinity : std::min(affinity, quota);
}

}  // namespace tessera

#pragma once

#include <string>

namespace tessera {

/// Where Linux tells of processes and control groups; tests have folders of their own.
struct CgroupPlaces {
  std::string membership = "/proc/self/cgroup";  ///< the groups of this process
  std::string root = "/sys/fs/cgroup";           ///< where their hierarchies are mounted
};

/// Cores' worth of time that control groups (versions 1 and 2) grant this process: the smallest
/// quota of its group and those above it, rounded down, at least 1; 0 if there is no quota.
/// Containers, Slurm and systemd limit CPUs so.
int cgroup_cores(const CgroupPlaces& places = {});

/// Cores that this process can keep busy: those of the calling thread's affinity mask, or fewer if
/// a quota grants less. At least 1.
int usable_cores();

}  // namespace tessera

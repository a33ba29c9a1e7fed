#pragma once

#include <filesystem>
#include <vector>

#include "tessera/core/usable_cores.h"

namespace tessera {

/// Folders of the control groups that limit this process' CPU time: its own and those above it, up
/// to the mount point. Some may not be there: a container may see only its own group, as the mount
/// point, under the host's path of it.
struct CgroupFolders {
  std::vector<std::filesystem::path> version_2{};
  std::vector<std::filesystem::path> version_1{};  ///< of the hierarchy with the controller cpu
};

CgroupFolders cgroup_folders(const CgroupPlaces& places);

}  // namespace tessera

#include "cgroup_folders.h"

#include <fstream>
#include <sstream>
#include <string>

namespace tessera {
namespace {

namespace fs = std::filesystem;

void add_group_and_above(std::vector<fs::path>& folders, const fs::path& mount, fs::path group) {
  for (;; group = group.parent_path()) {
    folders.push_back(mount / group);
    if (group.empty()) return;
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

CgroupFolders cgroup_folders(const CgroupPlaces& places) {
  const fs::path root = places.root;
  CgroupFolders folders;
  std::ifstream membership(places.membership);
  // A line for each hierarchy: "4:cpu,cpuacct:/batch/job", and "0::/batch/job" for version 2.
  for (std::string line; std::getline(membership, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = fs::path(line.substr(second + 1)).relative_path();
    if (controllers.empty()) {
      add_group_and_above(folders.version_2, root, group);
    } else if (contains(controllers, "cpu")) {
      // The mount point has the name of all controllers; "cpu" beside it is often a link to it.
      const fs::path mount = root / controllers;
      std::error_code error;
      add_group_and_above(folders.version_1, fs::exists(mount, error) ? mount : root / "cpu",
                          group);
    }
  }
  return folders;
}

}  // namespace tessera

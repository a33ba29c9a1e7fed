#pragma once

#include <cstdint>
#include <string>

#include "tessera/core/disk_calls.h"

namespace tessera {

/// Where the disk tier is to lie.
struct OffloadPath {
  std::string mount{};          ///< the mount point that the folder is below: "/mnt/nvme"
  std::string file_system{};    ///< its type: "ext4"
  std::string source{};         ///< what is mounted: "/dev/nvme0n1"
  std::int64_t free_bytes = 0;  ///< that this user may still take
};

/// Checks that `bytes` bytes fit into `folder`: the files of all ranks that share it. Creates
/// nothing, so a plan may call it. Throws Error{kNotFound} if there is no such folder,
/// Error{kConfig} if it is no folder, cannot be written or is in memory (tmpfs, ramfs), and
/// Error{kOutOfMemory} if the disk has less room; the text names the mount and the remedy.
OffloadPath check_offload_path(const std::string& folder, std::int64_t bytes,
                               DiskCalls& calls = disk_calls());

}  // namespace tessera

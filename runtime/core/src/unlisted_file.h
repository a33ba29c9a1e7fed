#pragma once

#include <cstdint>
#include <string>

#include "tessera/core/disk_calls.h"

namespace tessera {

/// The file of a disk store: no folder lists it, and its room on the disk is taken. Closes when it
/// dies, which gives the room back.
class UnlistedFile {
 public:
  /// Throws what check_offload_path() throws, and Error{kIo} with the call's reason and the remedy.
  UnlistedFile(DiskCalls& calls, const std::string& folder, int rank, std::int64_t bytes);
  ~UnlistedFile();
  UnlistedFile(const UnlistedFile&) = delete;
  UnlistedFile& operator=(const UnlistedFile&) = delete;

  int descriptor() const { return descriptor_; }
  /// "the disk tier's file of rank 3 in '/mnt/nvme'"
  const std::string& name() const { return name_; }

  /// Asks for O_DIRECT; false where the file system takes none at multiples of kDiskAlignment.
  bool go_direct();
  void go_buffered();
  bool direct() const { return direct_; }
  /// Requests' addresses are multiples of it; 1: any.
  std::int64_t memory_alignment() const { return memory_alignment_; }
  /// Where it is buffered, has the kernel write a part soon, and give the memory for it back.
  void let_go(std::int64_t offset, std::int64_t bytes) const;

 private:
  void allocate(const std::string& folder, std::int64_t bytes);

  DiskCalls& calls_;
  std::string name_;
  int descriptor_ = -1;
  bool direct_ = false;
  std::int64_t memory_alignment_ = 1;
};

}  // namespace tessera

#include "unlisted_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tessera/core/disk_store.h"
#include "tessera/core/error.h"
#include "tessera/core/format_bytes.h"
#include "tessera/core/offload_path.h"

namespace tessera {
namespace {

/// A descriptor, or an errno, negated. A process that is killed leaves nothing, or where the file
/// system has no O_TMPFILE and it is killed between the two calls, an empty file.
int open_without_name(DiskCalls& calls, const std::string& folder, int rank) {
  const int unnamed = calls.open(folder, O_TMPFILE | O_EXCL | O_RDWR);
  // EISDIR: a kernel that does not know the flag.
  if (unnamed != -EOPNOTSUPP && unnamed != -EISDIR && unnamed != -EINVAL) return unnamed;
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::string path =
        concat(folder, "/.tessera-offload-", getpid(), "-rank-", rank, "-", attempt);
    const int file = calls.open(path, O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR);
    if (file == -EEXIST) continue;
    if (file < 0) return file;
    const int error = calls.unlink(path);
    if (error == 0) return file;
    close(file);
    return error;
  }
  return -EEXIST;
}

}  // namespace

UnlistedFile::UnlistedFile(DiskCalls& calls, const std::string& folder, int rank,
                           std::int64_t bytes)
    : calls_(calls), name_(concat("the disk tier's file of rank ", rank, " in '", folder, "'")) {
  check_offload_path(folder, bytes, calls);
  descriptor_ = open_without_name(calls, folder, rank);
  require(descriptor_ >= 0, ErrorCode::kIo, "cannot make ", name_, ": ",
          std::strerror(-descriptor_), "; choose a folder on a disk that this user may write");
  try {
    allocate(folder, bytes);
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

UnlistedFile::~UnlistedFile() { close(descriptor_); }

void UnlistedFile::allocate(const std::string& folder, std::int64_t bytes) {
  const int error = calls_.allocate(descriptor_, bytes);
  if (error == 0) return;
  FolderSpace space;
  const bool known = calls_.space(folder, space) == 0;
  fail(ErrorCode::kIo, "cannot take ", format_bytes(bytes), " (", bytes, " bytes) for ", name_,
       ": ", std::strerror(-error),
       known ? concat("; ", format_bytes(space.free_bytes), " are free there") : "",
       error == -EFBIG ? "; raise the limit on a file's size (ulimit -f)"
                       : "; make room, choose a folder on another disk, or offload less");
}

bool UnlistedFile::go_direct() {
  const DirectAlignment alignment = calls_.direct_alignment(descriptor_);
  memory_alignment_ = kDiskAlignment;
  if (alignment.known) {
    if (alignment.offset <= 0 || kDiskAlignment % alignment.offset != 0) return false;
    memory_alignment_ = std::max<std::int64_t>(alignment.memory, 1);
    if (kDiskAlignment % memory_alignment_ != 0) return false;  // not even our buffers would do
  }
  direct_ = calls_.set_direct(descriptor_, true) == 0;
  return direct_;
}

void UnlistedFile::go_buffered() {
  if (!direct_) return;
  calls_.set_direct(descriptor_, false);
  direct_ = false;
}

void UnlistedFile::let_go(std::int64_t offset, std::int64_t bytes) const {
  if (direct_ || bytes == 0) return;  // 0 would be the rest of the file
  posix_fadvise(descriptor_, offset, bytes, POSIX_FADV_DONTNEED);
}

}  // namespace tessera

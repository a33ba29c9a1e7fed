#include "tessera/checkpoint/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/core/error.h"
#include "tessera/core/host_name.h"

namespace tessera {
namespace {

/// Text that the process with the lock has written: "process 12 on node3".
std::string read_holder(int file) {
  std::array<char, 512> text{};
  const ssize_t read = pread(file, text.data(), text.size(), 0);
  const std::string holder(text.data(), read > 0 ? static_cast<std::size_t>(read) : 0);
  return holder.empty() ? "another process" : holder.substr(0, holder.find('\n'));
}

/// Only for messages, so it may fail.
void write_holder(int file) {
  const std::string text = concat("process ", getpid(), " on ", host_name(), "\n");
  if (ftruncate(file, 0) != 0 ||
      pwrite(file, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return;
  }
}

}  // namespace

FolderLock::FolderLock(Storage& storage, const std::string& folder) {
  make_checkpoint_folder(storage, folder);
  const std::string path = folder + "/lock";
  file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  require(file_ >= 0, ErrorCode::kIo, "cannot open '", path, "': ", std::strerror(errno),
          "; checkpoints need a folder that can be written");
  if (flock(file_, LOCK_EX | LOCK_NB) == 0) {
    write_holder(file_);
    return;
  }
  if (const int error = errno; error != EWOULDBLOCK) {
    note_ = concat("the file system of '", folder, "' has no locks (", std::strerror(error),
                   "): nothing keeps another run from writing its checkpoints there");
    return;
  }
  const std::string holder = read_holder(file_);
  close(file_);
  fail(ErrorCode::kUnavailable, "'", folder, "' is in use: ", holder,
       " writes its checkpoints there; wait until it has ended or end it, or name another folder");
}

FolderLock::~FolderLock() { close(file_); }

}  // namespace tessera

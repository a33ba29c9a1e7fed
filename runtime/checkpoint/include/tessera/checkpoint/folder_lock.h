#pragma once

#include <string>

#include "tessera/core/storage.h"

namespace tessera {

/// Keeps other runs from writing checkpoints to a folder while it lives: a lock of the system's
/// (flock) on its file `lock`. It ends with the process, however that ends; the file stays, and
/// names the last process that held it.
class FolderLock {
 public:
  /// Makes the folder if it is not there. Throws Error{kUnavailable} that names the process that
  /// has the lock, and Error{kIo} if nothing can be written to the folder.
  FolderLock(Storage& storage, const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Why nothing is locked, in a sentence: the file system has no locks. Else "".
  const std::string& note() const { return note_; }

 private:
  int file_ = -1;
  std::string note_;
};

}  // namespace tessera

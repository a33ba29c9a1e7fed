#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/core/named_text.h"

namespace tessera {

/// The calls by which files become durable, so that a test can stop or refuse any of them.
/// Each throws Error{kIo} that names the path and the system's reason. Safe from any thread.
class Storage {
 public:
  /// A new file. What was written may be lost in a crash until sync() has returned; after a sync()
  /// that failed nothing is known of it.
  class File {
   public:
    virtual ~File() = default;
    virtual void write(std::int64_t offset, std::span<const std::byte> bytes) = 0;
    virtual void sync() = 0;
  };

  virtual ~Storage() = default;
  /// Makes the folder and those above it; it may be there.
  virtual void make_folder(const std::string& path) = 0;
  /// A file of `bytes` bytes, whose room on the disk is taken now, in place of any that is there.
  virtual std::unique_ptr<File> create(const std::string& path, std::int64_t bytes) = 0;
  /// Makes the names in a folder durable, where the file system has a call for that.
  virtual void sync_folder(const std::string& path) = 0;
  /// Replaces a file, or a folder that is empty.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  /// A file, or a folder with all that is in it; or nothing.
  virtual void remove(const std::string& path) = 0;
};

/// The file systems of this machine.
Storage& disk();

/// Writes a small file whole: create, write, sync.
void write_file(Storage& storage, const std::string& path, const std::string& text);
/// Writes files by their names in `folder`; those with a slash get a folder within.
void write_files(Storage& storage, const std::string& folder, const std::vector<NamedText>& files);

}  // namespace tessera

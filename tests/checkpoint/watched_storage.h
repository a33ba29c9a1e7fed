#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "tessera/core/storage.h"

namespace tessera::test {

/// The disk, each call of which is told before it is made; what the watcher throws, it throws.
class WatchedStorage : public Storage {
 public:
  /// "make-folder", "create", "write", "sync", "sync-folder", "rename" or "remove", and the path;
  /// of rename the former one. On the thread that calls, perhaps several at once.
  using Before = std::function<void(const std::string& call, const std::string& path)>;
  explicit WatchedStorage(Before before) : before_(std::move(before)) {}

  void make_folder(const std::string& path) override {
    before_("make-folder", path);
    disk().make_folder(path);
  }
  std::unique_ptr<File> create(const std::string& path, std::int64_t bytes) override {
    before_("create", path);
    return std::make_unique<WatchedFile>(before_, path, disk().create(path, bytes));
  }
  void sync_folder(const std::string& path) override {
    before_("sync-folder", path);
    disk().sync_folder(path);
  }
  void rename(const std::string& from, const std::string& to) override {
    before_("rename", from);
    disk().rename(from, to);
  }
  void remove(const std::string& path) override {
    before_("remove", path);
    disk().remove(path);
  }

 private:
  class WatchedFile : public File {
   public:
    WatchedFile(const Before& before, std::string path, std::unique_ptr<File> real)
        : before_(before), path_(std::move(path)), real_(std::move(real)) {}
    void write(std::int64_t offset, std::span<const std::byte> bytes) override {
      before_("write", path_);
      real_->write(offset, bytes);
    }
    void sync() override {
      before_("sync", path_);
      real_->sync();
    }

   private:
    const Before& before_;
    const std::string path_;
    std::unique_ptr<File> real_;
  };

  const Before before_;
};

}  // namespace tessera::test

#include "tessera/core/storage.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>

#include "tessera/core/error.h"

namespace tessera {
namespace {

[[noreturn]] void fail_io(const char* what, const std::string& path, int error) {
  fail(ErrorCode::kIo, "cannot ", what, " '", path, "': ", std::strerror(error));
}

void check(const std::error_code& error, const char* what, const std::string& path) {
  if (error) fail_io(what, path, error.value());
}

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags, const char* what) {
    do {
      descriptor_ = open(path.c_str(), flags | O_CLOEXEC, 0666);
    } while (descriptor_ < 0 && errno == EINTR);
    if (descriptor_ < 0) fail_io(what, path, errno);
  }
  ~Descriptor() { close(descriptor_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

class DiskFile : public Storage::File {
 public:
  DiskFile(const std::string& path, std::int64_t bytes)
      : path_(path), descriptor_(path, O_WRONLY | O_CREAT | O_TRUNC, "create") {
    // A full disk is known before the data are written. Not every file system can tell.
    const int error = bytes > 0 ? posix_fallocate(descriptor_.get(), 0, bytes) : 0;
    if (error != 0 && error != EOPNOTSUPP && error != EINVAL) {
      const int kept = error;
      unlink(path.c_str());
      fail(ErrorCode::kIo, "cannot take ", bytes, " bytes for '", path, "': ", std::strerror(kept));
    }
  }

  void write(std::int64_t offset, std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = pwrite(descriptor_.get(), bytes.data(), bytes.size(), offset);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail_io("write", path_, written < 0 ? errno : ENOSPC);
      offset += written;
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }
  void sync() override {
    while (fsync(descriptor_.get()) != 0) {
      if (errno != EINTR) fail_io("make durable", path_, errno);
    }
  }

 private:
  std::string path_;
  Descriptor descriptor_;
};

class Disk : public Storage {
 public:
  void make_folder(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    check(error, "make the folder", path);
  }
  std::unique_ptr<File> create(const std::string& path, std::int64_t bytes) override {
    return std::make_unique<DiskFile>(path, bytes);
  }
  void sync_folder(const std::string& path) override {
    const Descriptor folder(path, O_RDONLY | O_DIRECTORY, "open the folder");
    while (fsync(folder.get()) != 0) {
      if (errno == EINVAL) return;  // the file system has no such call
      if (errno != EINTR) fail_io("make durable", path, errno);
    }
  }
  void rename(const std::string& from, const std::string& to) override {
    if (std::rename(from.c_str(), to.c_str()) != 0) {
      fail(ErrorCode::kIo, "cannot rename '", from, "' to '", to, "': ", std::strerror(errno));
    }
  }
  void remove(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    check(error, "remove", path);
  }
};

}  // namespace

Storage& disk() {
  static Disk disk;
  return disk;
}

void write_file(Storage& storage, const std::string& path, const std::string& text) {
  const auto file = storage.create(path, static_cast<std::int64_t>(text.size()));
  file->write(0, std::as_bytes(std::span(text)));
  file->sync();
}

void write_files(Storage& storage, const std::string& folder, const std::vector<NamedText>& files) {
  std::set<std::string> within;
  for (const NamedText& file : files) {
    const std::size_t slash = file.name.rfind('/');
    if (slash != std::string::npos) {
      const std::string own = folder + "/" + file.name.substr(0, slash);
      if (within.insert(own).second) storage.make_folder(own);
    }
    write_file(storage, folder + "/" + file.name, file.value);
  }
  for (const std::string& own : within) storage.sync_folder(own);
}

}  // namespace tessera

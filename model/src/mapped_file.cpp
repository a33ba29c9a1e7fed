#include "mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "tessera/core/error.h"

namespace tessera::data {
namespace {

constexpr std::size_t kCopyBytes = 64 * 1024;

[[noreturn]] void fail_with_errno(const char* doing, const std::string& path,
                                  const char* hint = "") {
  const int number = errno;
  const bool missing = number == ENOENT || number == ENOTDIR;
  fail(missing ? ErrorCode::kNotFound : ErrorCode::kIo, "cannot ", doing, " '", path,
       "': ", std::generic_category().message(number), hint);
}

/// Closes a file descriptor at the end of a scope.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }

 private:
  int number_;
};

}  // namespace

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  // Without O_NONBLOCK the opening of a named pipe would wait for a writer.
  const Descriptor file(open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) {
    fail_with_errno("open", path_, errno == EMFILE || errno == ENFILE ? kRaiseOpenFiles : "");
  }
  struct stat status {};
  if (fstat(file.get(), &status) != 0) fail_with_errno("inspect", path_);
  require(S_ISREG(status.st_mode), ErrorCode::kIo, "'", path_,
          "' is not a regular file; copy its content to one");
  device_ = status.st_dev;
  inode_ = status.st_ino;
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size <= kCopyBytes) {
    read_all(file.get(), size);
    return;
  }
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) {
    constexpr const char* kRemedy =
        " (too many files, or too little address space: join them into fewer, larger ones, or "
        "raise the limit of this process, ulimit -v)";
    fail_with_errno("map", path_, errno == ENOMEM ? kRemedy : "");
  }
  bytes_ = {static_cast<const std::byte*>(address), size};
  mapped_ = true;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      bytes_(std::exchange(other.bytes_, {})),
      copy_(std::move(other.copy_)),
      mapped_(std::exchange(other.mapped_, false)),
      device_(other.device_),
      inode_(other.inode_) {}

MappedFile::~MappedFile() {
  if (mapped_) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::read_all(int descriptor, std::size_t size) {
  copy_.resize(size);
  std::size_t done = 0;
  while (done < size) {
    const ssize_t count = read(descriptor, copy_.data() + done, size - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_with_errno("read", path_);
    require(count > 0, ErrorCode::kIo, "'", path_, "' shrank from ", size, " to ", done,
            " bytes while it was read");
    done += static_cast<std::size_t>(count);
  }
  bytes_ = copy_;
}

void MappedFile::advise(Access access) const {
  if (!mapped_) return;
  // Advice only: a failure changes nothing but speed.
  madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(),
          access == Access::kRandom ? MADV_RANDOM : MADV_SEQUENTIAL);
}

void MappedFile::copy(std::size_t begin, std::span<std::byte> out) const {
  const std::byte* source = bytes_.data() + begin;
  if (!mapped_) {
    std::copy_n(source, out.size(), out.begin());
    return;
  }
  // The kernel reports a page that is lost, even if it is lost meanwhile; a load here would raise
  // SIGBUS. Where a sandbox forbids the call, a look beforehand must do.
  const iovec to{out.data(), out.size()};
  const iovec from{const_cast<std::byte*>(source), out.size()};
  const ssize_t count = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
  const bool forbidden = count < 0 && errno != EFAULT;
  check_not_truncated();
  if (forbidden) std::copy_n(source, out.size(), out.begin());
  require(forbidden || count == static_cast<ssize_t>(out.size()), ErrorCode::kIo, "'", path_,
          "' cannot be read any more: it was cut short while it was in use; restore it and run "
          "again");
}

void MappedFile::check_not_truncated() const {
  struct stat status {};
  // A file that was removed or replaced keeps its old content for those who mapped it.
  if (stat(path_.c_str(), &status) != 0) return;
  if (status.st_dev != device_ || status.st_ino != inode_) return;
  require(static_cast<std::size_t>(status.st_size) >= bytes_.size(), ErrorCode::kIo, "'", path_,
          "' shrank from ", bytes_.size(), " to ", status.st_size,
          " bytes while it was in use; restore it and run again");
}

}  // namespace tessera::data

#include "tessera/core/disk_calls.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "disk_queues.h"

namespace tessera {
namespace {

/// Calls again what a signal has interrupted; an errno, negated, for -1.
template <typename Call>
int uninterrupted(const Call& call) {
  while (true) {
    const int result = call();
    if (result >= 0) return result;
    if (errno != EINTR) return -errno;
  }
}

class KernelCalls : public DiskCalls {
 public:
  int space(const std::string& folder, FolderSpace& space) override {
    struct statfs status {};
    const int error = uninterrupted([&] { return statfs(folder.c_str(), &status); });
    if (error < 0) return error;
    const auto unit =
        static_cast<std::int64_t>(status.f_frsize != 0 ? status.f_frsize : status.f_bsize);
    space = {.type = static_cast<std::int64_t>(status.f_type),
             .free_bytes = static_cast<std::int64_t>(status.f_bavail) * unit};
    return 0;
  }

  int open(const std::string& path, int flags) override {
    return uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0600); });
  }
  int unlink(const std::string& path) override {
    return uninterrupted([&] { return ::unlink(path.c_str()); });
  }

  int allocate(int file, std::int64_t bytes) override {
    rlimit limit{};
    // Beyond that limit the kernel does not only refuse: it sends SIGXFSZ, which ends the process.
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        static_cast<std::uint64_t>(bytes) > limit.rlim_cur) {
      return -EFBIG;
    }
    int error = 0;
    do {
      error = posix_fallocate(file, 0, bytes);
    } while (error == EINTR);
    return -error;
  }

  DirectAlignment direct_alignment(int file) override {
    struct statx status {};
    if (statx(file, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) != 0 ||
        (status.stx_mask & STATX_DIOALIGN) == 0) {
      return {};
    }
    return {
        .known = true, .memory = status.stx_dio_mem_align, .offset = status.stx_dio_offset_align};
  }

  int set_direct(int file, bool direct) override {
    const int flags = uninterrupted([&] { return fcntl(file, F_GETFL); });
    if (flags < 0) return flags;
    return uninterrupted(
        [&] { return fcntl(file, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT); });
  }

  std::unique_ptr<DiskQueue> make_queue(DiskBackend backend, int depth) override {
    // One drive is busy with few threads; each has a request of its own in flight.
    constexpr int kMostThreads = 8;
    return backend == DiskBackend::kIoUring ? make_uring_queue(depth)
                                            : make_thread_queue(std::min(depth, kMostThreads));
  }
};

}  // namespace

DiskCalls& disk_calls() {
  static KernelCalls calls;
  return calls;
}

}  // namespace tessera

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace tessera {

/// One read or write of a file at an offset, as a queue takes it. Until its result has come, `data`
/// belongs to the queue.
struct DiskRequest {
  bool write = false;
  int file = -1;  ///< its descriptor
  std::int64_t offset = 0;
  std::byte* data = nullptr;  ///< (bytes); a write only reads it
  std::size_t bytes = 0;
  std::uint64_t tag = 0;  ///< comes back with the result
};

struct DiskResult {
  std::uint64_t tag = 0;
  std::int64_t moved = 0;  ///< bytes, perhaps fewer than asked for; or an errno, negated
};

/// Requests in flight, of which results come in any order. For one thread at a time.
class DiskQueue {
 public:
  virtual ~DiskQueue() = default;  ///< of a queue that is empty
  /// Starts a request; no more than the queue's depth are in flight. 0; or an errno, negated, and
  /// it has not been started.
  virtual int submit(const DiskRequest& request) = 0;
  /// Blocks until a request in flight has ended: as long as the kernel waits for the device, whose
  /// driver gives a request up after a time of its own (EIO).
  virtual DiskResult wait() noexcept = 0;
};

enum class DiskBackend {
  kAuto,     ///< io_uring where the kernel allows it, else threads
  kIoUring,  ///< the kernel's rings
  kThreads,  ///< threads that call pread and pwrite
};

/// Alignment that O_DIRECT asks of requests to a file.
struct DirectAlignment {
  bool known = false;                   ///< the kernel tells (statx, from Linux 6.1)
  std::int64_t memory = 0, offset = 0;  ///< bytes; 0 and known: the file takes no O_DIRECT
};

/// A folder's file system.
struct FolderSpace {
  std::int64_t type = 0;  ///< statfs' f_type
  std::int64_t free_bytes = 0;
};

/// The system calls beneath the disk tier, so that a test can refuse, shorten or spoil any of them.
/// Safe from any thread. A negative int is an errno, negated.
class DiskCalls {
 public:
  virtual ~DiskCalls() = default;
  virtual int space(const std::string& folder, FolderSpace& space) = 0;  ///< statfs
  virtual int open(const std::string& path, int flags) = 0;  ///< a descriptor, mode 0600
  virtual int unlink(const std::string& path) = 0;
  virtual int allocate(int file, std::int64_t bytes) = 0;  ///< posix_fallocate of [0, bytes)
  virtual DirectAlignment direct_alignment(int file) = 0;
  virtual int set_direct(int file, bool direct) = 0;  ///< O_DIRECT, by fcntl
  /// Throws Error{kUnavailable} with the reason where the kernel forbids or lacks it. kAuto is not
  /// a queue's.
  virtual std::unique_ptr<DiskQueue> make_queue(DiskBackend backend, int depth) = 0;
};

/// The kernel's.
DiskCalls& disk_calls();

}  // namespace tessera

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/core/disk_calls.h"

namespace tessera {

/// A part of the file that is written and read by itself: a tensor of a unit, "h.3.first_moment".
/// Errors name it. It may be empty.
struct DiskExtent {
  std::string name;
  std::int64_t bytes = 0;
};

struct DiskStoreOptions {
  std::string folder{};  ///< it is there: a folder made by mistake might be on another disk
  int rank = 0;          ///< for the file's header, and errors
  std::int64_t block_bytes = std::int64_t{1} << 20;  ///< of a request; a multiple of kDiskAlignment
  int queue_depth = 8;                               ///< requests of a call in flight
  int callers = 2;  ///< calls that run at once, each with buffers of its own; more wait
  DiskBackend backend = DiskBackend::kAuto;
  bool direct = true;          ///< O_DIRECT where the file system takes it
  DiskCalls* calls = nullptr;  ///< a test's, which outlives the store; null: disk_calls()
};

/// Extents begin at multiples of this many bytes, and take whole ones.
inline constexpr std::int64_t kDiskAlignment = 4096;

/// Bytes of the file of these extents, header and padding included. A plan checks it with
/// check_offload_path().
std::int64_t disk_store_bytes(const std::vector<DiskExtent>& extents);
/// Bytes of host memory that a store takes at most for buffers: callers x depth x block.
std::int64_t disk_buffer_bytes(const DiskStoreOptions& options);

/// A rank's training state on disk: one file, whose room is taken when it is made and which no
/// folder lists, so that nothing is left however the process ends. Nothing outlives the process;
/// checkpoints are for that, so no call waits for the data to be durable.
///
/// A call blocks until it is done, and keeps `queue_depth` requests of a block each in flight.
/// Results are checked, short ones continued. An XXH3 hash of each block as it was last written is
/// kept in memory, and whatever is read must match it: stale, torn or changed bytes are an error
/// and never numbers.
///
/// Calls may run at once on several threads, unless they touch the same block of an extent and one
/// of them writes: the caller orders those. Memory is any; with O_DIRECT it is copied through a
/// buffer unless it is aligned as the device asks (often 4 or 512 bytes).
///
/// Where the disk fails, a call throws Error{kIo} that names file, extent, reason and remedy.
class DiskStore {
 public:
  /// Throws what check_offload_path() throws, Error{kIo} if the file cannot be made, and
  /// Error{kUnavailable} if `backend` is kIoUring and the kernel forbids it.
  DiskStore(DiskStoreOptions options, std::vector<DiskExtent> extents);
  ~DiskStore();
  DiskStore(const DiskStore&) = delete;
  DiskStore& operator=(const DiskStore&) = delete;

  /// Writes `bytes` into an extent (its index), from byte `offset` of it on. Where that begins or
  /// ends within a block, the block is read, checked and written again whole, so it must have been
  /// written before (Error{kInvalidArgument}). After an error the blocks that it touched cannot be
  /// read until they have been written whole.
  void write(std::size_t extent, std::span<const std::byte> bytes, std::int64_t offset = 0);
  /// Reads into `out`, (bytes), from byte `offset` of an extent on. Throws Error{kInvalidArgument}
  /// for bytes that were never written. After an error `out` holds anything.
  void read(std::size_t extent, std::span<std::byte> out, std::int64_t offset = 0);

  /// Says in the file's header that the contents are those after `step` steps, with a hash over
  /// the hashes of all blocks. For whoever finds the file: a copy of it, from /proc/PID/fd, is of
  /// one step if its blocks give that hash. No other call may run.
  void mark(std::int64_t step);

  const std::vector<DiskExtent>& extents() const;
  std::int64_t file_bytes() const;     ///< as disk_store_bytes() of the extents
  std::int64_t bytes_read() const;     ///< by callers, without padding
  std::int64_t bytes_written() const;  ///< as well
  DiskBackend backend() const;         ///< kIoUring or kThreads
  bool direct() const;                 ///< whether O_DIRECT is in use
  /// For people: "io_uring, O_DIRECT", or "threads (io_uring: Operation not permitted), buffered".
  const std::string& description() const;

 private:
  class File;
  std::unique_ptr<File> file_;
};

}  // namespace tessera

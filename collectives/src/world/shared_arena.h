#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace tessera {

/// What stands at the beginning of every arena. Zero at first, as fresh memory is.
struct ArenaHeader {
  static constexpr std::size_t kReasonBytes = 2048;
  std::atomic<std::uint32_t> left;         ///< 1: the process has finished well
  std::atomic<std::uint32_t> abort_state;  ///< 0: none, 1: being written, 2: `reason` may be read
  char reason[kReasonBytes];               ///< ends with 0
};

/// A file in memory that a process maps as a whole: its own to allocate from, or a peer's to read.
/// An address is the same offset in every process, so a buffer in it needs no copy to be seen.
/// It reserves addresses only; pages are taken when they are first written.
///
/// [Note: why not MPI's windows] A shared window of MPI has one size, given before there is a
/// tensor; Open MPI's is a file in /dev/shm, which is half of a machine's memory, and 64 MiB in a
/// container: "not enough space" is the answer to more. And processes that torchrun, srun or
/// `tessera launch` started would need MPI to share memory. The reads and sums are the same loads
/// from the same pages.
class SharedMapping {
 public:
  /// A new one.
  explicit SharedMapping(std::size_t reserve);
  /// Another process's. Throws Error{kUnavailable} if this process may not.
  SharedMapping(pid_t process, int file, std::size_t bytes);
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;
  ~SharedMapping();

  int file() const { return file_; }
  std::size_t bytes() const { return bytes_; }
  std::byte* base() const { return base_; }
  ArenaHeader& header() const { return *reinterpret_cast<ArenaHeader*>(base_); }

 private:
  void map();

  int file_ = -1;
  std::size_t bytes_ = 0;
  std::byte* base_ = nullptr;
};

/// Hands out parts of this process's own mapping. Thread-safe. What is freed may be handed out
/// again and stays mapped, so a peer that still reads it reads nonsense but never faults.
class SharedArena {
 public:
  SharedArena();

  const SharedMapping& mapping() const { return mapping_; }
  /// At least `bytes`, aligned to 64, or to a huge page if it is a large one. Throws
  /// Error{kOutOfMemory}.
  void* allocate(std::size_t bytes);
  void deallocate(void* address, std::size_t bytes) noexcept;
  /// Zeroed, and never freed: for what peers may look at as long as they like.
  void* allocate_for_good(std::size_t bytes);

  /// True if all of [address, address + bytes) is in here.
  bool contains(const void* address, std::size_t bytes) const;
  std::size_t offset_of(const void* address) const;

 private:
  std::byte* take_fresh(std::size_t bytes, std::size_t alignment);

  SharedMapping mapping_;
  std::mutex mutex_;
  std::size_t used_;                             // end of what was ever handed out
  std::multimap<std::size_t, std::byte*> free_;  // by size; a size is reused as it is
};

/// How many bytes an arena makes of a request: requests that give the same share freed blocks.
std::size_t arena_bytes(std::size_t bytes);

}  // namespace tessera

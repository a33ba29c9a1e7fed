#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "tessera/core/free_lists.h"
#include "world/socket.h"

namespace tessera {

/// The beginning of every arena. Zero at first, as fresh memory is.
struct ArenaHeader {
  static constexpr std::size_t kReasonBytes = 2048;
  std::atomic<std::uint32_t> left;         ///< 1: the process has finished well
  std::atomic<std::uint32_t> abort_state;  ///< 0: none, 1: being written, 2: `reason` may be read
  char reason[kReasonBytes];               ///< ends with 0
  std::atomic<std::int64_t> moved;         ///< steady clock: an operation of some rank has ended
};

/// A file in memory that a process maps as a whole: its own to allocate from, or a peer's to read.
/// An address is the same offset in every process, so a buffer in it needs no copy to be seen.
/// It reserves addresses only; pages are taken when they are first written.
class SharedMapping {
 public:
  /// A new one.
  explicit SharedMapping(std::size_t reserve);
  /// Another process's, from a descriptor of it, which is closed with this. Throws
  /// Error{kUnavailable} if it does not have that size for good: what is read must be there.
  SharedMapping(Socket file, std::size_t bytes);
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;
  ~SharedMapping();

  int file() const { return file_.fd(); }
  std::size_t bytes() const { return bytes_; }
  std::byte* base() const { return base_; }
  ArenaHeader& header() const { return *reinterpret_cast<ArenaHeader*>(base_); }

 private:
  void map();

  Socket file_;
  std::size_t bytes_ = 0;
  std::byte* base_ = nullptr;
};

/// Hands out parts of the memory that this process shares with its machine's others. Thread-safe.
/// Freed memory may be handed out again and stays mapped, so a peer that still reads it reads
/// nonsense but never faults.
///
/// [Note: files and windows] A file in memory is always there, and as large as the machine. A
/// window is what MPI shares between the processes that it started: it has one size, given before
/// there is a tensor, and lies in /dev/shm, which is half of a machine's memory, and 64 MiB in a
/// container. Buffers come from the window while it lasts, and from the file after that; where
/// torchrun, srun or `tessera launch` started the processes there is no window. A read is the same
/// load in both.
class SharedArena {
 public:
  SharedArena();

  /// The file.
  const SharedMapping& mapping() const { return mapping_; }
  /// Buffers come from [base, base + bytes) from now on, which peers can read, too. Once.
  void add_window(std::byte* base, std::size_t bytes);

  /// At least `bytes`, aligned to 64, or to a huge page if it is a large one. Throws
  /// Error{kOutOfMemory}.
  void* allocate(std::size_t bytes);
  void deallocate(void* address, std::size_t bytes) noexcept;
  /// Zeroed, and never freed: for what peers may look at as long as they like.
  void* allocate_for_good(std::size_t bytes);

  /// True if all of [address, address + bytes) is in here.
  bool contains(const void* address, std::size_t bytes) const;
  /// The offset of an address in here. The window's first offset is mapping().bytes().
  std::size_t offset_of(const void* address) const;

 private:
  /// Memory that is handed out from its beginning to its end.
  struct Region {
    std::byte* base = nullptr;
    std::size_t bytes = 0;
    std::size_t used = 0;

    /// Null if there is no room.
    std::byte* take(std::size_t size, std::size_t alignment);
    bool contains(const std::byte* address, std::size_t size) const;
  };

  std::byte* take_from_window(std::size_t bytes, std::size_t alignment);
  std::byte* take_from_file(std::size_t bytes, std::size_t alignment);

  SharedMapping mapping_;
  std::mutex mutex_;
  Region file_;
  Region window_{};
  FreeLists free_;
};

/// How many bytes an arena makes of a request: requests that give the same share freed blocks.
std::size_t arena_bytes(std::size_t bytes);

}  // namespace tessera

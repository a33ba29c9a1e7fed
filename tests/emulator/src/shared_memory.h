#pragma once

#include <array>
#include <cstddef>

namespace tessera::emulator {

/// The shared memory of one block. Every object starts as 0xff bytes (NaN in floating point) and
/// has red zones around it, which AddressSanitizer knows and the end of the block checks.
class SharedMemory {
 public:
  SharedMemory();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// For a new block; `limit` is how many bytes all its objects may have together.
  void clear(std::size_t limit);
  /// The object of `key`, made at the first call. Null if it does not fit.
  void* object(const void* key, std::size_t bytes, std::size_t alignment);
  /// Whether these bytes lie in one object.
  bool contains(const void* address, std::size_t bytes) const;
  /// Bytes of an object that was written outside of its bounds, or -1. Ends the use of the memory.
  long find_damage();

 private:
  struct Object {
    const void* key;
    unsigned char* begin;
    std::size_t bytes;
  };

  unsigned char* arena_;
  std::size_t used_ = 0;  ///< of the arena, red zones included
  std::size_t limit_ = 0, allocated_ = 0;
  std::array<Object, 64> objects_;
  std::size_t count_ = 0;
};

}  // namespace tessera::emulator

#include "shared_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "filled_pages.h"
#include "sanitizers.h"

namespace tessera::emulator {
namespace {

constexpr std::size_t kArenaBytes = 512 << 10;
constexpr std::size_t kRedZone = 64;
constexpr std::size_t kMinAlignment = 16;
/// Behind what a block used, this much more is filled anew: writes out of bounds may have gone
/// there.
constexpr std::size_t kFillMargin = 4096;

/// Not memset under ThreadSanitizer, which would see it: it would take the filling, which nothing
/// orders before blocks of the other set (grid.cpp), for an access of the kernel.
void fill(unsigned char* memory, std::size_t bytes) {
  if constexpr (kThreadSanitizer) {
    volatile unsigned char* byte = memory;
    for (std::size_t i = 0; i < bytes; ++i) byte[i] = kFill;
  } else {
    std::memset(memory, kFill, bytes);
  }
}

}  // namespace

SharedMemory::SharedMemory() {
  void* memory =
      mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  arena_ = static_cast<unsigned char*>(memory);
  fill(arena_, kArenaBytes);
}

SharedMemory::~SharedMemory() {
  unpoison(arena_, kArenaBytes);
  munmap(arena_, kArenaBytes);
}

void SharedMemory::clear(std::size_t limit) {
  unpoison(arena_, kArenaBytes);
  fill(arena_, std::min(kArenaBytes, used_ + kFillMargin));
  poison(arena_, kArenaBytes);
  used_ = kRedZone;
  limit_ = limit;
  allocated_ = 0;
  count_ = 0;
}

void* SharedMemory::object(const void* key, std::size_t bytes, std::size_t alignment) {
  for (std::size_t i = 0; i < count_; ++i) {
    if (objects_[i].key == key) return objects_[i].begin;
  }
  alignment = std::max(alignment, kMinAlignment);
  const std::size_t begin = (used_ + alignment - 1) / alignment * alignment;
  if (count_ == objects_.size() || bytes > limit_ - allocated_ ||
      begin + bytes + kRedZone > kArenaBytes) {
    return nullptr;
  }
  unpoison(arena_ + begin, bytes);
  objects_[count_++] = {.key = key, .begin = arena_ + begin, .bytes = bytes};
  used_ = begin + bytes + kRedZone;
  allocated_ += bytes;
  return arena_ + begin;
}

bool SharedMemory::contains(const void* address, std::size_t bytes) const {
  const auto* first = static_cast<const unsigned char*>(address);
  for (std::size_t i = 0; i < count_; ++i) {
    const Object& object = objects_[i];
    if (first >= object.begin && first + bytes <= object.begin + object.bytes) return true;
  }
  return false;
}

long SharedMemory::find_damage() {
  unpoison(arena_, kArenaBytes);
  const auto damaged = [](unsigned char byte) { return byte != kFill; };
  for (std::size_t i = 0; i < count_; ++i) {
    const Object& object = objects_[i];
    const unsigned char* end = object.begin + object.bytes;
    if (std::any_of(object.begin - kRedZone, object.begin, damaged) ||
        std::any_of(end, end + kRedZone, damaged)) {
      return static_cast<long>(object.bytes);
    }
  }
  return -1;
}

}  // namespace tessera::emulator

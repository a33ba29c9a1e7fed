#include "filled_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace tessera::emulator {
namespace {

constexpr std::size_t kFileBytes = std::size_t{8} << 20;

/// Of kFileBytes, all of them kFill. -1 if there is none.
int filled_file() {
  static const int file = [] {
    const int made = memfd_create("tessera_filled_pages", MFD_CLOEXEC);
    const std::vector<unsigned char> filling(kFileBytes, kFill);
    for (std::size_t done = 0; made >= 0 && done < kFileBytes;) {
      const ssize_t written = write(made, filling.data() + done, kFileBytes - done);
      if (written <= 0) return -1;
      done += static_cast<std::size_t>(written);
    }
    return made;
  }();
  return file;
}

bool map_file(char* to, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kFileBytes) {
    if (mmap(to + at, std::min(kFileBytes, bytes - at), PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_FIXED, filled_file(), 0) == MAP_FAILED) {
      return false;
    }
  }
  return true;
}

struct Idle {
  std::mutex mutex;
  std::multimap<std::size_t, void*> pages;  // by size
};

Idle& idle() {
  static Idle& idle = *new Idle;  // threads may outlive what is destroyed at the program's end
  return idle;
}

}  // namespace

void* take_filled_pages(std::size_t bytes, std::size_t alignment) {
  {
    const std::lock_guard lock(idle().mutex);
    const auto [first, last] = idle().pages.equal_range(bytes);
    for (auto at = first; at != last; ++at) {
      if (reinterpret_cast<std::uintptr_t>(at->second) % alignment != 0) continue;
      void* const pages = at->second;
      idle().pages.erase(at);
      return pages;
    }
  }
  if (filled_file() < 0) return nullptr;
  void* const room = mmap(nullptr, bytes + alignment, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  const std::size_t beyond = reinterpret_cast<std::uintptr_t>(room) % alignment;
  char* const pages = static_cast<char*>(room) + (beyond == 0 ? 0 : alignment - beyond);
  if (map_file(pages, bytes)) return pages;
  munmap(room, bytes + alignment);
  return nullptr;
}

void give_filled_pages_back(void* address, std::size_t bytes) {
  if (!map_file(static_cast<char*>(address), bytes)) {
    munmap(address, bytes);
    return;
  }
  const std::lock_guard lock(idle().mutex);
  idle().pages.emplace(bytes, address);
}

}  // namespace tessera::emulator

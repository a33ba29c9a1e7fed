#include "world/shared_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>

#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = 2U << 20U;
static_assert(sizeof(ArenaHeader) <= kPage);

std::size_t round_up(std::size_t bytes, std::size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

/// Twice the machine's memory: what is freed in one size and asked for in another needs addresses,
/// and addresses cost nothing.
std::size_t addresses_to_reserve() {
  const auto pages = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES));
  return round_up(2 * pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), kHugePage);
}

}  // namespace

SharedMapping::SharedMapping(std::size_t reserve) : bytes_(reserve) {
  file_ = memfd_create("tessera", MFD_CLOEXEC);
  require(file_ >= 0, ErrorCode::kUnavailable,
          "cannot create memory to share between processes: ", std::strerror(errno));
  const int failed = ftruncate(file_, static_cast<off_t>(bytes_));
  require(failed == 0, ErrorCode::kUnavailable,
          "cannot reserve memory to share between processes: ", std::strerror(errno));
  map();
}

SharedMapping::SharedMapping(pid_t process, int file, std::size_t bytes) : bytes_(bytes) {
  const std::string path = concat("/proc/", process, "/fd/", file);
  file_ = open(path.c_str(), O_RDWR | O_CLOEXEC);
  require(file_ >= 0, ErrorCode::kUnavailable, "cannot map the memory of process ", process, " (",
          path, ": ", std::strerror(errno),
          "); processes on one machine must run as one user, with /proc mounted");
  map();
}

void SharedMapping::map() {
  void* const base =
      mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0);
  if (base == MAP_FAILED) {
    const int error = errno;
    close(file_);
    fail(ErrorCode::kUnavailable, "cannot map ", bytes_, " bytes of shared memory (",
         std::strerror(error), "); 'ulimit -v' must be unlimited");
  }
  madvise(base, bytes_, MADV_HUGEPAGE);  // a hint
  base_ = static_cast<std::byte*>(base);
}

SharedMapping::~SharedMapping() {
  munmap(base_, bytes_);
  close(file_);
}

std::size_t arena_bytes(std::size_t bytes) {
  bytes = std::max<std::size_t>(bytes, 1);
  return bytes < kHugePage ? round_up(bytes, kLine) : round_up(bytes, kPage);
}

SharedArena::SharedArena() : mapping_(addresses_to_reserve()), used_(kPage) {}

std::byte* SharedArena::take_fresh(std::size_t bytes, std::size_t alignment) {
  const std::size_t begin = round_up(used_, alignment);
  require(bytes <= mapping_.bytes() && begin <= mapping_.bytes() - bytes, ErrorCode::kOutOfMemory,
          "no room for ", bytes, " bytes in shared memory: ", used_, " of ", mapping_.bytes(),
          " are in use");
  used_ = begin + bytes;
  return mapping_.base() + begin;
}

void* SharedArena::allocate(std::size_t bytes) {
  require(bytes <= mapping_.bytes(), ErrorCode::kOutOfMemory, "cannot allocate ", bytes,
          " bytes of shared memory");
  bytes = arena_bytes(bytes);
  const std::lock_guard lock(mutex_);
  const auto fit = free_.lower_bound(bytes);
  if (fit == free_.end() || fit->first != bytes) {
    return take_fresh(bytes, bytes < kHugePage ? kLine : kHugePage);
  }
  std::byte* const block = fit->second;
  free_.erase(fit);
  return block;
}

void SharedArena::deallocate(void* address, std::size_t bytes) noexcept {
  if (address == nullptr) return;
  const std::lock_guard lock(mutex_);
  free_.emplace(arena_bytes(bytes), static_cast<std::byte*>(address));
}

void* SharedArena::allocate_for_good(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  return take_fresh(bytes, kPage);
}

bool SharedArena::contains(const void* address, std::size_t bytes) const {
  const std::less_equal<const std::byte*> not_after;
  const auto* const begin = static_cast<const std::byte*>(address);
  return not_after(mapping_.base(), begin) &&
         not_after(begin + bytes, mapping_.base() + mapping_.bytes());
}

std::size_t SharedArena::offset_of(const void* address) const {
  return static_cast<std::size_t>(static_cast<const std::byte*>(address) - mapping_.base());
}

}  // namespace tessera

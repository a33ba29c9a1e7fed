#include "world/shared_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/core/round_up.h"
#include "tessera/core/touch_pages.h"

namespace tessera {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = 2U << 20U;
constexpr const char* kRaiseFiles = "; raise 'ulimit -n', or start fewer processes";
static_assert(sizeof(ArenaHeader) <= kPage);

/// Twice the machine's memory: what is freed in one size and asked for in another needs addresses,
/// and addresses cost nothing.
std::size_t addresses_to_reserve() {
  const auto pages = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES));
  return round_up(2 * pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), kHugePage);
}

/// Takes the pages of a block now, and says whether there were enough: a write to one that a full
/// file system cannot give ends the process. If not, gives back those that only this block has.
bool get_pages(std::byte* block, std::size_t bytes) {
  if (touch_pages(block, bytes)) return true;
  const std::size_t into_page = reinterpret_cast<std::uintptr_t>(block) % kPage;
  const std::size_t skipped = into_page == 0 ? 0 : kPage - into_page;
  if (skipped < bytes) madvise(block + skipped, bytes - skipped, MADV_REMOVE);
  return false;
}

}  // namespace

SharedMapping::SharedMapping(std::size_t reserve)
    : file_(memfd_create("tessera", MFD_CLOEXEC | MFD_ALLOW_SEALING)), bytes_(reserve) {
  require(static_cast<bool>(file_), ErrorCode::kUnavailable,
          "cannot create memory to share between processes: ", std::strerror(errno),
          errno == EMFILE || errno == ENFILE ? kRaiseFiles : "");
  const int failed = ftruncate(file(), static_cast<off_t>(bytes_));
  require(failed == 0, ErrorCode::kUnavailable,
          "cannot reserve memory to share between processes: ", std::strerror(errno));
  fcntl(file(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  map();
}

SharedMapping::SharedMapping(Socket file, std::size_t bytes)
    : file_(std::move(file)), bytes_(bytes) {
  struct stat status {};
  const int seals = fcntl(this->file(), F_GET_SEALS);
  const bool same = fstat(this->file(), &status) == 0 && S_ISREG(status.st_mode) &&
                    status.st_size > static_cast<off_t>(sizeof(ArenaHeader)) &&
                    static_cast<std::size_t>(status.st_size) == bytes_;
  require(same && seals >= 0 && (seals & F_SEAL_SHRINK) != 0, ErrorCode::kUnavailable,
          "another process announced ", bytes_, " bytes of shared memory but offers a file of ",
          status.st_size, " bytes", same ? " that may shrink" : "",
          "; all must run the same version of tessera");
  map();
}

void SharedMapping::map() {
  void* const base =
      mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file(), 0);
  require(base != MAP_FAILED, ErrorCode::kUnavailable, "cannot map ", bytes_,
          " bytes of shared memory (", std::strerror(errno), "); 'ulimit -v' must be unlimited");
  madvise(base, bytes_, MADV_HUGEPAGE);  // a hint
  base_ = static_cast<std::byte*>(base);
}

SharedMapping::~SharedMapping() { munmap(base_, bytes_); }

std::size_t arena_bytes(std::size_t bytes) {
  bytes = std::max<std::size_t>(bytes, 1);
  return bytes < kHugePage ? round_up(bytes, kLine) : round_up(bytes, kPage);
}

SharedArena::SharedArena()
    : mapping_(addresses_to_reserve()),
      file_{.base = mapping_.base(), .bytes = mapping_.bytes(), .used = kPage} {}

void SharedArena::add_window(std::byte* base, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  window_ = {.base = base, .bytes = bytes};
}

std::byte* SharedArena::Region::take(std::size_t size, std::size_t alignment) {
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  const std::size_t begin = round_up(address + used, alignment) - address;
  if (size > bytes || begin > bytes - size) return nullptr;
  used = begin + size;
  return base + begin;
}

bool SharedArena::Region::contains(const std::byte* address, std::size_t size) const {
  const std::less_equal<const std::byte*> not_after;
  return not_after(base, address) && not_after(address + size, base + bytes);
}

/// Null if the window has no room, or its file system no pages: then it is not asked again.
std::byte* SharedArena::take_from_window(std::size_t bytes, std::size_t alignment) {
  std::byte* const block = window_.take(bytes, alignment);
  if (block == nullptr || get_pages(block, bytes)) return block;
  window_.used = window_.bytes;
  return nullptr;
}

std::byte* SharedArena::take_from_file(std::size_t bytes, std::size_t alignment) {
  std::byte* const block = file_.take(bytes, alignment);
  require(block != nullptr, ErrorCode::kOutOfMemory, "no room for ", bytes,
          " bytes in shared memory: ", file_.used, " of ", file_.bytes, " are in use");
  return block;
}

void* SharedArena::allocate(std::size_t bytes) {
  require(bytes <= mapping_.bytes(), ErrorCode::kOutOfMemory, "cannot allocate ", bytes,
          " bytes of shared memory");
  bytes = arena_bytes(bytes);
  const std::lock_guard lock(mutex_);
  if (void* const block = free_.take(bytes); block != nullptr) return block;
  const std::size_t alignment = bytes < kHugePage ? kLine : kHugePage;
  std::byte* const block = take_from_window(bytes, alignment);
  return block != nullptr ? block : take_from_file(bytes, alignment);
}

void SharedArena::deallocate(void* address, std::size_t bytes) noexcept {
  if (address == nullptr) return;
  const std::lock_guard lock(mutex_);
  free_.give_back(address, arena_bytes(bytes));
}

void* SharedArena::allocate_for_good(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  return take_from_file(bytes, kPage);  // a window need not be zero at first
}

bool SharedArena::contains(const void* address, std::size_t bytes) const {
  const auto* const begin = static_cast<const std::byte*>(address);
  return file_.contains(begin, bytes) || window_.contains(begin, bytes);
}

std::size_t SharedArena::offset_of(const void* address) const {
  const auto* const begin = static_cast<const std::byte*>(address);
  return window_.contains(begin, 0) ? file_.bytes + static_cast<std::size_t>(begin - window_.base)
                                    : static_cast<std::size_t>(begin - file_.base);
}

}  // namespace tessera

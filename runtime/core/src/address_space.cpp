#include "tessera/core/address_space.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

namespace tessera {
namespace {

/// Kept for small allocations, of which texts of errors are the last.
constexpr std::size_t kMargin = std::size_t{16} << 20U;

/// What the C library gives a thread.
std::size_t stack_bytes() noexcept {
  constexpr std::size_t kUsual = std::size_t{8} << 20U;
  pthread_attr_t attributes;
  std::size_t bytes = kUsual;
  if (pthread_getattr_default_np(&attributes) != 0) return bytes;
  pthread_attr_getstacksize(&attributes, &bytes);
  pthread_attr_destroy(&attributes);
  return bytes;
}

}  // namespace

bool is_address_space_limited() noexcept {
  rlimit space{};
  return getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY;
}

bool has_address_space(std::size_t bytes) noexcept {
  // Without access, so that only addresses count: no memory is promised to it.
  const std::size_t all = bytes + kMargin;
  void* const mapped = mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return false;
  munmap(mapped, all);
  return true;
}

bool has_address_space_for_threads(int count) noexcept {
  return has_address_space(static_cast<std::size_t>(count) * stack_bytes());
}

}  // namespace tessera

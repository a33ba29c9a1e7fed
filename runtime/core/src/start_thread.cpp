#include "tessera/core/start_thread.h"

#include <pthread.h>
#include <sys/mman.h>

#include <system_error>
#include <utility>

#include "tessera/core/error.h"

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

bool has_addresses(std::size_t bytes) noexcept {
  // Without access, so that only addresses count: no memory is promised to it.
  const std::size_t all = bytes + kMargin;
  void* const mapped = mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return false;
  munmap(mapped, all);
  return true;
}

bool has_addresses_for_threads(int count) noexcept {
  return has_addresses(static_cast<std::size_t>(count) * stack_bytes());
}

void fail_to_start_thread(std::string_view what, std::string_view why) {
  fail(ErrorCode::kUnavailable, "cannot start a thread for ", what, " (", why,
       "); use fewer ranks, or raise the limits of this process (ulimit -u, -v)");
}

template <typename Thread>
Thread start_thread(std::string_view what, std::function<void()> body) {
  if (!has_addresses_for_threads(1)) fail_to_start_thread(what, "no addresses are left");
  try {
    return Thread(std::move(body));
  } catch (const std::system_error& error) {
    fail_to_start_thread(what, error.what());
  }
}

template std::thread start_thread(std::string_view, std::function<void()>);
template std::jthread start_thread(std::string_view, std::function<void()>);

}  // namespace tessera

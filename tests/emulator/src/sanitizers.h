#pragma once

#include <cstddef>

// What the engine tells the sanitizers, and nothing in builds without them. The engine itself is
// compiled without -fsanitize=thread, so that build is announced by TESSERA_EMULATOR_TSAN.

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(TESSERA_EMULATOR_TSAN)
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void __tsan_read_range(void* address, unsigned long bytes);
void __tsan_write_range(void* address, unsigned long bytes);
}
#endif

namespace tessera::emulator {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;
inline void poison(void* address, std::size_t bytes) {
  __asan_poison_memory_region(address, bytes);
}
inline void unpoison(void* address, std::size_t bytes) {
  __asan_unpoison_memory_region(address, bytes);
}
inline bool poisoned(const void* address, std::size_t bytes) {
  return __asan_region_is_poisoned(const_cast<void*>(address), bytes) != nullptr;
}
#else
inline constexpr bool kAddressSanitizer = false;
inline void poison(void*, std::size_t) {}
inline void unpoison(void*, std::size_t) {}
inline bool poisoned(const void*, std::size_t) { return false; }
#endif

/// A point that memory accesses are ordered around: those before signal() by one thread are before
/// those after await() by another.
struct SyncPoint {
#if defined(TESSERA_EMULATOR_TSAN)
  void signal() { __tsan_release(&place); }
  void await() { __tsan_acquire(&place); }
  alignas(64) char place[64];
#else
  void signal() {}
  void await() {}
#endif
};

#if defined(TESSERA_EMULATOR_TSAN)
inline constexpr bool kThreadSanitizer = true;
inline void announce_read(const void* address, std::size_t bytes) {
  __tsan_read_range(const_cast<void*>(address), bytes);
}
inline void announce_write(void* address, std::size_t bytes) { __tsan_write_range(address, bytes); }
#else
inline constexpr bool kThreadSanitizer = false;
inline void announce_read(const void*, std::size_t) {}
inline void announce_write(void*, std::size_t) {}
#endif

}  // namespace tessera::emulator

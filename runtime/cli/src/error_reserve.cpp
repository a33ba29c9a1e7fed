#include "error_reserve.h"

#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "tessera/core/address_space.h"

namespace tessera::cli {
namespace {

std::atomic<void*> reserve{nullptr};

void give_up_reserve() {
  std::free(reserve.exchange(nullptr));
  throw std::bad_alloc();
}

}  // namespace

void keep_memory_for_errors() {
  if (is_address_space_limited()) {
    // Of each thread's own heap the C library takes 64 MiB of addresses, most for nothing; and what
    // one thread frees, another could not use.
    mallopt(M_ARENA_MAX, 1);
  }
  constexpr std::size_t kBytes = std::size_t{64} << 10U;  // too few to be mapped by themselves
  reserve = std::malloc(kBytes);
  std::set_new_handler(give_up_reserve);
}

}  // namespace tessera::cli

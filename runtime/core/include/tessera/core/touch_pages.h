#pragma once

#include <cstddef>

#include "tessera/core/host_work.h"

namespace tessera {

struct TouchOptions {
  /// Threads, this one among them, on the CPUs that this one may use; 0: usable_cores().
  int threads = 0;
  /// Where the kernel is older than 5.14, and cannot say that pages are missing, write to each: the
  /// process ends if one is.
  bool may_write = false;
  HostWork* work = nullptr;  ///< counts HostTask::kTouchPages, and may end it
};

/// Takes the pages of a mapping now, from the kernel, which zeroes them: on several threads, since
/// that is what takes the time. Each page lies on the NUMA node of the thread that took it, and the
/// threads have this one's CPUs: where that is bound to a node, all pages lie there. Contents stay.
///
/// False if there are not enough pages, or none can be asked for; then some may be taken. Throws
/// what HostWork::advance does.
bool touch_pages(void* begin, std::size_t bytes, const TouchOptions& options = {});

}  // namespace tessera

#pragma once

#include <memory>

#include "tessera/core/disk_calls.h"

namespace tessera {

/// A ring of the kernel's for `depth` requests. Throws Error{kUnavailable} with the kernel's reason
/// where there is none: forbidden (EPERM), absent (ENOSYS), no memory that may be locked (ENOMEM).
std::unique_ptr<DiskQueue> make_uring_queue(int depth);

/// `threads` threads that take requests in turn. Throws Error{kUnavailable} if they cannot start.
std::unique_ptr<DiskQueue> make_thread_queue(int threads);

}  // namespace tessera

#pragma once

#include <functional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "tessera/core/error.h"

namespace tessera {

/// A thread that runs `body`; it is `what`, as in "the stream 'compute0'". Throws
/// Error{kUnavailable} that names it if there can be no more threads.
template <typename Thread = std::thread>
Thread start_thread(std::string_view what, std::function<void()> body) {
  try {
    return Thread(std::move(body));
  } catch (const std::system_error& error) {
    fail(ErrorCode::kUnavailable, "cannot start a thread for ", what, " (", error.what(),
         "); use fewer ranks, or raise the limits of this process (ulimit -u, -v)");
  }
}

}  // namespace tessera

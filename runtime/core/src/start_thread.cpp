#include "tessera/core/start_thread.h"

#include <system_error>
#include <utility>

#include "tessera/core/address_space.h"
#include "tessera/core/error.h"

namespace tessera {

void fail_to_start_thread(std::string_view what, std::string_view why) {
  fail(ErrorCode::kUnavailable, "cannot start a thread for ", what, " (", why,
       "); use fewer ranks, or raise the limits of this process (ulimit -u, -v)");
}

template <typename Thread>
Thread start_thread(std::string_view what, std::function<void()> body) {
  if (!has_address_space_for_threads(1)) fail_to_start_thread(what, "no address space is left");
  try {
    return Thread(std::move(body));
  } catch (const std::system_error& error) {
    fail_to_start_thread(what, error.what());
  }
}

template std::thread start_thread(std::string_view, std::function<void()>);
template std::jthread start_thread(std::string_view, std::function<void()>);

}  // namespace tessera

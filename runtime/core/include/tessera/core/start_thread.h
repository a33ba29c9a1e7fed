#pragma once

#include <functional>
#include <string_view>
#include <thread>

namespace tessera {

/// Throws Error{kUnavailable} with `why` and what helps.
[[noreturn]] void fail_to_start_thread(std::string_view what, std::string_view why);

/// A thread that runs `body`; it is `what`, as in "the stream 'compute0'". Throws
/// Error{kUnavailable} that names it if there can be no more threads.
template <typename Thread = std::thread>
Thread start_thread(std::string_view what, std::function<void()> body);

extern template std::thread start_thread(std::string_view, std::function<void()>);
extern template std::jthread start_thread(std::string_view, std::function<void()>);

}  // namespace tessera

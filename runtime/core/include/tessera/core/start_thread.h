#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <thread>

namespace tessera {

/// Whether this process may map `bytes` more, and some mebibytes for small allocations besides.
/// Where addresses are limited (ulimit -v), whoever wants many asks first: then it is these that
/// are refused, while there is memory to say so, and not a few bytes somewhere in a library.
bool has_addresses(std::size_t bytes) noexcept;

/// The same for the stacks of so many threads.
bool has_addresses_for_threads(int count) noexcept;

/// Throws Error{kUnavailable} with `why` and what helps.
[[noreturn]] void fail_to_start_thread(std::string_view what, std::string_view why);

/// A thread that runs `body`; it is `what`, as in "the stream 'compute0'". Throws
/// Error{kUnavailable} that names it if there can be no more threads.
template <typename Thread = std::thread>
Thread start_thread(std::string_view what, std::function<void()> body);

extern template std::thread start_thread(std::string_view, std::function<void()>);
extern template std::jthread start_thread(std::string_view, std::function<void()>);

}  // namespace tessera

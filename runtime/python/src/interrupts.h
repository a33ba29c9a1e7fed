#pragma once

#include <functional>

namespace tessera::python {

/// Runs `body` on a thread of its own, without the interpreter's lock, while this thread looks for
/// signals. When a handler of Python's raises (Ctrl-C does), `on_first` is called, once, and
/// `on_second` when one raises again; the exception comes out of here when `body` has ended. What
/// `body` throws comes out of here, too. The caller holds the interpreter's lock.
void run_interruptible(const std::function<void()>& body, const std::function<void()>& on_first,
                       const std::function<void()>& on_second);

}  // namespace tessera::python

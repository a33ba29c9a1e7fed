#include "interrupts.h"

#include <pybind11/pybind11.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

namespace py = pybind11;

namespace tessera::python {
namespace {

constexpr std::chrono::milliseconds kInterval{50};  // a person does not notice it

}  // namespace

void run_interruptible(const std::function<void()>& body, const std::function<void()>& on_first,
                       const std::function<void()>& on_second) {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_over = false;
  std::exception_ptr failure;
  std::thread worker([&] {
    try {
      body();
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    is_over = true;
    changed.notify_all();
  });
  const auto has_ended = [&] {
    const py::gil_scoped_release free;
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, kInterval, [&] { return is_over; });
  };
  std::optional<py::error_already_set> raised;
  const auto look = [&] {
    if (PyErr_CheckSignals() == 0) return;
    if (raised) {
      PyErr_Clear();
      on_second();
    } else {
      raised.emplace();
      on_first();
    }
  };
  while (!has_ended()) look();
  worker.join();
  look();
  if (raised) throw py::error_already_set(*raised);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tessera::python

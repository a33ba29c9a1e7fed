#include "interrupt.h"

#include <array>
#include <atomic>
#include <csignal>

namespace tessera::cli {
namespace {

constexpr std::array kSignals{SIGINT, SIGTERM};

// A signal handler can reach nothing but a global; it runs on any thread.
std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free);

/// The next signal, of either kind, finds the default: it kills.
extern "C" void remember(int signal) {
  received = signal;
  for (const int other : kSignals) std::signal(other, SIG_DFL);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  received = 0;
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : kSignals) sigaction(signal, &action, nullptr);
}

InterruptGuard::~InterruptGuard() {
  for (const int signal : kSignals) std::signal(signal, SIG_DFL);
}

int InterruptGuard::signal() const { return received; }

}  // namespace tessera::cli

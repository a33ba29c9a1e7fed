#include "run/interrupt.h"

#include <array>
#include <atomic>
#include <csignal>

namespace tessera::cli {
namespace {

constexpr std::array kSignals{SIGINT, SIGTERM, SIGUSR1};

/// The value that a signal to all processes of a run carries.
constexpr int kToAll = 0x7e55;

// A signal handler can reach nothing but a global; it runs on any thread.
std::atomic<int> received{0};
std::atomic<bool> received_by_all{false};
std::atomic<int> quits{0};
static_assert(std::atomic<int>::is_always_lock_free);

/// The next signal, of either kind, finds the default: it kills.
extern "C" void remember(int signal, siginfo_t* info, void* /*context*/) {
  // The kernel's own is a terminal's.
  received_by_all = info->si_code == SI_KERNEL ||
                    (info->si_code == SI_QUEUE && info->si_value.sival_int == kToAll);
  received = signal;
  for (const int other : kSignals) std::signal(other, SIG_DFL);
}

extern "C" void count_quit(int /*signal*/) { ++quits; }

}  // namespace

InterruptGuard::InterruptGuard() {
  received = 0;
  struct sigaction action {};
  action.sa_sigaction = remember;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  for (const int signal : kSignals) sigaction(signal, &action, nullptr);
}

InterruptGuard::~InterruptGuard() {
  for (const int signal : kSignals) std::signal(signal, SIG_DFL);
}

int InterruptGuard::signal() const { return received; }

int received_signal() { return received; }

bool InterruptGuard::reaches_all() const { return received_by_all; }

QuitGuard::QuitGuard() {
  quits = 0;
  struct sigaction action {};
  action.sa_handler = count_quit;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGQUIT, &action, &before_);
}

QuitGuard::~QuitGuard() { sigaction(SIGQUIT, &before_, nullptr); }

int QuitGuard::count() const { return quits; }

void signal_one_of_all(pid_t process, int signal) {
  sigval value{};
  value.sival_int = kToAll;
  sigqueue(process, signal, value);
}

}  // namespace tessera::cli

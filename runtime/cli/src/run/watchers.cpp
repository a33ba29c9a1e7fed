#include "run/watchers.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>

#include "commands.h"
#include "output/terminal.h"
#include "run/interrupt.h"
#include "tessera/core/error.h"

namespace tessera::cli {
namespace {

/// A line in one piece: other threads write too. A progress bar draws itself again.
void note_on_stderr(const std::string& note) {
  const std::string line =
      std::string(inspect(stderr).interactive ? "\r\033[K" : "") + "tessera: " + note + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

/// How long process 0 may take to end the step and the run, if it has been signalled as well. The
/// run is over in 5 s, which takes all processes a moment.
constexpr std::chrono::seconds kPatience{4};
/// The patience with processes that surely have had the signal: a last checkpoint may take a while.
/// Launchers kill processes earlier than this.
constexpr std::chrono::seconds kPatienceWithAll{600};

}  // namespace

DumpWatch::DumpWatch()
    : requests_(std::make_shared<DumpRequests>(note_on_stderr)),
      watcher_("the watch for SIGQUIT", [this](const std::stop_token& over) { watch(over); }) {}

void DumpWatch::watch(const std::stop_token& over) {
  int served = 0;
  while (sleeps(over, kInterval)) {
    const int count = quits_.count();
    if (count == served) continue;
    served = count;
    if (!requests_->write("SIGQUIT")) note_on_stderr("SIGQUIT: no rank is at work yet");
  }
}

void choose_dump_folder(Config& config) {
  if (!config.is_null("dump_folder")) return;
  std::filesystem::path folder;
  if (!config.is_null("log")) {
    folder = std::filesystem::path(config.get<std::string>("log")).parent_path();
  }
  config.set_effective("dump_folder", folder.empty() ? "." : folder.string());
}

std::shared_ptr<HostWork> interruptible_work() {
  return std::make_shared<HostWork>([] { return received_signal() != 0; });
}

bool is_ended_start(const Error& error, const HostWork& work) {
  return error.code() == ErrorCode::kAborted && received_signal() != 0 && work.is_starting();
}

WorkWatch::WorkWatch(const HostWork& work, Progress& progress)
    : Watcher("the progress of work", [&](const std::stop_token& over) {
        while (sleeps(over, kInterval)) progress.work(work, Progress::Clock::now());
        progress.work(work, Progress::Clock::now());
      }) {}

InterruptWatch::InterruptWatch(const InterruptGuard& interrupt, const World* world,
                               GraceOfRun limit)
    : interrupt_(interrupt),
      world_(world),
      limit_(limit),
      watcher_("the watch for signals", [this](const std::stop_token& over) { watch(over); }) {}

void InterruptWatch::watch(const std::stop_token& over) const {
  while (interrupt_.signal() == 0) {
    if (!sleeps(over, kInterval)) return;
  }
  const auto limit = patience();
  if (!limit || !sleeps(over, *limit)) return;
  if (decides()) give_up();
  const std::string reason =
      concat("process ", world_->process(), " was ended by SIG", sigabbrev_np(interrupt_.signal()));
  for (const auto& seat : world_->groups()) seat->abort(reason);
}

/// Others wait longer than process 0, which says what is wrong if it has had the signal as well.
std::optional<std::chrono::seconds> InterruptWatch::patience() const {
  if (decides()) return limit_.grace;
  // Slurm and mpirun signal every process, and each as if it were the only one.
  if (!interrupt_.reaches_all() && !(limit_.saves && limit_.grace)) return kPatience;
  return limit_.grace ? *limit_.grace + kPatience : kPatienceWithAll;
}

/// Destructors would wait for what has not ended.
void InterruptWatch::give_up() const {
  std::cout << std::flush;
  std::cerr << "tessera: " << paint(inspect(stderr), Colour::kRed, "error:") << " the step"
            << (limit_.saves ? " and the checkpoint after it" : "")
            << " did not end within --grace " << limit_.grace->count() << " s of SIG"
            << sigabbrev_np(interrupt_.signal())
            << (limit_.saves ? "; the newest checkpoint is an earlier one" : "")
            << "; raise --grace\n"
            << std::flush;
  std::_Exit(kExitSignal + interrupt_.signal());
}

}  // namespace tessera::cli

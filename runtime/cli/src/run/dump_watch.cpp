#include "run/dump_watch.h"

#include <chrono>
#include <cstdio>
#include <filesystem>

#include "output/terminal.h"
#include "tessera/core/start_thread.h"

namespace tessera::cli {
namespace {

constexpr std::chrono::milliseconds kQuitInterval{100};

/// A line in one piece: other threads write too. A progress bar draws itself again.
void note_on_stderr(const std::string& note) {
  const std::string line =
      std::string(inspect(stderr).interactive ? "\r\033[K" : "") + "tessera: " + note + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

DumpWatch::DumpWatch() : requests_(std::make_shared<DumpRequests>(note_on_stderr)) {
  watcher_ = start_thread("the watch for SIGQUIT", [this] { watch(); });
}

DumpWatch::~DumpWatch() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  watcher_.join();
}

void DumpWatch::watch() {
  int served = 0;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kQuitInterval, [this] { return over_; })) {
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

}  // namespace tessera::cli

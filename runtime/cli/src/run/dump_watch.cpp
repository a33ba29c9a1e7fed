#include "run/dump_watch.h"

#include <chrono>
#include <cstdio>
#include <filesystem>

#include "output/terminal.h"

namespace tessera::cli {
namespace {

/// A line in one piece: other threads write too. A progress bar draws itself again.
void note_on_stderr(const std::string& note) {
  const std::string line =
      std::string(inspect(stderr).interactive ? "\r\033[K" : "") + "tessera: " + note + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

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

}  // namespace tessera::cli

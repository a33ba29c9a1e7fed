#include "compare/compared_cells.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <optional>
#include <thread>

#include "commands.h"
#include "launch/launch_command.h"
#include "tessera/core/error.h"

namespace tessera::cli {
namespace {

/// Waits; the child gets the first signal of ours, and 30 s later SIGKILL. Returns its status.
int wait_for(pid_t child, const InterruptGuard& interrupt) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kGrace = std::chrono::seconds(30);
  std::optional<Clock::time_point> passed_on;
  int status = 0;
  for (;;) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) return status;
    require(ended == 0 || errno == EINTR, ErrorCode::kUnavailable,
            "a run is lost: ", std::strerror(errno));
    if (interrupt.signal() != 0 && !passed_on) {
      passed_on = Clock::now();
      kill(child, interrupt.signal());
    }
    if (passed_on && Clock::now() - *passed_on > kGrace) kill(child, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

std::string last_line(const std::string& path) {
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) last = line;
  }
  return last;
}

}  // namespace

ChildResult run_child(std::vector<std::string> flags, const std::string& printed,
                      const InterruptGuard& interrupt) {
  flags.insert(flags.begin(), "tessera");
  std::vector<char*> argv;
  for (std::string& flag : flags) argv.push_back(flag.data());
  argv.push_back(nullptr);
  const int output = open(printed.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  require(output >= 0, ErrorCode::kIo, printed, " cannot be written: ", std::strerror(errno),
          "; give --out a folder that is writable");
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) become_child(argv.data(), environ, output, output, {}, parent);
  close(output);
  require(child > 0, ErrorCode::kUnavailable, "cannot start a run: ", std::strerror(errno),
          "; raise 'ulimit -u'");
  const int status = wait_for(child, interrupt);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kExitGood) return {.trained = true};
  if (interrupt.signal() != 0) return {};
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    return {.why = concat("killed by signal ", signal, " (", strsignal(signal), ")",
                          signal == SIGKILL ? "; the system does so if memory runs out" : "")};
  }
  const std::string said = last_line(printed);
  return {.why = said.empty() ? concat("exit code ", WEXITSTATUS(status)) : said};
}

}  // namespace tessera::cli

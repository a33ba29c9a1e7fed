#include "compare/child_run.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "commands.h"
#include "tessera/core/error.h"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

/// Between fork and exec: only what a signal handler might call.
[[noreturn]] void become_trainer(char** argv, int output, pid_t parent) {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) std::signal(signal, SIG_DFL);
  setpgid(0, 0);  // Ctrl-C reaches the comparison alone, which passes it on
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(null, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  execv("/proc/self/exe", argv);
  _exit(127);
}

/// Waits; the child gets the first signal of ours, and 30 s later SIGKILL. Returns its status.
int wait_for(pid_t child, const InterruptGuard& interrupt) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kGrace = std::chrono::seconds(30);
  std::optional<Clock::time_point> passed_on;
  int status = 0;
  for (;;) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) return status;
    require(ended == 0 || errno == EINTR, ErrorCode::kUnavailable, "a run is lost: ",
            std::strerror(errno));
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

MemoryPeak peak_in(const Json& json) {
  MemoryPeak peak{.total = json.at("total"), .by_category = {}};
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    peak.by_category[category] = json.at(std::string(to_string(category)));
  }
  return peak;
}

/// Of all steps; a step has its share.
Traffic traffic_in(const Json& summary) {
  const auto steps = summary.at("steps").get<std::int64_t>();
  Traffic traffic{.copied_bytes = summary.at("copied_bytes").get<std::int64_t>() / steps};
  for (int i = 0; i < kCollectiveKinds; ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    const std::string name(to_string(kind));
    traffic.sent_of(kind) =
        summary.at("sent_bytes").at("counted").at(name).get<std::int64_t>() / steps;
    traffic.calls_of(kind) = summary.at("collectives").at(name).get<std::int64_t>() / steps;
  }
  return traffic;
}

CellRun read_log(const std::string& path, std::int64_t untimed_steps) {
  std::ifstream file(path);
  CellRun run;
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line);
    const std::string kind = json.at("kind");
    if (kind == "step") {
      run.losses.push_back(json.at("loss").is_null() ? std::nan("") : json.at("loss").get<double>());
      if (static_cast<std::int64_t>(run.losses.size()) > untimed_steps) {
        run.step_seconds.push_back(json.at("seconds"));
      }
    } else if (kind == "summary") {
      run.peak = peak_in(json.at("peak_bytes").at("measured"));
      run.traffic = traffic_in(json);
      const auto& hash = json.at("parameters_sha256");
      if (hash.is_string()) run.parameters_sha256 = hash;
      if (json.contains("exposed_seconds_per_step")) {
        run.exposed_seconds = json.at("exposed_seconds_per_step").get<double>();
        run.communication_seconds = json.at("communication_seconds_per_step").get<double>();
      }
    }
  }
  return run;
}

}  // namespace

ChildResult run_child(std::vector<std::string> flags, const std::string& path,
                      std::int64_t untimed_steps, const InterruptGuard& interrupt) {
  const std::string log = path + ".jsonl";
  const std::string printed = path + ".txt";
  flags.insert(flags.begin(), "tessera");
  flags.insert(flags.end(), {"--log=" + log, "--overwrite"});
  std::vector<char*> argv;
  for (std::string& flag : flags) argv.push_back(flag.data());
  argv.push_back(nullptr);
  const int output = open(printed.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  require(output >= 0, ErrorCode::kIo, printed, " cannot be written: ", std::strerror(errno),
          "; give --out a folder that is writable");
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) become_trainer(argv.data(), output, parent);
  close(output);
  require(child > 0, ErrorCode::kUnavailable, "cannot start a run: ", std::strerror(errno),
          "; raise 'ulimit -u'");
  const int status = wait_for(child, interrupt);
  if (interrupt.signal() != 0) return {};
  if (WIFSIGNALED(status)) {
    return {.why = concat("killed by signal ", WTERMSIG(status), " (",
                          strsignal(WTERMSIG(status)), ")")};
  }
  if (WEXITSTATUS(status) != kExitGood) {
    const std::string said = last_line(printed);
    return {.why = said.empty() ? concat("exit code ", WEXITSTATUS(status)) : said};
  }
  return {.run = read_log(log, untimed_steps)};
}

}  // namespace tessera::cli

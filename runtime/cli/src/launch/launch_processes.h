#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace tessera::cli {

/// Variables of the environment by name.
using Variables = std::map<std::string, std::string>;

/// One process to start: this program with other arguments.
struct ProcessOptions {
  int process = 0;  ///< of all machines
  int first_rank = 0, last_rank = 0;
  std::vector<std::string> arguments{};
  Variables variables{};  ///< besides those of this process
  int listener = -1;      ///< a socket that the process inherits; -1: none
};

/// How a run of several processes has ended.
struct LaunchResult {
  int exit_code = 0;       ///< of the first that failed, 128 + signal if one killed it
  bool was_asked = false;  ///< a signal to the launcher has ended it
  int killed = 0;          ///< processes that a signal has killed which was not ours
};

/// Starts the processes and waits until all have ended. What they print comes out line by line,
/// each with its ranks in front. SIGINT, SIGTERM, SIGUSR1 and SIGQUIT are passed on. If one fails,
/// the others get SIGTERM 2 s later, or 0.5 s if the processes have not met yet. Whoever has not
/// ended `grace` after such a signal gets SIGTERM again, and 3 s later SIGKILL. They die with this
/// process.
LaunchResult run_processes(std::vector<ProcessOptions> processes, std::chrono::seconds grace);

}  // namespace tessera::cli

#pragma once

#include <sys/types.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "settings/command_line.h"
#include "tessera/compat/config_file.h"

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

/// Makes the process that fork() has just made run this program: it dies with its parent, reads
/// nothing, and prints to the files `out` and `err`. `inherited`: files that it has under the same
/// numbers, -1 being none. Calls no more than a signal handler might.
[[noreturn]] void become_child(char** argv, char** variables, int out, int err,
                               std::initializer_list<int> inherited, pid_t parent);

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

/// Whether the command can run in several processes.
inline bool can_be_launched(const std::string& name) {
  return name == "train" || name == "evaluate" || name == "generate" || name == "test" ||
         name == "bench";
}
/// Behind the name of one that cannot.
inline constexpr const char* kCannotBeLaunched =
    "' cannot be launched; 'train', 'evaluate', 'generate', 'test' and 'bench collectives' can, "
    "after the launcher's own flags and --";

/// `train`, `evaluate`, `generate`, `test` or `bench collectives` with its flags, parsed as each of
/// the processes will parse it. The last one takes no config file.
class LaunchedCommand {
 public:
  /// `words`: the arguments of the program. Throws Error{kConfig} on what cannot be launched, and
  /// on what the command would refuse.
  explicit LaunchedCommand(std::vector<std::string> words);

  const std::vector<std::string>& words() const { return words_; }
  const std::string& name() const { return words_.front(); }
  /// The text of --help; empty if it is not there.
  const std::string& help() const { return help_; }
  const std::string& config_path() const { return config_path_; }
  bool takes_default_config() const {
    return settings_ != nullptr && settings_->takes_default_config();
  }
  /// The settings that are given, by name.
  const nlohmann::ordered_json& given() const { return given_; }
  /// One that is an integer; 0 if it is not given.
  int number(const char* name) const { return given_.value(name, 0); }

 private:
  std::vector<std::string> words_;
  std::unique_ptr<CLI::App> program_;
  std::shared_ptr<SettingsCommand> settings_;  // null: bench
  std::string config_path_;
  std::string help_;
  nlohmann::ordered_json given_ = nlohmann::ordered_json::object();
};

/// The command line of `tessera launch`; a config file may say what is absent.
struct LaunchRequest {
  std::string config{};
  std::optional<int> processes{};      ///< on this machine
  std::optional<int> all_processes{};  ///< on all of them; one of the two at most
  int ranks_per_process = 1;
  std::optional<int> nodes{};
  std::optional<int> node_rank{};
  std::optional<std::string> main_address{};
  std::optional<int> main_port{};
  std::optional<std::string> job_token{};
  std::optional<std::string> gpu_ids{};
  int grace_seconds = 10;
  int max_restarts = 0;
  std::optional<int> min_ranks{};      ///< of a restart; absent: as many as before
  std::vector<std::string> command{};  ///< arguments of the program, from `train` or `test` on
};

/// Which processes run where: flags, else the file, else defaults, each with who said it.
struct LaunchLayout {
  Stated<int> processes{};  ///< on each machine
  int ranks_per_process = 1;
  Stated<int> nodes{};
  Stated<int> node_rank{};
  Stated<std::string> main_address{};
  Stated<int> main_port{};  ///< 0: a free one
  std::string job_token{};  ///< empty: none, or that of the environment
  Stated<std::string> gpu_ids{};
  std::string device = "auto";  ///< of the run
  Variables exported{};         ///< what Accelerate's launcher exports for the file
  std::vector<std::string> command{};

  std::int64_t ranks() const {
    return std::int64_t{processes.value} * nodes.value * ranks_per_process;
  }
};

/// Reads the config file that holds for the launch and the command (--config of either, or
/// Accelerate's default file, which is said on stderr), and checks everything that can be known
/// before a process starts. `command`: what `request` launches.
/// Throws Error{kConfig} that names the flag, or the key with its file and line.
LaunchLayout make_layout(const LaunchRequest& request, const LaunchedCommand& command);

/// The flags of the subcommand.
class LaunchCommand {
 public:
  explicit LaunchCommand(CLI::App& app);
  /// The request of the flags; `command` follows them. Throws Error{kConfig} on an unknown flag.
  LaunchRequest request(std::vector<std::string> command) const;

 private:
  CLI::App* command_;
  LaunchRequest request_;
};

/// The arguments of `tessera launch` from the command on that it launches, with or without "--"
/// before it; takes them off `argc`. None for other commands.
std::vector<std::string> take_launched(int& argc, const char* const* argv);

/// Starts this machine's processes, passes on what they print, and waits for them. Returns the exit
/// code of the first that failed. Everything that can be wrong is found before one is started.
///
/// The processes are this program's own children and meet over sockets (see make_socket_world), so
/// no MPI is needed: mpirun would have to be installed on every machine, cannot be started machine
/// by machine with a node rank each, and neither torchrun nor accelerate could start us that way.
int run_launch(const LaunchRequest& request);

}  // namespace tessera::cli

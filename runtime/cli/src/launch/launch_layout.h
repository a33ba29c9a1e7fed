#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/launch_processes.h"
#include "launch/launched_command.h"
#include "tessera/compat/config_file.h"

namespace tessera::cli {

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

}  // namespace tessera::cli

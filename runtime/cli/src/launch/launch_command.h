#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "launch/launch_layout.h"

namespace tessera::cli {

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

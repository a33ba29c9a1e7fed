#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tessera/collectives/mpi_group.h"
#include "tessera/collectives/world.h"

namespace tessera::test {

/// How a test program that runs as several processes is started.
struct ProcessArguments {
  int processes = 0;  ///< 0: an MPI launcher has started them; else this program forks so many
  WorldOptions options{};
  std::string mode{};  ///< what the program makes of it
  std::string path{};
};

inline ProcessArguments parse_process_arguments(int argc, char** argv) {
  ProcessArguments result;
  result.options.timeout = std::chrono::milliseconds(60000);
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] { return std::string(argv[++i]); };
    if (word == "--processes") result.processes = std::stoi(value());
    if (word == "--ranks") result.options.local_ranks = std::stoi(value());
    if (word == "--timeout") {
      result.options.timeout = std::chrono::milliseconds(std::stoi(value()));
    }
    if (word == "--apart") result.options.apart = true;
    if (word == "--check") result.options.check = true;
    if (word == "--mode") result.mode = value();
    if (word == "--path") result.path = value();
  }
  return result;
}

/// Which process this is, and how it finds the others. Forks if it has to, before any thread
/// exists.
class Meeting {
 public:
  explicit Meeting(const ProcessArguments& arguments) : arguments_(arguments) {
    if (arguments.processes == 0) return;
    rendezvous_.processes = arguments.processes;
    rendezvous_.address = "127.0.0.1";
    rendezvous_.listener = listen_anywhere();
    for (int p = 1; p < arguments.processes; ++p) {
      const pid_t child = fork();
      if (child == 0) {
        close(rendezvous_.listener);
        rendezvous_.listener = -1;
        rendezvous_.process = p;
        children_.clear();
        return;
      }
      children_.push_back(child);
    }
  }

  std::unique_ptr<World> make() const {
    return arguments_.processes == 0 ? make_mpi_world(arguments_.options)
                                     : make_socket_world(rendezvous_, arguments_.options);
  }
  const std::vector<pid_t>& children() const { return children_; }

 private:
  int listen_anywhere() {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (bind(listener, any, length) != 0 || listen(listener, 64) != 0 ||
        getsockname(listener, any, &length) != 0) {
      throw std::runtime_error(std::string("no port: ") + std::strerror(errno));
    }
    rendezvous_.port = ntohs(address.sin_port);
    return listener;
  }

  const ProcessArguments arguments_;
  SocketRendezvous rendezvous_{};
  std::vector<pid_t> children_;
};

}  // namespace tessera::test

#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "world/socket.h"

namespace tessera {

/// Gives a file of this process to others of its machine, and takes theirs, over sockets of Unix.
/// The kernel says who is at the other end: it must be the process that is meant, of this user. So
/// nobody opens what a stranger names.
class DescriptorExchange {
 public:
  struct Neighbour {
    int process = 0;
    pid_t pid = 0;
    std::string name{};  ///< of its exchange
  };

  DescriptorExchange();
  /// Nobody can guess it. Holds no blanks.
  const std::string& name() const { return name_; }

  /// The files of `neighbours`, in order, each of which calls this as well. `failure`: why the run
  /// cannot go on; empty while all is well. Throws Error{kUnavailable} that names the process that
  /// is not there, or not who it should be.
  std::vector<Socket> exchange(int file, const std::vector<Neighbour>& neighbours,
                               std::chrono::milliseconds patience,
                               const std::function<std::string()>& failure) const;

 private:
  std::string name_;
  Socket listener_;
};

}  // namespace tessera

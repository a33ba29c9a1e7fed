#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "tessera/collectives/world.h"

namespace tessera {

/// A file descriptor that is closed with its owner.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// One TCP connection to every other process, by process; the own place is empty. Process 0 waits
/// at the address for the others, learns where each of them listens, and tells them all; then every
/// pair connects. Throws Error{kUnavailable} that names the address or the pair, and what is wrong.
std::vector<Socket> connect_mesh(const SocketRendezvous& rendezvous);

}  // namespace tessera

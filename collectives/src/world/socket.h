#pragma once

#include <string>
#include <utility>

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
  /// The caller closes it.
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

/// Sets up TCP: written data goes out at once, and an end that is gone is noticed.
void set_up_connection(const Socket& socket);

// The numeric addresses of a connection's two ends, without their ports.
std::string own_address(const Socket& socket);
std::string peer_address(const Socket& socket);

/// True for 127.0.0.1 and its like, which every machine takes for itself.
bool is_loopback(const std::string& numeric_address);

}  // namespace tessera

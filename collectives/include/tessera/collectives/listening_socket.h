#pragma once

#include <string>

namespace tessera {

/// Where processes of one machine meet: nobody else can come there.
inline constexpr const char* kLoopback = "127.0.0.1";

/// A TCP socket that listens and is not inherited by programs; who has it closes it.
struct Listening {
  int socket = -1;           ///< -1: it cannot be had
  int error = 0;             ///< then, as in errno
  std::string everywhere{};  ///< why it listens at all addresses of this machine; else empty
};

/// Listens at `address`, a name or a numeric address of this machine, and at no other. All
/// addresses it must be if none of this machine's is meant by it, as behind a router, or if a name
/// other than localhost stands for the loopback interface here, as on Debian a machine's own does.
/// `port` 0 picks a free one.
Listening listen_at(const std::string& address, int port);

/// The port at which a socket listens.
int port_of_listener(int socket);

}  // namespace tessera

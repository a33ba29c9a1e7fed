#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>

#include "tessera/collectives/listening_socket.h"
#include "world/socket_mesh.h"

// Ends of connections that say what a test wants, to processes that meet over sockets.
namespace tessera::test {

inline Socket connection_to(int port) {
  Socket result(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  return connect(result.fd(), to, sizeof(address)) == 0 ? std::move(result) : Socket();
}

inline void say(const Socket& socket, const std::string& text) {
  send(socket.fd(), text.data(), text.size(), MSG_NOSIGNAL);
}

/// The next `bytes`, fewer if the connection ends.
inline std::string hear(const Socket& socket, std::size_t bytes) {
  std::string text(bytes, '\0');
  const ssize_t n = recv(socket.fd(), text.data(), bytes, MSG_WAITALL);
  text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return text;
}

/// Without its end.
inline std::string hear_line(const Socket& socket) {
  std::string line;
  for (std::string c = hear(socket, 1); !c.empty() && c != "\n"; c = hear(socket, 1)) line += c;
  return line;
}

}  // namespace tessera::test

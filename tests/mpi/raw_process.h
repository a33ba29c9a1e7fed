#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>

#include "tessera/collectives/listening_socket.h"
#include "world/greeting.h"
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

/// Greets a process of the job that meets at `port` with `token`.
inline Greeted greet_as(const Claim& claim, const Socket& socket, int port,
                        const std::string& token = "") {
  constexpr std::chrono::seconds kPatience{120};
  return greet(socket, make_job_key(token, port), claim, Deadline(kPatience));
}

/// As process 0 of the job that meets at `port`, hears the greeting of another one.
inline std::pair<Claim, Socket> welcome(Socket socket, int port) {
  constexpr std::chrono::seconds kPatience{120};
  Guest guest(std::move(socket), kPatience);
  const JobKey key = make_job_key("", port);
  Guest::State state = Guest::State::kGreeting;
  while (state == Guest::State::kGreeting && !guest.deadline().over()) {
    state = guest.advance(key, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {state == Guest::State::kProved ? guest.claim() : Claim{}, guest.take_socket()};
}

}  // namespace tessera::test

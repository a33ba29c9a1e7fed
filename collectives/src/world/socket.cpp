#include "world/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string_view>

namespace tessera {
namespace {

std::string numeric(const sockaddr_storage& address, socklen_t length) {
  std::array<char, NI_MAXHOST> text{};
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, text.data(), text.size(),
              nullptr, 0, NI_NUMERICHOST);
  const std::string plain = text.data();
  constexpr std::string_view kMapped = "::ffff:";
  return plain.starts_with(kMapped) ? plain.substr(kMapped.size()) : plain;
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

void set_up_connection(const Socket& socket) {
  const int on = 1;
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(socket.fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

std::string own_address(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length);
  return numeric(address, length);
}

std::string peer_address(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length);
  return numeric(address, length);
}

bool is_loopback(const std::string& numeric_address) {
  return numeric_address.starts_with("127.") || numeric_address == "::1";
}

}  // namespace tessera

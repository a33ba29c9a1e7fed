#include "tessera/collectives/listening_socket.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace tessera {
namespace {

/// Listens at `address` of a socket of its family; closes the socket if that fails.
int listen_at(const sockaddr* address, socklen_t length) {
  const int listener = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0) return -1;
  const int on = 1;
  const int off = 0;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // So a socket of IPv6 takes connections over IPv4 as well.
  if (address->sa_family == AF_INET6) {
    setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (bind(listener, address, length) == 0 && listen(listener, SOMAXCONN) == 0) return listener;
  const int error = errno;
  close(listener);
  errno = error;
  return -1;
}

}  // namespace

int listening_socket(int port) {
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(static_cast<std::uint16_t>(port));
  const int listener = listen_at(reinterpret_cast<const sockaddr*>(&six), sizeof(six));
  const bool no_six = errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL;
  if (listener >= 0 || !no_six) return listener;
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = six.sin6_port;
  return listen_at(reinterpret_cast<const sockaddr*>(&four), sizeof(four));
}

int port_of_listener(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

}  // namespace tessera

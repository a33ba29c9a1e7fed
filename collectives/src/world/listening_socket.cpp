#include "tessera/collectives/listening_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>

#include "tessera/core/error.h"

namespace tessera {
namespace {

/// Listens at `address` of a socket of its family; returns -1 with errno set if that fails.
int try_address(const sockaddr* address, socklen_t length) {
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

int try_everywhere(int port) {
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(static_cast<std::uint16_t>(port));
  const int listener = try_address(reinterpret_cast<const sockaddr*>(&six), sizeof(six));
  const bool no_six = errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL;
  if (listener >= 0 || !no_six) return listener;
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = six.sin6_port;
  return try_address(reinterpret_cast<const sockaddr*>(&four), sizeof(four));
}

bool is_loopback_address(const sockaddr* address) {
  if (address->sa_family == AF_INET6) {
    const auto* const six = reinterpret_cast<const sockaddr_in6*>(address);
    return IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
  }
  const auto* const four = reinterpret_cast<const sockaddr_in*>(address);
  constexpr std::uint32_t kNetwork = 127;
  return ntohl(four->sin_addr.s_addr) >> 24U == kNetwork;
}

bool is_numeric(const std::string& address) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* list = nullptr;
  if (getaddrinfo(address.c_str(), nullptr, &hints, &list) != 0) return false;
  freeaddrinfo(list);
  return true;
}

}  // namespace

Listening listen_at(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(failed == 0 ? found : nullptr,
                                                                &freeaddrinfo);
  const bool meant = address == "localhost" || is_numeric(address);
  Listening result{
      .everywhere = failed == 0 ? concat("no interface of this machine has the address ", address)
                                : concat(address, " cannot be resolved here")};
  for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
    if (!meant && is_loopback_address(a->ai_addr)) {
      result.everywhere =
          concat(address, " is the loopback interface here, where no other machine can come");
      continue;
    }
    const int socket = try_address(a->ai_addr, a->ai_addrlen);
    if (socket >= 0) return {.socket = socket};
    if (errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT) return {.error = errno};
  }
  result.socket = try_everywhere(port);
  result.error = result.socket < 0 ? errno : 0;
  return result;
}

int port_of_listener(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

}  // namespace tessera

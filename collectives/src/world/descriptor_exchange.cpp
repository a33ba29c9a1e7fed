#include "world/descriptor_exchange.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "tessera/core/error.h"
#include "world/deadline.h"

namespace tessera {
namespace {

using Neighbour = DescriptorExchange::Neighbour;

std::string random_name() {
  std::array<std::uint8_t, 16> bytes{};
  const ssize_t n = getrandom(bytes.data(), bytes.size(), 0);
  require(n == static_cast<ssize_t>(bytes.size()), ErrorCode::kUnavailable,
          "the system gives no random numbers: ", std::strerror(errno));
  std::string name = "tessera-";
  constexpr const char* kDigits = "0123456789abcdef";
  for (const std::uint8_t byte : bytes) {
    name += kDigits[byte / 16];
    name += kDigits[byte % 16];
  }
  return name;
}

struct UnixAddress {
  sockaddr_un address{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

/// A name that is no file: the first byte of the path is 0.
UnixAddress address_of(const std::string& name) {
  UnixAddress result;
  result.address.sun_family = AF_UNIX;
  const std::size_t bytes = std::min(name.size(), sizeof(result.address.sun_path) - 1);
  std::memcpy(result.address.sun_path + 1, name.data(), bytes);
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  return result;
}

Socket make_socket() {
  Socket result(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  require(static_cast<bool>(result), ErrorCode::kUnavailable,
          "cannot make a socket to share memory between processes: ", std::strerror(errno),
          errno == EMFILE ? "; raise 'ulimit -n', or start fewer processes" : "");
  return result;
}

ucred other_end(const Socket& socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  const int failed = getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &credentials, &length);
  return failed == 0 ? credentials : ucred{.pid = -1, .uid = 0, .gid = 0};
}

/// One byte with a descriptor.
struct Parcel {
  char byte = 'f';
  iovec content{.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};

  Parcel() {
    message.msg_iov = &content;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
  }
  Parcel(const Parcel&) = delete;
  Parcel& operator=(const Parcel&) = delete;
};

bool send_file(const Socket& socket, int file) {
  Parcel parcel;
  cmsghdr* const header = CMSG_FIRSTHDR(&parcel.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &file, sizeof(file));
  return sendmsg(socket.fd(), &parcel.message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

/// An empty one if there is none in what has come.
Socket receive_file(const Socket& socket) {
  Parcel parcel;
  if (recvmsg(socket.fd(), &parcel.message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) != 1) return {};
  const cmsghdr* const header = CMSG_FIRSTHDR(&parcel.message);
  const bool good = header != nullptr && header->cmsg_level == SOL_SOCKET &&
                    header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof(int));
  if (!good) return {};
  int file = -1;
  std::memcpy(&file, CMSG_DATA(header), sizeof(file));
  return Socket(file);
}

/// Until the socket can be read, the time is over or the run has failed.
void await(const Socket& socket, const Deadline& deadline,
           const std::function<std::string()>& failure, const std::string& missing) {
  constexpr int kLook = 50;  // ms
  pollfd readable{.fd = socket.fd(), .events = POLLIN, .revents = 0};
  while (poll(&readable, 1, std::min(deadline.milliseconds_left(), kLook)) != 1) {
    const std::string problem = failure();
    require(problem.empty(), ErrorCode::kAborted, problem);
    require(!deadline.over(), ErrorCode::kTimeout, missing,
            " of this machine did not come to share memory; it may be stopped (`timeout`)");
  }
}

Socket connect_to(const Neighbour& neighbour) {
  Socket socket = make_socket();
  const UnixAddress to = address_of(neighbour.name);
  const int failed = connect(socket.fd(), to.get(), to.length);
  require(failed == 0, ErrorCode::kUnavailable, "cannot connect to process ", neighbour.process,
          " (pid ", neighbour.pid, ") to share memory: ", std::strerror(errno));
  const ucred other = other_end(socket);
  require(other.pid == neighbour.pid && other.uid == geteuid(), ErrorCode::kUnavailable, "process ",
          neighbour.process, " says that its pid is ", neighbour.pid, ", but at its socket is pid ",
          other.pid, " of user ", other.uid,
          "; processes on one machine must run as one user, in one namespace of process ids");
  return socket;
}

}  // namespace

DescriptorExchange::DescriptorExchange() : name_(random_name()), listener_(make_socket()) {
  const UnixAddress own = address_of(name_);
  const bool good =
      bind(listener_.fd(), own.get(), own.length) == 0 && listen(listener_.fd(), SOMAXCONN) == 0;
  require(good, ErrorCode::kUnavailable,
          "cannot make a socket to share memory between processes: ", std::strerror(errno));
}

std::vector<Socket> DescriptorExchange::exchange(
    int file, const std::vector<Neighbour>& neighbours, std::chrono::milliseconds patience,
    const std::function<std::string()>& failure) const {
  const Deadline deadline(patience);
  // All connect before one waits: that needs nobody at the other end.
  std::vector<Socket> sockets;
  for (const Neighbour& neighbour : neighbours) sockets.push_back(connect_to(neighbour));
  std::vector<Neighbour> waiting = neighbours;
  while (!waiting.empty()) {
    await(listener_, deadline, failure, concat("process ", waiting.front().process));
    const Socket guest(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    const ucred other = other_end(guest);
    const auto known =
        std::ranges::find_if(waiting, [&](const Neighbour& n) { return n.pid == other.pid; });
    if (!guest || other.uid != geteuid() || known == waiting.end()) continue;  // a stranger
    if (send_file(guest, file)) waiting.erase(known);
  }
  std::vector<Socket> files;
  for (std::size_t i = 0; i < neighbours.size(); ++i) {
    const std::string name = concat("process ", neighbours[i].process);
    await(sockets[i], deadline, failure, name);
    files.push_back(receive_file(std::exchange(sockets[i], Socket())));
    require(static_cast<bool>(files.back()), ErrorCode::kUnavailable, name,
            " of this machine did not share its memory; it ended, or 'ulimit -n' must be raised");
  }
  return files;
}

}  // namespace tessera

#include "world/socket_mesh.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>

#include "tessera/collectives/listening_socket.h"
#include "tessera/core/error.h"
#include "tessera/core/host_name.h"

// The language of the meeting is a line each: "tessera-1 PROCESS PROCESSES PORT" to process 0,
// which answers "ok ADDRESS PORT ADDRESS PORT …" by process or "no REASON"; "tessera-1 PROCESS"
// between any other two.
namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kGreeting = "tessera-1";

/// A process greets as soon as it is connected. What comes to the port by accident and says
/// nothing, as a scanner does, holds the others up for no longer than this.
constexpr milliseconds kGreetingPatience{5000};
constexpr std::size_t kGreetingBytes = 64;   // "tessera-1" and three numbers
constexpr std::size_t kProblemBytes = 1024;  // "no REASON"
constexpr std::size_t kPlaceBytes = 80;      // of one process in the table: IPv6, interface, port

/// What gives up when the time is over.
class Deadline {
 public:
  explicit Deadline(milliseconds patience) : end_(Clock::now() + patience) {}
  /// The earlier one of this and of `patience` from now.
  Deadline within(milliseconds patience) const {
    return Deadline(std::min(patience, milliseconds(milliseconds_left())));
  }
  int milliseconds_left() const {
    const auto left = std::chrono::duration_cast<milliseconds>(end_ - Clock::now()).count();
    return static_cast<int>(std::max<long long>(left, 0));
  }
  bool over() const { return milliseconds_left() == 0; }

 private:
  Clock::time_point end_;
};

struct AddressList {
  addrinfo* first = nullptr;
  AddressList() = default;
  AddressList(const AddressList&) = delete;
  AddressList& operator=(const AddressList&) = delete;
  ~AddressList() {
    if (first != nullptr) freeaddrinfo(first);
  }
};

/// Returns why the name cannot be resolved, or nothing.
std::string resolve(const std::string& address, int port, AddressList& list) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  const int failed =
      getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &list.first);
  return failed == 0 ? "" : gai_strerror(failed);
}

void set_up(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

/// Listens on every address of this machine; `port` 0 picks one.
Socket listen_on(int port) {
  Socket listener(listening_socket(port));
  require(static_cast<bool>(listener), ErrorCode::kUnavailable, "cannot listen on port ", port,
          " of ", host_name(), " (", std::strerror(errno),
          "); choose another port, or 0 for a free one (--main-port)");
  return listener;
}

std::string address_of_peer(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length);
  std::array<char, NI_MAXHOST> text{};
  getnameinfo(reinterpret_cast<sockaddr*>(&address), length, text.data(), text.size(), nullptr, 0,
              NI_NUMERICHOST);
  const std::string plain = text.data();
  constexpr std::string_view kMapped = "::ffff:";
  return plain.substr(0, kMapped.size()) == kMapped ? plain.substr(kMapped.size()) : plain;
}

bool is_loopback(const std::string& address) {
  return address.rfind("127.", 0) == 0 || address == "::1";
}

/// A socket to a listener that may come later. Returns an empty one and `problem` in the end.
Socket connect_to(const std::string& address, int port, const Deadline& deadline,
                  std::string& problem) {
  while (true) {
    AddressList list;
    problem = resolve(address, port, list);
    for (const addrinfo* a = list.first; a != nullptr; a = a->ai_next) {
      Socket socket(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      const int failed = connect(socket.fd(), a->ai_addr, a->ai_addrlen);
      pollfd connected{.fd = socket.fd(), .events = POLLOUT, .revents = 0};
      int error = failed == 0 ? 0 : errno;
      if (error == EINPROGRESS) {
        error = ETIMEDOUT;
        if (poll(&connected, 1, std::min(deadline.milliseconds_left(), 5000)) == 1) {
          socklen_t length = sizeof(error);
          getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
        }
      }
      if (error == 0) return socket;
      problem = std::strerror(error);
    }
    if (deadline.over()) return Socket();
    std::this_thread::sleep_for(milliseconds(50));
  }
}

bool write_line(const Socket& socket, std::string line) {
  line += '\n';
  std::size_t sent = 0;
  while (sent < line.size()) {
    const ssize_t n = send(socket.fd(), line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (n > 0) {
      sent += static_cast<std::size_t>(n);
      continue;
    }
    pollfd writable{.fd = socket.fd(), .events = POLLOUT, .revents = 0};
    if (n == 0 || errno != EAGAIN || poll(&writable, 1, 5000) != 1) return false;
  }
  return true;
}

/// Empty if the other end did not finish one in time, or within `limit` bytes. Reads no further
/// than its end.
std::string read_line(const Socket& socket, const Deadline& deadline, std::size_t limit) {
  std::string line;
  while (true) {
    pollfd readable{.fd = socket.fd(), .events = POLLIN, .revents = 0};
    if (poll(&readable, 1, deadline.milliseconds_left()) != 1) return "";
    char c = 0;
    const ssize_t n = recv(socket.fd(), &c, 1, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) return "";
    if (c == '\n') return line;
    if (line.size() == limit) return "";
    line += c;
  }
}

/// What a process that has connected says after kGreeting: numbers. None if somebody else knocked.
std::optional<std::istringstream> greeting_of(const Socket& socket, const Deadline& deadline) {
  std::istringstream words(read_line(socket, deadline.within(kGreetingPatience), kGreetingBytes));
  std::string greeting;
  words >> greeting;
  if (greeting != kGreeting) return std::nullopt;
  return words;
}

Socket accept_one(const Socket& listener, const Deadline& deadline) {
  pollfd readable{.fd = listener.fd(), .events = POLLIN, .revents = 0};
  if (poll(&readable, 1, deadline.milliseconds_left()) != 1) return Socket();
  return Socket(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

/// The processes from `first` on that have no socket yet, in words.
std::string missing(const std::vector<Socket>& mesh, int first) {
  std::string text;
  for (int p = first; p < static_cast<int>(mesh.size()); ++p) {
    if (!mesh[static_cast<std::size_t>(p)]) text += concat(text.empty() ? "" : ", ", p);
  }
  return text;
}

/// Process 0: waits for everybody, then tells everybody where all are.
void gather_processes(const SocketRendezvous& rendezvous, const Deadline& deadline,
                      std::vector<Socket>& mesh) {
  const Socket listener =
      rendezvous.listener >= 0 ? Socket(rendezvous.listener) : listen_on(rendezvous.port);
  std::vector<std::string> places(mesh.size(), "- 0");
  for (int waiting = rendezvous.processes - 1; waiting > 0;) {
    Socket socket = accept_one(listener, deadline);
    require(socket || !deadline.over(), ErrorCode::kUnavailable, "process 0 on ", host_name(),
            " waited ", rendezvous.patience.count() / 1000, " s at port ",
            port_of_listener(listener.fd()),
            " but these processes did not come: ", missing(mesh, 1),
            "; start them, or look whether a firewall is between (--main-address, --main-port)");
    if (!socket) continue;
    auto words = greeting_of(socket, deadline);
    int process = -1;
    int processes = 0;
    int port = 0;
    if (!words || !(*words >> process >> processes >> port)) continue;
    std::string problem;
    if (processes != rendezvous.processes) {
      problem = concat("process ", process, " counts ", processes, " processes but process 0 ",
                       rendezvous.processes);
    } else if (process < 0 || process >= processes) {
      problem = concat("process ", process, " is outside of ", processes, " processes");
    } else if (process == 0 || mesh[static_cast<std::size_t>(process)]) {
      problem = concat("there are two processes with number ", process);
    }
    if (!problem.empty()) {
      problem +=
          "; every machine needs the same --nodes and --processes, and a --node-rank of its own";
      write_line(socket, "no " + problem);
      for (const Socket& other : mesh) {
        if (other) write_line(other, "no " + problem);
      }
      fail(ErrorCode::kConfig, problem);
    }
    places[static_cast<std::size_t>(process)] = concat(address_of_peer(socket), " ", port);
    mesh[static_cast<std::size_t>(process)] = std::move(socket);
    --waiting;
  }
  std::string table = "ok";
  for (const std::string& place : places) table += " " + place;
  for (const Socket& socket : mesh) {
    if (socket) write_line(socket, table);
  }
}

/// The others: introduces itself to process 0, and returns the table of places.
std::string report_to_first(const SocketRendezvous& rendezvous, int own_port,
                            const Deadline& deadline, Socket& first) {
  std::string problem;
  first = connect_to(rendezvous.address, rendezvous.port, deadline, problem);
  require(static_cast<bool>(first), ErrorCode::kUnavailable, "process ", rendezvous.process, " on ",
          host_name(), " cannot connect to process 0 at ", rendezvous.address, ":", rendezvous.port,
          " (", problem, ") for ", rendezvous.patience.count() / 1000,
          " s; is it started, and is the address right (--main-address, --main-port)?");
  write_line(first,
             concat(kGreeting, " ", rendezvous.process, " ", rendezvous.processes, " ", own_port));
  const std::size_t table_bytes = static_cast<std::size_t>(rendezvous.processes) * kPlaceBytes;
  const std::string answer = read_line(first, deadline, kProblemBytes + table_bytes);
  require(answer.rfind("no ", 0) != 0, ErrorCode::kConfig,
          answer.substr(std::min<std::size_t>(answer.size(), 3)));
  require(answer.rfind("ok ", 0) == 0, ErrorCode::kUnavailable, "process 0 at ", rendezvous.address,
          ":", rendezvous.port, " did not answer process ", rendezvous.process, " on ", host_name(),
          "; it ended, or other processes did not come (see its message)");
  return answer;
}

void connect_to_earlier(const SocketRendezvous& rendezvous, const std::string& table,
                        const Deadline& deadline, std::vector<Socket>& mesh) {
  std::istringstream words(table);
  std::string address;
  int port = 0;
  words >> address;  // "ok"
  words >> address >> port;
  for (int p = 1; p < rendezvous.process; ++p) {
    words >> address >> port;
    // What process 0 saw of a neighbour on its own machine is no address for others.
    if (is_loopback(address)) address = rendezvous.address;
    std::string problem;
    Socket socket = connect_to(address, port, deadline, problem);
    require(static_cast<bool>(socket), ErrorCode::kUnavailable, "process ", rendezvous.process,
            " on ", host_name(), " cannot connect to process ", p, " at ", address, ":", port, " (",
            problem, "); look whether a firewall is between the two machines");
    write_line(socket, concat(kGreeting, " ", rendezvous.process));
    mesh[static_cast<std::size_t>(p)] = std::move(socket);
  }
}

void accept_later(const SocketRendezvous& rendezvous, const Socket& listener,
                  const Deadline& deadline, std::vector<Socket>& mesh) {
  for (int waiting = rendezvous.processes - 1 - rendezvous.process; waiting > 0;) {
    Socket socket = accept_one(listener, deadline);
    require(socket || !deadline.over(), ErrorCode::kUnavailable, "process ", rendezvous.process,
            " on ", host_name(), " waited for a connection of processes ",
            missing(mesh, rendezvous.process + 1),
            "; look whether a firewall is between the machines");
    if (!socket) continue;
    auto words = greeting_of(socket, deadline);
    int process = -1;
    if (!words || !(*words >> process)) continue;
    const bool later = process > rendezvous.process && process < rendezvous.processes;
    if (!later || mesh[static_cast<std::size_t>(process)]) continue;
    mesh[static_cast<std::size_t>(process)] = std::move(socket);
    --waiting;
  }
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

std::vector<Socket> connect_mesh(const SocketRendezvous& rendezvous) {
  require(rendezvous.processes >= 1 && rendezvous.process >= 0 &&
              rendezvous.process < rendezvous.processes,
          ErrorCode::kConfig, "process ", rendezvous.process, " is outside of ",
          rendezvous.processes, " processes");
  const Deadline deadline(rendezvous.patience);
  std::vector<Socket> mesh(static_cast<std::size_t>(rendezvous.processes));
  if (rendezvous.process == 0) {
    gather_processes(rendezvous, deadline, mesh);
  } else {
    const Socket listener = listen_on(0);
    const std::string table =
        report_to_first(rendezvous, port_of_listener(listener.fd()), deadline, mesh.front());
    connect_to_earlier(rendezvous, table, deadline, mesh);
    accept_later(rendezvous, listener, deadline, mesh);
  }
  for (const Socket& socket : mesh) {
    if (socket) set_up(socket.fd());
  }
  return mesh;
}

}  // namespace tessera

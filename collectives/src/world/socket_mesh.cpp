#include "world/socket_mesh.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "tessera/collectives/listening_socket.h"
#include "tessera/core/error.h"
#include "tessera/core/host_name.h"
#include "world/greeting.h"
#include "world/reception.h"

// After the greeting process 0 answers with a line: "ok ADDRESS PORT ADDRESS PORT …" by process,
// "no REASON" if the settings of processes do not fit, or "over REASON" if not all can meet.
namespace tessera {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kProblemBytes = 1024;  // "no REASON"
constexpr std::size_t kPlaceBytes = 80;      // of one process in the table: IPv6, interface, port
/// Process 0 knows best who is missing, so the others wait a moment longer than it.
constexpr milliseconds kForTheAnswer{1000};

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

Socket listen_on(const std::string& address, int port) {
  const Listening listening = listen_at(address, port);
  require(listening.socket >= 0, ErrorCode::kUnavailable, "cannot listen on port ", port, " of ",
          host_name(), " (", std::strerror(listening.error),
          "); another job may meet there; choose another port, or 0 for a free one "
          "(`rendezvous.port`)");
  return Socket(listening.socket);
}

/// Connects to the first address that answers. Returns an empty one and `problem` if none does.
Socket try_to_connect(const std::string& address, int port, const Deadline& deadline,
                      std::string& problem) {
  constexpr int kPatience = 5000;  // ms
  AddressList list;
  problem = resolve(address, port, list);
  for (const addrinfo* a = list.first; a != nullptr; a = a->ai_next) {
    Socket socket(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int failed = connect(socket.fd(), a->ai_addr, a->ai_addrlen);
    pollfd connected{.fd = socket.fd(), .events = POLLOUT, .revents = 0};
    int error = failed == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      error = ETIMEDOUT;
      if (poll(&connected, 1, std::min(deadline.milliseconds_left(), kPatience)) == 1) {
        socklen_t length = sizeof(error);
        getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
      }
    }
    if (error == 0) {
      set_up_connection(socket);
      return socket;
    }
    problem = std::strerror(error);
  }
  return {};
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

/// The processes from `first` on that have no socket yet, in words.
std::string missing(const std::vector<Socket>& mesh, int first) {
  std::string text;
  for (int p = first; p < static_cast<int>(mesh.size()); ++p) {
    if (!mesh[static_cast<std::size_t>(p)]) text += concat(text.empty() ? "" : ", ", p);
  }
  return text;
}

class MeshMeeting {
 public:
  explicit MeshMeeting(const SocketRendezvous& rendezvous)
      : rendezvous_(rendezvous),
        deadline_(rendezvous.patience),
        mesh_(static_cast<std::size_t>(rendezvous.processes)) {}

  std::vector<Socket> meet() {
    if (process() == 0) {
      be_first();
    } else {
      join_first();
    }
    return std::move(mesh_);
  }

 private:
  int process() const { return rendezvous_.process; }
  Socket& connection_to(int p) { return mesh_[static_cast<std::size_t>(p)]; }
  long long seconds() const { return rendezvous_.patience.count() / 1000; }

  // Process 0 runs these.
  void be_first();
  std::string gather(Reception& reception);
  std::string problem_of(const Claim& claim) const;
  void tell_all(const std::string& line) const;

  // The others run these.
  void join_first();
  std::string report_to_first();
  void connect_to_earlier(const std::string& table);
  void accept_later();
  void listen_beside(const Socket& first);
  Socket greet_at(const std::string& address, int port, int to, std::string& problem);

  void fail_if_one_has_ended() const {
    const int ended = ended_process(mesh_);
    require(ended < 0, ErrorCode::kUnavailable, "process ", ended,
            " ended before all processes had met; its own output says why");
  }

  const SocketRendezvous& rendezvous_;
  const Deadline deadline_;
  JobKey key_{};
  Socket listener_{};  // not of process 0
  std::vector<Socket> mesh_;
};

// ---- Process 0 ----------------------------------------------------------------------------------

void MeshMeeting::tell_all(const std::string& line) const {
  for (const Socket& socket : mesh_) {
    if (socket) write_line(socket, line);
  }
}

std::string MeshMeeting::problem_of(const Claim& claim) const {
  const int p = claim.process;
  const char* const remedy =
      "; every process needs the same `rendezvous.processes`, and a `rendezvous.process` of its "
      "own";
  if (claim.processes != rendezvous_.processes) {
    return concat("process ", p, " counts ", claim.processes, " processes but process 0 ",
                  rendezvous_.processes, remedy);
  }
  if (p < 0 || p >= rendezvous_.processes) {
    return concat("process ", p, " is outside of ", rendezvous_.processes, " processes", remedy);
  }
  if (p == 0 || mesh_[static_cast<std::size_t>(p)]) {
    return concat("there are two processes with number ", p, remedy,
                  "; if two jobs meet at this port, give each a port (`rendezvous.port`) or a "
                  "TESSERA_JOB_TOKEN of its own");
  }
  return "";
}

/// Waits for everybody; returns where they are.
std::string MeshMeeting::gather(Reception& reception) {
  std::vector<std::string> places(mesh_.size(), "- 0");
  for (int waiting = rendezvous_.processes - 1; waiting > 0; --waiting) {
    std::optional<Reception::Arrival> arrival = reception.next(deadline_, mesh_);
    if (!arrival) fail_if_one_has_ended();
    require(arrival.has_value(), ErrorCode::kUnavailable, "process 0 on ", host_name(), " waited ",
            seconds(), " s at port ", reception.port(),
            " but these processes did not come: ", missing(mesh_, 1),
            "; start them, or look whether a firewall is between (`rendezvous.address`, "
            "`rendezvous.port`)",
            reception.strangers());
    const std::string problem = problem_of(arrival->claim);
    if (!problem.empty()) write_line(arrival->socket, "no " + problem);
    require(problem.empty(), ErrorCode::kConfig, problem);
    const int p = arrival->claim.process;
    places[static_cast<std::size_t>(p)] = concat(arrival->address, " ", arrival->claim.port);
    connection_to(p) = std::move(arrival->socket);
  }
  std::string table = "ok";
  for (const std::string& place : places) table += " " + place;
  return table;
}

void MeshMeeting::be_first() {
  if (mesh_.size() == 1 && rendezvous_.listener < 0) return;
  Socket listener = rendezvous_.listener >= 0 ? Socket(rendezvous_.listener)
                                              : listen_on(rendezvous_.address, rendezvous_.port);
  key_ = make_job_key(rendezvous_.token, port_of_listener(listener.fd()));
  Reception reception(std::move(listener), key_, 0);
  try {
    tell_all(gather(reception));
  } catch (const Error& error) {
    tell_all(concat(error.code() == ErrorCode::kConfig ? "no " : "over ", error.what()));
    throw;
  }
}

// ---- The others ---------------------------------------------------------------------------------

/// Others come to this process on the network on which it has come to process 0. If that is the
/// loopback interface, listen_at knows whether the address means it everywhere.
void MeshMeeting::listen_beside(const Socket& first) {
  const std::string own = own_address(first);
  listener_ = listen_on(is_loopback(own) ? rendezvous_.address : own, 0);
}

/// A connection to a process of this job, which may come later. Returns an empty one and `problem`
/// in the end.
Socket MeshMeeting::greet_at(const std::string& address, int port, int to, std::string& problem) {
  while (true) {
    Socket socket = try_to_connect(address, port, deadline_, problem);
    if (socket) {
      if (!listener_) listen_beside(socket);
      const Claim claim{.process = process(),
                        .processes = rendezvous_.processes,
                        .port = port_of_listener(listener_.fd()),
                        .to = to};
      const auto ended = [this] { return ended_process(mesh_) >= 0; };
      const Greeted greeted = greet(socket, key_, claim, deadline_, ended);
      if (greeted == Greeted::kWelcome) return socket;
      require(greeted != Greeted::kOtherJob, ErrorCode::kUnavailable, "process ", process(), " on ",
              host_name(), " found another job at ", address, ":", port, " where process ", to,
              " should be: its token is another; choose a port that no other job uses "
              "(`rendezvous.port`), and give all machines the same TESSERA_JOB_TOKEN, or none");
      problem = "it does not answer";
    }
    fail_if_one_has_ended();
    if (deadline_.over()) return {};
    std::this_thread::sleep_for(milliseconds(50));
  }
}

/// Introduces this process to process 0, and returns the table of places.
std::string MeshMeeting::report_to_first() {
  std::string problem;
  connection_to(0) = greet_at(rendezvous_.address, rendezvous_.port, 0, problem);
  const Socket& first = connection_to(0);
  require(static_cast<bool>(first), ErrorCode::kUnavailable, "process ", process(), " on ",
          host_name(), " cannot connect to process 0 at ", rendezvous_.address, ":",
          rendezvous_.port, " (", problem, ") for ", seconds(),
          " s; is it started, and is the address right (`rendezvous.address`, `rendezvous.port`)?");
  const Deadline deadline(milliseconds(deadline_.milliseconds_left()) + kForTheAnswer);
  const std::size_t table_bytes = static_cast<std::size_t>(rendezvous_.processes) * kPlaceBytes;
  const std::string answer = read_line(first, deadline, kProblemBytes + table_bytes);
  const auto reason = [&] { return answer.substr(answer.find(' ') + 1); };
  require(!answer.starts_with("no "), ErrorCode::kConfig, reason());
  require(!answer.starts_with("over "), ErrorCode::kUnavailable, reason());
  require(answer.starts_with("ok "), ErrorCode::kUnavailable, "process 0 at ", rendezvous_.address,
          ":", rendezvous_.port, " did not answer process ", process(), " on ", host_name(),
          "; it ended, or other processes did not come (see its message)");
  return answer;
}

void MeshMeeting::connect_to_earlier(const std::string& table) {
  std::istringstream words(table);
  std::string address;
  int port = 0;
  words >> address;  // "ok"
  words >> address >> port;
  for (int p = 1; p < process(); ++p) {
    words >> address >> port;
    // The address that process 0 saw of a neighbour on its own machine is none for others.
    if (is_loopback(address)) address = rendezvous_.address;
    std::string problem;
    connection_to(p) = greet_at(address, port, p, problem);
    require(static_cast<bool>(connection_to(p)), ErrorCode::kUnavailable, "process ", process(),
            " on ", host_name(), " cannot connect to process ", p, " at ", address, ":", port, " (",
            problem, "); look whether a firewall is between the two machines");
  }
}

void MeshMeeting::accept_later() {
  Reception reception(std::move(listener_), key_, process());
  for (int waiting = rendezvous_.processes - 1 - process(); waiting > 0;) {
    std::optional<Reception::Arrival> arrival = reception.next(deadline_, mesh_);
    if (!arrival) fail_if_one_has_ended();
    require(arrival.has_value(), ErrorCode::kUnavailable, "process ", process(), " on ",
            host_name(), " waited for a connection of processes ", missing(mesh_, process() + 1),
            "; look whether a firewall is between the machines", reception.strangers());
    const int p = arrival->claim.process;
    if (p <= process() || p >= rendezvous_.processes || connection_to(p)) continue;
    connection_to(p) = std::move(arrival->socket);
    --waiting;
  }
}

void MeshMeeting::join_first() {
  key_ = make_job_key(rendezvous_.token, rendezvous_.port);
  connect_to_earlier(report_to_first());
  accept_later();
}

}  // namespace

std::vector<Socket> connect_mesh(const SocketRendezvous& rendezvous) {
  require(rendezvous.processes >= 1 && rendezvous.process >= 0 &&
              rendezvous.process < rendezvous.processes,
          ErrorCode::kConfig, "process ", rendezvous.process, " is outside of ",
          rendezvous.processes, " processes");
  return MeshMeeting(rendezvous).meet();
}

}  // namespace tessera

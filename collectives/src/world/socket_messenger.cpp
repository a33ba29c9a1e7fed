#include <linux/sockios.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/core/start_thread.h"
#include "world/messenger.h"
#include "world/socket_mesh.h"
#include "world/world_core.h"

namespace tessera {
namespace {

constexpr std::uint32_t kExchangeTag = 0xffffffffU;

/// A message goes in parts of at most so many bytes: 10 ms of a connection of 1 Gbit/s.
///
/// [Note: abort between parts] An abort must not wait for the messages before it, nor for their
/// memory, which failing ranks free. It goes out after the part that is on its way. What is left of
/// that part is copied if its memory goes; what is left of the message is never sent, so the other
/// end never takes it for done.
constexpr std::uint64_t kPartBytes = std::uint64_t{1} << 20U;

/// Reserved for the text of a failure.
constexpr std::size_t kFailureBytes = 4096;

enum class FrameKind : std::uint32_t { kData = 0x74657301, kAbort, kLeave, kMore };

/// What precedes the bytes of a part: the first one's (kData), which tells of the whole message, or
/// a further one's (kMore). All machines have one byte order.
struct FrameHeader {
  FrameKind kind = FrameKind::kData;
  std::uint32_t tag = 0;
  std::uint64_t bytes = 0;
};

/// A message of this side, as its thread and the input-output thread share it.
struct Piece {
  FrameHeader header{};
  std::byte* data = nullptr;     // the caller's, or in `own`; null: what comes is dropped
  std::vector<std::byte> own{};  // if it came unasked, or outlives its caller
  std::uint64_t moved = 0;       // of the data
  std::atomic<bool> done{false};
};
using PiecePtr = std::shared_ptr<Piece>;

/// By tag; none is empty.
using PieceQueues = std::map<std::uint32_t, std::deque<PiecePtr>>;

void append(PieceQueues& queues, std::uint32_t tag, PiecePtr piece) {
  std::deque<PiecePtr>& queue = queues[tag];
  try {
    queue.push_back(std::move(piece));
  } catch (const std::bad_alloc&) {
    if (queue.empty()) queues.erase(tag);
    throw;
  }
}

/// The part of a message that is being moved.
struct Part {
  FrameHeader header{};
  std::uint64_t header_bytes = 0;  // moved of it
  std::uint64_t end = 0;           // in the message
};

/// A connection to one process and what waits on it. Guarded by the messenger's mutex.
struct Connection {
  Socket socket{};
  bool left = false;    // the other process has finished well
  bool closed = false;  // nothing comes or goes any more
  std::deque<PiecePtr> outgoing{};
  bool sending = false;  // a part of the first of them
  Part sent{};
  PiecePtr incoming{};  // being read; null: a header is
  PiecePtr partial{};   // the message whose next part may follow
  Part received{};
  PieceQueues wanted{};
  PieceQueues unasked{};  // may be still arriving
};

/// Messages over TCP. One thread does all input and output.
class SocketMessenger : public Messenger {
 public:
  explicit SocketMessenger(const SocketRendezvous& rendezvous)
      : process_(rendezvous.process),
        patience_(rendezvous.patience),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    std::vector<Socket> mesh = connect_mesh(rendezvous);
    connections_ = std::vector<Connection>(mesh.size());
    for (std::size_t p = 0; p < mesh.size(); ++p) connections_[p].socket = std::move(mesh[p]);
    failure_.reserve(kFailureBytes);
    thread_ = start_thread("messages to other processes", [this] { run_guarded(); });
  }

  ~SocketMessenger() override {
    if (aborting_) drain(std::chrono::seconds(1));
    stopping_ = true;
    wake();
    thread_.join();
  }

  int process() const override { return process_; }
  int processes() const override { return static_cast<int>(connections_.size()); }

  std::vector<std::string> exchange(const std::string& mine) override;
  SharedWindow share_window(const std::vector<int>&) override { return {}; }

  std::shared_ptr<Transfer> send(int process, std::uint32_t tag, const void* data,
                                 std::size_t bytes) override {
    auto piece = std::make_shared<Piece>();
    piece->header = {.kind = FrameKind::kData, .tag = tag, .bytes = bytes};
    // Only read from; Piece serves both directions.
    piece->data = const_cast<std::byte*>(static_cast<const std::byte*>(data));
    // First, for it may throw: from when a piece is known here, somebody must give it up.
    auto handle = std::make_shared<Handle>(*this, piece);
    enqueue(process, std::move(piece));
    return handle;
  }

  std::shared_ptr<Transfer> receive(int process, std::uint32_t tag, void* data,
                                    std::size_t bytes) override;

  void abort(std::string_view reason) noexcept override {
    aborting_ = true;
    tell(FrameKind::kAbort, reason);
  }
  std::string failure() override {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  int lost() noexcept override {
    const std::lock_guard lock(mutex_);
    return lost_;
  }
  void leave() noexcept override {
    tell(FrameKind::kLeave, "");
    drain(std::chrono::seconds(5));
  }

 private:
  class Handle : public Transfer {
   public:
    Handle(SocketMessenger& messenger, PiecePtr piece)
        : messenger_(messenger), piece_(std::move(piece)) {}
    ~Handle() override {
      if (done()) return;
      messenger_.give_up(piece_);
    }
    bool done() override { return piece_->done.load(std::memory_order_acquire); }

   private:
    SocketMessenger& messenger_;
    const PiecePtr piece_;
  };

  void wake() {
    // A full counter (EAGAIN) wakes as well, and nothing else can fail: the descriptor is ours.
    const std::uint64_t one = 1;
    while (write(wake_.fd(), &one, sizeof(one)) < 0 && errno == EINTR) {
    }
  }
  void enqueue(int process, PiecePtr piece);
  void tell(FrameKind kind, std::string_view text) noexcept;
  void broadcast(FrameKind kind, std::string_view text);
  void break_off(Connection& connection);
  void give_up(const PiecePtr& piece);
  void drain(std::chrono::milliseconds patience);
  bool drained();
  void run_guarded();
  void run();
  bool write_some(Connection& connection);
  bool read_some(Connection& connection, int process);
  bool begin_part(Connection& connection, int process);
  void end_part(Connection& connection);
  void lose(Connection& connection, int process, const std::string& why);

  const int process_;
  const std::chrono::milliseconds patience_;
  const Socket wake_;  // tells the thread that there is something to send
  std::mutex mutex_;
  std::vector<Connection> connections_;
  std::string failure_;  // guarded by mutex_; may hold kFailureBytes without more memory
  int lost_ = -1;
  std::atomic<bool> aborting_{false};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

std::vector<std::string> SocketMessenger::exchange(const std::string& mine) {
  const std::uint64_t own_size = mine.size();
  std::vector<std::string> texts(connections_.size());
  std::vector<std::uint64_t> sizes(connections_.size());
  const auto deadline = std::chrono::steady_clock::now() + patience_;
  const auto wait = [&](Transfer& transfer, int process) {
    while (!transfer.done()) {
      const std::string problem = failure();
      require(problem.empty(), ErrorCode::kAborted, problem);
      require(std::chrono::steady_clock::now() < deadline, ErrorCode::kTimeout, "process ", process,
              " did not answer within ", patience_.count() / 1000, " s");
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  };
  std::vector<std::pair<int, std::shared_ptr<Transfer>>> sent;  // to which process
  for (int p = 0; p < processes(); ++p) {
    if (p == process_) continue;
    sent.emplace_back(p, send(p, kExchangeTag, &own_size, sizeof(own_size)));
    sent.emplace_back(p, send(p, kExchangeTag, mine.data(), mine.size()));
  }
  for (int p = 0; p < processes(); ++p) {
    const auto i = static_cast<std::size_t>(p);
    if (p == process_) {
      texts[i] = mine;
      continue;
    }
    wait(*receive(p, kExchangeTag, &sizes[i], sizeof(sizes[i])), p);
    texts[i].resize(sizes[i]);
    wait(*receive(p, kExchangeTag, texts[i].data(), texts[i].size()), p);
  }
  for (const auto& [p, transfer] : sent) wait(*transfer, p);
  return texts;
}

std::shared_ptr<Messenger::Transfer> SocketMessenger::receive(int process, std::uint32_t tag,
                                                              void* data, std::size_t bytes) {
  Connection& connection = connections_[static_cast<std::size_t>(process)];
  std::shared_ptr<Handle> handle;  // first, as in send; where this throws it goes without the lock
  const std::lock_guard lock(mutex_);
  const auto unasked = connection.unasked.find(tag);
  if (unasked == connection.unasked.end()) {
    auto piece = std::make_shared<Piece>();
    piece->header = {.kind = FrameKind::kData, .tag = tag, .bytes = bytes};
    piece->data = static_cast<std::byte*>(data);
    handle = std::make_shared<Handle>(*this, piece);
    append(connection.wanted, tag, std::move(piece));
    return handle;
  }
  const PiecePtr piece = unasked->second.front();
  handle = std::make_shared<Handle>(*this, piece);
  unasked->second.pop_front();
  if (unasked->second.empty()) connection.unasked.erase(unasked);
  require(piece->header.bytes == bytes, ErrorCode::kInternal, "process ", process, " sent ",
          piece->header.bytes, " bytes where ", bytes, " were expected");
  // It may still be arriving: what is there moves to its place, and the rest goes there itself.
  std::copy_n(piece->own.begin(), piece->moved, static_cast<std::byte*>(data));
  piece->data = static_cast<std::byte*>(data);
  return handle;
}

void SocketMessenger::enqueue(int process, PiecePtr piece) {
  {
    const std::lock_guard lock(mutex_);
    Connection& connection = connections_[static_cast<std::size_t>(process)];
    if (connection.closed) return;  // never done: failure() says why
    // See [Note: abort between parts].
    const bool first = piece->header.kind == FrameKind::kAbort;
    const auto next = connection.outgoing.begin() + (connection.sending ? 1 : 0);
    connection.outgoing.insert(first ? next : connection.outgoing.end(), std::move(piece));
  }
  wake();
}

/// Nothing more is sent. What the other end has said before, such as why, is still to be read.
void SocketMessenger::break_off(Connection& connection) {
  shutdown(connection.socket.fd(), SHUT_RDWR);
  connection.outgoing.clear();
  connection.sending = false;
}

/// The caller's memory goes: nothing of it is read or written from now on.
void SocketMessenger::give_up(const PiecePtr& piece) {
  const std::lock_guard lock(mutex_);
  for (Connection& connection : connections_) {
    const auto place = std::find(connection.outgoing.begin(), connection.outgoing.end(), piece);
    if (place == connection.outgoing.end()) continue;
    if (place != connection.outgoing.begin() || !connection.sending) {
      connection.outgoing.erase(place);
      return;
    }
    try {  // it ends with this part
      piece->own.assign(piece->data + piece->moved, piece->data + connection.sent.end);
    } catch (const std::bad_alloc&) {
      break_off(connection);
      return;
    }
    piece->data = piece->own.data();
    piece->moved = 0;
    piece->header.bytes = connection.sent.end = piece->own.size();
    return;
  }
  piece->data = nullptr;
}

void SocketMessenger::tell(FrameKind kind, std::string_view text) noexcept {
  try {
    broadcast(kind, text);
  } catch (const std::bad_alloc&) {  // they see that the connection ends
  }
}

void SocketMessenger::broadcast(FrameKind kind, std::string_view text) {
  for (int p = 0; p < processes(); ++p) {
    if (p == process_) continue;
    auto piece = std::make_shared<Piece>();
    piece->header = {.kind = kind, .tag = 0, .bytes = text.size()};
    piece->own.resize(text.size());
    std::transform(text.begin(), text.end(), piece->own.begin(),
                   [](char c) { return static_cast<std::byte>(c); });
    piece->data = piece->own.data();
    enqueue(p, std::move(piece));
  }
}

/// Waits until what is queued is out: a socket that closes with unread bytes drops unsent ones.
void SocketMessenger::drain(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!drained() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

bool SocketMessenger::drained() {
  const std::lock_guard lock(mutex_);
  for (const Connection& connection : connections_) {
    if (connection.socket.fd() < 0 || connection.closed) continue;
    if (!connection.outgoing.empty()) return false;
    int unacknowledged = 0;
    if (ioctl(connection.socket.fd(), SIOCOUTQ, &unacknowledged) == 0 && unacknowledged > 0) {
      return false;
    }
  }
  return true;
}

// ---- The thread ---------------------------------------------------------------------------------

/// Where memory is short, nothing can be said for lack of it but this, for which it is reserved.
void SocketMessenger::run_guarded() {
  try {
    run();
  } catch (const std::bad_alloc&) {
    const std::lock_guard lock(mutex_);
    for (Connection& connection : connections_) {
      connection.closed = true;
      if (connection.socket.fd() >= 0) shutdown(connection.socket.fd(), SHUT_RDWR);
    }
    if (failure_.empty()) failure_ = "no memory for messages; use fewer ranks or a smaller model";
  }
}

void SocketMessenger::run() {
  std::vector<pollfd> polled;
  std::vector<int> process_of;
  while (!stopping_) {
    polled.assign(1, {.fd = wake_.fd(), .events = POLLIN, .revents = 0});
    process_of.assign(1, -1);
    {
      const std::lock_guard lock(mutex_);
      for (int p = 0; p < processes(); ++p) {
        const Connection& connection = connections_[static_cast<std::size_t>(p)];
        if (p == process_ || connection.closed) continue;
        const int events = POLLIN | (connection.outgoing.empty() ? 0 : POLLOUT);
        polled.push_back(
            {.fd = connection.socket.fd(), .events = static_cast<short>(events), .revents = 0});
        process_of.push_back(p);
      }
    }
    poll(polled.data(), polled.size(), 100);
    std::uint64_t count = 0;
    if (polled[0].revents != 0 && read(wake_.fd(), &count, sizeof(count)) < 0) continue;
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 1; i < polled.size(); ++i) {
      Connection& connection = connections_[static_cast<std::size_t>(process_of[i])];
      const auto ready = [&](int events) { return (polled[i].revents & events) != 0; };
      if (ready(POLLIN | POLLHUP | POLLERR) && !read_some(connection, process_of[i])) {
        lose(connection, process_of[i], errno == 0 ? "it ended" : std::strerror(errno));
      }
      if (!connection.closed && ready(POLLOUT) && !write_some(connection)) {
        break_off(connection);
      }
    }
  }
}

/// False if the connection is broken. Writes what the socket takes of the next few parts.
bool SocketMessenger::write_some(Connection& connection) {
  for (int parts = 0; parts < 16 && !connection.outgoing.empty(); ++parts) {
    Piece& piece = *connection.outgoing.front();
    Part& part = connection.sent;
    if (!connection.sending) {
      part = {.header = piece.header,
              .end = std::min(piece.header.bytes, piece.moved + kPartBytes)};
      if (piece.moved > 0) part.header.kind = FrameKind::kMore;
      connection.sending = true;
    }
    const std::uint64_t header_left = sizeof(FrameHeader) - part.header_bytes;
    std::array<iovec, 2> buffers{
        iovec{reinterpret_cast<std::byte*>(&part.header) + part.header_bytes, header_left},
        iovec{piece.data + piece.moved, part.end - piece.moved}};
    msghdr message{};
    message.msg_iov = buffers.data();
    message.msg_iovlen = buffers.size();
    const ssize_t n = sendmsg(connection.socket.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    const std::uint64_t of_header = std::min(static_cast<std::uint64_t>(n), header_left);
    part.header_bytes += of_header;
    piece.moved += static_cast<std::uint64_t>(n) - of_header;
    if (part.header_bytes < sizeof(FrameHeader) || piece.moved < part.end) return true;
    connection.sending = false;
    if (piece.moved < piece.header.bytes) continue;
    piece.done.store(true, std::memory_order_release);
    connection.outgoing.pop_front();
  }
  return true;
}

/// False if the connection is broken; errno is 0 if the other end has closed it.
bool SocketMessenger::read_some(Connection& connection, int process) {
  std::array<std::byte, 65536> dropped;
  for (int reads = 0; reads < 16; ++reads) {
    Part& part = connection.received;
    std::byte* to = reinterpret_cast<std::byte*>(&part.header) + part.header_bytes;
    std::size_t wanted = sizeof(FrameHeader) - part.header_bytes;
    if (connection.incoming != nullptr) {
      Piece& piece = *connection.incoming;
      const std::uint64_t left = part.end - piece.moved;
      to = piece.data == nullptr ? dropped.data() : piece.data + piece.moved;
      wanted = piece.data == nullptr ? std::min<std::uint64_t>(left, dropped.size()) : left;
    }
    const ssize_t n = recv(connection.socket.fd(), to, wanted, MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) {
      errno = 0;
      return false;
    }
    if (connection.incoming == nullptr) {
      part.header_bytes += static_cast<std::uint64_t>(n);
      if (part.header_bytes == sizeof(FrameHeader) && !begin_part(connection, process)) {
        errno = EPROTO;
        return false;
      }
    } else {
      connection.incoming->moved += static_cast<std::uint64_t>(n);
    }
    if (connection.incoming != nullptr && connection.incoming->moved == part.end) {
      end_part(connection);
    }
  }
  return true;
}

/// A header is there: finds a place for what follows it.
bool SocketMessenger::begin_part(Connection& connection, int process) {
  Part& part = connection.received;
  const FrameHeader header = part.header;
  part.header_bytes = 0;
  if (header.kind < FrameKind::kData || header.kind > FrameKind::kMore) return false;
  if (header.kind == FrameKind::kMore) {
    if (connection.partial == nullptr) return false;
    connection.incoming = std::exchange(connection.partial, nullptr);
    part.end = std::min(connection.incoming->header.bytes, connection.incoming->moved + kPartBytes);
    return true;
  }
  part.end = std::min(header.bytes, kPartBytes);
  const auto wanted = connection.wanted.find(header.tag);
  const bool asked_for = header.kind == FrameKind::kData && wanted != connection.wanted.end();
  if (asked_for) {
    connection.incoming = wanted->second.front();
    wanted->second.pop_front();
    if (wanted->second.empty()) connection.wanted.erase(wanted);
    const std::uint64_t expected = connection.incoming->header.bytes;
    if (expected == header.bytes) return true;
    if (failure_.empty()) {
      failure_ = concat("process ", process, " sent ", header.bytes, " bytes where ", expected,
                        " were expected");
    }
  }
  connection.incoming = std::make_shared<Piece>();
  connection.incoming->header = header;
  if (asked_for) return true;  // what does not fit is dropped
  connection.incoming->own.resize(header.bytes);
  connection.incoming->data = connection.incoming->own.data();
  if (header.kind == FrameKind::kData) {
    append(connection.unasked, header.tag, connection.incoming);
  }
  return true;
}

void SocketMessenger::end_part(Connection& connection) {
  const PiecePtr piece = std::exchange(connection.incoming, nullptr);
  if (piece->moved < piece->header.bytes) {
    connection.partial = piece;
    return;
  }
  piece->done.store(true, std::memory_order_release);
  if (piece->header.kind == FrameKind::kLeave) connection.left = true;
  if (piece->header.kind == FrameKind::kAbort && failure_.empty()) {
    failure_.assign(reinterpret_cast<const char*>(piece->own.data()), piece->own.size());
    if (failure_.empty()) failure_ = kNoReason;
  }
}

/// The other end sees that this one is gone, too.
void SocketMessenger::lose(Connection& connection, int process, const std::string& why) {
  connection.closed = true;
  break_off(connection);
  if (connection.left || !failure_.empty()) return;
  failure_ = concat("lost the connection to process ", process, " (", why, ")");
  lost_ = process;
}

}  // namespace

std::unique_ptr<Messenger> make_socket_messenger(const SocketRendezvous& rendezvous) {
  return std::make_unique<SocketMessenger>(rendezvous);
}

std::unique_ptr<World> make_socket_world(const SocketRendezvous& rendezvous,
                                         const WorldOptions& options) {
  return make_world(make_socket_messenger(rendezvous), options);
}

}  // namespace tessera

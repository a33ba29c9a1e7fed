#include <linux/sockios.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/core/start_thread.h"
#include "world/messenger.h"
#include "world/socket_connection.h"
#include "world/socket_mesh.h"
#include "world/world_core.h"

namespace tessera {
namespace {

constexpr std::uint32_t kExchangeTag = 0xffffffffU;

/// Messages over TCP. One thread does all input and output.
class SocketMessenger : public Messenger {
 public:
  explicit SocketMessenger(const SocketRendezvous& rendezvous)
      : process_(rendezvous.process),
        patience_(rendezvous.patience),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    std::vector<Socket> mesh = connect_mesh(rendezvous);
    connections_ = std::vector<SocketConnection>(mesh.size());
    for (std::size_t p = 0; p < mesh.size(); ++p) connections_[p].socket = std::move(mesh[p]);
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
    enqueue(process, piece);
    return std::make_shared<Handle>(*this, std::move(piece));
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
  void give_up(const PiecePtr& piece);
  void drain(std::chrono::milliseconds patience);
  bool drained();
  void run_guarded();
  void end_with(std::string failure);
  void run();
  void lose(SocketConnection& connection, int process, const std::string& why);

  const int process_;
  const std::chrono::milliseconds patience_;
  const Socket wake_;  // tells the thread that there is something to send
  std::mutex mutex_;
  std::vector<SocketConnection> connections_;
  std::string failure_;  // guarded by mutex_
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
  SocketConnection& connection = connections_[static_cast<std::size_t>(process)];
  const std::lock_guard lock(mutex_);
  const auto unasked = connection.unasked.find(tag);
  if (unasked == connection.unasked.end()) {
    auto piece = std::make_shared<Piece>();
    piece->header = {.kind = FrameKind::kData, .tag = tag, .bytes = bytes};
    piece->data = static_cast<std::byte*>(data);
    connection.wanted[tag].push_back(piece);
    return std::make_shared<Handle>(*this, std::move(piece));
  }
  const PiecePtr piece = unasked->second.front();
  unasked->second.pop_front();
  if (unasked->second.empty()) connection.unasked.erase(unasked);
  require(piece->header.bytes == bytes, ErrorCode::kInternal, "process ", process, " sent ",
          piece->header.bytes, " bytes where ", bytes, " were expected");
  // It may still be arriving: what is there moves to its place, and the rest goes there itself.
  std::copy_n(piece->own.begin(), piece->moved, static_cast<std::byte*>(data));
  piece->data = static_cast<std::byte*>(data);
  return std::make_shared<Handle>(*this, piece);
}

void SocketMessenger::enqueue(int process, PiecePtr piece) {
  {
    const std::lock_guard lock(mutex_);
    SocketConnection& connection = connections_[static_cast<std::size_t>(process)];
    if (connection.closed) return;  // never done: failure() says why
    // See [Note: abort between parts].
    const bool first = piece->header.kind == FrameKind::kAbort;
    const auto next = connection.outgoing.begin() + (connection.sending ? 1 : 0);
    connection.outgoing.insert(first ? next : connection.outgoing.end(), std::move(piece));
  }
  wake();
}

/// The caller's memory goes: nothing of it is read or written from now on.
void SocketMessenger::give_up(const PiecePtr& piece) {
  const std::lock_guard lock(mutex_);
  for (SocketConnection& connection : connections_) {
    if (connection.give_up(piece)) return;
  }
  piece->data = nullptr;
}

void SocketMessenger::tell(FrameKind kind, std::string_view text) noexcept {
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
  for (const SocketConnection& connection : connections_) {
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

/// An error that ends the thread ends the run.
void SocketMessenger::run_guarded() {
  try {
    run();
  } catch (const std::bad_alloc&) {
    end_with("no memory for messages; use fewer ranks or a smaller model");
  } catch (const std::exception& error) {  // such as a message longer than anything can be
    end_with(error.what());
  }
}

void SocketMessenger::end_with(std::string failure) {
  const std::lock_guard lock(mutex_);
  for (SocketConnection& connection : connections_) {
    connection.closed = true;
    if (connection.socket.fd() >= 0) connection.break_off();
  }
  if (failure_.empty()) failure_ = std::move(failure);
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
        const SocketConnection& connection = connections_[static_cast<std::size_t>(p)];
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
      SocketConnection& connection = connections_[static_cast<std::size_t>(process_of[i])];
      const auto ready = [&](int events) { return (polled[i].revents & events) != 0; };
      if (ready(POLLIN | POLLHUP | POLLERR) && !connection.read_some(process_of[i], failure_)) {
        lose(connection, process_of[i], errno == 0 ? "it ended" : std::strerror(errno));
      }
      if (!connection.closed && ready(POLLOUT) && !connection.write_some()) {
        connection.break_off();
      }
    }
  }
}

/// The other end sees that this one is gone, too.
void SocketMessenger::lose(SocketConnection& connection, int process, const std::string& why) {
  connection.closed = true;
  connection.break_off();
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

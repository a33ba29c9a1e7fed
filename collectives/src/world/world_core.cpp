#include "world/world_core.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/core/host_name.h"
#include "tessera/core/start_thread.h"
#include "world/host_identity.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kWatchInterval{20};

}  // namespace

WorldCore::WorldCore(std::unique_ptr<Messenger> messenger, const WorldOptions& options)
    : options_(options), messenger_(std::move(messenger)) {
  require(options_.local_ranks >= 1, ErrorCode::kInvalidArgument, options_.local_ranks,
          " ranks in a process are not possible");
  require(options_.timeout.count() > 0, ErrorCode::kInvalidArgument, "a timeout of ",
          options_.timeout.count(), " ms is not positive");
  {
    const DescriptorExchange exchange;
    meet(exchange);
    map_peers(exchange);
  }
  share_window();
  messenger_->exchange("mapped");  // from here on a process may end: what it shared is held by all
  watcher_ = start_thread("the watch over other processes", [this] { watch(); });
}

WorldCore::~WorldCore() {
  stopping_ = true;
  if (watcher_.joinable()) watcher_.join();
  abort_if_unwinding();
  if (!aborted()) {
    arena_.mapping().header().left.store(1, std::memory_order_seq_cst);
    messenger_->leave();
  } else if (!told_.exchange(true)) {
    messenger_->abort(written_reason());
  }
}

std::string WorldCore::introduction(const std::string& socket) const {
  // The fields hold no spaces; what can hold any comes last.
  const std::string host = host_identity(process(), options_.apart);
  return concat(getpid(), " ", arena_.mapping().file(), " ", arena_.mapping().bytes(), " ",
                options_.local_ranks, " ", socket, " ", host, " ", host_name());
}

void WorldCore::meet(const DescriptorExchange& exchange) {
  const std::vector<std::string> texts = messenger_->exchange(introduction(exchange.name()));
  for (int p = 0; p < processes(); ++p) {
    std::istringstream text(texts[static_cast<std::size_t>(p)]);
    Peer peer;
    int local_ranks = 0;
    text >> peer.pid >> peer.file >> peer.bytes >> local_ranks >> peer.socket >> peer.host >>
        peer.name;
    require(!text.fail(), ErrorCode::kInternal, "process ", p, " introduced itself as '",
            texts[static_cast<std::size_t>(p)], "'; all must run the same version of tessera");
    require(local_ranks == options_.local_ranks, ErrorCode::kConfig, "process ", p, " on ",
            peer.name, " has ", local_ranks, " ranks but process ", process(), " has ",
            options_.local_ranks, "; every process must have as many (`ranks`)");
    peers_.push_back(std::move(peer));
  }
  const std::string& own = peers_[static_cast<std::size_t>(process())].host;
  const auto first = std::find_if(peers_.begin(), peers_.end(),
                                  [&](const Peer& peer) { return peer.host == own; });
  board_process_ = static_cast<int>(first - peers_.begin());
}

void WorldCore::map_peers(const DescriptorExchange& exchange) {
  const std::string& own = peers_[static_cast<std::size_t>(process())].host;
  std::vector<DescriptorExchange::Neighbour> neighbours;
  for (int p = 0; p < processes(); ++p) {
    const Peer& peer = peers_[static_cast<std::size_t>(p)];
    if (p == process() || peer.host != own) continue;
    neighbours.push_back({.process = p, .pid = peer.pid, .name = peer.socket});
  }
  std::vector<Socket> files =
      exchange.exchange(arena_.mapping().file(), neighbours, options_.timeout,
                        [this] { return messenger_->failure(); });
  for (std::size_t i = 0; i < neighbours.size(); ++i) {
    Peer& peer = peers_[static_cast<std::size_t>(neighbours[i].process)];
    peer.mapping = std::make_unique<SharedMapping>(std::move(files[i]), peer.bytes);
    peer.watch = std::make_unique<ProcessWatch>(peer.pid, peer.file);
  }
}

void WorldCore::share_window() {
  const std::string& own = peers_[static_cast<std::size_t>(process())].host;
  std::vector<int> neighbours;
  for (int p = 0; p < processes(); ++p) {
    if (peers_[static_cast<std::size_t>(p)].host == own) neighbours.push_back(p);
  }
  const SharedWindow window = messenger_->share_window(neighbours);
  if (window.bytes == 0) return;
  for (std::size_t i = 0; i < neighbours.size(); ++i) {
    peers_[static_cast<std::size_t>(neighbours[i])].window = window.bases[i];
  }
  arena_.add_window(peers_[static_cast<std::size_t>(process())].window, window.bytes);
}

bool WorldCore::share_memory(int world_rank, int other_world_rank) const {
  const auto host = [&](int rank) -> const std::string& {
    return peers_[static_cast<std::size_t>(process_of(rank))].host;
  };
  return host(world_rank) == host(other_world_rank);
}

int WorldCore::ranks_on_host() const {
  return processes_on_host(processes()) * options_.local_ranks;
}

int WorldCore::first_local_rank() const {
  return processes_on_host(process()) * options_.local_ranks;
}

/// Counts among the first `count` processes.
int WorldCore::processes_on_host(int count) const {
  const std::string& own = peers_[static_cast<std::size_t>(process())].host;
  return static_cast<int>(std::count_if(peers_.begin(), peers_.begin() + count,
                                        [&](const Peer& peer) { return peer.host == own; }));
}

int WorldCore::machine_of(int world_rank) const {
  std::vector<std::string_view> hosts;  // in the order of their first ranks
  const std::string_view own = peers_[static_cast<std::size_t>(process_of(world_rank))].host;
  for (const Peer& peer : peers_) {
    if (std::find(hosts.begin(), hosts.end(), peer.host) == hosts.end()) hosts.push_back(peer.host);
  }
  return static_cast<int>(std::find(hosts.begin(), hosts.end(), own) - hosts.begin());
}

std::byte* WorldCore::at(int process, std::size_t offset) const {
  const Peer& peer = peers_[static_cast<std::size_t>(process)];
  const SharedMapping& file = peer.mapping != nullptr ? *peer.mapping : arena_.mapping();
  return offset < file.bytes() ? file.base() + offset : peer.window + (offset - file.bytes());
}

ArenaHeader& WorldCore::board() const {
  return *reinterpret_cast<ArenaHeader*>(at(board_process_, 0));
}

// ---- Failure ------------------------------------------------------------------------------------

void WorldCore::post(std::string_view reason) noexcept {
  ArenaHeader& header = board();
  std::uint32_t none = 0;
  if (!header.abort_state.compare_exchange_strong(none, 1, std::memory_order_seq_cst)) return;
  const std::size_t length = std::min(reason.size(), ArenaHeader::kReasonBytes - 1);
  std::memcpy(header.reason, reason.data(), length);
  header.reason[length] = '\0';
  header.abort_state.store(2, std::memory_order_seq_cst);
}

void WorldCore::abort(std::string_view reason) noexcept {
  if (reason.empty()) reason = kNoReason;
  post(reason);
  // While another rank is still writing the machine's reason, the own one is as good.
  if (!told_.exchange(true)) messenger_->abort(is_written() ? board().reason : reason);
}

void WorldCore::abort_if_unwinding() noexcept {
  if (std::uncaught_exceptions() <= exceptions_) return;
  // The exception itself cannot be seen from here.
  abort(describe(process()) + " failed; its own output says why");
}

bool WorldCore::aborted() const { return board().abort_state.load(std::memory_order_seq_cst) != 0; }

bool WorldCore::is_written() const {
  return board().abort_state.load(std::memory_order_acquire) == 2;
}

std::string WorldCore::reason() const {
  return std::string(aborted() ? written_reason() : std::string_view());
}

std::string_view WorldCore::written_reason() const {
  // Its writer may have been killed.
  constexpr std::chrono::milliseconds kPatience{100};
  const auto begin = std::chrono::steady_clock::now();
  while (!is_written() && std::chrono::steady_clock::now() - begin < kPatience) {
    std::this_thread::yield();
  }
  return is_written() ? board().reason : kNoReason;
}

std::string WorldCore::describe(int process) const {
  const int first = process * options_.local_ranks;
  const int last = first + options_.local_ranks - 1;
  const Peer& peer = peers_[static_cast<std::size_t>(process)];
  return concat(first == last ? concat("rank ", first) : concat("ranks ", first, " to ", last),
                " (process ", process, ", pid ", peer.pid, " on ", peer.name, ")");
}

/// Ends the watch of a process that has ended; its death is a failure unless it left well.
void WorldCore::check_peer(Peer& peer, int process) {
  if (peer.watch == nullptr || !peer.watch->ended()) return;
  if (peer.mapping->header().left.load(std::memory_order_seq_cst) != 1) {
    abort(describe(process) + " ended before the run was over");
  }
  peer.watch.reset();
}

void WorldCore::look() {
  for (int p = 0; p < processes(); ++p) check_peer(peers_[static_cast<std::size_t>(p)], p);
  const std::string failure = messenger_->failure();
  if (!failure.empty()) {
    const int lost = messenger_->lost();
    abort(lost < 0 ? failure : concat(describe(lost), ": ", failure));
  }
  // Another process of this machine may have been the one to fail.
  if (aborted() && !told_.exchange(true)) messenger_->abort(written_reason());
}

void WorldCore::watch() {
  while (!stopping_) {
    look();
    std::this_thread::sleep_for(kWatchInterval);
  }
}

}  // namespace tessera

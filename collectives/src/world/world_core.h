#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tessera/collectives/world.h"
#include "world/descriptor_exchange.h"
#include "world/messenger.h"
#include "world/process_watch.h"
#include "world/shared_arena.h"

namespace tessera {

/// State that the ranks of one process have in common: the memory of the machine's processes, the
/// messenger, and whether the run has been aborted. A thread of its own watches the other
/// processes.
class WorldCore {
 public:
  /// Collective. Throws Error{kConfig} if processes disagree.
  WorldCore(std::unique_ptr<Messenger> messenger, const WorldOptions& options);
  ~WorldCore();

  const WorldOptions& options() const { return options_; }
  Messenger& messenger() const { return *messenger_; }
  SharedArena& arena() { return arena_; }

  int process() const { return messenger_->process(); }
  int processes() const { return messenger_->processes(); }
  int size() const { return processes() * options_.local_ranks; }
  int process_of(int world_rank) const { return world_rank / options_.local_ranks; }
  /// True if the two ranks' processes share memory.
  bool share_memory(int world_rank, int other_world_rank) const;
  int ranks_on_host() const;
  int first_local_rank() const;
  int machine_of(int world_rank) const;
  int first_process_on_host() const { return board_process_; }

  /// An address in the arena of `process`, which is on this machine, as this process sees it.
  std::byte* at(int process, std::size_t offset) const;

  /// The first reason wins. Reaches all ranks of all processes.
  void abort(std::string_view reason) noexcept;
  /// Called where the world ends: if an exception ends it, this process has failed.
  void abort_if_unwinding() noexcept;
  /// An operation of some group has ended here.
  void note_move() const {
    board().moved.store(std::chrono::steady_clock::now().time_since_epoch().count(),
                        std::memory_order_relaxed);
  }
  /// When the last one has, on this machine.
  std::chrono::steady_clock::time_point last_moved() const {
    using Clock = std::chrono::steady_clock;
    return Clock::time_point(Clock::duration(board().moved.load(std::memory_order_relaxed)));
  }
  /// True from when the first one that fails says so, before it leaves and frees its buffers.
  bool aborted() const;
  /// Why; "" unless aborted. Waits a moment for who is still writing it.
  std::string reason() const;

 private:
  bool is_written() const;
  /// Once aborted: as reason(), where it lies.
  std::string_view written_reason() const;
  struct Peer {
    std::string host{};  // equal for processes that share memory
    std::string name{};  // of the machine, for messages
    int pid = 0;
    int file = -1;                             // of its arena, as it knows it
    std::size_t bytes = 0;                     // of its arena
    std::string socket{};                      // of its exchange of descriptors
    std::unique_ptr<SharedMapping> mapping{};  // null: on another machine, or this process
    std::byte* window = nullptr;               // null: on another machine, or there are none
    std::unique_ptr<ProcessWatch> watch{};     // null: as `mapping`, or it has ended
  };

  void meet(const DescriptorExchange& exchange);
  std::string introduction(const std::string& socket) const;
  void map_peers(const DescriptorExchange& exchange);
  void share_window();
  void watch();
  /// Once, at what the others do.
  void look();
  void check_peer(Peer& peer, int process);
  int processes_on_host(int count) const;
  std::string describe(int process) const;
  ArenaHeader& board() const;
  /// Sets the machine's reason unless there is one.
  void post(std::string_view reason) noexcept;

  const int exceptions_ = std::uncaught_exceptions();  // not of this world
  const WorldOptions options_;
  const std::unique_ptr<Messenger> messenger_;
  SharedArena arena_;
  std::vector<Peer> peers_;  // by process
  int board_process_ = 0;    // whose arena header holds the machine's abort state
  std::atomic<bool> told_{false};
  std::atomic<bool> stopping_{false};
  std::thread watcher_;
};

/// The world over any messenger.
std::unique_ptr<World> make_world(std::unique_ptr<Messenger> messenger,
                                  const WorldOptions& options);

}  // namespace tessera

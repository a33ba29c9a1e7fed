#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "emulator/hooks.h"
#include "fiber.h"
#include "order.h"
#include "sanitizers.h"
#include "shared_memory.h"

namespace tessera::emulator {

/// What the lanes of a warp can do together.
enum class Collective { kShuffle, kVote, kSyncWarp, kMma, kLdMatrix };

/// A cp.async on its way.
struct AsyncCopy {
  void* to;
  const void* from;
  int group;       ///< commits of this thread before it
  bool delivered;  ///< already written once
};

struct Thread {
  enum class State { kReady, kAtBarrier, kInWarp, kDone };

  Identity identity;
  State state;
  Collective collective;  ///< in kInWarp
  std::uint32_t mask;     ///< in kInWarp
  Location where;         ///< where it waits
  int vote_result;
  int copies, groups;  ///< async copies on their way; groups committed
  std::array<AsyncCopy, 256> copy;
  Fiber fiber;
};

/// Lanes of a warp that wait for each other.
struct Rendezvous {
  std::uint32_t mask, arrived;
  Collective collective;
  Location where;
  std::array<void*, 32> payload;
};

/// Works on the payloads of the lanes in `mask`, once for all of them.
using Combine = void (*)(const std::array<void*, 32>& payload, std::uint32_t mask);

/// Runs blocks of CUDA threads, one block after another, each thread on a fiber of its own. The
/// functions below are called on those fibers: nothing there may call malloc or anything else that
/// ThreadSanitizer intercepts.
class Block {
 public:
  /// What is the same for all blocks of a launch.
  struct Grid {
    dim3 grid, block;
    std::size_t dynamic_shared_bytes;
    std::size_t shared_limit;
    const std::function<void()>* body;
    SyncPoint* start;
  };

  Block() : warps_(32) {}

  /// The block that the calling fiber belongs to.
  static Block& running();

  /// Runs one block to its end. False if there was a fault.
  bool run(const Grid& grid, uint3 index, Order& order, Fiber& scheduler);
  /// All blocks that ran here are before what follows.
  void await_end() {
    for (SyncPoint& end : end_) end.await();
  }
  /// What went wrong, with the place; empty if nothing did.
  const char* error() const { return error_.data(); }
  void clear_error() { error_[0] = '\0'; }
  /// Gives stacks back, down to this many.
  void keep_fibers(std::size_t count);

  Thread& thread() { return *running_thread_; }
  SharedMemory& shared() { return shared_; }
  Order& order() { return *order_; }
  unsigned char* dynamic_shared() { return dynamic_shared_; }
  int barrier(Vote vote, bool predicate, const Location& where);
  void warp_barrier(std::uint32_t mask, const Location& where);
  void meet(std::uint32_t mask, Collective collective, void* payload, Combine combine,
            const Location& where);
  [[noreturn]] void fault(const char* what, const Location& where);

 private:
  struct Warp {
    std::uint32_t ready = 0;
    std::size_t waiting = 0;
    std::array<Rendezvous, 32> rendezvous;
    SyncPoint sync;
  };
  struct Barrier {
    unsigned waiting = 0;
    Vote vote = Vote::kNone;
    int count = 0;
    Location where;
    unsigned generation = 0;
    std::array<SyncPoint, 2> sync;
  };

  static void enter_thread();
  void prepare(uint3 index);
  void abandon_threads();
  Thread* take_ready(unsigned warp);
  void go_to(Thread* next);
  void yield();
  void complete_barrier();
  void describe_deadlock();
  void describe_damage(long bytes, uint3 index);

  const Grid* grid_ = nullptr;
  Order* order_ = nullptr;
  Fiber* scheduler_ = nullptr;
  unsigned count_ = 0, alive_ = 0;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Warp> warps_;
  Thread* running_thread_ = nullptr;  ///< null: the scheduler
  Barrier barrier_;
  SharedMemory shared_;
  unsigned char* dynamic_shared_ = nullptr;
  unsigned turn_ = 0;               ///< blocks that were begun here
  std::array<SyncPoint, 2> end_{};  ///< of blocks of even and of odd turns
  std::array<char, 2048> error_{};
};

}  // namespace tessera::emulator

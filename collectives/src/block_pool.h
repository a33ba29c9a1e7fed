#pragma once

#include <atomic>
#include <cstddef>
#include <new>
#include <utility>

namespace tessera {

/// Memory for objects of up to `kBytes` that one thread makes and another destroys, over and over.
/// glibc's free needs the lock of the arena that the memory came from, and fills malloc's lists
/// with what has to be sorted: of an all-gather of 256 KiB it was a quarter. Here a block goes back
/// to one list, which a thread that has none left takes as a whole. To that list a thread gives
/// several at a time, a chain: the list's head goes from core to core, and no chain has to be
/// walked. Blocks are not returned to the system, so each thread that takes may hold as many as
/// have been in use at once.
template <std::size_t kBytes>
class BlockPool {
 public:
  static void* take() {
    Own& own = own_blocks();
    if (own.first == nullptr) own.begin_chain();
    if (own.first == nullptr) return ::operator new(sizeof(Block));
    Block* const block = own.first;
    own.first = block->links.next;
    return block;
  }

  static void give_back(void* memory) noexcept {
    Own& own = own_blocks();
    own.first = new (memory) Block{.links = {.next = own.first, .next_chain = nullptr}};
    if (++own.given == kGivenAtOnce) own.leave();
  }

 private:
  static constexpr int kGivenAtOnce = 16;

  union Block {
    struct {
      Block* next;
      Block* next_chain;  // of the first block of a chain
    } links = {};
    alignas(std::max_align_t) std::byte bytes[kBytes];
  };

  /// Blocks that a thread has taken and not used yet, or been given and not passed on yet.
  struct Own {
    Block* first = nullptr;   // of the chain in use
    Block* chains = nullptr;  // further ones
    int given = 0;

    ~Own() {
      leave();
      if (chains == nullptr) return;
      Block* last = chains;
      while (last->links.next_chain != nullptr) last = last->links.next_chain;
      give(chains, last);
    }

    void begin_chain() noexcept {
      if (chains == nullptr) chains = returned_.exchange(nullptr, std::memory_order_acquire);
      first = chains;
      if (first != nullptr) chains = first->links.next_chain;
    }

    void leave() noexcept {
      given = 0;
      if (first != nullptr) give(first, first);
      first = nullptr;
    }

    static void give(Block* first_chain, Block* last_chain) noexcept {
      // The list is only ever taken as a whole, so what follows the last chain cannot become stale
      // under the exchange.
      Block*& next = last_chain->links.next_chain;
      next = returned_.load(std::memory_order_relaxed);
      while (!returned_.compare_exchange_weak(next, first_chain, std::memory_order_release,
                                              std::memory_order_relaxed)) {
      }
    }
  };

  static Own& own_blocks() {
    static thread_local Own own;
    return own;
  }

  static inline std::atomic<Block*> returned_{nullptr};
};

/// A task for a stream, in memory of a pool: std::function makes its copy by the operators of the
/// class, at least GCC's does.
template <typename Task>
struct Pooled : Task {
  explicit Pooled(Task task) : Task(std::move(task)) {}
  static void* operator new(std::size_t) { return BlockPool<sizeof(Pooled)>::take(); }
  static void operator delete(void* memory) { BlockPool<sizeof(Pooled)>::give_back(memory); }
};

}  // namespace tessera

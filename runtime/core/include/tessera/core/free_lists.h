#pragma once

#include <cstddef>
#include <new>
#include <unordered_map>
#include <utility>

namespace tessera {

/// Freed blocks of memory, to be used again for exactly their size. A block begins with the address
/// of the next one, so that giving one back takes no memory: that happens where memory is short.
class FreeLists {
 public:
  /// Null if there is none of this size. One that is made instead may be given back later.
  void* take(std::size_t bytes) {
    Block*& first = first_[bytes];
    return first == nullptr ? nullptr : std::exchange(first, first->next);
  }

  /// `bytes`, at least a pointer's, have been asked of take() before.
  void give_back(void* block, std::size_t bytes) noexcept {
    Block*& first = first_.find(bytes)->second;
    first = new (block) Block{.next = first};
  }

  /// Calls release(block) for each, and forgets them.
  template <typename Release>
  void clear(const Release& release) noexcept {
    for (auto& [bytes, first] : first_) {
      while (first != nullptr) release(static_cast<void*>(std::exchange(first, first->next)));
    }
  }

 private:
  struct Block {
    Block* next;
  };

  std::unordered_map<std::size_t, Block*> first_;  // by size
};

}  // namespace tessera

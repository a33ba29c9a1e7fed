#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

#include "tessera/kernels/exact_sum.h"

namespace tessera::cpu {

/// One thread's part of an exact sum.
class ExactAccumulator {
 public:
  void add(double term) {
    add_exactly(std::bit_cast<std::uint64_t>(term), [this](int word, std::int64_t value) {
      words_[static_cast<std::size_t>(word)] += value;
    });
  }

  /// Adds what has come together to `words`, to which other threads may be adding.
  void add_to(std::int64_t* words) const {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      std::atomic_ref<std::int64_t>(words[i]).fetch_add(words_[i], std::memory_order_relaxed);
    }
  }

 private:
  std::array<std::int64_t, kExactSumWords> words_{};
};

}  // namespace tessera::cpu

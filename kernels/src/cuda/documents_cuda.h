#pragma once

#include <cstdint>

// Questions of kernels about the documents of a sequence: see [Note: documents].
namespace tessera::cuda {

/// Where in its sequence the document of `place` begins: starts[row], or without starts 0. Whatever
/// is in memory, it is in [0, place].
constexpr std::int64_t document_start(const std::int32_t* starts, std::int64_t row,
                                      std::int64_t place) {
  if (starts == nullptr) return 0;
  const std::int64_t start = starts[row];
  return start < 0 ? 0 : start < place ? start : place;
}

/// One sequence's.
struct Documents {
  const std::int32_t* starts = nullptr;  ///< (length); null: one document
  int length = 0;

  /// Where the document of `place` begins, behind the last place that of the last.
  constexpr int start(int place) const {
    const int row = place < length ? place : length - 1;
    return static_cast<int>(document_start(starts, row, row));
  }
  /// Where the document of `place` ends, which is behind its last place.
  constexpr int end(int place) const {
    if (starts == nullptr) return length;
    int low = place + 1, high = length;
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (starts[middle] > place) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
  /// Positions that a query sees, itself included: those of its document within `window`. The first
  /// of them never lies before that of an earlier query.
  constexpr int seen(int query, int window) const {
    if (starts == nullptr) return window;
    const int within = query - start(query) + 1;
    return within < window ? within : window;
  }
  /// Whether the document begins here or where that of the place before does.
  constexpr bool begins_somewhere(int place) const {
    if (starts == nullptr || starts[place] == place) return true;
    return starts[place] == (place == 0 ? 0 : starts[place - 1]);
  }
};

}  // namespace tessera::cuda

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/collectives/process_group.h"

namespace tessera {

/// One call of a ProcessGroup, as every backend sees it: what to check, count and compare.
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kBarrier;
  TensorView input{};       ///< what is sent; also the only buffer of in-place operations
  TensorView output{};      ///< what is received, where that is another buffer
  int peer = -1;            ///< root, destination or source
  bool accumulate = false;  ///< reduce_scatter only
  int gpu = -1;             ///< whose memory the buffers are: a GPU's ordinal, or the host's

  /// Bytes of the whole buffer, as sent_bytes() wants them.
  std::int64_t buffer_bytes() const {
    return kind == CollectiveKind::kAllGather ? output.bytes() : input.bytes();
  }
};

/// Throws Error{kInvalidArgument} unless `rank` of `size` may issue `call`: contiguous views whose
/// sizes and dtypes fit, buffers that are apart or in place, peers that exist.
void check_call(const CollectiveCall& call, int rank, int size);

/// Adds `call` to `traffic`.
void count_call(const CollectiveCall& call, int size, Traffic& traffic);

/// The chunk of an all-reduce that `rank` sums. Its bounds do not change any sum; whole cache lines
/// keep two ranks off one line.
TensorView chunk_of(const TensorView& data, int rank, int size);

/// Part `index` of the `parts` equal parts of a contiguous view.
inline TensorView part_of(const TensorView& view, int index, int parts) {
  const std::int64_t numel = view.numel() / parts;
  return view.flat().narrow(0, index * numel, numel);
}

/// "rank 2" or "ranks 1, 3".
std::string list_ranks(const std::vector<int>& ranks);

}  // namespace tessera

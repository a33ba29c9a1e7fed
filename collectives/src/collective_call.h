#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/collectives/process_group.h"

namespace tessera {

/// True for send and recv, which concern two ranks; the other calls concern the whole group.
constexpr bool is_pairwise(CollectiveKind kind) {
  return kind == CollectiveKind::kSend || kind == CollectiveKind::kRecv;
}

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

/// The facts that must fit in the calls of all ranks, or of both ends of a pair. Without pointers,
/// so that it can be sent.
struct CallSummary {
  std::int32_t kind;
  std::int32_t peer;  ///< root; -1 for pairs
  std::int64_t numel;
  std::int32_t dtype;
  std::int32_t on_gpu;  ///< 1 if the buffers are in a GPU's memory
  bool operator==(const CallSummary&) const = default;
};
CallSummary summary_of(const CollectiveCall& call);
/// True for the same call, or a send and the recv of the same.
bool fits(const CallSummary& a, const CallSummary& b);
/// "all_gather of 12 fp32".
std::string describe(const CallSummary& summary);

/// How far a rank of a group that reads its peers' buffers is within one operation.
enum class Stage : std::uint64_t {
  kPublished = 1,  ///< its buffers may be read
  kReduced = 2,    ///< all_reduce: its own chunk holds the sum
  kDone = 3,       ///< it reads nobody's buffers any more
};
inline constexpr std::uint64_t kStages = 4;
/// A rank's progress counter at `stage` of its operation number `sequence`: it only ever rises.
constexpr std::uint64_t progress_at(std::uint64_t sequence, Stage stage) {
  return sequence * kStages + static_cast<std::uint64_t>(stage);
}

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

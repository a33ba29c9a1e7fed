#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tessera/core/device.h"
#include "tessera/core/tensor.h"

namespace tessera {

enum class CollectiveKind : std::uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kAllToAll,
  kSend,
  kRecv,
  kBarrier,
};
inline constexpr int kCollectiveKinds = 8;

/// "all_gather", "reduce_scatter", ...: the keys of the log.
std::string_view to_string(CollectiveKind kind);

/// Bytes that one rank sends, as bandwidth-optimal algorithms do and nccl-tests counts them.
/// `bytes` is the size of the whole buffer: n shards for all-gather, reduce-scatter, all-to-all.
///   all-gather, reduce-scatter, all-to-all: bytes (n-1)/n;  all-reduce: 2 bytes (n-1)/n;
///   broadcast: bytes (n-1)/n, the mean over ranks of a pipelined broadcast;  send: bytes;  recv:
///   0.
/// Source: nccl-tests doc/PERFORMANCE.md.
std::int64_t sent_bytes(CollectiveKind kind, std::int64_t bytes, int world_size);

/// Calls and bytes sent by this rank, by kind, and bytes that it copies.
struct Traffic {
  std::array<std::int64_t, kCollectiveKinds> calls{};
  std::array<std::int64_t, kCollectiveKinds> sent_bytes{};
  /// Bytes of staging copies in and out around collectives, for groups that must: those between
  /// machines, and NCCL's for sums in bf16 or in rank order and to accumulate. Ranks of one machine
  /// read buffers where they lie.
  std::int64_t copied_bytes = 0;
  /// Bytes of the schedule's copies between the device's memory and the host's; no group's.
  std::int64_t to_host_bytes = 0;
  std::int64_t to_device_bytes = 0;
  /// Bytes copied between the disk and the host's memory.
  std::int64_t to_disk_bytes = 0;
  std::int64_t from_disk_bytes = 0;

  std::int64_t& calls_of(CollectiveKind k) { return calls[static_cast<std::size_t>(k)]; }
  std::int64_t calls_of(CollectiveKind k) const { return calls[static_cast<std::size_t>(k)]; }
  std::int64_t& sent_of(CollectiveKind k) { return sent_bytes[static_cast<std::size_t>(k)]; }
  std::int64_t sent_of(CollectiveKind k) const { return sent_bytes[static_cast<std::size_t>(k)]; }
  Traffic& operator+=(const Traffic& other);
  bool operator==(const Traffic&) const = default;
};

inline bool moves_between_tiers(const Traffic& traffic) {
  return traffic.to_host_bytes > 0 || traffic.to_device_bytes > 0;
}
inline bool moves_to_or_from_disk(const Traffic& traffic) {
  return traffic.to_disk_bytes > 0 || traffic.from_disk_bytes > 0;
}

/// Ordered ranks that communicate. Every operation is asynchronous on the stream given last: it
/// starts after earlier work of that stream, and its buffers may be touched again by work that
/// comes later in stream order. All ranks must issue the same operations in the same order.
///
/// Failures arrive through the stream: Error{kTimeout} names the ranks that did not come,
/// Error{kAborted} carries the reason that another rank gave to `abort`.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// The name of this group in errors of operations: "the messages from pipeline rank 0 to 1".
  /// Before its first operation, the same on all ranks. Not passed on by split(). NCCL's and
  /// simulated groups have no use for it.
  virtual void set_label(const std::string& /*label*/) {}

  /// `output` (n * size) receives `input` (n) of every rank in rank order. In place when `input` is
  /// this rank's part of `output`. Any dtype.
  virtual void all_gather(TensorView input, TensorView output, Stream& stream) = 0;

  /// `output` (n) [+]= this rank's part of the sum over ranks of `input` (n * size). In place when
  /// `output` is this rank's part of `input`. fp32, bf16 or fp16 each, accumulated in fp32 in the
  /// order [output,] rank 0, 1, ..., rounded once. NCCL's order is its own.
  virtual void reduce_scatter(TensorView input, TensorView output, bool accumulate,
                              Stream& stream) = 0;

  /// `data` becomes the sum over ranks, in rank order. fp32, bf16, fp16, fp64, int64.
  virtual void all_reduce(TensorView data, Stream& stream) = 0;

  /// `data` of rank `root` goes to every rank. Any dtype.
  virtual void broadcast(TensorView data, int root, Stream& stream) = 0;

  /// Part j of `input` goes to rank j, which stores it as part `rank()` of its `output`.
  virtual void all_to_all(TensorView input, TensorView output, Stream& stream) = 0;

  virtual void send(TensorView data, int destination, Stream& stream) = 0;
  virtual void recv(TensorView data, int source, Stream& stream) = 0;

  /// Completes on the stream when every rank has reached it.
  virtual void barrier(Stream& stream) = 0;

  /// Ranks that pass the same color form a new group, ordered by (key, rank). A host operation that
  /// every rank must call in the same order; blocks until all have.
  ///
  /// Groups are to be kept, not made again for every step. In a run that spans processes, what a
  /// group shares (its number; some memory, by the square of its size) is not used again when it is
  /// destroyed. When 8192 have been made, one more that spans nodes is Error{kUnavailable}.
  virtual std::unique_ptr<ProcessGroup> split(int color, int key) = 0;

  /// Makes every pending and future operation of this group and of all groups split from the same
  /// origin fail with Error{kAborted, reason}, on all ranks. Safe from any thread, idempotent; the
  /// first reason wins.
  virtual void abort(std::string_view reason) noexcept = 0;

  /// The calls and bytes that this rank has issued through this object so far.
  virtual Traffic traffic() const = 0;
};

}  // namespace tessera

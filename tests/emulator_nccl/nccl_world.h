#pragma once

#include <nccl.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace tessera::emulator {

enum class NcclKind { kAllGather, kReduceScatter, kAllReduce, kBroadcast };

struct NcclCollective {
  NcclKind kind = NcclKind::kAllGather;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  int root = -1;

  bool matches(const NcclCollective& other) const {
    return kind == other.kind && count == other.count && type == other.type && root == other.root;
  }
  std::size_t output_bytes(int size) const;
};

struct NcclTransfer {
  bool sends = false;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  int peer = 0;
};

/// What the ranks of a communicator share. Every rank's work runs on the worker of its stream and
/// meets the others' here, under one lock: copies and sums included, so that a rank that is aborted
/// leaves between them and its buffers may be freed.
class NcclWorld {
 public:
  explicit NcclWorld(int size) : size_(size), left_(static_cast<std::size_t>(size), false) {}

  int size() const { return size_; }
  /// True once all ranks have joined.
  bool join(bool first_time);

  /// Blocks until every rank has come with the same `sequence` and is served, or `rank` is aborted.
  void run(int rank, std::uint64_t sequence, const NcclCollective& own);
  void run(int rank, std::vector<NcclTransfer> transfers);
  /// Blocks until `rank` is aborted, as after an error.
  void stall(int rank);
  void abort(int rank);

  /// The seat of `rank` in the part that it chose, once all ranks have: the part and the rank in
  /// it.
  struct Part {
    std::shared_ptr<NcclWorld> world;
    int rank = 0;
  };
  void choose(int rank, std::uint64_t sequence, int color, int key);
  std::optional<Part> part_of(int rank, std::uint64_t sequence);

 private:
  struct Round {
    std::map<int, NcclCollective> calls;
    int computed = 0;
    int left = 0;
  };
  struct Message {
    const std::byte* data;
    std::size_t bytes;
    bool* taken;
  };
  struct Split {
    std::map<int, std::pair<int, int>> choices;  // rank -> (color, key)
    std::map<int, std::shared_ptr<NcclWorld>> parts;
  };

  bool left(int rank) const { return left_[static_cast<std::size_t>(rank)]; }
  bool all_agree(const Round& round) const;
  std::vector<std::byte> result_of(int rank, const Round& round) const;
  bool receive(int rank, const NcclTransfer& transfer);

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int joined_ = 0;
  std::vector<bool> left_;  // aborted
  std::map<std::uint64_t, Round> rounds_;
  std::map<std::pair<int, int>, std::deque<Message>> messages_;  // (from, to)
  std::map<std::uint64_t, Split> splits_;
};

std::size_t nccl_type_bytes(ncclDataType_t type);

}  // namespace tessera::emulator

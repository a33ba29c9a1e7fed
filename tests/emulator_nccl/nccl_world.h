#pragma once

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fake_cuda.h"

namespace tessera::emulator {

enum class NcclKind : std::int32_t { kAllGather, kReduceScatter, kAllReduce, kBroadcast };

struct NcclCollective {
  NcclKind kind = NcclKind::kAllGather;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  int root = -1;

  std::size_t input_bytes(int size) const;
  std::size_t output_bytes(int size) const;
};

struct NcclTransfer {
  bool sends = false;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  int peer = 0;
};

/// A communicator as one of its ranks sees it. Ranks meet in a folder, so they may be threads of
/// one process or processes of one machine: a message is a file that gets its name when it is
/// whole.
///
/// One operation at a time; `abort` and the questions may come from other threads.
class NcclWorld {
 public:
  NcclWorld(std::filesystem::path folder, int rank, int size);
  /// The last rank to go takes the folder along.
  ~NcclWorld();
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool all_joined() const;

  /// Blocks until every rank has come with the same call, or this one is aborted. Ranks that
  /// disagree wait for ever, as with NCCL.
  void run(const NcclCollective& own);
  void run(const std::vector<NcclTransfer>& transfers);
  /// Blocks until every one of `ranks` has called with this name and with this rank among its own;
  /// at once if they have done so before. False if this rank is aborted.
  bool connect(const std::string& name, const std::set<int>& ranks);
  /// Blocks until this rank is aborted, as after an error.
  void stall() const;
  void abort() { left_ = true; }
  /// Also when the process has lost its GPUs, which ends what runs on them.
  bool aborted() const { return left_ || fake_cuda::is_lost(); }

  /// This rank's seat in the part that it chose, once all ranks have chosen.
  struct Part {
    std::filesystem::path folder;
    int rank = 0, size = 0;
  };
  void choose(std::uint64_t sequence, int color, int key);
  std::optional<Part> part_of(std::uint64_t sequence) const;

 private:
  using Bytes = std::vector<std::byte>;
  void put(const std::string& name, const Bytes& bytes) const;
  std::optional<Bytes> find(const std::string& name) const;
  void remove(const std::string& name) const;
  /// Waits for it; nothing if this rank is aborted.
  std::optional<Bytes> await(const std::string& name) const;
  Bytes result_of(const NcclCollective& own, const std::vector<Bytes>& inputs) const;

  const std::filesystem::path folder_;
  const int rank_, size_;
  std::atomic<bool> left_{false};
  std::uint64_t rounds_ = 0;
  std::map<int, std::uint64_t> sent_, received_;  // by peer
  std::set<std::pair<std::string, int>> connected_;
};

std::size_t nccl_type_bytes(ncclDataType_t type);

}  // namespace tessera::emulator

#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/collectives/process_group.h"
#include "tessera/collectives/world.h"
#include "tessera/core/cuda_device.h"

namespace tessera {

/// The state that the ranks of one group share: made by one of them, brought to the others by the
/// caller (a file, a pipe, MPI).
struct NcclId {
  std::array<std::byte, 128> bytes{};
};

struct NcclGroupOptions {
  int gpu = 0;  ///< ordinal of this rank's GPU
  /// How long an operation waits for its peers once its stream has reached it; also for making and
  /// splitting groups. For those that a CUDA graph replays see NcclGroup::watch_replay.
  std::chrono::milliseconds timeout{30000};
  /// Sums in rank order, with the bits of the thread group: parts travel as in an all-to-all and
  /// are added here. Otherwise fp32 and fp64 sums are NCCL's, in its own order.
  bool deterministic = false;
  /// How the processes watch each other besides NCCL, so that no rank waits for one that is
  /// gone. `failure` says why the run cannot go on, and is asked a few times per second by a thread
  /// of the group, which then aborts; empty: it can. `on_abort` is told once why this rank's groups
  /// were aborted. Both must be safe from any thread until the last group is destroyed.
  std::function<std::string()> failure{};
  std::function<void(std::string_view reason)> on_abort{};
};

/// A group on NCCL: one rank per GPU, in one process or in many. CUDA device memory and streams.
///
/// Differences from what ProcessGroup promises, which are NCCL's:
/// - All operations of one group run one after another, whatever their streams. A ring in which
///   every rank sends before it receives needs two groups.
/// - Operations are enqueued by the thread that calls. The first ones of a group wait there until
///   NCCL has connected the ranks, with the group's timeout.
/// - `abort` ends this rank at once. Others learn of it from the network, or when an operation of
///   theirs times out, and then the error cannot name the rank that failed; or by
///   NcclGroupOptions::failure.
/// - Graphs that hold operations of a group must be destroyed before it, also after an abort.
/// - An operation that a CUDA graph replays has no deadline of its own, but what `watch_replay`
///   gives to the whole graph.
/// - `split` takes colors from 0 on.
///
/// bf16 is never summed by NCCL, which would round after each addition: bf16 parts travel as in an
/// all-to-all and are summed here in fp32, in rank order. Bytes that pass through scratch memory
/// are counted in Traffic::copied_bytes.
class NcclGroup : public ProcessGroup {
 public:
  /// Lets NCCL read and write `bytes` from `address` on in place, where it can (NVLink, NVLink
  /// SHARP, InfiniBand), until the group is destroyed; the memory must live as long. It should be
  /// of a device with nccl_segments, and lie in the same place of its segment on all ranks. Returns
  /// why NCCL did not register it, or can use it with InfiniBand SHARP at most, in a clause, or
  /// nothing: collectives work either way.
  virtual std::string register_buffer(void* address, std::size_t bytes) = 0;

  /// Calls `launch`, which puts a graph on `stream` that holds operations of this group or of
  /// others from its origin, and watches it: if `stream` has not left it behind when it has been at
  /// it for `allowance` (what the graph's own work may take) and the timeout together, all these
  /// groups are aborted, and `stream` fails with Error{kTimeout} that names `what`.
  virtual void watch_replay(std::string_view what, std::chrono::milliseconds allowance,
                            CudaStream& stream, const std::function<void()>& launch) = 0;
};

/// Throws Error{kUnavailable} if there is no CUDA backend or no NCCL of 2.18 or newer.
NcclId make_nccl_id();

/// Where the memory of a device comes from whose buffers NCCL is to use in place: from
/// ncclMemAlloc. Without `take` if NCCL cannot give out memory of this GPU, or is older than 2.19:
/// then register_buffer says so. Throws as make_nccl_id.
CudaSegments nccl_segments(int gpu);

/// Rank `rank` of `size`. Blocks until all ranks have called with the same id. Throws
/// Error{kUnavailable}; Error{kTimeout} if ranks do not come.
std::unique_ptr<NcclGroup> make_nccl_group(const NcclId& id, int rank, int size,
                                           NcclGroupOptions options = {});

/// This process's ends of a group of all ranks of `world`, in the order of world.groups(); element
/// i is on gpus[i], and options.gpu is not used. Every process must call it. The group and the
/// world fail together: whatever aborts one aborts the other, and a process that ends early ends
/// the operations of all ranks within a second, with an error that names it. The world must outlive
/// the groups.
std::vector<std::unique_ptr<ProcessGroup>> make_nccl_groups(World& world,
                                                            const std::vector<int>& gpus,
                                                            NcclGroupOptions options = {});

}  // namespace tessera

#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "tessera/collectives/nccl_group.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"

namespace tessera::cuda {

class NcclComm;

/// Which operation of which group, for messages.
struct OperationName {
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::uint64_t sequence = 0;
  int rank = 0, size = 1;
};
std::string to_string(const OperationName& name);

/// One rank's communicators that were split from one origin. They fail together: a thread watches
/// what they have enqueued, and aborts them all when an operation takes too long, NCCL reports an
/// error, or somebody asks for it. The streams are told first, so whoever waits for one that an
/// abort has set free finds the reason there. [Note: blocking calls] in nccl_comm_cuda.h says why
/// only that thread ends communicators.
///
/// [Note: locks] There are three, taken in this order: the family's, one communicator's, the
/// reason's. The watcher holds the first while it asks communicators for problems; a communicator
/// that is locked asks why it was aborted. So nobody who has locked a communicator may abort the
/// family, and the watcher lets go of the family before it ends communicators. `aborted_` is set
/// under the first, once the reason is written, and read under any or none.
class NcclFamily {
 public:
  explicit NcclFamily(const NcclGroupOptions& options);
  ~NcclFamily();
  NcclFamily(const NcclFamily&) = delete;
  NcclFamily& operator=(const NcclFamily&) = delete;

  /// Whether every call of CUDA fails from now on, as after an illegal access. NCCL must not be
  /// asked to end a communicator then: it would wait for graphs and streams for ever. What there is
  /// goes with the process, which has to end.
  static bool gpu_is_lost() noexcept;

  std::chrono::milliseconds timeout() const { return options_.timeout; }
  int gpu() const { return options_.gpu; }

  /// False if the family is aborted: it will not end this one.
  bool add(const std::shared_ptr<NcclComm>& comm);
  /// The first reason counts. See [Note: locks]. Streams are told at once, communicators end soon
  /// after: `await` waits for that.
  void abort(ErrorCode code, std::string_view reason) noexcept;
  /// Throws Error{kAborted} with the reason if the family is aborted; if that is because of a call
  /// of `comm`, the error that it is of.
  void check_alive(std::string_view what, const NcclComm* comm) const;

  /// An event on loan from the family.
  struct GiveBack {
    NcclFamily* family;
    void operator()(cudaEvent_t event) const noexcept { family->give_back(event); }
  };
  using FamilyEvent = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, GiveBack>;

  /// The time in which an operation is watched: from here to `end`, as its stream gets there. What
  /// a graph captures is watched when it is replayed, as a whole; but each of its streams is told
  /// of an abort.
  class Watch {
   public:
    Watch(NcclFamily& family, CudaStream& stream);
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
    /// `what`, for messages, is of `size` ranks.
    void end(const std::shared_ptr<NcclComm>& comm, std::string what, int size,
             std::chrono::milliseconds deadline);

   private:
    NcclFamily& family_;
    CudaStream& stream_;
    FamilyEvent begin_;  ///< null if nothing is watched
  };

  /// Before `comm` is destroyed: waits until nothing that it has enqueued is pending, or the family
  /// is aborted and its communicators have ended; then the family knows it no more.
  void await(const NcclComm& comm);

 private:
  struct Pending {
    std::shared_ptr<NcclComm> comm;
    std::string what;
    int size = 1;
    std::chrono::milliseconds deadline{};  ///< from when the stream reaches it
    cudaEvent_t begin = nullptr, end = nullptr;
    std::shared_ptr<StreamFailure> failure;
    /// When the stream was first seen to have reached it.
    std::optional<std::chrono::steady_clock::time_point> reached{};
  };
  struct Verdict {
    ErrorCode code;
    std::string text;
    const StreamFailure* stream;     ///< whose operation it is about
    const NcclComm* comm = nullptr;  ///< whose call it is about
  };

  void remember_captured(const std::shared_ptr<StreamFailure>& failure);
  FamilyEvent take_event();
  void give_back(cudaEvent_t event) noexcept;
  void watch();
  /// The failure, if there is one. `mutex_` is held, as for the next four.
  std::optional<Verdict> find_failure();
  /// Drops what is done.
  std::optional<Verdict> check_pending();
  std::optional<Verdict> check(Pending& pending) const;
  /// A call that has not returned.
  std::optional<Verdict> check_calls() const;
  void abort_with(const Verdict& verdict) noexcept;
  /// `lock` is of mutex_, and let go of meanwhile.
  void end_communicators(std::unique_lock<std::mutex>& lock);

  const NcclGroupOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // All guarded by mutex_.
  std::deque<Pending> pending_;
  std::vector<std::weak_ptr<StreamFailure>> captured_;  ///< of streams whose operations graphs hold
  std::vector<cudaEvent_t> free_events_;
  std::vector<std::weak_ptr<NcclComm>> comms_;
  bool stopping_ = false;
  bool ended_ = false;  ///< the communicators, after an abort
  mutable std::mutex reason_mutex_;
  // The abort's cause; guarded by reason_mutex_.
  ErrorCode code_ = ErrorCode::kAborted;
  std::string reason_;
  const NcclComm* culprit_ = nullptr;
  std::atomic<bool> aborted_{false};  ///< see [Note: locks]
  std::thread watcher_;
};

}  // namespace tessera::cuda

#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "nccl/nccl_family_cuda.h"
#include "nccl/nccl_library_cuda.h"

namespace tessera::cuda {

/// A communicator, driven by its rank's thread and watched by its family's.
///
/// [Note: blocking calls] NCCL 2.28 carries out each call on a non-blocking communicator in a
/// thread that it starts for it (ncclGroupEndInternal): tens of microseconds, and a launch into the
/// caller's stream from elsewhere. So the communicators that collectives use are blocking, and
/// launch from the rank's own thread. What NCCL's guide promises of aborts, it promises for
/// non-blocking ones that no thread is in a call with. Therefore:
/// - The first communicator of a family is non-blocking and nothing but split. Making and splitting
///   it are polled, with a deadline, and aborted as promised. A part of it can be blocking.
/// - A blocking call waits for other ranks only where NCCL connects to them or tells them of
///   registered memory: in the first calls. The watcher sees how long it takes. If it has to abort,
///   it waits for the call to return, but not for ever (`give_up`): then it aborts although the
///   rank is in the call, as PyTorch's watchdog does. ncclCommAbort first sets the flag that every
///   wait of NCCL's looks at, and frees the communicator after the proxy's threads have ended. NCCL
///   does not promise that this is early enough; what it does say of such a call is that it may
///   hang for ever.
/// - ncclCommAbort waits until every graph that holds operations of the communicator is destroyed
///   (commDestroySync), and until its kernels have ended, which may be queued behind those of the
///   rank's other communicators. So it is not called by the rank's thread, which owns the graphs,
///   but by the watcher; and for all communicators in one NCCL group, in which NCCL flags each
///   before it waits for any.
class NcclComm {
 public:
  /// A non-blocking one, of all ranks that call with `id`; waits for them.
  static std::shared_ptr<NcclComm> make(NcclFamily& family, const ncclUniqueId& id, int rank,
                                        int size);
  /// A blocking one. Waits until all ranks have called. `color` is at least 0.
  std::shared_ptr<NcclComm> split(int color, int key);
  /// Enqueued work must have ended, and graphs that hold operations be destroyed; or the family
  /// be aborted, and have ended its communicators.
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Runs `function` and waits until NCCL has done what it asks for, which for a collective is:
  /// enqueued. If it fails or the deadline passes, the family is aborted and an Error thrown.
  void call(std::string_view what, const std::function<ncclResult_t(ncclComm_t)>& function);
  /// Returns why NCCL did not register it, or cannot use all that registering is for; nothing if it
  /// can.
  std::string register_buffer(void* address, std::size_t bytes);
  /// The failure in the background, if there is one.
  std::optional<std::string> problem() const;

  /// The wait of a call that the rank's thread has been in for the timeout or longer.
  std::optional<std::string> overdue() const;
  /// The handles to abort; from then on the communicator is the caller's. If a thread is in a
  /// call, waits for it until `deadline`.
  struct Handles {
    ncclComm_t comm = nullptr;
    /// Where a split under way writes what it makes, even while `comm` is being aborted.
    std::shared_ptr<ncclComm_t> part;
  };
  Handles give_up(std::chrono::steady_clock::time_point deadline) noexcept;

 private:
  NcclComm(NcclFamily& family, ncclComm_t comm, int rank, int size)
      : family_(family), rank_(rank), size_(size), comm_(comm) {}
  /// Does as `call`, but NCCL's answer in the end is the caller's to judge.
  ncclResult_t answer(std::string_view what,
                      const std::function<ncclResult_t(ncclComm_t)>& function);
  /// One call of NCCL, blocking or not.
  ncclResult_t enter(std::string_view what,
                     const std::function<ncclResult_t(ncclComm_t)>& function);
  ncclResult_t result_so_far(std::string_view what);
  std::string describe(ncclResult_t result) const;
  std::string describe_late(std::string_view what) const;

  NcclFamily& family_;
  const int rank_, size_;
  mutable std::mutex mutex_;
  std::condition_variable left_;
  // Guarded by mutex_, which no call of NCCL's that may wait is made under.
  ncclComm_t comm_ = nullptr;  ///< null: given up, or not there yet
  std::shared_ptr<ncclComm_t> part_;
  std::optional<std::string_view> inside_;  ///< what the rank's thread is in NCCL for
  std::chrono::steady_clock::time_point entered_;
  // The rank's thread's.
  std::set<void*> registered_;
  std::vector<void*> registrations_;
};

}  // namespace tessera::cuda

#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nccl/nccl_family_cuda.h"
#include "nccl/nccl_library_cuda.h"

namespace tessera::cuda {

/// A communicator that never blocks inside NCCL: calls return at once and are waited for here, with
/// a deadline. One call at a time: NCCL wants that of the threads that use a communicator, of which
/// there are two, the rank's and its family's watcher.
class NcclComm {
 public:
  /// Waits until all ranks have called.
  static std::shared_ptr<NcclComm> make(NcclFamily& family, const ncclUniqueId& id, int rank,
                                        int size);
  /// Waits until all ranks have called. `color` is at least 0.
  std::shared_ptr<NcclComm> split(int color, int key);
  /// Ends what is enqueued if it still runs (all ranks should have seen its end by now), and waits
  /// for NCCL to let go.
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Runs `function` and waits until NCCL has done what it asks for, which for a collective is:
  /// enqueued. If it fails or the deadline passes, the family is aborted and an Error thrown.
  void call(std::string_view what, const std::function<ncclResult_t(ncclComm_t)>& function);
  /// Returns why NCCL did not register it; nothing if it did.
  std::string register_buffer(void* address, std::size_t bytes);
  /// What has gone wrong in the background.
  std::optional<std::string> problem() const;
  void abort() noexcept;

 private:
  explicit NcclComm(NcclFamily& family) : family_(family) {}
  static std::shared_ptr<NcclComm> make_empty(NcclFamily& family);
  void learn_place();
  /// As `call`, but what NCCL answers in the end is the caller's to judge.
  ncclResult_t answer(std::string_view what,
                      const std::function<ncclResult_t(ncclComm_t)>& function);
  ncclResult_t result_so_far(std::string_view what);
  std::string describe(ncclResult_t result) const;

  NcclFamily& family_;
  int rank_ = 0, size_ = 1;
  mutable std::mutex mutex_;
  ncclComm_t comm_ = nullptr;  // guarded by mutex_; null: aborted, or not there yet
  std::vector<void*> registrations_;
};

}  // namespace tessera::cuda

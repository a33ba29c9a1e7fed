#include "nccl/nccl_comm_cuda.h"

#include <thread>
#include <utility>

#include "cuda_check.h"
#include "nccl/nccl_memory_cuda.h"

namespace tessera::cuda {
namespace {

using std::chrono::steady_clock;

/// Between two looks at a call in progress.
void pause(int looks) {
  constexpr int kYields = 100;
  if (looks < kYields) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

ncclConfig_t config_of(bool blocking) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking ? 1 : 0;
  return config;
}

}  // namespace

std::shared_ptr<NcclComm> NcclComm::make(NcclFamily& family, const ncclUniqueId& id, int rank,
                                         int size) {
  check_cuda(cudaSetDevice(family.gpu()), "cudaSetDevice");
  std::shared_ptr<NcclComm> comm(new NcclComm(family, nullptr, rank, size));
  static_cast<void>(family.add(comm));
  try {
    comm->call("making an NCCL group", [&](ncclComm_t) {
      ncclConfig_t config = config_of(false);
      ncclComm_t made = nullptr;
      const ncclResult_t result = nccl().comm_init_rank_config(&made, size, id, rank, &config);
      const std::lock_guard lock(comm->mutex_);
      comm->comm_ = made;
      return result;
    });
  } catch (...) {
    family.await(*comm);  // until it is aborted
    throw;
  }
  return comm;
}

std::shared_ptr<NcclComm> NcclComm::split(int color, int key) {
  check_cuda(cudaSetDevice(family_.gpu()), "cudaSetDevice");
  const auto made = std::make_shared<ncclComm_t>(nullptr);
  {
    const std::lock_guard lock(mutex_);
    part_ = made;
  }
  call("split", [&](ncclComm_t comm) {
    ncclConfig_t config = config_of(true);
    return nccl().comm_split(comm, color, key, made.get(), &config);
  });
  {
    const std::lock_guard lock(mutex_);
    if (part_ == nullptr) family_.check_alive("split", this);  // given up, and the part with it
    part_ = nullptr;
  }
  int rank = 0, size = 0;
  call("split", [&](ncclComm_t) {
    const ncclResult_t asked = nccl().comm_user_rank(*made, &rank);
    return asked == ncclSuccess ? nccl().comm_count(*made, &size) : asked;
  });
  std::shared_ptr<NcclComm> part(new NcclComm(family_, *made, rank, size));
  if (!family_.add(part)) {
    part->comm_ = nullptr;
    static_cast<void>(nccl().comm_abort(*made));  // it has done nothing yet: there is no waiting
    family_.check_alive("split", this);
  }
  return part;
}

NcclComm::~NcclComm() {
  if (comm_ == nullptr || NcclFamily::gpu_is_lost()) return;
  const NcclLibrary& library = nccl();
  for (void* handle : registrations_) {
    static_cast<void>(library.comm_deregister(comm_, handle));
  }
  const auto deadline = steady_clock::now() + family_.timeout();
  ncclResult_t result = library.comm_finalize(comm_);
  for (int looks = 0; result == ncclInProgress && steady_clock::now() < deadline; ++looks) {
    pause(looks);
    if (library.comm_get_async_error(comm_, &result) != ncclSuccess) break;
  }
  static_cast<void>(result == ncclSuccess ? library.comm_destroy(comm_)
                                          : library.comm_abort(comm_));
}

ncclResult_t NcclComm::enter(std::string_view what,
                             const std::function<ncclResult_t(ncclComm_t)>& function) {
  ncclComm_t comm = nullptr;
  {
    const std::lock_guard lock(mutex_);
    family_.check_alive(what, this);
    comm = comm_;
    inside_ = what;
    entered_ = steady_clock::now();
  }
  const ncclResult_t result = function(comm);
  {
    const std::lock_guard lock(mutex_);
    inside_.reset();
  }
  left_.notify_all();
  return result;
}

ncclResult_t NcclComm::answer(std::string_view what,
                              const std::function<ncclResult_t(ncclComm_t)>& function) {
  const auto deadline = steady_clock::now() + family_.timeout();
  ncclResult_t result = enter(what, function);
  // ncclCommSplit of a non-blocking communicator returns ncclSuccess while it is in progress
  // (NCCL 2.28.3): only the communicator knows.
  if (result == ncclSuccess) result = result_so_far(what);
  for (int looks = 0; result == ncclInProgress; ++looks) {
    if (steady_clock::now() >= deadline) {
      const std::string text = describe_late(what);
      family_.abort(ErrorCode::kAborted, text);
      throw Error(ErrorCode::kTimeout, text);
    }
    pause(looks);
    result = result_so_far(what);
  }
  return result;
}

void NcclComm::call(std::string_view what,
                    const std::function<ncclResult_t(ncclComm_t)>& function) {
  const ncclResult_t result = answer(what, function);
  if (result == ncclSuccess) return;
  family_.check_alive(what, this);  // that is why, then
  const std::string text = concat(what, " over ", size_, " ranks: NCCL reports ", describe(result));
  family_.abort(ErrorCode::kAborted, text);
  throw Error(result == ncclRemoteError ? ErrorCode::kAborted : ErrorCode::kInternal, text);
}

ncclResult_t NcclComm::result_so_far(std::string_view what) {
  const std::lock_guard lock(mutex_);
  family_.check_alive(what, this);
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = nccl().comm_get_async_error(comm_, &result);
  return asked == ncclSuccess ? result : asked;
}

std::string NcclComm::register_buffer(void* address, std::size_t bytes) {
  if (nccl().comm_register == nullptr || nccl().comm_deregister == nullptr)
    return "this NCCL is older than 2.19";
  const NcclMemory::Range range = NcclMemory::of_process().range_of(address, bytes);
  if (registered_.insert(range.address).second) {
    void* handle = nullptr;
    const ncclResult_t result = answer("register_buffer", [&](ncclComm_t comm) {
      return nccl().comm_register(comm, range.address, range.bytes, &handle);
    });
    if (result != ncclSuccess || handle == nullptr) {
      registered_.erase(range.address);
      return result == ncclSuccess ? "NCCL_LOCAL_REGISTER is 0"
                                   : concat("NCCL reports ", describe(result));
    }
    registrations_.push_back(handle);
  }
  return range.of_nccl ? "" : NcclMemory::of_process().problem();
}

std::optional<std::string> NcclComm::problem() const {
  const std::lock_guard lock(mutex_);
  // Given up, for a reason that is known; or in a call, which will tell.
  if (comm_ == nullptr || inside_) return std::nullopt;
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = nccl().comm_get_async_error(comm_, &result);
  if (asked != ncclSuccess) result = asked;
  if (result == ncclSuccess || result == ncclInProgress) return std::nullopt;
  return describe(result);
}

std::string NcclComm::describe(ncclResult_t result) const {
  const char* detail = nccl().get_last_error(nullptr);
  const std::string text = concat("'", nccl().get_error_string(result), "'");
  if (detail == nullptr || *detail == '\0') return text + "; NCCL_DEBUG=WARN tells more";
  return concat(text, " (", detail, "); NCCL_DEBUG=WARN tells more");
}

std::string NcclComm::describe_late(std::string_view what) const {
  return concat(what, " over ", size_, " ranks: not all came within ", family_.timeout().count(),
                " ms; NCCL does not tell which");
}

std::optional<std::string> NcclComm::overdue() const {
  const std::lock_guard lock(mutex_);
  if (!inside_ || steady_clock::now() - entered_ < family_.timeout()) return std::nullopt;
  return describe_late(*inside_);
}

NcclComm::Handles NcclComm::give_up(steady_clock::time_point deadline) noexcept {
  std::unique_lock lock(mutex_);
  left_.wait_until(lock, deadline, [this] { return !inside_; });
  return {.comm = std::exchange(comm_, nullptr), .part = std::exchange(part_, nullptr)};
}

}  // namespace tessera::cuda

#include "nccl/nccl_comm_cuda.h"

#include <chrono>
#include <thread>
#include <utility>

#include "cuda_check.h"

namespace tessera::cuda {
namespace {

using std::chrono::steady_clock;

/// Between two looks at a call in progress. Most are over at once.
void pause(int looks) {
  constexpr int kYields = 100;
  if (looks < kYields) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

ncclConfig_t non_blocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

}  // namespace

std::shared_ptr<NcclComm> NcclComm::make_empty(NcclFamily& family) {
  std::shared_ptr<NcclComm> comm(new NcclComm(family));
  family.add(comm);
  return comm;
}

std::shared_ptr<NcclComm> NcclComm::make(NcclFamily& family, const ncclUniqueId& id, int rank,
                                         int size) {
  check_cuda(cudaSetDevice(family.gpu()), "cudaSetDevice");
  auto comm = make_empty(family);
  comm->rank_ = rank;
  comm->size_ = size;
  comm->call("making an NCCL group", [&](ncclComm_t) {
    ncclConfig_t config = non_blocking();
    return nccl().comm_init_rank_config(&comm->comm_, size, id, rank, &config);
  });
  return comm;
}

std::shared_ptr<NcclComm> NcclComm::split(int color, int key) {
  check_cuda(cudaSetDevice(family_.gpu()), "cudaSetDevice");
  auto part = make_empty(family_);
  try {
    call("split", [&](ncclComm_t comm) {
      ncclConfig_t config = non_blocking();
      return nccl().comm_split(comm, color, key, &part->comm_, &config);
    });
  } catch (...) {
    // A thread of NCCL's writes to part->comm_, whatever comes of the split, until this one is
    // aborted; which may not be done yet by whoever aborts the family.
    abort();
    part->abort();
    throw;
  }
  part->call("split", [](ncclComm_t comm) {
    ncclResult_t result = ncclSuccess;
    const ncclResult_t asked = nccl().comm_get_async_error(comm, &result);
    return asked == ncclSuccess ? result : asked;
  });
  part->learn_place();
  return part;
}

void NcclComm::learn_place() {
  call("split", [this](ncclComm_t comm) { return nccl().comm_count(comm, &size_); });
  call("split", [this](ncclComm_t comm) { return nccl().comm_user_rank(comm, &rank_); });
}

NcclComm::~NcclComm() {
  if (comm_ == nullptr) return;
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

ncclResult_t NcclComm::answer(std::string_view what,
                              const std::function<ncclResult_t(ncclComm_t)>& function) {
  const auto deadline = steady_clock::now() + family_.timeout();
  ncclResult_t result = ncclSuccess;
  {
    const std::lock_guard lock(mutex_);
    family_.check_alive(what);
    result = function(comm_);
  }
  for (int looks = 0; result == ncclInProgress; ++looks) {
    if (steady_clock::now() >= deadline) {
      const std::string text = concat(what, " over ", size_, " ranks: not all came within ",
                                      family_.timeout().count(), " ms; NCCL does not tell which");
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
  const std::string text = concat(what, " over ", size_, " ranks: NCCL reports ", describe(result));
  family_.abort(ErrorCode::kAborted, text);
  throw Error(result == ncclRemoteError ? ErrorCode::kAborted : ErrorCode::kInternal, text);
}

ncclResult_t NcclComm::result_so_far(std::string_view what) {
  const std::lock_guard lock(mutex_);
  family_.check_alive(what);
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = nccl().comm_get_async_error(comm_, &result);
  return asked == ncclSuccess ? result : asked;
}

std::string NcclComm::register_buffer(void* address, std::size_t bytes) {
  if (nccl().comm_register == nullptr || nccl().comm_deregister == nullptr)
    return "this NCCL is older than 2.19";
  void* handle = nullptr;
  const ncclResult_t result = answer("register_buffer", [&](ncclComm_t comm) {
    return nccl().comm_register(comm, address, bytes, &handle);
  });
  if (result != ncclSuccess) return concat("NCCL reports ", describe(result));
  if (handle == nullptr) return "NCCL_LOCAL_REGISTER is 0";
  registrations_.push_back(handle);
  return "";
}

std::optional<std::string> NcclComm::problem() const {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return std::nullopt;  // aborted, for a reason that is known
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

void NcclComm::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (ncclComm_t comm = std::exchange(comm_, nullptr)) static_cast<void>(nccl().comm_abort(comm));
}

}  // namespace tessera::cuda

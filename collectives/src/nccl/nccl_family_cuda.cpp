#include "nccl/nccl_family_cuda.h"

#include <algorithm>
#include <utility>

#include "cuda_check.h"
#include "nccl/nccl_comm_cuda.h"
#include "tessera/core/start_thread.h"

namespace tessera::cuda {
namespace {

using std::chrono::steady_clock;

/// How often pending operations are looked at: nothing beside a timeout, and no load.
constexpr std::chrono::milliseconds kPoll{5};
/// How often an idle family asks whether the other processes are there, and its rank's thread in a
/// call for too long.
constexpr std::chrono::milliseconds kListen{50};
/// How long an abort waits for the rank's thread to leave a call. Calls that wait for no other rank
/// return within microseconds.
constexpr std::chrono::seconds kGrace{1};

std::exception_ptr make_error(ErrorCode code, const std::string& text) {
  return std::make_exception_ptr(Error(code, text));
}

}  // namespace

std::string to_string(const OperationName& name) {
  return concat(tessera::to_string(name.kind), " #", name.sequence, " on rank ", name.rank, " of ",
                name.size);
}

NcclFamily::NcclFamily(const NcclGroupOptions& options) : options_(options) {
  watcher_ = start_thread("the watch over NCCL", [this] { watch(); });
}

NcclFamily::~NcclFamily() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  watcher_.join();
  for (const Pending& pending : pending_) {
    free_events_.push_back(pending.begin);
    free_events_.push_back(pending.end);
  }
  for (cudaEvent_t event : free_events_) static_cast<void>(cudaEventDestroy(event));
}

bool NcclFamily::gpu_is_lost() noexcept {
  const bool lost = cudaFree(nullptr) != cudaSuccess;
  static_cast<void>(cudaGetLastError());
  return lost;
}

bool NcclFamily::add(const std::shared_ptr<NcclComm>& comm) {
  const std::lock_guard lock(mutex_);
  if (aborted_) return false;
  std::erase_if(comms_, [](const auto& old) { return old.expired(); });
  comms_.push_back(comm);
  return true;
}

void NcclFamily::abort(ErrorCode code, std::string_view reason) noexcept {
  abort_with({.code = code, .text = std::string(reason), .stream = nullptr});
}

void NcclFamily::abort_with(const Verdict& verdict) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    {
      const std::lock_guard reason_lock(reason_mutex_);
      code_ = verdict.code;
      reason_ = verdict.text;
      culprit_ = verdict.comm;
    }
    aborted_ = true;
    for (const Pending& pending : pending_) {
      const bool meant = verdict.stream == nullptr || verdict.stream == pending.failure.get();
      pending.failure->set(make_error(meant ? verdict.code : ErrorCode::kAborted,
                                      meant && verdict.stream != nullptr
                                          ? verdict.text
                                          : concat(pending.what, ": ", verdict.text)));
    }
    for (const auto& captured : captured_) {
      if (const auto failure = captured.lock()) {
        failure->set(make_error(ErrorCode::kAborted, verdict.text));
      }
    }
  }
  changed_.notify_all();
  if (options_.on_abort) options_.on_abort(verdict.text);
}

void NcclFamily::end_communicators(std::unique_lock<std::mutex>& lock) {
  std::vector<std::shared_ptr<NcclComm>> comms;
  for (const auto& comm : std::exchange(comms_, {})) {
    if (auto alive = comm.lock()) comms.push_back(std::move(alive));
  }
  lock.unlock();
  const auto deadline = steady_clock::now() + kGrace;
  std::vector<NcclComm::Handles> handles;
  for (const auto& comm : comms) handles.push_back(comm->give_up(deadline));
  if (gpu_is_lost()) handles.clear();
  const auto abort_all = [&](const auto& handle_of) {
    static_cast<void>(nccl().group_start());
    for (const NcclComm::Handles& given : handles) {
      if (ncclComm_t comm = handle_of(given)) static_cast<void>(nccl().comm_abort(comm));
    }
    static_cast<void>(nccl().group_end());
  };
  abort_all([](const NcclComm::Handles& given) { return given.comm; });
  abort_all([](const NcclComm::Handles& given) { return given.part ? *given.part : nullptr; });
  comms.clear();
  lock.lock();
  ended_ = true;
  changed_.notify_all();
}

void NcclFamily::check_alive(std::string_view what, const NcclComm* comm) const {
  if (!aborted_) return;
  const std::lock_guard lock(reason_mutex_);
  if (comm != nullptr && comm == culprit_) throw Error(code_, reason_);
  fail(ErrorCode::kAborted, what, ": ", reason_);
}

NcclFamily::Watch::Watch(NcclFamily& family, CudaStream& stream)
    : family_(family), stream_(stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream.handle(), &status), "cudaStreamIsCapturing");
  if (status != cudaStreamCaptureStatusNone) {
    family_.remember_captured(stream.failure());
    return;
  }
  begin_ = family_.take_event();
  check_cuda(cudaEventRecord(begin_.get(), stream.handle()), "cudaEventRecord");
}

void NcclFamily::Watch::end(const std::shared_ptr<NcclComm>& comm, std::string what, int size,
                            std::chrono::milliseconds deadline) {
  if (begin_ == nullptr) return;
  FamilyEvent end = family_.take_event();
  check_cuda(cudaEventRecord(end.get(), stream_.handle()), "cudaEventRecord");
  {
    const std::lock_guard lock(family_.mutex_);
    family_.pending_.push_back({.comm = comm,
                                .what = what,
                                .size = size,
                                .deadline = deadline,
                                .begin = begin_.release(),
                                .end = end.release(),
                                .failure = stream_.failure()});
    // Aborted before the stream could be told.
    family_.check_alive(what, nullptr);
  }
  family_.changed_.notify_all();
}

void NcclFamily::await(const NcclComm& comm) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    if (aborted_) return ended_;
    return std::none_of(pending_.begin(), pending_.end(),
                        [&](const Pending& pending) { return pending.comm.get() == &comm; });
  });
  std::erase_if(comms_, [&](const auto& known) {
    const auto alive = known.lock();
    return alive == nullptr || alive.get() == &comm;
  });
}

void NcclFamily::remember_captured(const std::shared_ptr<StreamFailure>& failure) {
  const std::lock_guard lock(mutex_);
  const auto known = [&](const auto& captured) { return captured.lock() == failure; };
  if (std::none_of(captured_.begin(), captured_.end(), known)) captured_.push_back(failure);
}

NcclFamily::FamilyEvent NcclFamily::take_event() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_events_.empty()) {
      cudaEvent_t event = free_events_.back();
      free_events_.pop_back();
      return {event, {this}};
    }
  }
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  return {event, {this}};
}

void NcclFamily::give_back(cudaEvent_t event) noexcept {
  const std::lock_guard lock(mutex_);
  free_events_.push_back(event);
}

void NcclFamily::watch() {
  static_cast<void>(cudaSetDevice(gpu()));
  std::unique_lock lock(mutex_);
  while (true) {
    if (aborted_ && !ended_) end_communicators(lock);
    if (stopping_) return;
    if (ended_) {
      changed_.wait(lock, [this] { return stopping_; });
      continue;
    }
    changed_.wait_for(lock, kListen, [this] { return stopping_ || aborted_ || !pending_.empty(); });
    if (stopping_ || aborted_) continue;
    if (const std::optional<Verdict> verdict = find_failure()) {
      lock.unlock();
      abort_with(*verdict);
      lock.lock();
      continue;
    }
    changed_.wait_for(lock, kPoll, [this] { return stopping_ || aborted_; });
  }
}

/// The processes know best who is missing, so they are asked first.
std::optional<NcclFamily::Verdict> NcclFamily::find_failure() {
  if (options_.failure) {
    const std::string reason = options_.failure();
    if (!reason.empty()) return Verdict{ErrorCode::kAborted, reason, nullptr};
  }
  if (auto verdict = check_pending()) return verdict;
  return check_calls();
}

std::optional<NcclFamily::Verdict> NcclFamily::check_calls() const {
  for (const auto& comm : comms_) {
    const auto alive = comm.lock();
    if (alive == nullptr) continue;
    if (auto text = alive->overdue()) {
      return Verdict{ErrorCode::kTimeout, *std::move(text), nullptr, alive.get()};
    }
  }
  return std::nullopt;
}

std::optional<NcclFamily::Verdict> NcclFamily::check_pending() {
  std::optional<Verdict> verdict;
  const auto is_done = [&](Pending& pending) {
    if (cudaEventQuery(pending.end) == cudaSuccess) {
      free_events_.push_back(pending.begin);
      free_events_.push_back(pending.end);
      return true;
    }
    if (!verdict) verdict = check(pending);
    return false;
  };
  if (std::erase_if(pending_, is_done) > 0) changed_.notify_all();
  return verdict;
}

std::optional<NcclFamily::Verdict> NcclFamily::check(Pending& pending) const {
  const auto verdict = [&](ErrorCode code, const auto&... text) {
    return Verdict{
        .code = code, .text = concat(pending.what, ": ", text...), .stream = pending.failure.get()};
  };
  const cudaError_t status = cudaEventQuery(pending.begin);
  if (status != cudaSuccess && status != cudaErrorNotReady) {
    return verdict(ErrorCode::kInternal, "the GPU failed: ", cudaGetErrorName(status), ", ",
                   cudaGetErrorString(status));
  }
  if (const auto problem = pending.comm->problem()) {
    return verdict(ErrorCode::kAborted, "NCCL reports ", *problem);
  }
  if (status == cudaErrorNotReady) return std::nullopt;
  if (!pending.reached) pending.reached = steady_clock::now();
  if (steady_clock::now() - *pending.reached < pending.deadline) return std::nullopt;
  return verdict(ErrorCode::kTimeout, "not all ranks came within ", pending.deadline.count(),
                 " ms; NCCL does not tell which of the other ", pending.size - 1,
                 " are missing: look for one that has ended, or that issues other operations");
}

}  // namespace tessera::cuda

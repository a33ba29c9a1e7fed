#include "fake_nccl.h"

#include <nccl.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nccl_world.h"

// NCCL's functions: communicators that only work in the background (blocking = 0), operations that
// run on the streams' workers, one after another per communicator. Ranks may be in one process or
// in several of one machine.

using tessera::emulator::NcclCollective;
using tessera::emulator::NcclKind;
using tessera::emulator::NcclTransfer;
using tessera::emulator::NcclWorld;

namespace {

std::atomic<int> failing_rank{-1};
std::atomic<bool> refuses_registrations{false};
std::atomic<int> registrations{0};
std::atomic<long> registered_collectives{0};
std::atomic<int> violations{0};
std::atomic<int> communicators{0};

}  // namespace

/// What outlives the handle, as work on streams does.
struct CommState {
  explicit CommState(std::filesystem::path folder, int rank, int size)
      : world(std::move(folder), rank, size) {}
  NcclWorld world;
  std::atomic<ncclResult_t> error{ncclSuccess};
  std::atomic<std::uint64_t> ran{0};
};

struct ncclComm {
  explicit ncclComm(std::shared_ptr<CommState> of)
      : state(std::move(of)), random(static_cast<unsigned>(state->world.rank()) + 1) {
    ++communicators;
  }
  ncclComm(const std::filesystem::path& folder, int rank, int size)
      : ncclComm(std::make_shared<CommState>(folder, rank, size)) {}
  ~ncclComm() { --communicators; }
  ncclComm(const ncclComm&) = delete;
  ncclComm& operator=(const ncclComm&) = delete;
  const std::shared_ptr<CommState> state;
  std::uint64_t issued = 0;
  std::uint64_t splits = 0;
  std::map<const std::byte*, std::size_t> registered;

  bool is_registered(const std::byte* data, std::size_t bytes) const {
    const auto next = registered.upper_bound(data);
    if (next == registered.begin()) return false;
    const auto& [address, length] = *std::prev(next);
    return data + bytes <= address + length;
  }
  /// What the last call has left to do; true when it is done.
  std::function<bool()> in_progress;
  /// Where a split in progress will write the communicator that it makes, whatever comes of it.
  ncclComm_t* splits_to = nullptr;
  std::minstd_rand random;
  std::atomic<bool> busy{false};
};

namespace {

/// Marks a thread as inside NCCL with a communicator, which wants one at a time.
class Inside {
 public:
  explicit Inside(ncclComm_t comm) : comm_(comm) {
    if (comm_->busy.exchange(true)) ++violations;
  }
  ~Inside() { comm_->busy = false; }

 private:
  ncclComm_t comm_;
};

/// The folders of the ids that this process has made: what is left when it ends goes, too.
class Folders {
 public:
  ~Folders() {
    std::error_code ignored;
    for (const auto& folder : folders_) std::filesystem::remove_all(folder, ignored);
  }
  std::filesystem::path make() {
    const std::lock_guard lock(mutex_);
    folders_.push_back(
        std::filesystem::temp_directory_path() /
        ("fake-nccl-" + std::to_string(getpid()) + "-" + std::to_string(folders_.size())));
    return folders_.back();
  }

 private:
  std::mutex mutex_;
  std::vector<std::filesystem::path> folders_;  // guarded by mutex_
};

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

void call_task(void* task) { (*static_cast<std::function<void()>*>(task))(); }

void enqueue(cudaStream_t stream, std::function<void()> work) {
  if (!is_capturing(stream)) {
    const auto call_and_delete = [](void* task) {
      call_task(task);
      delete static_cast<std::function<void()>*>(task);
    };
    cudaLaunchHostFunc(stream, call_and_delete, new std::function<void()>(std::move(work)));
    return;
  }
  // A graph may run it at any time from now on: it is never destroyed.
  static std::mutex mutex;
  static auto* const captured = new std::deque<std::function<void()>>;
  const std::lock_guard lock(mutex);
  cudaLaunchHostFunc(stream, call_task, &captured->emplace_back(std::move(work)));
}

/// Enqueues `body` now or, as a call that has to connect first, a few looks later.
ncclResult_t issue(ncclComm_t comm, cudaStream_t stream, std::function<void(NcclWorld&)> body) {
  const Inside inside(comm);
  const auto state = comm->state;
  if (state->error != ncclSuccess) return state->error;
  if (comm->in_progress) return ncclInvalidUsage;  // the caller did not wait
  const bool fails = failing_rank == state->world.rank();
  if (fails) failing_rank = -1;
  // Work of a graph has the graph's order.
  std::optional<std::uint64_t> ticket;
  if (!is_capturing(stream)) ticket = comm->issued++;
  const auto work = [state, fails, ticket, body = std::move(body)] {
    while (ticket && state->ran != *ticket && !state->world.aborted()) std::this_thread::yield();
    if (fails) {
      state->error = ncclRemoteError;
      state->world.stall();
    } else {
      body(state->world);
    }
    if (ticket) ++state->ran;
  };
  if (comm->random() % 4 != 0) {
    enqueue(stream, work);
    return ncclSuccess;
  }
  comm->in_progress = [looks = 3, stream, work]() mutable {
    if (--looks > 0) return false;
    enqueue(stream, work);
    return true;
  };
  return ncclInProgress;
}

ncclResult_t issue(ncclComm_t comm, cudaStream_t stream, const NcclCollective& call) {
  const int size = comm->state->world.size();
  if (comm->is_registered(call.input, call.input_bytes(size)) &&
      comm->is_registered(call.output, call.output_bytes(size))) {
    ++registered_collectives;
  }
  return issue(comm, stream, [call](NcclWorld& world) { world.run(call); });
}

/// Sends and receives between ncclGroupStart and ncclGroupEnd run together.
struct Group {
  int depth = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<NcclTransfer> transfers;
};
thread_local Group group;

ncclResult_t transfer(ncclComm_t comm, cudaStream_t stream, const NcclTransfer& one) {
  if (group.depth == 0) {
    return issue(comm, stream,
                 [one](NcclWorld& world) { world.run(std::vector<NcclTransfer>{one}); });
  }
  group.comm = comm;
  group.stream = stream;
  group.transfers.push_back(one);
  return ncclSuccess;
}

}  // namespace

namespace tessera::emulator {

void fail_next_nccl_operation(int rank) { failing_rank = rank; }
void refuse_nccl_registrations(bool refuse) { refuses_registrations = refuse; }
int nccl_registrations() { return registrations; }
long nccl_registered_collectives() { return registered_collectives; }
int nccl_violations() { return violations; }
int nccl_communicators() { return communicators; }

}  // namespace tessera::emulator

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static Folders folders;
  *id = {};
  const std::string folder = folders.make().string();
  if (folder.size() >= sizeof id->internal) return ncclSystemError;
  folder.copy(id->internal, folder.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config == nullptr || config->blocking != 0) return ncclInvalidUsage;
  auto* const made = new ncclComm(id.internal, rank, size);
  made->in_progress = [state = made->state] { return state->world.all_joined(); };
  *comm = made;
  return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part,
                           ncclConfig_t* config) {
  const Inside inside(comm);
  if (color < 0 || config == nullptr || config->blocking != 0) return ncclInvalidUsage;
  const auto state = comm->state;
  const std::uint64_t sequence = comm->splits++;
  state->world.choose(sequence, color, key);
  comm->splits_to = part;
  comm->in_progress = [comm, state, sequence] {
    const auto seat = state->world.part_of(sequence);
    if (!seat) return false;
    *std::exchange(comm->splits_to, nullptr) = new ncclComm(seat->folder, seat->rank, seat->size);
    return true;
  };
  return ncclInProgress;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Inside inside(comm);
  if (comm->in_progress) return ncclInvalidArgument;  // abort it
  comm->in_progress = [state = comm->state, issued = comm->issued] { return state->ran == issued; };
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    const Inside inside(comm);
    comm->state->world.abort();
    if (comm->splits_to != nullptr) *comm->splits_to = new ncclComm(comm->state);
    registrations -= static_cast<int>(comm->registered.size());
  }
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  const Inside inside(comm);
  *result = comm->state->error;
  if (comm->in_progress && *result == ncclSuccess) {
    if (comm->in_progress()) {
      comm->in_progress = nullptr;
    } else {
      *result = ncclInProgress;
    }
  }
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->state->world.size();
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->state->world.rank();
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* address, std::size_t bytes,
                              void** handle) {
  if (refuses_registrations) return ncclUnhandledCudaError;
  comm->registered[static_cast<const std::byte*>(address)] = bytes;
  *handle = address;
  ++registrations;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  if (comm->registered.erase(static_cast<const std::byte*>(handle)) != 1) {
    return ncclInvalidArgument;
  }
  --registrations;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error"
                                   : "some NCCL error";
}

const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclAllGather(const void* input, void* output, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return issue(comm, stream,
               {.kind = NcclKind::kAllGather,
                .input = static_cast<const std::byte*>(input),
                .output = static_cast<std::byte*>(output),
                .count = count,
                .type = type});
}

ncclResult_t ncclReduceScatter(const void* input, void* output, std::size_t count,
                               ncclDataType_t type, ncclRedOp_t, ncclComm_t comm,
                               cudaStream_t stream) {
  return issue(comm, stream,
               {.kind = NcclKind::kReduceScatter,
                .input = static_cast<const std::byte*>(input),
                .output = static_cast<std::byte*>(output),
                .count = count,
                .type = type});
}

ncclResult_t ncclAllReduce(const void* input, void* output, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  return issue(comm, stream,
               {.kind = NcclKind::kAllReduce,
                .input = static_cast<const std::byte*>(input),
                .output = static_cast<std::byte*>(output),
                .count = count,
                .type = type});
}

ncclResult_t ncclBroadcast(const void* input, void* output, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return issue(comm, stream,
               {.kind = NcclKind::kBroadcast,
                .input = static_cast<const std::byte*>(input),
                .output = static_cast<std::byte*>(output),
                .count = count,
                .type = type,
                .root = root});
}

ncclResult_t ncclSend(const void* input, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  // Only read: a transfer has one pointer for both directions.
  auto* const data = static_cast<std::byte*>(const_cast<void*>(input));
  return transfer(comm, stream,
                  {.sends = true,
                   .data = data,
                   .bytes = count * tessera::emulator::nccl_type_bytes(type),
                   .peer = peer});
}

ncclResult_t ncclRecv(void* output, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return transfer(comm, stream,
                  {.sends = false,
                   .data = static_cast<std::byte*>(output),
                   .bytes = count * tessera::emulator::nccl_type_bytes(type),
                   .peer = peer});
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--group.depth > 0 || group.transfers.empty()) return ncclSuccess;
  const Group ended = std::exchange(group, Group{});
  return issue(ended.comm, ended.stream,
               [transfers = ended.transfers](NcclWorld& world) { world.run(transfers); });
}

}  // extern "C"

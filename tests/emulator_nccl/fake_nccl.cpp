#include "fake_nccl.h"

#include <nccl.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "nccl_world.h"

// NCCL's functions: communicators that only work in the background (blocking = 0), operations that
// run on the streams' workers, one after another per communicator.

using tessera::emulator::NcclCollective;
using tessera::emulator::NcclKind;
using tessera::emulator::NcclTransfer;
using tessera::emulator::NcclWorld;

namespace {

std::atomic<int> failing_rank{-1};
std::atomic<int> registrations{0};
std::atomic<int> violations{0};

/// What outlives the handle, as work on streams does.
struct CommState {
  std::shared_ptr<NcclWorld> world;
  int rank = 0;
  std::atomic<ncclResult_t> error{ncclSuccess};
  std::atomic<bool> aborted{false};
  std::atomic<std::uint64_t> ran{0};
};

}  // namespace

struct ncclComm {
  std::shared_ptr<CommState> state = std::make_shared<CommState>();
  std::uint64_t issued = 0;
  std::uint64_t collectives = 0;
  std::uint64_t splits = 0;
  /// What the last call has left to do; true when it is done.
  std::function<bool()> in_progress;
  std::minstd_rand random{1};
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

std::shared_ptr<NcclWorld> world_of(const ncclUniqueId& id, int size) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<NcclWorld>> worlds;
  const std::lock_guard lock(mutex);
  std::weak_ptr<NcclWorld>& known = worlds[std::string(id.internal, sizeof id.internal)];
  auto world = known.lock();
  if (!world) known = world = std::make_shared<NcclWorld>(size);
  return world;
}

void enqueue(cudaStream_t stream, std::function<void()> work) {
  auto* const owned = new std::function<void()>(std::move(work));
  const auto run = [](void* data) {
    const std::unique_ptr<std::function<void()>> task(static_cast<std::function<void()>*>(data));
    (*task)();
  };
  cudaLaunchHostFunc(stream, run, owned);
}

/// Enqueues `body` now or, as a call that has to connect first, a few looks later.
ncclResult_t issue(ncclComm_t comm, cudaStream_t stream,
                   std::function<void(NcclWorld&, int rank)> body) {
  const Inside inside(comm);
  const auto state = comm->state;
  if (state->error != ncclSuccess) return state->error;
  if (comm->in_progress) return ncclInvalidUsage;  // the caller did not wait
  const bool fails = failing_rank == state->rank;
  if (fails) failing_rank = -1;
  const auto work = [state, fails, number = comm->issued++, body = std::move(body)] {
    while (state->ran != number && !state->aborted) std::this_thread::yield();
    if (fails) {
      state->error = ncclRemoteError;
      state->world->stall(state->rank);
    } else {
      body(*state->world, state->rank);
    }
    ++state->ran;
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
  const std::uint64_t sequence = comm->collectives++;
  return issue(comm, stream,
               [sequence, call](NcclWorld& world, int rank) { world.run(rank, sequence, call); });
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
    return issue(comm, stream, [one](NcclWorld& world, int rank) { world.run(rank, {one}); });
  }
  group.comm = comm;
  group.stream = stream;
  group.transfers.push_back(one);
  return ncclSuccess;
}

}  // namespace

namespace tessera::emulator {

void fail_next_nccl_operation(int rank) { failing_rank = rank; }
int nccl_registrations() { return registrations; }
int nccl_violations() { return violations; }

}  // namespace tessera::emulator

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<std::uint64_t> next{1};
  *id = {};
  const std::uint64_t number = next++;
  std::memcpy(id->internal, &number, sizeof number);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config == nullptr || config->blocking != 0) return ncclInvalidUsage;
  auto* const made = new ncclComm;
  made->state->world = world_of(id, size);
  made->state->rank = rank;
  made->random.seed(static_cast<unsigned>(rank) + 1);
  made->state->world->join(true);
  made->in_progress = [world = made->state->world] { return world->join(false); };
  *comm = made;
  return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part,
                           ncclConfig_t* config) {
  const Inside inside(comm);
  if (color < 0 || config == nullptr || config->blocking != 0) return ncclInvalidUsage;
  const auto state = comm->state;
  const std::uint64_t sequence = comm->splits++;
  state->world->choose(state->rank, sequence, color, key);
  comm->in_progress = [state, sequence, part] {
    const auto seat = state->world->part_of(state->rank, sequence);
    if (!seat) return false;
    auto* const made = new ncclComm;
    made->state->world = seat->world;
    made->state->rank = seat->rank;
    *part = made;
    return true;
  };
  return ncclInProgress;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Inside inside(comm);
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
    comm->state->aborted = true;
    comm->state->world->abort(comm->state->rank);
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
  *count = comm->state->world->size();
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->state->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t, void* address, std::size_t, void** handle) {
  *handle = address;
  ++registrations;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t, void*) {
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
  return issue(ended.comm, ended.stream, [transfers = ended.transfers](NcclWorld& world, int rank) {
    world.run(rank, transfers);
  });
}

}  // extern "C"

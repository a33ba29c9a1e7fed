#include "fake_nccl.h"

#include <nccl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_cuda.h"
#include "nccl_world.h"
#include "support/folder_in_memory.h"

// NCCL's functions: operations run on the streams' workers, one after another per communicator.
// Ranks may be in one process or in several of one machine. As in NCCL 2.28,
// - calls of a communicator that does not block (blocking = 0) are carried out in a thread of their
//   own, the launch into the caller's stream included; those of one that blocks, by the caller;
// - the first call of a kind waits, wherever it is carried out, until all ranks are connected;
// - ending a communicator waits until no graph holds operations of it. In a group (ncclGroupStart),
//   all communicators are told to stop before any is waited for.

using tessera::emulator::NcclCollective;
using tessera::emulator::NcclKind;
using tessera::emulator::NcclTransfer;
using tessera::emulator::NcclWorld;

namespace {

std::atomic<int> failing_rank{-1};
std::atomic<bool> refuses_registrations{false}, refuses_memory{false};
std::atomic<int> registrations{0};
std::atomic<long> registered_collectives{0}, background_launches{0};
std::atomic<int> violations{0}, aborts_during_calls{0};
std::atomic<int> communicators{0};

void wait_a_moment() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

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
  ncclComm(std::shared_ptr<CommState> of, bool blocks) : state(std::move(of)), blocking(blocks) {
    ++communicators;
  }
  ncclComm(const std::filesystem::path& folder, int rank, int size, bool blocks)
      : ncclComm(std::make_shared<CommState>(folder, rank, size), blocks) {}
  ~ncclComm() { --communicators; }
  ncclComm(const ncclComm&) = delete;
  ncclComm& operator=(const ncclComm&) = delete;
  const std::shared_ptr<CommState> state;
  const bool blocking;
  std::uint64_t issued = 0;
  std::uint64_t splits = 0;
  std::map<const std::byte*, std::size_t> registered;

  /// In a way that NCCL can make use of.
  bool is_registered(const std::byte* data, std::size_t bytes) const {
    const auto next = registered.upper_bound(data);
    if (next == registered.begin()) return false;
    const auto& [address, length] = *std::prev(next);
    return data + bytes <= address + length &&
           reinterpret_cast<std::uintptr_t>(address) % fake_cuda::kVirtualPage == 0 &&
           fake_cuda::is_virtual(address, length);
  }
  /// Whether graphs hold operations of it.
  bool captured() const { return graphs.use_count() > 1; }
  /// What the last call has left to do; true when it is done.
  std::function<bool()> in_progress;
  /// Carries out the last call, if it is an operation and this communicator does not block.
  std::thread job;
  /// Where a split in progress will write the communicator that it makes, whatever comes of it.
  ncclComm_t* splits_to = nullptr;
  bool splits_to_blocking = false;
  /// Shared with the operations that graphs hold.
  std::shared_ptr<const int> graphs = std::make_shared<const int>(0);
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
        tessera::test::folder_in_memory() /
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

bool blocks(const ncclConfig_t* config) { return config == nullptr || config->blocking != 0; }

/// Launches `body` once this rank is connected to `peers`, as operations of this kind need it.
ncclResult_t issue(ncclComm_t comm, cudaStream_t stream, const std::string& kind,
                   const std::set<int>& peers, std::function<void(NcclWorld&)> body) {
  const Inside inside(comm);
  const auto state = comm->state;
  if (state->error != ncclSuccess) return state->error;
  if (comm->in_progress) return ncclInvalidUsage;  // the caller did not wait
  const bool fails = failing_rank == state->world.rank();
  if (fails) failing_rank = -1;
  // Work of a graph has the graph's order.
  std::optional<std::uint64_t> ticket;
  std::shared_ptr<const int> held;
  if (is_capturing(stream)) {
    held = comm->graphs;
  } else {
    ticket = comm->issued++;
  }
  const auto work = [state, fails, ticket, held, body = std::move(body)] {
    while (ticket && state->ran != *ticket && !state->world.aborted()) std::this_thread::yield();
    if (fails) {
      state->error = ncclRemoteError;
      state->world.stall();
    } else {
      body(state->world);
    }
    if (ticket) ++state->ran;
  };
  const auto launch = [state, stream, kind, peers, work] {
    if (!state->world.connect(kind, peers)) return ncclInternalError;
    return fake_cuda::launch_host(stream, work) == cudaSuccess ? ncclSuccess
                                                               : ncclUnhandledCudaError;
  };
  if (comm->blocking) return launch();
  ++background_launches;
  if (comm->job.joinable()) comm->job.join();
  const auto done = std::make_shared<std::atomic<bool>>(false);
  int device = 0;
  static_cast<void>(cudaGetDevice(&device));
  comm->job = std::thread([state, launch, done, device] {
    static_cast<void>(cudaSetDevice(device));
    const ncclResult_t result = launch();
    if (result != ncclSuccess && state->error == ncclSuccess) state->error = result;
    *done = true;
  });
  comm->in_progress = [done] { return done->load(); };
  return ncclInProgress;
}

ncclResult_t issue(ncclComm_t comm, cudaStream_t stream, const NcclCollective& call) {
  const int size = comm->state->world.size();
  if (comm->is_registered(call.input, call.input_bytes(size)) &&
      comm->is_registered(call.output, call.output_bytes(size))) {
    ++registered_collectives;
  }
  std::set<int> all;
  for (int r = 0; r < size; ++r) all.insert(r);
  return issue(comm, stream, std::to_string(static_cast<int>(call.kind)), all,
               [call](NcclWorld& world) { world.run(call); });
}

/// Sends and receives between ncclGroupStart and ncclGroupEnd run together.
struct Group {
  int depth = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<NcclTransfer> transfers;
  std::vector<ncclComm_t> aborted;
};
thread_local Group group;

ncclResult_t exchange(ncclComm_t comm, cudaStream_t stream,
                      const std::vector<NcclTransfer>& transfers) {
  std::set<int> peers;
  for (const NcclTransfer& one : transfers) peers.insert(one.peer);
  return issue(comm, stream, "transfer", peers,
               [transfers](NcclWorld& world) { world.run(transfers); });
}

ncclResult_t transfer(ncclComm_t comm, cudaStream_t stream, const NcclTransfer& one) {
  if (group.depth == 0) return exchange(comm, stream, {one});
  group.comm = comm;
  group.stream = stream;
  group.transfers.push_back(one);
  return ncclSuccess;
}

/// After it was told to stop.
void finish_abort(ncclComm_t comm) {
  while (comm->busy || comm->captured()) wait_a_moment();
  registrations -= static_cast<int>(comm->registered.size());
  delete comm;
}

}  // namespace

namespace tessera::emulator {

void fail_next_nccl_operation(int rank) { failing_rank = rank; }
void refuse_nccl_registrations(bool refuse) { refuses_registrations = refuse; }
int nccl_registrations() { return registrations; }
void refuse_nccl_memory(bool refuse) { refuses_memory = refuse; }
long nccl_registered_collectives() { return registered_collectives; }
long nccl_background_launches() { return background_launches; }
int nccl_aborts_during_calls() { return aborts_during_calls; }
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
  auto* const made = new ncclComm(id.internal, rank, size, blocks(config));
  *comm = made;
  if (made->blocking) {
    while (!made->state->world.all_joined()) wait_a_moment();
    return ncclSuccess;
  }
  made->in_progress = [state = made->state] { return state->world.all_joined(); };
  return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part,
                           ncclConfig_t* config) {
  const Inside inside(comm);
  if (color < 0 || comm->in_progress) return ncclInvalidUsage;
  const auto state = comm->state;
  const std::uint64_t sequence = comm->splits++;
  state->world.choose(sequence, color, key);
  const bool blocking = config == nullptr ? comm->blocking : blocks(config);
  const auto make = [state, sequence, blocking]() -> ncclComm_t {
    const auto seat = state->world.part_of(sequence);
    return seat ? new ncclComm(seat->folder, seat->rank, seat->size, blocking) : nullptr;
  };
  if (comm->blocking) {
    while ((*part = make()) == nullptr) {
      if (state->world.aborted()) {
        *part = new ncclComm(state, blocking);
        return ncclInternalError;
      }
      wait_a_moment();
    }
    return ncclSuccess;
  }
  comm->splits_to = part;
  comm->splits_to_blocking = blocking;
  comm->in_progress = [comm, make] {
    ncclComm_t made = make();
    if (made == nullptr) return false;
    *std::exchange(comm->splits_to, nullptr) = made;
    return true;
  };
  return ncclSuccess;  // as NCCL 2.28.3, which tells of its progress only when asked
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Inside inside(comm);
  if (comm->in_progress) return ncclInvalidArgument;  // abort it
  const auto ended = [comm] { return comm->state->ran == comm->issued && !comm->captured(); };
  if (!comm->blocking) {
    comm->in_progress = ended;
    return ncclInProgress;
  }
  while (!ended()) wait_a_moment();
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm->job.joinable()) comm->job.join();
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm->busy) ++aborts_during_calls;
  comm->state->world.abort();
  if (comm->job.joinable()) comm->job.join();
  if (comm->splits_to != nullptr) {
    *std::exchange(comm->splits_to, nullptr) = new ncclComm(comm->state, comm->splits_to_blocking);
  }
  if (group.depth > 0) {
    group.aborted.push_back(comm);
  } else {
    finish_abort(comm);
  }
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

ncclResult_t ncclMemAlloc(void** address, std::size_t bytes) {
  if (refuses_memory) return ncclUnhandledCudaError;
  return fake_cuda::allocate_virtual(address, bytes) == cudaSuccess ? ncclSuccess
                                                                    : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void* address) {
  return fake_cuda::free_virtual(address) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
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
  if (--group.depth > 0) return ncclSuccess;
  const Group ended = std::exchange(group, Group{});
  for (ncclComm_t comm : ended.aborted) finish_abort(comm);
  return ended.transfers.empty() ? ncclSuccess
                                 : exchange(ended.comm, ended.stream, ended.transfers);
}

}  // extern "C"

#include "tessera/collectives/nccl_group.h"

#include <exception>
#include <mutex>
#include <thread>

#include "cuda_collectives.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"
#include "tessera/core/start_thread.h"

namespace tessera {
namespace {

/// Rank 0's id, brought to all ranks over a group of host memory.
NcclId share_id(ProcessGroup& group) {
  NcclId id;
  if (group.rank() == 0) id = make_nccl_id();
  const auto device = make_cpu_device();
  const auto stream = device->create_stream({});
  group.broadcast(TensorView(id.bytes.data(), DType::kUInt8, Shape{std::ssize(id.bytes)}), 0,
                  *stream);
  stream->synchronize();
  return id;
}

}  // namespace

const CudaCollectives& cuda_collectives() {
  const auto get = reinterpret_cast<GetCudaCollectives*>(cuda_symbol(kGetCudaCollectives));
  return *get();
}

NcclId make_nccl_id() { return cuda_collectives().make_nccl_id(); }

CudaSegments nccl_segments(int gpu) { return cuda_collectives().nccl_segments(gpu); }

std::unique_ptr<NcclGroup> make_nccl_group(const NcclId& id, int rank, int size,
                                           NcclGroupOptions options) {
  require(size >= 1 && rank >= 0 && rank < size, ErrorCode::kInvalidArgument, "rank ", rank,
          " is outside of an NCCL group of ", size);
  require(options.timeout.count() > 0, ErrorCode::kInvalidArgument, "a timeout of ",
          options.timeout.count(), " ms is not positive");
  return std::unique_ptr<NcclGroup>(cuda_collectives().make_nccl_group(id, rank, size, options));
}

/// A thread for each rank: the ends of an NCCL group can only be made at the same time.
std::vector<std::unique_ptr<ProcessGroup>> make_nccl_groups(World& world,
                                                            const std::vector<int>& gpus,
                                                            NcclGroupOptions options) {
  const auto& seats = world.groups();
  require(gpus.size() == seats.size(), ErrorCode::kInvalidArgument, gpus.size(), " GPUs for ",
          seats.size(), " ranks of a process");
  ProcessGroup& speaker = *seats.front();
  options.failure = [&world] { return world.failure(); };
  options.on_abort = [&speaker](std::string_view reason) { speaker.abort(reason); };
  std::vector<std::unique_ptr<ProcessGroup>> groups(seats.size());
  std::mutex mutex;
  std::exception_ptr first;  // guarded by mutex
  const auto make = [&](std::size_t i) {
    ProcessGroup& seat = *seats[i];
    try {
      NcclGroupOptions own = options;
      own.gpu = gpus[i];
      groups[i] = make_nccl_group(share_id(seat), seat.rank(), seat.size(), std::move(own));
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex);
      if (first == nullptr) first = std::current_exception();
      speaker.abort(concat("rank ", seat.rank(), " failed: ", error.what()));
    }
  };
  {
    std::vector<std::jthread> threads;  // joined when the scope ends
    for (std::size_t i = 0; i < seats.size(); ++i) {
      threads.push_back(start_thread<std::jthread>("a group of NCCL", [&make, i] { make(i); }));
    }
  }
  if (first != nullptr) std::rethrow_exception(first);
  return groups;
}

}  // namespace tessera

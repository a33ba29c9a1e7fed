#include "nccl/nccl_operation_cuda.h"

#include <cuda_runtime_api.h>

#include "cuda_check.h"
#include "ordered_sum_wide_cuda.h"
#include "tessera/kernels/kernel_table.h"

namespace tessera::cuda {
namespace {

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kBFloat16:
      return ncclBfloat16;
    case DType::kFloat16:
      return ncclFloat16;
    case DType::kFloat64:
      return ncclFloat64;
    case DType::kInt32:
      return ncclInt32;
    case DType::kInt64:
      return ncclInt64;
    case DType::kUInt8:
      return ncclUint8;
  }
  fail(ErrorCode::kInternal, "a dtype that NCCL does not know");
}

std::size_t count_of(const TensorView& view) { return static_cast<std::size_t>(view.numel()); }

/// NCCL sums in the dtype of its input, which would round 16 bits after each addition. Integers it
/// adds as well as we do.
bool sums_here(const CollectiveCall& call, bool deterministic) {
  if (call.input.dtype == DType::kInt64) return false;
  return deterministic || size_of(call.input.dtype) == 2;
}

/// NCCL can neither add to what is there nor write another dtype than it reads.
bool sums_into_place(const CollectiveCall& call) {
  return !call.accumulate && call.input.dtype == call.output.dtype;
}

std::int64_t aligned(std::int64_t bytes) {
  constexpr std::int64_t kAlign = 256;  // as device allocations are: kernels load 16 bytes at once
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

TensorView at(void* scratch, std::int64_t offset, const TensorView& like) {
  return TensorView(static_cast<std::byte*>(scratch) + offset, like.dtype, Shape{like.numel()});
}

}  // namespace

std::int64_t staged_bytes(const CollectiveCall& call, int size, bool deterministic) {
  const bool reduces =
      call.kind == CollectiveKind::kReduceScatter || call.kind == CollectiveKind::kAllReduce;
  if (!reduces) return 0;
  const std::int64_t part = call.input.bytes() / size;
  if (sums_here(call, deterministic)) return part * (size - 1);
  return call.kind == CollectiveKind::kAllReduce || sums_into_place(call) ? 0 : part;
}

void NcclOperation::enqueue() {
  if (call_.kind == CollectiveKind::kBarrier) return barrier();
  if (call_.input.numel() == 0) return;  // on all ranks
  switch (call_.kind) {
    case CollectiveKind::kAllGather:
      return all_gather();
    case CollectiveKind::kReduceScatter:
      return reduce_scatter();
    case CollectiveKind::kAllReduce:
      return all_reduce();
    case CollectiveKind::kAllToAll:
      return all_to_all();
    case CollectiveKind::kBroadcast:
      return run([&](ncclComm_t comm) {
        return nccl().broadcast(call_.input.data, call_.input.data, count_of(call_.input),
                                nccl_type(call_.input.dtype), call_.peer, comm, stream_.handle());
      });
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
      return point_to_point();
    case CollectiveKind::kBarrier:
      break;
  }
}

void NcclOperation::all_gather() {
  run([&](ncclComm_t comm) {
    return nccl().all_gather(call_.input.data, call_.output.data, count_of(call_.input),
                             nccl_type(call_.input.dtype), comm, stream_.handle());
  });
}

void NcclOperation::reduce_scatter() {
  const TensorView dst = call_.output.flat();
  if (sums_here(call_, deterministic_)) {
    sum_parts([&](int peer) { return part_of(call_.input, peer, size()); }, dst, call_.accumulate);
    return;
  }
  const bool in_place = sums_into_place(call_);
  TensorView sum = dst;
  if (!in_place) {
    const TensorView part = part_of(call_.input, rank(), size());
    sum = at(stream_.scratch(static_cast<std::size_t>(part.bytes())), 0, part);
  }
  run([&](ncclComm_t comm) {
    return nccl().reduce_scatter(call_.input.data, sum.data, count_of(sum), nccl_type(sum.dtype),
                                 ncclSum, comm, stream_.handle());
  });
  if (in_place) return;
  stream_.kernels().ordered_sum({.sources = {&sum, 1}, .dst = dst, .accumulate = call_.accumulate},
                                stream_);
}

void NcclOperation::all_reduce() {
  if (!sums_here(call_, deterministic_)) {
    return run([&](ncclComm_t comm) {
      return nccl().all_reduce(call_.input.data, call_.input.data, count_of(call_.input),
                               nccl_type(call_.input.dtype), ncclSum, comm, stream_.handle());
    });
  }
  if (size() == 1) return;
  const PartOf chunk = [&](int peer) { return chunk_of(call_.input, peer, size()); };
  sum_parts(chunk, chunk(rank()), false);
  exchange([&](int) { return chunk(rank()); }, chunk);
}

void NcclOperation::all_to_all() {
  const PartOf sent = [&](int peer) { return part_of(call_.input, peer, size()); };
  const PartOf received = [&](int peer) { return part_of(call_.output, peer, size()); };
  const TensorView own = sent(rank());
  check_cuda(cudaMemcpyAsync(received(rank()).data, own.data, static_cast<std::size_t>(own.bytes()),
                             cudaMemcpyDeviceToDevice, stream_.handle()),
             "cudaMemcpyAsync");
  exchange(sent, received);
}

void NcclOperation::exchange(const PartOf& sent, const PartOf& received) {
  if (size() == 1) return;
  run([&](ncclComm_t comm) {
    ncclResult_t first = nccl().group_start();
    const auto note = [&](ncclResult_t result) {
      if (first == ncclSuccess || first == ncclInProgress) first = result;
    };
    for (int i = 1; i < size(); ++i) {
      const int to = (rank() + i) % size();
      const int from = (rank() + size() - i) % size();
      if (const TensorView part = sent(to); part.numel() > 0) {
        note(nccl().send(part.data, count_of(part), nccl_type(part.dtype), to, comm,
                         stream_.handle()));
      }
      if (const TensorView part = received(from); part.numel() > 0) {
        note(nccl().recv(part.data, count_of(part), nccl_type(part.dtype), from, comm,
                         stream_.handle()));
      }
    }
    const ncclResult_t ended = nccl().group_end();
    return first == ncclSuccess || first == ncclInProgress ? ended : first;
  });
}

void NcclOperation::sum_parts(const PartOf& part, const TensorView& dst, bool accumulate) {
  const TensorView own = part(rank());
  const std::int64_t stride = aligned(own.bytes());
  void* const scratch =
      size() == 1 ? nullptr : stream_.scratch(static_cast<std::size_t>(stride * (size() - 1)));
  const PartOf received = [&](int peer) {
    return at(scratch, stride * (peer < rank() ? peer : peer - 1), own);
  };
  exchange(part, received);
  if (own.numel() == 0) return;
  std::vector<TensorView> sources;
  for (int peer = 0; peer < size(); ++peer) {
    sources.push_back(peer == rank() ? own : received(peer));
  }
  if (size_of(dst.dtype) == 8) return ordered_sum_wide(sources, dst, stream_);
  stream_.kernels().ordered_sum({.sources = sources, .dst = dst, .accumulate = accumulate},
                                stream_);
}

void NcclOperation::point_to_point() {
  const TensorView& data = call_.input;
  run([&](ncclComm_t comm) {
    return call_.kind == CollectiveKind::kSend
               ? nccl().send(data.data, count_of(data), nccl_type(data.dtype), call_.peer, comm,
                             stream_.handle())
               : nccl().recv(data.data, count_of(data), nccl_type(data.dtype), call_.peer, comm,
                             stream_.handle());
  });
}

void NcclOperation::barrier() {
  // The smallest operation that needs every rank. Its number means nothing.
  void* const number = stream_.scratch(sizeof(std::int32_t));
  run([&](ncclComm_t comm) {
    return nccl().all_reduce(number, number, 1, ncclInt32, ncclSum, comm, stream_.handle());
  });
}

}  // namespace tessera::cuda

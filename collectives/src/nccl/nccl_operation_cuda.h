#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "collective_call.h"
#include "nccl/nccl_comm_cuda.h"

namespace tessera::cuda {

/// Bytes that pass through scratch memory in `call`.
std::int64_t staged_bytes(const CollectiveCall& call, int size, bool deterministic);

/// One call of an NCCL group: how a ProcessGroup's operation is made of NCCL's.
class NcclOperation {
 public:
  NcclOperation(NcclComm& comm, const OperationName& name, const CollectiveCall& call,
                bool deterministic, CudaStream& stream)
      : comm_(comm),
        what_(to_string(name)),
        call_(call),
        deterministic_(deterministic),
        stream_(stream) {}
  void enqueue();

 private:
  using PartOf = std::function<TensorView(int rank)>;

  void all_gather();
  void reduce_scatter();
  void all_reduce();
  void all_to_all();
  void barrier();
  void point_to_point();
  /// Part p of this rank's to rank p, for all others; theirs for this rank to `received`.
  void exchange(const PartOf& sent, const PartOf& received);
  /// dst = [dst +] own + the parts of this rank that others hold, in rank order.
  void sum_parts(const PartOf& part, const TensorView& dst, bool accumulate);
  void run(const std::function<ncclResult_t(ncclComm_t)>& function) { comm_.call(what_, function); }
  int rank() const { return comm_.rank(); }
  int size() const { return comm_.size(); }

  NcclComm& comm_;
  const std::string what_;
  const CollectiveCall& call_;
  const bool deterministic_;
  CudaStream& stream_;
};

}  // namespace tessera::cuda

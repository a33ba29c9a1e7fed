#include "tessera/collectives/nccl_group.h"

#include "cuda_collectives.h"
#include "tessera/core/error.h"

namespace tessera {

const CudaCollectives& cuda_collectives() {
  const auto get = reinterpret_cast<GetCudaCollectives*>(cuda_symbol(kGetCudaCollectives));
  return *get();
}

NcclId make_nccl_id() { return cuda_collectives().make_nccl_id(); }

std::unique_ptr<NcclGroup> make_nccl_group(const NcclId& id, int rank, int size,
                                           NcclGroupOptions options) {
  require(size >= 1 && rank >= 0 && rank < size, ErrorCode::kInvalidArgument, "rank ", rank,
          " is outside of an NCCL group of ", size);
  require(options.timeout.count() > 0, ErrorCode::kInvalidArgument, "a timeout of ",
          options.timeout.count(), " ms is not positive");
  return std::unique_ptr<NcclGroup>(cuda_collectives().make_nccl_group(id, rank, size, options));
}

}  // namespace tessera

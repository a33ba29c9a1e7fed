#pragma once

#include "tessera/collectives/nccl_group.h"

namespace tessera::cuda {

NcclId make_nccl_id();

/// Ownership goes to the caller.
NcclGroup* make_nccl_group(const NcclId& id, int rank, int size, const NcclGroupOptions& options);

}  // namespace tessera::cuda

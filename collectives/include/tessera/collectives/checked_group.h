#pragma once

#include <memory>

#include "tessera/collectives/process_group.h"

namespace tessera {

/// Wraps a group so that every operation first compares its kind, sizes, dtypes and root over all
/// ranks. A rank that disagrees makes the operation fail on every rank with Error{kInvalidArgument}
/// that shows what each rank issued. Costs one small all-gather per operation, which traffic()
/// counts in copied_bytes alone, and on CUDA the host waits for each. A checked group around an
/// NcclGroup is one again. Groups made by `split` are checked too.
std::unique_ptr<ProcessGroup> make_checked_group(std::unique_ptr<ProcessGroup> group);

}  // namespace tessera

#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tessera/collectives/process_group.h"

namespace tessera {

/// Runs `body(rank)` for each of `ranks` ranks, one thread per rank, and joins them all.
///
/// If bodies throw, the root cause is rethrown once every thread has ended: the first exception
/// that is not Error{kAborted}, since ranks that were taken down only repeat what another one said.
/// It keeps its code, its text begins with "rank N: ", and the original is nested in it
/// (std::rethrow_if_nested).
void launch_ranks(int ranks, const std::function<void(int rank)>& body);

/// Runs ranks over ends of a process group: those of all its ranks, or of this process, in order
/// and without gaps. A rank that throws aborts the group first, so that its peers do not wait for
/// it until their timeout.
void launch_ranks(const std::vector<std::unique_ptr<ProcessGroup>>& world,
                  const std::function<void(int rank, ProcessGroup& group)>& body);

}  // namespace tessera

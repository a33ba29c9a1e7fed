#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "tessera/collectives/process_group.h"

namespace tessera {

struct ThreadGroupOptions {
  /// How long an operation waits for its peers while no other operation of the groups that are
  /// split from the same origin ends, on any rank.
  std::chrono::milliseconds timeout{30000};
};

/// N ranks in one process, each driven by its own thread and streams; element i is rank i's end.
/// Buffers are read where they lie: nothing is staged. The stream of a call decides where that is:
/// CPU memory, or memory of GPUs, which ranks may share or which reach each other directly. On GPUs
/// host threads meet as they issue an operation, so operations of different groups must come in the
/// same order on all ranks, and cannot be captured in a graph.
std::vector<std::unique_ptr<ProcessGroup>> make_thread_group(int size,
                                                             ThreadGroupOptions options = {});

}  // namespace tessera

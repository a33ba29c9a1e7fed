#pragma once

#include <cstddef>

#include "tessera/sharding/contents.h"

namespace tessera::rules {

/// How many operands of a pass are of histories.
struct HistoryOperands {
  std::size_t reads = 0, writes = 0;
};

/// The part of a pass's rule that concerns the histories of its layer's tensors.
HistoryOperands observe(ContentWalk& walk, const Action& action);

/// Requires that a history is as it was before the step.
void require_history(ContentWalk& walk, const Operand& history);

/// Records that an action has taken largest magnitudes.
void add_maxima(ContentWalk& walk, const Operand& maxima);

/// The rule of an all-reduce-max of maxima.
void join_maxima(ContentWalk& walk, const Action& action);

}  // namespace tessera::rules

#pragma once

#include <cstdint>
#include <optional>

#include "tessera/collectives/process_group.h"
#include "tessera/core/memory.h"
#include "tessera/sharding/timeline.h"

// What a run tells of itself.
namespace tessera {

/// One finished step. Loss, norm and tokens are global; bytes are of rank 0.
struct StepRecord {
  std::int64_t step = 0;       ///< counted from 1
  double loss = 0.0;           ///< mean over the step's items
  double gradient_norm = 0.0;  ///< before clipping
  double learning_rate = 0.0;
  std::int64_t tokens = 0;  ///< items: losses that count
  double seconds = 0.0;
  double tokens_per_second = 0.0;
  std::int64_t peak_bytes = 0;  ///< of one rank, so far
  /// Of this step, communication that no computation hid; if TrainerOptions::trace.
  std::optional<double> exposed_seconds{};
  std::optional<TimelineSummary> timeline{};  ///< all of it, if TrainerOptions::trace
};

/// One evaluation: the model of that step on data that it is not trained with.
struct EvaluationRecord {
  std::int64_t step = 0;    ///< finished steps; 0: before the first
  double loss = 0.0;        ///< mean over the tokens
  double perplexity = 0.0;  ///< exp(loss)
  std::int64_t tokens = 0;  ///< items: losses that count
};

/// What one rank has measured and counted.
struct RankUse {
  MemoryPeak memory;
  Traffic traffic;  ///< of steps and evaluations
};

}  // namespace tessera

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/collectives/process_group.h"
#include "tessera/core/memory.h"
#include "tessera/sharding/class_counts.h"
#include "tessera/sharding/timeline.h"

// The records of a run.
namespace tessera {

/// One finished step. Loss, norm and tokens are global; bytes are of rank 0.
struct StepRecord {
  std::int64_t step = 0;       ///< counted from 1
  double loss = 0.0;           ///< mean over the step's tokens
  double gradient_norm = 0.0;  ///< before clipping
  double learning_rate = 0.0;
  std::int64_t tokens = 0;     ///< items: losses that count
  std::int64_t positions = 0;  ///< that were computed: all targets, padding and prompts, too
  std::optional<double> loss_scale{};  ///< of this step, with loss scaling
  bool skipped = false;                ///< an overflow: the state is as it was before
  std::int64_t skipped_steps = 0;      ///< so far, of the whole run
  double seconds = 0.0;
  double tokens_per_second = 0.0;
  double positions_per_second = 0.0;
  std::int64_t peak_bytes = 0;  ///< of one rank, so far
  /// Exposed communication of this step; if TrainerOptions::time_actions.
  std::optional<double> exposed_seconds{};
  std::optional<TimelineSummary> timeline{};  ///< all of it, if TrainerOptions::time_actions
};

/// One evaluation: the model after that step on evaluation data.
struct EvaluationRecord {
  std::int64_t step = 0;       ///< finished steps; 0: before the first
  double loss = 0.0;           ///< mean over the tokens
  double perplexity = 0.0;     ///< exp(loss)
  std::int64_t tokens = 0;     ///< items: losses that count
  std::int64_t positions = 0;  ///< of the samples: all targets, padding and prompts, too
  /// Targets whose largest logit is theirs; unset where the losses are not of classes.
  std::optional<std::int64_t> correct{};
  std::vector<ClassCounts> classes{};  ///< of a classifier
  /// The best so far, this one included, and the best before it, where a run compares them.
  std::optional<BestEvaluation> best{}, best_before{};

  /// The share of targets whose largest logit is theirs, which TRL calls mean_token_accuracy.
  std::optional<double> token_accuracy() const {
    if (!correct || tokens == 0) return std::nullopt;
    return static_cast<double>(*correct) / static_cast<double>(tokens);
  }
  /// F1 of the second of two classes, scikit-learn's average="binary".
  std::optional<double> f1() const {
    return classes.size() == 2 ? std::optional(classes[1].f1()) : std::nullopt;
  }
  /// scikit-learn's average="macro"; unset of a model that is no classifier.
  std::optional<double> macro_f1() const {
    return classes.empty() ? std::nullopt : std::optional(tessera::macro_f1(classes));
  }
};

/// A checkpoint that is durable.
struct SaveRecord {
  std::int64_t step = 0;   ///< finished steps
  std::string path;        ///< where it is; "" but in rank 0's process
  std::int64_t bytes = 0;  ///< of all its files but the manifest; 0 but in rank 0's process
  /// For which steps waited; 0: a step copied the state beside its work.
  double waited_seconds = 0.0;
  double seconds = 0.0;  ///< from the beginning until it was known to be durable
  /// Why an older checkpoint is still there that should be gone, or what is wrong with what was
  /// saved, in a sentence; "" if all went well.
  std::string note{};
};

/// One rank's measured memory and counted traffic.
struct RankUse {
  MemoryPeak memory;
  MemoryPeak host_memory;       ///< of what is offloaded
  std::int64_t disk_bytes = 0;  ///< of its file on disk
  Traffic traffic;              ///< of steps, evaluations and snapshots
};

}  // namespace tessera

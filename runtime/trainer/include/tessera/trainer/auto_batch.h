#pragma once

#include <cstdint>
#include <optional>

#include "tessera/trainer/training_plan.h"

namespace tessera {

/// Part of the memory that choose_batch leaves free: for what the ledger does not count (scratch
/// inside the libraries, fragments).
inline constexpr double kAutoBatchMargin = 0.05;

/// How a step's samples are divided into micro-steps so that they fit.
struct BatchChoice {
  std::int64_t micro_batch = 1;
  int accumulate = 1;
  std::int64_t predicted_bytes = 0;  ///< peak of one rank
  std::int64_t budget_bytes = 0;     ///< what it may be: the memory given, less the margin
  /// The next larger micro-batch that keeps the samples per step, and what it would need; none if
  /// the whole step is one micro-batch already.
  std::optional<std::int64_t> next_micro_batch{};
  std::int64_t next_bytes = 0;
};

/// The largest micro-batch, and the accumulation that goes with it, such that micro_batch ×
/// accumulate stays as `options` have it and the predicted peak of one rank is within
/// `bytes_per_rank` × (1 - margin). A pure function of its arguments: ranks that are given the same
/// memory choose the same. Throws Error{kOutOfMemory} if single samples do not fit.
BatchChoice choose_batch(const Model& model, const BatchSource& source,
                         const TrainerOptions& options, std::int64_t bytes_per_rank,
                         double margin = kAutoBatchMargin);

/// The memory that one rank may use on this machine: its share of the host's or its GPU's free
/// memory, or options.memory_limit_bytes if that is less.
std::int64_t bytes_per_rank(const TrainerOptions& options);

/// The least of bytes_per_rank over the processes of options.world, so that all choose the same
/// batch. Every process must call it; each reads its machine's memory for itself.
std::int64_t agreed_bytes_per_rank(const TrainerOptions& options);

}  // namespace tessera

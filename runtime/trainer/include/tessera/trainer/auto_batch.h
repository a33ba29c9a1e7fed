#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/trainer/gpu_overhead.h"
#include "tessera/trainer/training_plan.h"

namespace tessera {

/// Part of the memory that choose_batch leaves free on the CPU: for what the ledger does not count
/// (scratch inside the libraries, fragments). On a GPU it leaves gpu_overhead().
inline constexpr double kAutoBatchMargin = 0.05;

/// How a step's samples are divided into micro-steps so that they fit.
struct BatchChoice {
  std::int64_t micro_batch = 1;
  int accumulate = 1;
  std::int64_t predicted_bytes = 0;  ///< peak of one rank
  std::int64_t budget_bytes = 0;     ///< what it may be: the memory given, less what is left free
  std::vector<OverheadItem> overhead{};  ///< of that choice: gpu_overhead()
  /// The next larger micro-batch that keeps the samples per step, and what it would need; none if
  /// the whole step is one micro-batch already.
  std::optional<std::int64_t> next_micro_batch{};
  std::int64_t next_bytes = 0;
};

/// The largest micro-batch, and the accumulation that goes with it, such that micro_batch ×
/// accumulate stays as `options` have it and the predicted peak of one rank is within
/// `bytes_per_rank` × (1 - margin), or on a GPU `bytes_per_rank` - gpu_overhead(). A pure function
/// of its arguments and the choice of device: ranks that are given the same memory choose the same.
/// Throws Error{kOutOfMemory} if single samples do not fit.
BatchChoice choose_batch(const RunInputs& inputs, const TrainerOptions& options,
                         std::int64_t bytes_per_rank, double margin = kAutoBatchMargin);

/// The memory that it leaves free, as a clause: "a margin of 5 %", or the items that a GPU holds
/// beside the plan.
std::string describe_room(const BatchChoice& choice, double margin = kAutoBatchMargin);

/// The memory that one rank may use on this machine: its share of the host's or its GPU's free
/// memory, or options.memory_limit_bytes if that is less.
std::int64_t bytes_per_rank(const TrainerOptions& options);

/// The least of bytes_per_rank over the processes of options.world, so that all choose the same
/// batch. Every process must call it; each reads its machine's memory for itself.
std::int64_t agreed_bytes_per_rank(const TrainerOptions& options);

}  // namespace tessera

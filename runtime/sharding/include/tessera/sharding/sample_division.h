#pragma once

#include <cstdint>
#include <optional>

#include "tessera/sharding/layout.h"

namespace tessera {

/// How a run's samples are divided. A micro-batch is what a rank reads at once; micro-batches are
/// numbered over the run: step by step, in a step micro-step by micro-step, and in a micro-step by
/// the ranks' places (sample_place). Samples follow one another in the same order, so a step reads
/// the same samples whatever the ranks and micro-steps that it divides them among.
struct SampleDivision {
  std::int64_t micro_batch = 1;  ///< samples per micro-step and place
  std::int64_t micro_steps = 1;
  std::int64_t places =
      1;  ///< ranks that differ along kSampleAxes; others read what one of them does

  std::int64_t micro_batches_per_step() const { return micro_steps * places; }
  std::int64_t samples_per_step() const { return micro_batches_per_step() * micro_batch; }
  /// The number of a micro-batch. Steps and micro-steps count from 0.
  std::int64_t index_of(std::int64_t step, std::int64_t micro_step, std::int64_t place) const {
    return (step * micro_steps + micro_step) * places + place;
  }
  /// The index of its first sample.
  std::int64_t first_sample_of(std::int64_t step, std::int64_t micro_step,
                               std::int64_t place) const {
    return index_of(step, micro_step, place) * micro_batch;
  }
  /// In how many micro-steps `others` places read what a step reads; none if they cannot share it
  /// evenly.
  std::optional<std::int64_t> micro_steps_among(std::int64_t others) const {
    if (micro_batches_per_step() % others != 0) return std::nullopt;
    return micro_batches_per_step() / others;
  }
  /// Steps that it takes to read `samples` samples; the last one may read on beyond them.
  std::int64_t steps_for(std::int64_t samples) const {
    return (samples + samples_per_step() - 1) / samples_per_step();
  }
};

SampleDivision divide_samples(const Mesh& mesh, std::int64_t micro_steps, std::int64_t micro_batch);

/// A rank's place among those that divide a micro-step's samples: its index along kSampleAxes in
/// cutting order, so that sums by rank are sums in the order of samples.
int sample_place(const ShardNesting& nesting, int rank);
/// From the place of a rank to that of the next one along `axis`, one of kSampleAxes.
int sample_stride(const ShardNesting& nesting, Axis axis);

}  // namespace tessera

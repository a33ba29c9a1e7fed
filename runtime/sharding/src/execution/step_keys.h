#pragma once

#include <cstdint>

#include "execution/device_array.h"
#include "execution/micro_batches.h"
#include "tessera/sharding/layout.h"
#include "tessera/sharding/schedule.h"

namespace tessera {

/// The keys of dropout in a training step. They lie in device memory, so that a captured step
/// can be replayed with those of another.
class StepKeys {
 public:
  /// The arguments outlive this.
  StepKeys(const Schedule& schedule, const ModelLayout& layout, const MicroBatches& batches,
           std::uint64_t seed, Memory& memory, int steps_in_flight);

  /// Makes those of `step`, counted from 0. Host thread. `turn`, below `steps_in_flight`: not that
  /// of a step in flight.
  void begin_step(std::int64_t step, std::size_t turn);
  /// Issues their way to the device, on the compute lane.
  void send(std::size_t turn, Stream& stream) { keys_.upload(stream, turn); }

  /// By layer: the same on every rank, in every step and for every strategy. (kRandomKeyWords)
  /// int64.
  TensorView dropout(int layer) const;
  /// The global number of a micro-batch's first sample, (1) int64.
  TensorView first_sample(int micro_step) const;

 private:
  std::int64_t place_of(int layer) const { return layer * std::int64_t{kRandomKeyWords}; }

  const MicroBatches& batches_;
  const std::uint64_t seed_;
  const int layers_;
  const int micro_steps_;
  DeviceArray<std::int64_t> keys_;  ///< (layers, kRandomKeyWords), then (micro-steps)
};

}  // namespace tessera

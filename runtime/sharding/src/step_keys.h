#pragma once

#include <cstdint>

#include "device_array.h"
#include "micro_batches.h"
#include "tessera/sharding/layout.h"
#include "tessera/sharding/schedule.h"

namespace tessera {

/// The keys of a training step's random numbers. They lie in device memory, so that a captured step
/// can be replayed with those of another.
class StepKeys {
 public:
  /// The arguments outlive this.
  StepKeys(const Schedule& schedule, const ModelLayout& layout, const MicroBatches& batches,
           std::uint64_t seed, Memory& memory);

  /// Makes those of `step`, counted from 0, whose micro-batches have been read. Host thread, lanes
  /// idle.
  void begin_step(std::int64_t step);
  /// Issues their way to the device.
  void send(Stream& stream) { keys_.upload(stream); }

  // (kRandomKeyWords) int64 each.
  /// By global number of the micro-batch and layer: the same on every rank and for every strategy.
  TensorView dropout(int layer, int micro_step) const;
  /// Of the optimizer's stochastic rounding, by step.
  TensorView rounding() const;

 private:
  std::int64_t place_of(int layer, int micro_step) const;

  const MicroBatches& batches_;
  const std::uint64_t seed_;
  const int layers_;
  const int micro_steps_;
  DeviceArray<std::int64_t> keys_;  ///< (micro-steps * layers + 1, kRandomKeyWords)
};

}  // namespace tessera

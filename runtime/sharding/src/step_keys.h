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
           std::uint64_t seed, Memory& memory, int steps_in_flight);

  /// Makes those of `step`, counted from 0. Host thread. `turn`, below `steps_in_flight`: not that
  /// of a step in flight.
  void begin_step(std::int64_t step, std::size_t turn);
  // Issue their way to the device, each on the lane that uses them.
  void send_dropout(std::size_t turn, Stream& stream) { dropout_.upload(stream, turn); }
  void send_rounding(std::size_t turn, Stream& stream) { rounding_.upload(stream, turn); }

  // (kRandomKeyWords) int64 each.
  /// By global number of the micro-batch and layer: the same on every rank and for every strategy.
  TensorView dropout(int layer, int micro_step) const;
  /// Of the optimizer's stochastic rounding, by step.
  TensorView rounding() const { return rounding_.view(); }

 private:
  std::int64_t place_of(int layer, int micro_step) const;

  const MicroBatches& batches_;
  const std::uint64_t seed_;
  const int layers_;
  const int micro_steps_;
  DeviceArray<std::int64_t> dropout_;   ///< (micro-steps * layers, kRandomKeyWords)
  DeviceArray<std::int64_t> rounding_;  ///< (kRandomKeyWords)
};

}  // namespace tessera

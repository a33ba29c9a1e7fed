#pragma once

#include <cstdint>
#include <span>

#include "execution/device_array.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/sharding/loss_scaling.h"

namespace tessera {

/// A loss scaler in device memory. A step reads its scale when it begins and updates it when its
/// gradient norm is known; the host is told afterwards, with the step's results.
class DeviceLossScaler {
 public:
  DeviceLossScaler(const LossScalerRule& rule, Memory& memory, int steps_in_flight, bool on_host);

  /// While no step is in flight; there once `stream` has come so far.
  void set(const LossScalerState& state, Stream& stream);

  /// The optimizer's scalars of a step that is about to be issued, if `skipped` steps were skipped
  /// before it, one more, and so on: as many rows as steps are in flight at most.
  void begin_step(std::size_t turn, std::int64_t skipped,
                  std::span<const OptimizerScalars> candidates);
  void send(Stream& stream, std::size_t turn);
  void receive(Stream& stream, std::size_t turn) { words_.download(stream, turn); }

  /// Judges the step by the squares of its gradient, of all ranks, and writes its scalars.
  void judge(const KernelTable& kernels, const TensorView& squares, const TensorView& scalars,
             Stream& stream) const;

  TensorView words() const { return words_.view(); }
  /// (1) int64: whether the optimizer leaves this step out; on the host, once it is copied there.
  TensorView skip(Tier tier) const { return words_.at(tier).narrow(0, kSkipWord, 1); }
  void copy_to_host(Stream& stream) { words_.copy_to_host(stream); }

  // Once the host has waited for what receive() issued.
  LossScaleResult result(std::size_t turn) const;
  LossScalerState state(std::size_t turn) const { return load_scaler(words_.host(turn)); }
  /// The place of this rank's first gradient that is not finite; see gradient_place.
  std::int64_t first_bad(std::size_t turn) const { return words_.host(turn)[kFirstBadWord]; }

 private:
  LossScalerRule rule_;
  ArrayOnTiers<std::int64_t> words_;  ///< (kLossScalerWords)
  DeviceArray<float> candidates_;     ///< (steps in flight, kOptimizerScalars)
  DeviceArray<std::int64_t> base_;    ///< (1): skipped steps of the first row
};

/// One number for an element of a unit's flat gradient: those of earlier units are smaller.
struct GradientPlace {
  int unit = 0;
  std::int64_t element = 0;
};
std::int64_t number_of(const GradientPlace& place);
GradientPlace gradient_place(std::int64_t number);

}  // namespace tessera

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "execution/device_array.h"
#include "execution/device_loss_scaler.h"
#include "tessera/collectives/process_group.h"
#include "tessera/kernels/exact_sum.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/sharding/layout.h"

namespace tessera {

/// The numbers that all ranks must agree on in a step: how many losses count, their sum, the
/// gradient norm and the clip factor. The sums are exact (exact_sum.h), so they depend neither on
/// how the work was spread nor on an order, and a message has the same few bytes at any number of
/// ranks.
///
/// They live in device memory from end to end: within a step the host does not wait for them. Each
/// step in flight has its own copy of what the host gives and gets.
class StepExchange {
 public:
  /// `control` may be null: then this rank is alone. Throws Error{kInvalidArgument} if the model
  /// has more terms than an exact sum holds. `rule` is null without loss scaling. `on_host`: there
  /// are optimizer steps on the host. `hit_words`: words that losses of steps without a norm,
  /// evaluations, count in. `updates_early`: there are steps whose updates do not wait for the
  /// norm.
  StepExchange(const ModelLayout& layout, double clip_norm, const LossScalerRule* rule,
               ProcessGroup* control, Memory& memory, int steps_in_flight, bool on_host,
               std::int64_t hit_words, bool updates_early);

  /// Numbers of a step that the host knows.
  struct Given {
    std::int64_t items = 0;  ///< of this rank
    /// One; with loss scaling, those to choose from (see DeviceLossScaler::begin_step).
    std::vector<OptimizerScalars> optimizer{};
    std::int64_t skipped = 0;  ///< steps that the host knows of
    RandomKey rounding{};
  };
  /// Before a step is issued. `turn`, below `steps_in_flight`: not that of a step in flight.
  /// `replayed`: count_tokens() and reduce_results() are replayed as part of a graph, whose copies
  /// would be those of one turn for ever. So the caller issues them around it.
  void begin_step(std::size_t turn, const Given& given, bool replayed);
  /// The copies that count_tokens() begins with ...
  void send(Stream& stream);
  /// ... and those that reduce_results() ends with: what the optimizer is given, unless its updates
  /// are early and count_tokens() has sent it, and the results.
  void send_to_optimizer(Stream& stream);
  void receive(Stream& stream);

  /// Makes loss_scale() of the ranks' item counts. `updates_early`: of a step whose updates do not
  /// wait for the norm. Issues on `stream`.
  void count_tokens(bool updates_early, Stream& stream);
  /// d mean loss / d loss of one item, times the loss scaler's scale: (1) fp32.
  TensorView loss_scale() const { return loss_scale_.view(); }

  /// Where this rank's losses are added up: an exact sum.
  TensorView loss_sum() const { return sums_.view(kExactSumWords, kExactSumWords); }
  /// This rank's sum of the squares of its part of the gradient.
  TensorView square_sum() const { return sums_.view(0, kExactSumWords); }
  /// Where this rank's hits are counted, if they are; see CrossEntropyArgs.
  TensorView hits() const {
    return hit_words_ > 0 ? sums_.view(2 * kExactSumWords, hit_words_) : TensorView();
  }

  /// Makes the loss of the ranks' sums, and with_norm the norm and the clip factor as well, else
  /// adds their hits. Issues on `stream`.
  void reduce_results(bool with_norm, bool updates_early, Stream& stream);

  // Where an optimizer step of that tier reads them; on the host they are copies of the device's.
  /// (kOptimizerScalars) fp32.
  TensorView optimizer_scalars(Tier tier) const { return optimizer_.at(tier); }
  /// (kRandomKeyWords) int64: the key of stochastic rounding.
  TensorView rounding_key(Tier tier) const { return rounding_.at(tier); }
  /// (1) fp32; with a loss scaler, divided by its scale.
  TensorView clip_factor(Tier tier) const { return clip_factor_.at(tier); }
  /// (1) fp32: the 1 that early updates take for the clip factor, which is made beside them.
  TensorView no_clipping(Tier tier) const { return no_clipping_->at(tier); }
  /// (1) fp64: the gradient norm, of all ranks and before clipping.
  TensorView norm() const { return results_.view(1, 1); }
  /// Null without loss scaling.
  DeviceLossScaler* scaler() { return scaler_ ? &*scaler_ : nullptr; }

  // Once the host has waited for what receive() issued.
  std::int64_t total_items(std::size_t turn) const { return *count_.host(turn); }
  double mean_loss(std::size_t turn) const;
  double gradient_norm(std::size_t turn) const { return results_.host(turn)[1]; }
  /// The words of the losses' exact sum, of all ranks.
  std::span<const std::int64_t> loss_words(std::size_t turn) const {
    return {sums_.host(turn) + kExactSumWords, kExactSumWords};
  }
  /// The hits of all ranks, of a step without a norm.
  std::span<const std::int64_t> hits(std::size_t turn) const {
    return {sums_.host(turn) + 2 * kExactSumWords, static_cast<std::size_t>(hit_words_)};
  }

 private:
  const KernelTable& kernels_;
  ProcessGroup* control_;
  double clip_norm_;
  std::int64_t hit_words_;
  std::size_t turn_ = 0;             ///< of the step that is issued
  bool replayed_ = false;            ///< the same
  DeviceArray<std::int64_t> count_;  ///< (1): items, of all ranks once they are exchanged
  /// (kExactSumWords) of squares, (kExactSumWords) of losses, (hit_words_): ranks add the first two
  /// together, or the last two.
  DeviceArray<std::int64_t> sums_;
  DeviceArray<float> loss_scale_;                   ///< (1)
  ArrayOnTiers<float> optimizer_;                   ///< (kOptimizerScalars)
  ArrayOnTiers<std::int64_t> rounding_;             ///< (kRandomKeyWords)
  ArrayOnTiers<float> clip_factor_;                 ///< (1)
  std::optional<ArrayOnTiers<float>> no_clipping_;  ///< (1), of early updates
  DeviceArray<double> results_;                     ///< the sum of the losses, the gradient norm
  std::optional<DeviceLossScaler> scaler_;
};

}  // namespace tessera

#pragma once

#include <cstdint>
#include <vector>

#include "rank_state.h"
#include "tessera/collectives/process_group.h"

namespace tessera {

/// The numbers that all ranks must agree on in a step: how many losses count, their sum, and the
/// gradient norm. Every rank receives every rank's contributions and combines them in the same
/// order, so the results do not depend on how the work was spread.
///
/// Lives in host memory. Its methods run as tasks of one rank's reduce lane, except the getters of
/// `loss_sum`, which the compute lane fills.
class StepExchange {
 public:
  /// `control` may be null: then this rank is alone (or simulated) and only its numbers count.
  StepExchange(const Schedule& schedule, const RankState& state, ProcessGroup* control,
               Memory& memory);

  /// Issues the exchange of item counts on `stream`; `items` per micro-step must stay in place.
  void exchange_items(const std::vector<std::int64_t>& items, Stream& stream);
  /// Sums items; a task after exchange_items (or at once, if alone).
  void finish_items();
  std::int64_t total_items() const { return total_items_; }
  /// d mean loss / d loss of one item.
  float loss_scale() const;

  /// Where micro-step m's sum of losses goes: (1) fp64.
  TensorView loss_sum(int micro_step);
  /// This rank's share of a unit's squared norm. A task.
  void squares(int unit, Stream& stream);

  /// Issues the exchange of losses and norms on `stream`. Two tasks around a collective.
  void exchange_results(Stream& stream);
  double mean_loss() const { return mean_loss_; }
  double gradient_norm() const { return gradient_norm_; }

 private:
  void pack();
  void unpack();
  double unit_squares(std::size_t unit) const;

  const Schedule& schedule_;
  const RankState& state_;
  const KernelTable& kernels_;
  ProcessGroup* control_;
  int members_;                      ///< ranks whose numbers we combine
  std::vector<std::int64_t> items_;  ///< (members, micro-steps)
  std::vector<std::int64_t> my_items_;
  std::int64_t total_items_ = 0;
  std::vector<std::vector<double>> nodes_;  ///< by unit: kNormNodes
  std::vector<std::int64_t> node_counts_;   ///< by unit: most that any rank has
  std::vector<std::int64_t> offsets_;       ///< by unit, in a rank's message
  std::int64_t message_numel_ = 0;
  std::vector<double> losses_;  ///< by micro-step
  std::vector<double> mine_;    ///< message: losses, then nodes
  std::vector<double> all_;     ///< (members, message)
  Tensor workspace_;
  double mean_loss_ = 0.0;
  double gradient_norm_ = 0.0;
};

}  // namespace tessera

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "device_array.h"
#include "rank_state.h"
#include "tessera/collectives/process_group.h"

namespace tessera {

/// The numbers that all ranks must agree on in a step: how many losses count, their sum, the
/// gradient norm and the clip factor. Every rank receives every rank's contributions and combines
/// them in the same order, so the results do not depend on how the work was spread.
///
/// They live in device memory from end to end: within a step the host does not wait for them.
class StepExchange {
 public:
  /// `control` may be null: then this rank is alone (or simulated) and only its numbers count.
  StepExchange(const Schedule& schedule, const RankState& state, ProcessGroup* control,
               Memory& memory);

  /// Before a step, lanes idle: takes what the host knows of it. `items` per micro-step of this
  /// rank; `adamw` as adamw_scalars gives it.
  void begin_step(const std::vector<std::int64_t>& items,
                  const std::array<float, kAdamWScalars>& adamw);
  /// Issues its way to the device, on the compute lane.
  void send_scalars(Stream& stream);

  /// Makes loss_scale() of the ranks' item counts. Issues on `stream`.
  void exchange_items(Stream& stream);
  /// d mean loss / d loss of one item: (1) fp32.
  TensorView loss_scale() const { return loss_scale_.view(); }

  /// Where micro-step m's sum of losses goes: (1) fp64.
  TensorView loss_sum(int micro_step) const;
  /// This rank's share of a unit's squared norm. A task.
  void squares(int unit, Stream& stream);

  /// Makes the loss, the norm and the clip factor of the ranks' messages. Issues on `stream`.
  void exchange_results(double clip_norm, Stream& stream);
  /// (kAdamWScalars) fp32, the clip factor among them.
  TensorView adamw_scalars() const { return adamw_.view(); }

  // After the step, lanes synchronised.
  std::int64_t total_items() const;
  double mean_loss() const;
  double gradient_norm() const { return results_.host()[1]; }

 private:
  /// Where things lie in a rank's message, and how the norm is added up.
  struct Plan {
    std::vector<std::int64_t> offsets;      ///< by unit, in a rank's message
    std::vector<std::int64_t> node_counts;  ///< by unit: most that any rank has
    std::int64_t message_numel = 0;         ///< a loss per micro-step, then the units' norm nodes
    std::int64_t values_numel = 0;          ///< all messages and the intermediate sums
    std::vector<std::int32_t> additions, units, roots;  ///< see StepResultsArgs
  };
  static Plan make_plan(const Schedule& schedule, const RankState& state, std::int64_t members,
                        bool alone);
  void upload_plan(Stream& stream);

  const Schedule& schedule_;
  const RankState& state_;
  const KernelTable& kernels_;
  ProcessGroup* control_;
  const std::int64_t members_;  ///< ranks whose numbers we combine
  const std::int64_t me_;       ///< this rank's place among them
  Plan plan_;
  DeviceArray<std::int64_t> counts_;  ///< (members, micro-steps)
  DeviceArray<float> loss_scale_;     ///< (1)
  DeviceArray<float> adamw_;          ///< (kAdamWScalars)
  DeviceArray<double> values_;        ///< (members, message), then intermediate sums
  DeviceArray<std::int32_t> additions_, units_, roots_;
  DeviceArray<double> results_;  ///< the sum of the losses, the gradient norm
  Tensor workspace_;
  bool plan_is_there_ = false;
};

}  // namespace tessera

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "tessera/kernels/factored_moments.h"
#include "tessera/sharding/factored_table.h"
#include "tessera/sharding/step_context.h"
#include "tessera/sharding/training_state.h"

namespace tessera {

/// The actions of a factored optimizer on one rank. Operands of statistics name whole buffers, of
/// which each flat parameter has its part.
class FactoredRunner {
 public:
  using RatesOf = std::function<SegmentRates(const ParameterSpec&)>;
  /// `scale_parameter`: see PlanOptions.
  FactoredRunner(const TrainingState& state, const RatesOf& rates_of, bool scale_parameter,
                 bool stochastic_rounding);

  void add_squares(StepContext& context, const Action& action, Stream& stream) const;
  void update_moments(StepContext& context, const Action& action, Stream& stream) const;
  void add_update_squares(StepContext& context, const Action& action, Stream& stream) const;
  void step(StepContext& context, const Action& action, Stream& stream) const;

 private:
  struct Flat {
    std::vector<FactoredMatrix> matrices{};
    std::vector<FactoredPart> parts{};  ///< of this rank's shard of the optimizer
    std::int64_t first_element = 0;     ///< as in OptimizerStepArgs::first_index
  };
  /// The part of a flat parameter in a buffer of statistics, which is one of the operands.
  TensorView statistics(StepContext& context, const std::vector<Operand>& operands, BufferKind kind,
                        const FlatId& id) const;
  /// The exact sums of the squares of its matrices' elements; empty without scale_parameter.
  TensorView parameter_squares(StepContext& context, const std::vector<Operand>& operands,
                               const FlatId& id) const;
  const FactoredTable::Entry& entry_of(const FlatId& id) const;

  const FactoredTable table_;
  std::map<FlatId, Flat> flats_;
  const bool stochastic_rounding_;
};

}  // namespace tessera

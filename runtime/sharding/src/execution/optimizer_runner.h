#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "execution/factored_runner.h"
#include "tessera/kernels/optimizer.h"
#include "tessera/sharding/executor.h"
#include "tessera/sharding/step_context.h"

namespace tessera {

/// Optimizer steps of one rank, on the device and on the host.
class OptimizerRunner {
 public:
  OptimizerRunner(const TrainingState& state, const ExecutorOptions& options, Device& device);

  /// Updates this rank's part of a flat parameter: the action's operands are the gradient, the
  /// parameter and what the optimizer keeps.
  void step(StepContext& context, const Action& action, Stream& stream);
  /// The other actions of a factored optimizer.
  const FactoredRunner& factored() const { return *factored_; }

 private:
  /// Facts of this rank's part of a flat parameter that the optimizer needs.
  struct FlatUpdate {
    std::vector<OptimizerSegment> segments{};  ///< relative to that part
    std::int64_t first_element = 0;            ///< where it begins if all flat parameters were one
  };

  SegmentRates rates_of(const ParameterSpec& spec) const;
  void plan_segments(const TrainingState& state);

  const OptimizerOptions options_;
  const Optimizer& optimizer_;
  Device& device_;
  std::map<FlatId, FlatUpdate> updates_;      ///< of trainable ones
  std::unique_ptr<FactoredRunner> factored_;  ///< of a factored optimizer
  std::unique_ptr<Device> host_device_;       ///< of a GPU's rank: for steps on the host
  std::unique_ptr<Stream> host_stream_;       ///< the same
};

}  // namespace tessera

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/model/gpt.h"
#include "tessera/sharding/placement.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera::cli {

/// The results that a strategy must not change.
struct TrainingOutcome {
  std::vector<double> losses{}, norms{};  ///< of every step; empty but in the first process
  double first_loss = 0.0, last_loss = 0.0;
  std::string parameters_sha256{};
  std::uint64_t sums = 0;       ///< of the plan: how gradients are added up
  std::int64_t peak_bytes = 0;  ///< of one rank: what strategies differ in
};

/// A very small training that any machine can do in a moment.
class SelfTestTraining {
 public:
  /// `options` name the device, never kAuto.
  explicit SelfTestTraining(TrainerOptions options);

  /// Trains with no_shard, which must learn; what others must equal. Returns it in words.
  std::string run_reference();
  /// Trains and compares. Returns in words what is equal.
  /// Throws Error{kInternal} if anything differs from no_shard, or from the plan.
  std::string run(const Strategy& strategy) const;

 private:
  TrainingOutcome train(const Strategy& strategy) const;

  TrainerOptions options_;
  GptConfig config_;
  Model model_;
  TrainingOutcome reference_;
};

}  // namespace tessera::cli

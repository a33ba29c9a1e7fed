#pragma once

#include <string>

#include "tessera/kernels/loss_scaler.h"

namespace tessera {

/// Loss scaling of a run: loss_scaler.h has the rules.
struct LossScaling {
  LossScalerRule rule{};
  float initial_scale = 65536.0F;  ///< or the only one, if the rule is not dynamic

  LossScalerState initial_state() const {
    return {.scale = initial_scale, .hysteresis_left = rule.hysteresis};
  }
};

/// The outcome of a step.
struct LossScaleResult {
  float scale = 1.0F;    ///< that this step had
  bool skipped = false;  ///< an element of the gradient was not finite, on some rank
  /// The scale cannot be lowered any more: see after_overflow() in loss_scaler.h. Then `non_finite`
  /// names unit and tensor, the same on all ranks.
  bool exhausted = false;
  std::string non_finite{};
};

}  // namespace tessera

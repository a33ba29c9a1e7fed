#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/core/dtype.h"
#include "tessera/sharding/loss_scaling.h"

namespace tessera {

/// "none", "dynamic", or a number that the loss is always multiplied by.
struct LossScaleChoice {
  enum class Kind : std::uint8_t { kNone, kDynamic, kFixed };
  Kind kind = Kind::kNone;
  double scale = 1.0;  ///< of kFixed
  bool operator==(const LossScaleChoice&) const = default;
};
std::string to_string(const LossScaleChoice& choice);
LossScaleChoice parse_loss_scale(std::string_view text);  ///< Throws Error{kConfig}.
std::string_view to_string(LossScaleDialect dialect);

/// How the loss is scaled. What is unset is as the dialect has it; what a dialect does not have
/// stays unset.
struct LossScaleOptions {
  std::optional<LossScaleChoice> choice{};  ///< unset: dynamic with fp16, else none
  LossScaleDialect dialect = LossScaleDialect::kTorch;
  std::optional<double> initial{};
  std::optional<double> growth_factor{};   ///< torch, Megatron
  std::optional<double> backoff_factor{};  ///< torch, Megatron
  std::optional<std::int64_t> window{};
  std::optional<double> minimum{};               ///< DeepSpeed, Megatron
  std::optional<std::int64_t> hysteresis{};      ///< DeepSpeed, Megatron
  std::optional<bool> consecutive_hysteresis{};  ///< DeepSpeed
};

/// `options` with everything unset replaced by its value. Throws Error{kConfig} on what the choice
/// or the dialect does not take, and on numbers that do not fit together.
LossScaleOptions resolved(LossScaleOptions options, DType precision);

/// The executor's part of resolved options.
std::optional<LossScaling> loss_scaling(const LossScaleOptions& resolved);

}  // namespace tessera

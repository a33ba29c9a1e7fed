#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera {

/// Learning rate by optimizer step, never by micro-step or rank.
struct LearningRateSchedule {
  enum class Kind : std::uint8_t {
    kConstant,  ///< peak after warm-up
    kLinear,    ///< straight line from peak to minimum
    kCosine,    ///< half a cosine from peak to minimum
    kWsd,       ///< warm-up, stable, then a straight decay over the last `decay_steps`
  };
  Kind kind = Kind::kCosine;
  double peak = 1e-3;
  std::optional<double> minimum{};  ///< unset: a tenth of the peak
  /// Step k < warmup_steps has rate peak (k + 1) / warmup_steps. Unset: a tenth of total_steps, at
  /// most 100.
  std::optional<std::int64_t> warmup_steps{};
  std::int64_t total_steps = 1;
  /// kWsd. Unset: a fifth of total_steps, at most those that warm-up leaves.
  std::optional<std::int64_t> decay_steps{};

  /// Rate of optimizer step `step`, counted from 0. Past total_steps: the last rate.
  double at(std::int64_t step) const;
};

/// `schedule` with everything unset replaced by its value.
LearningRateSchedule resolved(LearningRateSchedule schedule);

std::string_view to_string(LearningRateSchedule::Kind kind);
LearningRateSchedule::Kind parse_learning_rate_kind(std::string_view text);
/// Throws Error{kConfig} if numbers are negative, not finite or contradict each other.
void check(const LearningRateSchedule& schedule);

}  // namespace tessera

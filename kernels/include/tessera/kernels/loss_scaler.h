#pragma once

#include <bit>
#include <cstdint>
#include <limits>

// Dynamic loss scaling. The gradient of the loss is multiplied by a scale, so that small gradients
// do not vanish in 16 bits; where that makes one overflow, the step is skipped and the scale
// lowered. The rules here run on the device, so that no step waits for the host.
namespace tessera {

/// Whose rules raise and lower the scale.
enum class LossScaleDialect : std::uint8_t {
  kTorch,      ///< torch.amp.GradScaler
  kDeepSpeed,  ///< DynamicLossScaler of deepspeed.runtime.fp16.loss_scaler
  kMegatron,   ///< DynamicGradScaler of megatron.core.optimizer.grad_scaler
};

struct LossScalerRule {
  LossScaleDialect dialect = LossScaleDialect::kTorch;
  bool dynamic = true;              ///< else the scale stays
  double growth_factor = 2.0;       ///< above 1
  double backoff_factor = 0.5;      ///< below 1
  std::int64_t window = 2000;       ///< good steps before the scale grows
  float minimum = 0.0F;             ///< 0: none
  std::int64_t hysteresis = 1;      ///< overflows before the scale is lowered
  bool refills_hysteresis = false;  ///< by every good step (kDeepSpeed: consecutive_hysteresis)
};

struct LossScalerState {
  float scale = 1.0F;
  std::int64_t good_steps = 0;       ///< in a row; kTorch, kMegatron: since the scale grew
  std::int64_t hysteresis_left = 1;  ///< overflows until the scale is lowered
  std::int64_t skipped = 0;          ///< steps, of all so far
  bool operator==(const LossScalerState&) const = default;
};

/// A LossScalerState and what the last step came to, in device memory.
enum LossScalerWord : int {
  kScaleWord,       ///< bits of the fp32
  kGoodStepsWord,   ///< LossScalerState::good_steps
  kHysteresisWord,  ///< LossScalerState::hysteresis_left
  kSkippedWord,     ///< LossScalerState::skipped
  kSkipWord,        ///< 1: the last step is skipped
  kUsedScaleWord,   ///< bits of the scale of the last step
  kExhaustedWord,   ///< 1: the last step cannot be mended: see update_scaler()
  kFirstBadWord,    ///< the place of the first element that is not finite; kNoElement: none
  kLossScalerWords
};
inline constexpr std::int64_t kNoElement = std::numeric_limits<std::int64_t>::max();

constexpr float scale_of(const std::int64_t* words) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(words[kScaleWord]));
}
/// The scale that the last step had.
constexpr float used_scale_of(const std::int64_t* words) {
  return scale_of(words + kUsedScaleWord);
}
constexpr LossScalerState load_scaler(const std::int64_t* words) {
  return {scale_of(words), words[kGoodStepsWord], words[kHysteresisWord], words[kSkippedWord]};
}
constexpr void store_scaler(const LossScalerState& state, std::int64_t* words) {
  words[kScaleWord] = static_cast<std::int64_t>(std::bit_cast<std::uint32_t>(state.scale));
  words[kGoodStepsWord] = state.good_steps;
  words[kHysteresisWord] = state.hysteresis_left;
  words[kSkippedWord] = state.skipped;
}

/// A scale that would be infinite stays as it is.
constexpr void grow_scale(const LossScalerRule& rule, LossScalerState& state) {
  const double grown = static_cast<double>(state.scale) * rule.growth_factor;
  if (grown <= static_cast<double>(std::numeric_limits<float>::max())) {
    state.scale = static_cast<float>(grown);
  }
  state.hysteresis_left = rule.hysteresis;
}

constexpr void lower_scale(const LossScalerRule& rule, LossScalerState& state) {
  const auto lowered = static_cast<float>(static_cast<double>(state.scale) * rule.backoff_factor);
  state.scale = lowered > rule.minimum ? lowered : rule.minimum;
}

/// An overflow does this. False if the scale had to be lowered and cannot: of kDeepSpeed at its
/// minimum, which raises an error there, and of kTorch below the smallest normal fp32, for 1/scale
/// would be infinite. kMegatron stays at its minimum.
constexpr bool after_overflow(const LossScalerRule& rule, LossScalerState& state) {
  state.good_steps = 0;
  ++state.skipped;
  if (!rule.dynamic) return true;
  switch (rule.dialect) {
    case LossScaleDialect::kTorch:
      lower_scale(rule, state);
      return state.scale >= std::numeric_limits<float>::min();
    case LossScaleDialect::kDeepSpeed:
      if (rule.hysteresis != 1 && state.hysteresis_left != 1) {
        --state.hysteresis_left;
        return true;
      }
      if (state.scale == rule.minimum) return false;
      lower_scale(rule, state);
      return true;
    case LossScaleDialect::kMegatron:
      if (state.hysteresis_left > 0) --state.hysteresis_left;
      if (state.hysteresis_left == 0) lower_scale(rule, state);
      return true;
  }
  return true;
}

/// A good step does this. torch and Megatron count up to the window and begin anew; DeepSpeed grows
/// where the good steps before this one, since the last overflow, are a multiple of it.
constexpr void after_good_step(const LossScalerRule& rule, LossScalerState& state) {
  if (!rule.dynamic) return;
  const std::int64_t before = state.good_steps++;
  if (rule.dialect == LossScaleDialect::kDeepSpeed) {
    if (rule.refills_hysteresis) state.hysteresis_left = rule.hysteresis;
    if (before > 0 && before % rule.window == 0) grow_scale(rule, state);
  } else if (state.good_steps >= rule.window) {
    grow_scale(rule, state);
    state.good_steps = 0;
  }
}

/// A step does this to the scaler, once its verdict is known. False as after_overflow() says.
constexpr bool update_scaler(const LossScalerRule& rule, LossScalerState& state, bool overflow) {
  if (overflow) return after_overflow(rule, state);
  after_good_step(rule, state);
  return true;
}

/// Which row of candidates, whose first is for `base` skipped steps, is that of this step.
constexpr std::int64_t candidate_row(const std::int64_t* words, std::int64_t base,
                                     std::int64_t rows) {
  const std::int64_t row = words[kSkippedWord] - base;
  return row < 0 ? 0 : row < rows ? row : rows - 1;
}

/// The clip factor for a gradient that is `scale` too large.
constexpr float unscaled_clip_factor(float clip_factor, float scale) {
  return static_cast<float>(static_cast<double>(clip_factor) / static_cast<double>(scale));
}

/// update_scaler() on words in device memory.
constexpr void update_words(const LossScalerRule& rule, bool overflow, std::int64_t* words) {
  LossScalerState state = load_scaler(words);
  words[kUsedScaleWord] = words[kScaleWord];
  words[kSkipWord] = overflow ? 1 : 0;
  words[kExhaustedWord] = update_scaler(rule, state, overflow) ? 0 : 1;
  store_scaler(state, words);
}

}  // namespace tessera

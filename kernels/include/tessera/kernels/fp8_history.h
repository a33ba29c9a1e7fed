#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "tessera/core/tensor.h"

// Delayed scaling: the scale of a tensor is made of its largest magnitudes in earlier steps, by the
// rule of TransformerEngine's DelayedScaling (common/recipe/delayed_scaling.cu). The functions here
// are the definition: kernels give the same bits.
namespace tessera {

/// The magnitude of a history that decides a scale.
enum class Fp8HistoryRule : std::uint8_t {
  kMax,         ///< the largest one
  kMostRecent,  ///< the newest one
};

/// The word that a scale is made of after a step, see fp8_scale(): the scale is that of a largest
/// magnitude of 2^margin times `amax`. `before`, the word before the step, stays where `amax`, an
/// fp32 word, is zero or no number.
constexpr std::uint32_t fp8_scale_word(std::uint32_t amax, std::uint32_t before, int margin) {
  if (amax == 0 || amax >= 0x7f800000U) return before;
  float magnitude = std::bit_cast<float>(amax);
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (int i = 0; i < margin; ++i) magnitude = magnitude > kLargest / 2 ? kLargest : 2 * magnitude;
  return std::bit_cast<std::uint32_t>(magnitude);
}

/// Moves histories on by one step, tensor by tensor:
///
///   amax = newest, or by kMax the largest of it and of the history, where NaN counts as nothing
///   scale_words = fp8_scale_word(amax, scale_words, margin)
///   history = history without its oldest word, and newest behind it; unchanged if newest is 0
///   newest = 0
///
/// A history has the words of the steps before: one fewer than the magnitudes that decide. Words
/// are those of amax.
struct RollFp8HistoryArgs {
  TensorView newest{};       // (tensors); int32
  TensorView history{};      // (tensors, length - 1); int32, the oldest first
  TensorView scale_words{};  // (tensors); int32
  Fp8HistoryRule rule = Fp8HistoryRule::kMax;
  int margin = 0;  ///< 0 or more
};

}  // namespace tessera

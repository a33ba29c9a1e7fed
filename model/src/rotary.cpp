#include <cmath>
#include <numbers>
#include <vector>

#include "tessera/model/gpt_family.h"

namespace tessera {
namespace {

/// Frequency i after Llama 3.1's scaling: waves shorter than the trained context over
/// `high_frequency` stay, those longer than that over `low_frequency` become `factor` times as
/// long, and between them both are mixed.
double llama3_scaled(double frequency, const RotaryConfig& rotary) {
  const auto trained = static_cast<double>(rotary.trained_context);
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  if (wavelength < trained / rotary.high_frequency) return frequency;
  if (wavelength > trained / rotary.low_frequency) return frequency / rotary.factor;
  const double smooth = (trained / wavelength - rotary.low_frequency) /
                        (rotary.high_frequency - rotary.low_frequency);
  return (1.0 - smooth) * frequency / rotary.factor + smooth * frequency;
}

}  // namespace

std::vector<float> rotary_frequencies(const GptConfig& config, std::int64_t length) {
  const RotaryConfig& rotary = config.rotary;
  const auto rotated =
      static_cast<std::int64_t>(static_cast<double>(config.head_width_used()) * rotary.share);
  const bool is_long = length > rotary.trained_context;
  std::vector<float> frequencies;
  for (std::int64_t i = 0; i < rotated / 2; ++i) {
    const double exponent = static_cast<double>(2 * i) / static_cast<double>(rotated);
    double frequency = 1.0 / std::pow(rotary.base, exponent);
    if (rotary.scaling == RotaryConfig::Scaling::kLlama3) {
      frequency = llama3_scaled(frequency, rotary);
    } else if (rotary.scaling == RotaryConfig::Scaling::kLongRope) {
      const auto& factors = is_long ? rotary.long_factors : rotary.short_factors;
      frequency /= factors.at(static_cast<std::size_t>(i));
    }
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

float rotary_amplitude(const GptConfig& config) {
  const RotaryConfig& rotary = config.rotary;
  if (rotary.scaling != RotaryConfig::Scaling::kLongRope) return 1.0F;
  if (rotary.amplitude != 0.0) return static_cast<float>(rotary.amplitude);
  const double factor =
      static_cast<double>(config.context_length) / static_cast<double>(rotary.trained_context);
  return static_cast<float>(longrope_amplitude(factor, rotary.trained_context));
}

double longrope_amplitude(double factor, std::int64_t trained_context) {
  if (factor <= 1.0) return 1.0;
  return std::sqrt(1.0 + std::log(factor) / std::log(static_cast<double>(trained_context)));
}

}  // namespace tessera

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <vector>

#include "tessera/model/gpt_family.h"

namespace tessera {
namespace {

using Scaling = RotaryConfig::Scaling;

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

/// The base of sequences of `length` tokens by NTK-aware scaling.
double dynamic_base(const RotaryConfig& rotary, double rotated, std::int64_t length) {
  const auto trained = static_cast<double>(rotary.trained_context);
  const double lengths = std::max(1.0, static_cast<double>(length) / trained);
  const double growth = rotary.factor * lengths - (rotary.factor - 1.0);
  return rotary.base * std::pow(growth, rotated / (rotated - 2.0));
}

/// YaRN (Peng et al. 2023): of the R / 2 frequencies those from `first` to `last` go over from what
/// they were to a `factor`-th of it.
struct YarnRamp {
  YarnRamp(const RotaryConfig& rotary, double rotated) {
    const auto channel_of = [&](double turns) {
      const double wavelength = static_cast<double>(rotary.trained_context) / turns;
      return rotated * std::log(wavelength / (2.0 * std::numbers::pi)) /
             (2.0 * std::log(rotary.base));
    };
    first = channel_of(rotary.fast_turns);
    last = channel_of(rotary.slow_turns);
    if (rotary.whole_channels) {
      first = std::floor(first);
      last = std::ceil(last);
    }
    first = std::max(first, 0.0);
    last = std::min(last, rotated - 1.0);
    if (first == last) last += 0.001;
  }
  /// The share of the scaled frequency in frequency i.
  double at(double i) const { return std::clamp((i - first) / (last - first), 0.0, 1.0); }

  double first = 0.0, last = 0.0;
};

}  // namespace

bool depends_on_length(const RotaryConfig& rotary) {
  return rotary.scaling == Scaling::kLongRope || rotary.scaling == Scaling::kDynamic;
}

std::vector<float> rotary_frequencies(const GptConfig& config, const RotaryConfig& rotary,
                                      std::int64_t length) {
  const auto rotated =
      static_cast<std::int64_t>(static_cast<double>(config.head_width_used()) * rotary.share);
  const auto channels = static_cast<double>(rotated);
  const bool is_long = length > rotary.trained_context;
  const double base =
      rotary.scaling == Scaling::kDynamic ? dynamic_base(rotary, channels, length) : rotary.base;
  std::optional<YarnRamp> ramp;
  if (rotary.scaling == Scaling::kYarn) ramp.emplace(rotary, channels);
  std::vector<float> frequencies;
  for (std::int64_t i = 0; i < rotated / 2; ++i) {
    double frequency = 1.0 / std::pow(base, static_cast<double>(2 * i) / channels);
    if (rotary.scaling == Scaling::kLlama3) {
      frequency = llama3_scaled(frequency, rotary);
    } else if (rotary.scaling == Scaling::kLongRope) {
      const auto& factors = is_long ? rotary.long_factors : rotary.short_factors;
      frequency /= factors.at(static_cast<std::size_t>(i));
    } else if (rotary.scaling == Scaling::kLinear) {
      frequency /= rotary.factor;
    } else if (ramp) {
      const double share = ramp->at(static_cast<double>(i));
      frequency *= share / rotary.factor + 1.0 - share;
    }
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

float rotary_amplitude(const GptConfig& config, const RotaryConfig& rotary) {
  if (rotary.amplitude != 0.0) return static_cast<float>(rotary.amplitude);
  if (rotary.scaling == Scaling::kYarn) {
    return static_cast<float>(rotary.factor <= 1.0 ? 1.0 : 0.1 * std::log(rotary.factor) + 1.0);
  }
  if (rotary.scaling != Scaling::kLongRope) return 1.0F;
  const double factor =
      static_cast<double>(config.context_length) / static_cast<double>(rotary.trained_context);
  return static_cast<float>(longrope_amplitude(factor, rotary.trained_context));
}

double longrope_amplitude(double factor, std::int64_t trained_context) {
  if (factor <= 1.0) return 1.0;
  return std::sqrt(1.0 + std::log(factor) / std::log(static_cast<double>(trained_context)));
}

}  // namespace tessera

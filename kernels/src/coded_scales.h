#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

/// The scales of one matrix, quantised themselves (weight_format.h).
struct CodedScales {
  float mean = 0.0F;
  std::vector<float> groups{};  ///< the scale of each kScaleGroup of them
  std::vector<std::uint8_t> codes{};
};

/// With the bits of bitsandbytes on the CPU, where torch takes the mean in one thread: with more,
/// torch adds up a part in each for 32,768 scales and more, and the mean may round otherwise.
CodedScales code_scales(std::span<const float> scales);

}  // namespace tessera

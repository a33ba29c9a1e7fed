#include "dynamic_codes.h"

#include <cmath>
#include <cstddef>
#include <limits>

#include "tessera/core/error.h"
#include "tessera/kernels/dynamic_map.h"

namespace tessera {

DynamicCodes::DynamicCodes(bool is_signed) : zero_(is_signed ? 127 : 0) {
  const std::array<float, 256>& map = dynamic_map(is_signed);
  const auto zero = static_cast<std::size_t>(zero_);
  for (Side& side : sides_) side.bounds.fill(std::numeric_limits<float>::infinity());
  for (std::size_t code = 0; code + 1 < map.size(); ++code) {
    const float middle = (map[code] + map[code + 1]) / 2.0F;
    if (code >= zero) {
      sides_[0].bounds[code - zero] = middle;
    } else {  // x > middle is the same as -x < -middle: half way still goes to the lower one
      sides_[1].bounds[zero - 1 - code] = std::nextafter(-middle, 0.0F);
    }
  }
  sides_[1].step = -1;
  for (Side& side : sides_) {
    std::uint32_t below = 0;
    for (std::uint32_t bin = 0; bin < kBins; ++bin) {
      const auto edge = [](std::uint32_t of) {
        return std::bit_cast<float>((kFirstBin + of) << 16);
      };
      while (side.bounds[below] < edge(bin)) ++below;
      side.below[bin] = static_cast<std::uint8_t>(below);
      require(side.bounds[below + 1] >= edge(bin + 1) || std::isinf(side.bounds[below]),
              ErrorCode::kInternal, "two bounds of dynamic codes are closer than a bin");
    }
  }
}

const DynamicCodes& dynamic_codes(bool is_signed) {
  static const DynamicCodes with_signs(true);
  static const DynamicCodes without(false);
  return is_signed ? with_signs : without;
}

}  // namespace tessera

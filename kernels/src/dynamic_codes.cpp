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
  // Bounds of magnitudes on each side of 0, ascending: a magnitude above n of them has the code n
  // steps from that of 0.
  std::array<std::array<float, 257>, 2> bounds;
  for (auto& side : bounds) side.fill(std::numeric_limits<float>::infinity());
  for (std::size_t code = 0; code + 1 < map.size(); ++code) {
    const float middle = (map[code] + map[code + 1]) / 2.0F;
    if (code >= zero) {
      bounds[0][code - zero] = middle;
    } else {  // x > middle is the same as -x < -middle: half way still goes to the lower one
      bounds[1][zero - 1 - code] = std::nextafter(-middle, 0.0F);
    }
  }
  auto entry = entries_.begin();
  for (const bool is_negative : {false, true}) {
    const auto& side = bounds[is_negative ? 1 : 0];
    std::size_t below = 0;
    for (std::int32_t bin = 0; bin < kBins; ++bin) {
      const auto edge = [](std::int32_t of) {
        return std::bit_cast<float>((kFirstBin + of) << 16);
      };
      while (side[below] < edge(bin)) ++below;
      const bool has_bound = side[below] < edge(bin + 1);
      require((bin > 0 || below == 0) && (!has_bound || side[below + 1] >= edge(bin + 1)),
              ErrorCode::kInternal, "two bounds of dynamic codes are closer than a bin");
      const auto steps = static_cast<std::int32_t>(below);
      const std::int32_t code = is_negative ? zero_ - steps : zero_ + steps;
      const std::int32_t lower =
          has_bound ? std::bit_cast<std::int32_t>(side[below]) & 0xffff : 0xffff;
      *entry++ = code << 16 | lower;
    }
    require(std::isinf(side[below]), ErrorCode::kInternal, "a bound of dynamic codes is above 1");
  }
}

const DynamicCodes& dynamic_codes(bool is_signed) {
  static const DynamicCodes with_signs(true);
  static const DynamicCodes without(false);
  return is_signed ? with_signs : without;
}

}  // namespace tessera

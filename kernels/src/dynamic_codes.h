#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace tessera {

/// Elements of a tensor that have one scale, as in bitsandbytes' optimizers.
inline constexpr std::int64_t kCodedBlock = 256;
/// What a block's largest magnitude counts as where it is smaller, to be divided by.
inline constexpr float kLeastAbsmax = 1e-38F;

/// How numbers become codes of 8 bits of a dynamic map (dynamic_map.h). A number times
/// 1 / max(absmax of its block, kLeastAbsmax), in fp32, gets the code of the nearest number of the
/// map; half way between two, as fp32 has it, that of the lower one. NaN gets the code of 0, and no
/// part in the absmax.
///
/// So does the default backend of bitsandbytes 0.50, but that it divides where the last block of a
/// tensor is short. Its CUDA kernels divide approximately, and take the code beside that of 0 for
/// negative numbers that are nearest to 0; its library for CPUs does not always find the nearest.
class DynamicCodes {
 public:
  std::uint8_t code_of(float x) const {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t magnitude_bits = bits & 0x7fffffffU;
    if (magnitude_bits > kInfinityBits) return static_cast<std::uint8_t>(zero_);
    const Side& side = sides_[bits >> 31];
    const std::uint32_t upper = magnitude_bits >> 16;
    const std::uint32_t bin = upper < kFirstBin  ? 0
                              : upper > kLastBin ? kBins - 1
                                                 : upper - kFirstBin;
    const std::uint32_t below = side.below[bin];
    const bool is_above = std::bit_cast<float>(magnitude_bits) > side.bounds[below];
    return static_cast<std::uint8_t>(zero_ +
                                     side.step * static_cast<int>(below + (is_above ? 1U : 0U)));
  }

 private:
  friend const DynamicCodes& dynamic_codes(bool is_signed);
  explicit DynamicCodes(bool is_signed);

  static constexpr std::uint32_t kInfinityBits = 0x7f800000;
  // A bin has the magnitudes whose upper 16 bits are equal. No two bounds lie in one. The first is
  // of 2^-23 and has all that are smaller, the last of 1 and all that are larger.
  static constexpr std::uint32_t kFirstBin = 0x3400, kLastBin = 0x3f80;
  static constexpr std::uint32_t kBins = kLastBin - kFirstBin + 1;

  /// Of magnitudes on one side of 0: bounds between codes, ascending; a magnitude above n of them
  /// has the code n steps from that of 0.
  struct Side {
    std::array<float, 257> bounds;          ///< infinite after the last
    std::array<std::uint8_t, kBins> below;  ///< how many are below the bin
    int step = 1;
  };
  std::array<Side, 2> sides_;  ///< of numbers that are not negative, and of others
  int zero_ = 0;
};

/// Of the signed or the unsigned map; to the latter, numbers below 0 are 0.
const DynamicCodes& dynamic_codes(bool is_signed);

}  // namespace tessera

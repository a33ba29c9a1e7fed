#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace tessera {

/// Elements of a tensor that have one scale, as in bitsandbytes' optimizers.
inline constexpr std::int64_t kCodedBlock = 256;
/// A block's largest magnitude counts as this where it is smaller, to be divided by.
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
  // A bin has the magnitudes whose upper 16 bits are equal. No two bounds between codes lie in one.
  // The first is of 2^-23 and has all that are smaller, the last of 1 and all that are larger.
  static constexpr std::int32_t kFirstBin = 0x3400, kLastBin = 0x3f80;
  static constexpr std::int32_t kBins = kLastBin - kFirstBin + 1;
  static constexpr std::int32_t kLeastMagnitude = kFirstBin << 16;  // as bits of fp32
  static constexpr std::int32_t kMostMagnitude = kLastBin << 16 | 0xffff;
  static constexpr std::int32_t kInfinity = 0x7f800000;

  std::uint8_t code_of(float x) const {
    const auto bits = std::bit_cast<std::int32_t>(x);
    const std::int32_t magnitude = bits & 0x7fffffff;
    if (magnitude > kInfinity) return static_cast<std::uint8_t>(zero_);
    const std::int32_t inside = std::clamp(magnitude, kLeastMagnitude, kMostMagnitude);
    const std::int32_t bin = (inside >> 16) - kFirstBin + (bits < 0 ? kBins : 0);
    const std::int32_t entry = entries_[static_cast<std::size_t>(bin)];
    const bool is_above = (inside & 0xffff) > (entry & 0xffff);
    return static_cast<std::uint8_t>((entry >> 16) + (is_above ? bits < 0 ? -1 : 1 : 0));
  }

  /// Codes by bin, of numbers that are not negative, then of others: that of magnitudes up to the
  /// bound in the bin, times 2^16, plus the lower 16 bits of the bound; 0xffff: the bin has none.
  /// Magnitudes above it have the next code, away from that of 0.
  const std::int32_t* entries() const { return entries_.data(); }
  std::int32_t zero() const { return zero_; }  ///< the code of 0

 private:
  friend const DynamicCodes& dynamic_codes(bool is_signed);
  explicit DynamicCodes(bool is_signed);

  std::array<std::int32_t, 2 * kBins> entries_;
  std::int32_t zero_ = 0;
};

/// The codes of the signed or the unsigned map; to the latter, numbers below 0 are 0.
const DynamicCodes& dynamic_codes(bool is_signed);

}  // namespace tessera

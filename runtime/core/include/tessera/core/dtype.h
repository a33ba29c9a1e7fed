#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tessera {

enum class DType : std::uint8_t { kFloat32, kBFloat16, kFloat64, kInt32, kInt64, kUInt8 };

/// Bytes of one element.
std::size_t size_of(DType dtype);

/// "fp32", "bf16", "fp64", "int32", "int64", "uint8".
std::string_view to_string(DType dtype);

/// Inverse of to_string; also accepts "float32", "bfloat16". Throws Error{kConfig} naming the
/// choices.
DType parse_dtype(std::string_view name);

/// The upper 16 bits of an IEEE binary32. Storage only: arithmetic is done in float.
struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;
  /// Rounds to nearest, ties to even; NaN stays NaN.
  explicit bfloat16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    if ((word & 0x7fffffffU) > 0x7f800000U) {
      bits = static_cast<std::uint16_t>((word >> 16) | 0x40U);
    } else {
      bits = static_cast<std::uint16_t>((word + 0x7fffU + ((word >> 16) & 1U)) >> 16);
    }
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};
static_assert(sizeof(bfloat16) == 2);

/// The DType that stores a C++ element type.
template <typename T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::kFloat32;
}
template <>
constexpr DType dtype_of<bfloat16>() {
  return DType::kBFloat16;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::kFloat64;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::kInt32;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::kInt64;
}
template <>
constexpr DType dtype_of<std::uint8_t>() {
  return DType::kUInt8;
}

}  // namespace tessera

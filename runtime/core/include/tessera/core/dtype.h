#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tessera {

enum class DType : std::uint8_t { kFloat32, kBFloat16, kFloat64, kInt32, kInt64, kUInt8, kFloat16 };

/// Bytes of one element.
std::size_t size_of(DType dtype);

/// "fp32", "bf16", "fp16", "fp64", "int32", "int64", "uint8".
std::string_view to_string(DType dtype);

/// Inverse of to_string; also accepts "float32", "bfloat16", "float16". Throws Error{kConfig}
/// naming the choices.
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

/// An IEEE binary16: 5 bits of exponent, 10 of fraction; at most 65504, normal from 2^-14 and
/// subnormal from 2^-24. Storage only: arithmetic is done in float.
struct float16 {
  std::uint16_t bits = 0;

  float16() = default;
  /// Rounds to nearest, ties to even; from 65520 on to infinity. NaN stays NaN, and becomes quiet.
  /// The bits are those of x86's vcvtps2ph.
  explicit float16(float value) {
    constexpr std::uint32_t kInfinity = 0x7f800000U, kOverflow = 0x47800000U;  // 2^16
    constexpr std::uint32_t kNormal = 0x38800000U;                             // 2^-14
    const auto word = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = word & 0x7fffffffU;
    std::uint32_t half = 0;
    if (magnitude > kInfinity) {
      half = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
    } else if (magnitude >= kOverflow) {
      half = 0x7c00U;
    } else if (magnitude >= kNormal) {
      // The exponent's bias goes from 127 to 15. A carry goes into it, and at last to infinity.
      const std::uint32_t rebased = magnitude - (112U << 23);
      half = (rebased + 0xfffU + ((rebased >> 13) & 1U)) >> 13;
    } else if (magnitude >= 0x33000000U) {  // 2^-25, half of the smallest subnormal
      const std::uint32_t shift = 126U - (magnitude >> 23);  // 14 to 24
      const std::uint32_t fraction = (magnitude & 0x7fffffU) | 0x800000U;
      const std::uint32_t half_way = (1U << (shift - 1)) - 1U;
      half = (fraction + half_way + ((fraction >> shift) & 1U)) >> shift;
    }
    bits = static_cast<std::uint16_t>(((word >> 16) & 0x8000U) | half);
  }
  /// Exact; NaN stays NaN, and becomes quiet.
  explicit operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1fU, fraction = bits & 0x3ffU;
    if (exponent == 31) {
      const std::uint32_t quiet = fraction == 0 ? 0U : 0x400000U;
      return std::bit_cast<float>(sign | 0x7f800000U | (fraction << 13) | quiet);
    }
    if (exponent != 0) {
      return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (fraction << 13));
    }
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
};
static_assert(sizeof(float16) == 2);

/// Whether parameters, activations and gradients may be of `dtype`: fp32, bf16 or fp16.
constexpr bool is_compute_dtype(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

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
constexpr DType dtype_of<float16>() {
  return DType::kFloat16;
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

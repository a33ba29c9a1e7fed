#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "tessera/core/tensor.h"

// The two formats of 8 bits in which products of training take their operands (Micikevicius et al.
// 2022, OCP's OFP8), and scales of whole tensors. The functions here are the definition: vector and
// device kernels give the same bits.
namespace tessera {

enum class Fp8Format : std::uint8_t {
  kE4M3,  ///< at most 448, normal from 2^-6, no infinity; NaN is 0x7F and 0xFF
  kE5M2,  ///< at most 57344, normal from 2^-14; infinity is 0x7C, NaN from 0x7D to 0x7F
};

/// The rule that makes a tensor's scale of its largest magnitude.
enum class Fp8Scales : std::uint8_t {
  /// The power of two below largest / amax: only the rounding to a code loses bits. Decoded numbers
  /// fit bf16.
  kPowerOfTwo,
  kExact,  ///< largest / amax in fp32, as torchao and TransformerEngine have it
};

/// The numbers that describe a format to conversions of fp32 words.
struct Fp8Layout {
  int shift;               ///< bits of an fp32 fraction that a code lacks
  std::uint32_t rebias;    ///< difference of the exponents' biases, in a code's place
  std::uint32_t normal;    ///< fp32 word of the smallest normal number
  std::uint32_t largest;   ///< fp32 word of the largest number
  float rounder;           ///< a unit in its last place is the format's smallest number
  float smallest;          ///< the smallest number, which is subnormal
  std::uint32_t infinity;  ///< codes from here on are no numbers
};

constexpr Fp8Layout layout_of(Fp8Format format) {
  if (format == Fp8Format::kE5M2) {
    return {21, (127 - 15) << 2, 0x38800000U, 0x47600000U, 0x1p7F, 0x1p-16F, 0x7cU};
  }
  return {20, (127 - 7) << 3, 0x3c800000U, 0x43e00000U, 0x1p14F, 0x1p-9F, 0x7fU};
}

/// The largest number of a format.
constexpr float largest_of(Fp8Format format) {
  return std::bit_cast<float>(layout_of(format).largest);
}

/// Rounds to nearest, ties to even; what is larger than the largest number becomes that number,
/// infinity too. NaN becomes 0x7F.
constexpr std::uint8_t fp8_code(float value, Fp8Format format) {
  const Fp8Layout layout = layout_of(format);
  const auto word = std::bit_cast<std::uint32_t>(value);
  std::uint32_t magnitude = word & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return 0x7f;
  if (magnitude > layout.largest) magnitude = layout.largest;
  std::uint32_t code = 0;
  if (magnitude >= layout.normal) {
    const std::uint32_t half_way = (1U << (layout.shift - 1)) - 1U;
    code = ((magnitude + half_way + ((magnitude >> layout.shift) & 1U)) >> layout.shift) -
           layout.rebias;
  } else {
    code = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + layout.rounder) -
           std::bit_cast<std::uint32_t>(layout.rounder);
  }
  return static_cast<std::uint8_t>(((word >> 24) & 0x80U) | code);
}

/// Exact.
constexpr float fp8_value(std::uint8_t code, Fp8Format format) {
  const Fp8Layout layout = layout_of(format);
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80U) << 24;
  const std::uint32_t magnitude = code & 0x7fU;
  std::uint32_t word = 0;
  if (magnitude >= layout.infinity) {
    const bool is_infinite = format == Fp8Format::kE5M2 && magnitude == layout.infinity;
    word = is_infinite ? 0x7f800000U : 0x7fc00000U;
  } else if (magnitude + layout.rebias < (layout.normal >> layout.shift)) {
    word = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * layout.smallest);
  } else {
    word = (magnitude + layout.rebias) << layout.shift;
  }
  return std::bit_cast<float>(sign | word);
}

/// No scale is larger: then every decoded number is normal in bf16.
inline constexpr float kLargestFp8Scale = 0x1p100F;

/// The scale of a tensor whose largest magnitude has this fp32 word, by which numbers are
/// multiplied before they are encoded. NaN if that is infinite or NaN: then every code is NaN.
constexpr float fp8_scale(std::uint32_t amax, Fp8Format format, Fp8Scales rule) {
  if (amax >= 0x7f800000U) return std::numeric_limits<float>::quiet_NaN();
  if (amax == 0) return kLargestFp8Scale;
  const float exact = largest_of(format) / std::bit_cast<float>(amax);
  const float scale = exact < kLargestFp8Scale ? exact : kLargestFp8Scale;
  if (rule == Fp8Scales::kExact) return scale;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scale) & 0xff800000U);
}

/// amax = the largest |x|: the largest of the absolute values' words, so that the order of
/// comparisons does not matter and NaN is larger than infinity. 0 if x is empty.
struct AmaxArgs {
  TensorView x{};           // (n); fp32, bf16 or fp16
  TensorView amax{};        // (1); int32: the word of an fp32 number
  bool accumulate = false;  ///< the larger one of that and what amax holds
};

/// words = by column, the largest of the rows' words, as unsigned numbers: those of amax.
struct MaxWordsArgs {
  TensorView rows{};   // (rows, columns); int32
  TensorView words{};  // (columns); int32
};

/// codes = x * scale in the format, the scale being that of amax. The same codes of a matrix go to
/// `transposed` as well, or instead.
struct Fp8EncodeArgs {
  TensorView x{};           // (n), or (rows, columns) if they are transposed; fp32, bf16 or fp16
  TensorView amax{};        // (1); int32; of AmaxArgs
  TensorView codes{};       // as x; uint8; optional with `transposed`
  TensorView transposed{};  // (columns, rows); uint8; optional
  Fp8Format format = Fp8Format::kE4M3;
  Fp8Scales scales = Fp8Scales::kPowerOfTwo;
};

/// transposed = the codes of a matrix, its columns as rows.
struct Fp8TransposeArgs {
  TensorView codes{};       // (rows, columns); uint8
  TensorView transposed{};  // (columns, rows); uint8; does not overlap codes
};

/// How an operand of a GEMM is in fp8: its numbers are codes / scale.
struct Fp8Operand {
  TensorView amax{};  // (1); int32; as the operand was encoded with
  Fp8Format format = Fp8Format::kE4M3;
  Fp8Scales scales = Fp8Scales::kPowerOfTwo;
};

/// y = codes / scale: multiplied by the scale's reciprocal in fp32 and rounded to y's dtype.
struct Fp8DecodeArgs {
  TensorView codes{};  // (n); uint8
  TensorView amax{};   // (1); int32; as they were encoded with
  TensorView y{};      // (n); fp32, bf16 or fp16
  Fp8Format format = Fp8Format::kE4M3;
  Fp8Scales scales = Fp8Scales::kPowerOfTwo;
};

}  // namespace tessera

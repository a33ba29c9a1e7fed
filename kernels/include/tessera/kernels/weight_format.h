#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/core/tensor.h"

namespace tessera {

/// How the weights of a frozen matrix are stored, as bitsandbytes does it (Dettmers et al. 2022 and
/// 2023), with the same codes and scales. A quantised matrix (rows, columns) is a string of bytes:
/// its codes in row-major order, zeros up to a multiple of 4 bytes, fp32 numbers, which are its
/// scales, and the codes of scales that are quantised themselves.
///
/// nf4, fp4: blocks of 64 elements in row-major order, whose scale is their largest magnitude. A
/// code has 4 bits, the first of two in the upper half of a byte; a weight is the code's entry in a
/// table of 16 numbers times the scale. A block of zeros has the code of zero.
/// int8: a scale per row, its largest magnitude; a weight is code * scale / 127 (LLM.int8, its
/// weights alone). Weights are rounded to fp16 before, as bitsandbytes has them.
/// nf4-double, fp4-double: the scales of nf4 or fp4 are quantised, too (double quantisation). A
/// scale is dynamic_map(true)[code] times the scale of its group, plus the mean of all scales; a
/// group are 256 neighbours, and its scale their largest distance from the mean.
enum class WeightFormat : std::uint8_t { kNone, kNf4, kFp4, kInt8, kNf4Double, kFp4Double };

/// "none", "nf4", "fp4", "int8", "nf4-double", "fp4-double".
std::string_view to_string(WeightFormat format);
/// Throws Error{kConfig} that names the choices.
WeightFormat parse_weight_format(std::string_view name);
/// All but kNone, in order.
std::span<const WeightFormat> weight_formats();

/// Whether a weight has a code of 4 bits, so that blocks of 64 have a scale.
bool has_short_codes(WeightFormat format);
/// Whether scales are quantised, too.
bool has_coded_scales(WeightFormat format);

/// Elements of nf4 and fp4 that have one scale.
inline constexpr std::int64_t kQuantizedBlock = 64;
/// Scales of nf4-double and fp4-double that have one scale.
inline constexpr std::int64_t kScaleGroup = 256;
/// The most matrices that one of ours may join: query, key and value.
inline constexpr std::size_t kMostJoined = 3;

/// Where the parts of a quantised matrix lie. With coded scales, the fp32 numbers are of each of
/// the joined matrices in turn: the mean of its scales, and the scale of each of its groups.
struct QuantizedSizes {
  std::int64_t codes_bytes = 0;
  std::int64_t scales_begin = 0;       ///< byte
  std::int64_t scales = 0;             ///< fp32 numbers
  std::int64_t scale_codes_begin = 0;  ///< byte
  std::int64_t scale_codes = 0;        ///< bytes: one for each block, or none
  std::int64_t bytes = 0;
};
/// For a matrix of this shape: its first dimension are the rows. `joined`: the rows of the matrices
/// that it consists of, if each has blocks, a mean and groups of its own; empty: it is one. Of
/// matrices_apart(), only `bytes` is set. Throws Error{kInvalidArgument} for kNone, and where the
/// rows do not add up.
QuantizedSizes quantized_sizes(WeightFormat format, const Shape& shape,
                               std::span<const std::int64_t> joined = {});

/// The bytes of some of a quantised matrix' rows, which are a quantised matrix themselves.
struct QuantizedRows {
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t begin = 0;  ///< byte, a multiple of 4
  std::int64_t bytes = 0;
};
/// Where one of the joined matrices ends within a block of 4-bit codes, its last block is shorter
/// and the next matrix begins anew: each of them lies apart, as if it were alone, one after the
/// other. Such matrices in order; else nothing. Throws as quantized_sizes.
std::vector<QuantizedRows> matrices_apart(WeightFormat format, const Shape& shape,
                                          std::span<const std::int64_t> joined);

/// Where one of the joined matrices has its scales.
struct JoinedScales {
  std::int64_t first_block = 0;
  std::int64_t blocks = 0;
  std::int64_t mean = 0;  ///< which of the fp32 numbers; the groups' follow it
  std::int64_t groups() const { return (blocks + kScaleGroup - 1) / kScaleGroup; }
};
/// The first `count` parts have blocks, the rest none.
struct JoinedLayout {
  std::array<JoinedScales, kMostJoined> parts{};
  std::size_t count = 0;
};
/// For formats with coded scales. Throws as quantized_sizes.
JoinedLayout joined_layout(const Shape& shape, std::span<const std::int64_t> joined);

/// The 16 numbers of nf4 or fp4, with or without coded scales, by code.
const std::array<float, 16>& code_table(WeightFormat format);

/// Writes the matrix `values`, row-major, as `bytes` of quantized_sizes. On the host. Throws
/// Error{kInvalidArgument} that names `what` and the element if one is infinite or NaN.
void quantize(WeightFormat format, const Shape& shape, std::span<const float> values,
              std::span<std::byte> bytes, std::string_view what,
              std::span<const std::int64_t> joined = {});

/// dst = the weights that src stands for: fp32 arithmetic, rounded to dst's dtype.
struct DequantizeArgs {
  WeightFormat format = WeightFormat::kNone;
  TensorView src{};  // (quantized_sizes(dst, joined).bytes); uint8; at a multiple of 4 bytes
  TensorView dst{};  // (rows, ...); fp32, bf16 or fp16
  std::span<const std::int64_t> joined{};
};

}  // namespace tessera

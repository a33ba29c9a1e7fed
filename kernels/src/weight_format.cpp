#include "tessera/kernels/weight_format.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "coded_scales.h"
#include "cpu/parallel.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using cpu::parallel_for;

struct FormatRow {
  WeightFormat format;
  std::string_view name;
  int code_bits;
  bool coded_scales;
  const std::array<float, 16>* table;  ///< of codes of 4 bits
};

constexpr std::array<float, 16> kNf4Table{-1.0F,
                                          -0.6961928009986877F,
                                          -0.5250730514526367F,
                                          -0.39491748809814453F,
                                          -0.28444138169288635F,
                                          -0.18477343022823334F,
                                          -0.09105003625154495F,
                                          0.0F,
                                          0.07958029955625534F,
                                          0.16093020141124725F,
                                          0.24611230194568634F,
                                          0.33791524171829224F,
                                          0.44070982933044434F,
                                          0.5626170039176941F,
                                          0.7229568362236023F,
                                          1.0F};

/// By code: the sign is bit 3. Not the 4-bit numbers of OCP, which are others.
constexpr std::array<float, 16> kFp4Table{
    0.0F,          0.0625F / 12.0F,  8.0F / 12.0F,  1.0F,
    4.0F / 12.0F,  6.0F / 12.0F,     2.0F / 12.0F,  3.0F / 12.0F,
    -0.0F,         -0.0625F / 12.0F, -8.0F / 12.0F, -1.0F,
    -4.0F / 12.0F, -6.0F / 12.0F,    -2.0F / 12.0F, -3.0F / 12.0F};

constexpr std::array kRows{FormatRow{WeightFormat::kNone, "none", 0, false, nullptr},
                           FormatRow{WeightFormat::kNf4, "nf4", 4, false, &kNf4Table},
                           FormatRow{WeightFormat::kFp4, "fp4", 4, false, &kFp4Table},
                           FormatRow{WeightFormat::kInt8, "int8", 8, false, nullptr},
                           FormatRow{WeightFormat::kNf4Double, "nf4-double", 4, true, &kNf4Table},
                           FormatRow{WeightFormat::kFp4Double, "fp4-double", 4, true, &kFp4Table}};
constexpr std::array kAllFormats{WeightFormat::kNf4, WeightFormat::kFp4, WeightFormat::kInt8,
                                 WeightFormat::kNf4Double, WeightFormat::kFp4Double};

const FormatRow& row_of(WeightFormat format) { return kRows.at(static_cast<std::size_t>(format)); }

/// Codes by what they stand for, and the bounds between neighbours: x is the code after as many
/// bounds as are below it.
struct Codes {
  static constexpr std::size_t kMost = 16;
  std::array<std::uint8_t, kMost> ascending{};
  std::array<float, kMost - 1> bounds{};  ///< infinity where there are fewer
  std::size_t count = kMost;

  /// Finds them for the numbers of a block, bound by bound and without branches, so that compilers
  /// vectorise it.
  void nearest(const std::array<float, kQuantizedBlock>& x,
               std::array<std::uint8_t, kQuantizedBlock>& codes) const {
    std::array<std::int32_t, kQuantizedBlock> below{};
    for (const float bound : bounds) {
      for (std::size_t i = 0; i < x.size(); ++i) below[i] += bound < x[i] ? 1 : 0;
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      codes[i] = ascending[static_cast<std::size_t>(below[i])];
    }
  }
};

Codes codes_of(WeightFormat format) {
  const std::array<float, 16>& table = code_table(format);
  Codes codes;
  codes.bounds.fill(std::numeric_limits<float>::infinity());
  codes.count = 0;
  for (std::uint8_t code = 0; code < 16; ++code) {
    if (&table == &kFp4Table && code == 8) continue;  // -0, which is never written
    codes.ascending[codes.count++] = code;
  }
  const auto end = codes.ascending.begin() + static_cast<std::ptrdiff_t>(codes.count);
  std::sort(codes.ascending.begin(), end,
            [&](std::uint8_t a, std::uint8_t b) { return table[a] < table[b]; });
  for (std::size_t i = 0; i + 1 < codes.count; ++i) {
    codes.bounds[i] = (table[codes.ascending[i]] + table[codes.ascending[i + 1]]) / 2.0F;
  }
  return codes;
}

/// From here on, fp16 has infinity.
constexpr float kHalfOverflow = 65520.0F;

/// To fp16 and back, of a number that fp16 has room for: to nearest, ties to even.
float through_half(float x) {
  if (std::fabs(x) < 0x1p-14F) {  // multiples of 2^-24, as those of floats from a half on
    return std::copysign((std::fabs(x) + 0.5F) - 0.5F, x);
  }
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits + 0xFFFU + (bits >> 13U & 1U)) & ~0x1FFFU);
}

/// The first number whose magnitude is not below `limit`; as many as there are if all are.
std::size_t first_beyond(std::span<const float> values, float limit) {
  constexpr std::int64_t kGrain = 1 << 16;
  std::atomic<bool> found = false;
  parallel_for(std::ssize(values), kGrain, [&](std::int64_t begin, std::int64_t end) {
    bool all = true;
    for (std::int64_t i = begin; i < end; ++i) {
      all &= std::fabs(values[static_cast<std::size_t>(i)]) < limit;
    }
    if (!all) found = true;
  });
  if (!found) return values.size();
  const auto first = std::ranges::find_if(values, [&](float x) { return !(std::fabs(x) < limit); });
  return static_cast<std::size_t>(first - values.begin());
}

void store_float(std::byte* numbers, std::int64_t i, float value) {
  std::memcpy(numbers + i * 4, &value, sizeof value);
}

/// Writes codes, and returns the scale of each block.
std::vector<float> quantize_4bit(WeightFormat format, std::span<const float> values,
                                 std::byte* to) {
  constexpr std::int64_t kGrain = 256;  // blocks
  const Codes codes = codes_of(format);
  const auto numel = static_cast<std::int64_t>(values.size());
  std::vector<float> scales(
      static_cast<std::size_t>((numel + kQuantizedBlock - 1) / kQuantizedBlock));
  parallel_for(std::ssize(scales), kGrain, [&](std::int64_t first, std::int64_t last) {
    std::array<float, kQuantizedBlock> block{};
    std::array<std::uint8_t, kQuantizedBlock> code{};
    for (std::int64_t b = first; b < last; ++b) {
      const std::int64_t begin = b * kQuantizedBlock;
      const std::int64_t count = std::min<std::int64_t>(kQuantizedBlock, numel - begin);
      block.fill(0.0F);  // behind the end, as half a byte may be
      std::copy_n(values.data() + begin, count, block.begin());
      float largest = 0.0F;
      for (const float x : block) largest = std::max(largest, std::fabs(x));
      scales[static_cast<std::size_t>(b)] = largest;
      const float inverse = 1.0F / std::max(largest, 1e-38F);
      for (float& x : block) x *= inverse;
      codes.nearest(block, code);
      for (std::int64_t i = 0; i < count; i += 2) {
        const auto at = static_cast<std::size_t>(i);
        to[(begin + i) / 2] = static_cast<std::byte>(code[at] << 4U | code[at + 1]);
      }
    }
  });
  return scales;
}

/// Writes of each of the joined matrices the mean, the groups' scales, and the scales' codes.
void write_coded_scales(const QuantizedSizes& sizes, const JoinedLayout& layout,
                        std::span<const float> scales, std::byte* to) {
  for (std::size_t p = 0; p < layout.count; ++p) {
    const JoinedScales& part = layout.parts[p];
    const auto own = scales.subspan(static_cast<std::size_t>(part.first_block),
                                    static_cast<std::size_t>(part.blocks));
    const CodedScales coded = code_scales(own);
    std::byte* const numbers = to + sizes.scales_begin;
    store_float(numbers, part.mean, coded.mean);
    std::memcpy(numbers + 4 * (part.mean + 1), coded.groups.data(), 4 * coded.groups.size());
    std::memcpy(to + sizes.scale_codes_begin + part.first_block, coded.codes.data(),
                coded.codes.size());
  }
}

void quantize_int8(std::int64_t rows, std::span<const float> values, std::byte* codes,
                   std::byte* scales) {
  const std::int64_t columns = rows == 0 ? 0 : static_cast<std::int64_t>(values.size()) / rows;
  parallel_for(rows, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      const float* const from = values.data() + row * columns;
      float largest = 0.0F;
      for (std::int64_t c = 0; c < columns; ++c) largest = std::max(largest, std::fabs(from[c]));
      largest = through_half(largest);  // which keeps their order
      store_float(scales, row, largest);
      // In these two steps: torch divides a number by a tensor so.
      const float factor = largest == 0.0F ? 0.0F : 1.0F / largest * 127.0F;
      for (std::int64_t c = 0; c < columns; ++c) {
        const auto code = static_cast<std::int8_t>(std::nearbyint(through_half(from[c]) * factor));
        codes[row * columns + c] = static_cast<std::byte>(code);
      }
    }
  });
}

}  // namespace

std::string_view to_string(WeightFormat format) { return row_of(format).name; }

WeightFormat parse_weight_format(std::string_view name) {
  std::string names;
  for (const FormatRow& row : kRows) {
    if (name == row.name) return row.format;
    const bool last = &row == &kRows.back();
    names += concat(names.empty() ? "" : last ? " or " : ", ", row.name);
  }
  fail(ErrorCode::kConfig, "unknown format '", name, "' of weights; choose ", names);
}

std::span<const WeightFormat> weight_formats() { return kAllFormats; }

bool has_short_codes(WeightFormat format) { return row_of(format).code_bits == 4; }
bool has_coded_scales(WeightFormat format) { return row_of(format).coded_scales; }

std::vector<QuantizedRows> matrices_apart(WeightFormat format, const Shape& shape,
                                          std::span<const std::int64_t> joined) {
  if (!has_short_codes(format) || joined.size() < 2) return {};
  const std::int64_t rows = shape.rank() == 0 ? 1 : shape[0];
  require(joined.size() <= kMostJoined &&
              std::accumulate(joined.begin(), joined.end(), std::int64_t{0}) == rows,
          ErrorCode::kInvalidArgument, "a matrix ", shape, " does not consist of the ",
          joined.size(), " that are to be joined");
  const std::int64_t columns = rows == 0 ? 0 : shape.numel() / rows;
  const bool share_no_block = std::all_of(joined.begin(), joined.end() - 1, [&](std::int64_t own) {
    return own * columns % kQuantizedBlock == 0;
  });
  if (share_no_block) return {};
  std::vector<QuantizedRows> apart;
  std::int64_t row = 0, begin = 0;
  for (const std::int64_t own : joined) {
    const std::int64_t bytes = quantized_sizes(format, Shape{own, columns}).bytes;
    apart.push_back({.first_row = row, .rows = own, .begin = begin, .bytes = bytes});
    row += own;
    begin += (bytes + 3) / 4 * 4;
  }
  return apart;
}

JoinedLayout joined_layout(const Shape& shape, std::span<const std::int64_t> joined) {
  const std::int64_t rows = shape.rank() == 0 ? 1 : shape[0];
  const std::int64_t columns = rows == 0 ? 0 : shape.numel() / rows;
  const std::array<std::int64_t, 1> whole{rows};
  if (joined.empty()) joined = whole;
  require(joined.size() <= kMostJoined &&
              std::accumulate(joined.begin(), joined.end(), std::int64_t{0}) == rows,
          ErrorCode::kInvalidArgument, "a matrix ", shape, " does not consist of the ",
          joined.size(), " that are to be joined");
  JoinedLayout layout{.parts = {}, .count = joined.size()};
  std::int64_t begin = 0, number = 0;
  for (std::size_t p = 0; p < joined.size(); ++p) {
    const std::int64_t numel = joined[p] * columns;
    require(begin % kQuantizedBlock == 0, ErrorCode::kInvalidArgument, "a matrix of ", begin,
            " elements does not end with a block of ", kQuantizedBlock,
            ", and another one is joined to it");
    JoinedScales& part = layout.parts[p];
    part = {.first_block = begin / kQuantizedBlock,
            .blocks = (numel + kQuantizedBlock - 1) / kQuantizedBlock,
            .mean = number};
    number += 1 + part.groups();
    begin += numel;
  }
  return layout;
}

QuantizedSizes quantized_sizes(WeightFormat format, const Shape& shape,
                               std::span<const std::int64_t> joined) {
  require(format != WeightFormat::kNone, ErrorCode::kInvalidArgument, "a matrix ", shape,
          " that is not quantised has no codes and scales");
  const auto apart = matrices_apart(format, shape, joined);
  if (!apart.empty()) return {.bytes = (apart.back().begin + apart.back().bytes + 3) / 4 * 4};
  const std::int64_t numel = shape.numel();
  const FormatRow& row = row_of(format);
  const std::int64_t blocks = (numel + kQuantizedBlock - 1) / kQuantizedBlock;
  QuantizedSizes sizes;
  sizes.codes_bytes = (numel * row.code_bits + 7) / 8;
  sizes.scales_begin = (sizes.codes_bytes + 3) / 4 * 4;
  sizes.scales = row.code_bits == 4 ? blocks : shape.rank() == 0 ? 1 : shape[0];
  if (row.coded_scales) {
    const JoinedLayout layout = joined_layout(shape, joined);
    const JoinedScales& last = layout.parts[layout.count - 1];
    sizes.scales = last.mean + 1 + last.groups();
    sizes.scale_codes = blocks;
  }
  sizes.scale_codes_begin = sizes.scales_begin + 4 * sizes.scales;
  sizes.bytes = sizes.scale_codes_begin + sizes.scale_codes;
  return sizes;
}

const std::array<float, 16>& code_table(WeightFormat format) {
  const FormatRow& row = row_of(format);
  require(row.table != nullptr, ErrorCode::kInvalidArgument, "weights in ", row.name,
          " have no table of codes");
  return *row.table;
}

void quantize(WeightFormat format, const Shape& shape, std::span<const float> values,
              std::span<std::byte> bytes, std::string_view what,
              std::span<const std::int64_t> joined) {
  const QuantizedSizes sizes = quantized_sizes(format, shape, joined);
  require(std::cmp_equal(values.size(), shape.numel()) && std::cmp_equal(bytes.size(), sizes.bytes),
          ErrorCode::kInvalidArgument, "quantize: '", what, "' ", shape, " has ", shape.numel(),
          " elements and takes ", sizes.bytes, " bytes, but ", values.size(), " and ", bytes.size(),
          " were given");
  const bool wide = !has_short_codes(format);
  const std::size_t bad =
      first_beyond(values, wide ? kHalfOverflow : std::numeric_limits<float>::infinity());
  if (bad < values.size()) {
    fail(ErrorCode::kInvalidArgument, "'", what, "': element ", bad, " is ", values[bad],
         ", which cannot be stored in ", to_string(format));
  }
  if (const auto apart = matrices_apart(format, shape, joined); !apart.empty()) {
    std::ranges::fill(bytes, std::byte{0});
    const std::int64_t columns = shape.numel() / shape[0];
    for (const QuantizedRows& own : apart) {
      quantize(
          format, Shape{own.rows, columns},
          values.subspan(static_cast<std::size_t>(own.first_row * columns),
                         static_cast<std::size_t>(own.rows * columns)),
          bytes.subspan(static_cast<std::size_t>(own.begin), static_cast<std::size_t>(own.bytes)),
          what);
    }
    return;
  }
  std::fill(bytes.begin(), bytes.begin() + sizes.scales_begin, std::byte{0});
  std::byte* const scales = bytes.data() + sizes.scales_begin;
  if (wide) return quantize_int8(shape.rank() == 0 ? 1 : shape[0], values, bytes.data(), scales);
  const std::vector<float> exact = quantize_4bit(format, values, bytes.data());
  if (has_coded_scales(format)) {
    return write_coded_scales(sizes, joined_layout(shape, joined), exact, bytes.data());
  }
  std::memcpy(scales, exact.data(), 4 * exact.size());
}

}  // namespace tessera

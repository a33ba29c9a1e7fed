#include "pretrained/part_io.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "tessera/core/error.h"

namespace tessera::pretrained {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;

float from_half(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000U) << 16U;
  const std::uint32_t exponent = bits >> 10U & 0x1fU, mantissa = bits & 0x3ffU;
  if (exponent == 0) {  // zero and subnormal numbers, which fp32 has as normal ones
    const float value = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -value : value;
  }
  const std::uint32_t wide = exponent == 0x1fU ? 0xffU : exponent + 112U;
  return std::bit_cast<float>(sign | wide << 23U | mantissa << 13U);
}

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

void decode(Format format, std::span<const std::byte> bytes, std::span<float> values) {
  if (format == Format::kFloat32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto bits = load<std::uint16_t>(bytes.data() + 2 * i);
    values[i] = format == Format::kFloat16
                    ? from_half(bits)
                    : std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
  }
}

void encode(Format format, std::span<const float> values, std::span<std::byte> bytes) {
  if (format == Format::kFloat32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return;
  }
  const auto round_to = [&]<typename T>(T) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const T rounded(values[i]);
      std::memcpy(bytes.data() + 2 * i, &rounded, sizeof(rounded));
    }
  };
  format == Format::kFloat16 ? round_to(float16{}) : round_to(bfloat16{});
}

/// to(c, r) = from(r, c), for rows of `stride` elements. In tiles of a cache line: rows are often a
/// multiple of 4 KiB apart, where a whole column would fall into one set of the cache.
void transpose(const float* from, std::int64_t from_stride, float* to, std::int64_t to_stride,
               std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kTile = 16;
  for (std::int64_t begin = 0; begin < columns; begin += kTile) {
    const std::int64_t end = std::min(begin + kTile, columns);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = begin; c < end; ++c) to[c * to_stride + r] = from[r * from_stride + c];
    }
  }
}

/// The matrix as the file has it: its rows are the first dimension of what lies there; of anything
/// that is not transposed, rows of one element.
struct Layout {
  std::int64_t rows, columns;
  std::int64_t rows_at_once;
};

Layout layout_of(const Part& place) {
  const std::int64_t columns = place.transposed ? place.shape[0] : 1;
  const std::int64_t row_bytes = columns * size_of(place.format);
  return {place.shape.numel() / std::max<std::int64_t>(columns, 1), columns,
          std::max<std::int64_t>(1, kPieceBytes / std::max<std::int64_t>(row_bytes, 1))};
}

/// Reads elements [first, first + values.size()) of a parameter whose elements lie in our order;
/// returns the bytes.
std::int64_t read_plain(const InputFile& file, const Part& place, std::int64_t first,
                        std::span<float> values) {
  const std::int64_t size = size_of(place.format);
  const auto numel = static_cast<std::int64_t>(values.size());
  const std::int64_t at_once = std::min(kPieceBytes / size, numel);
  std::vector<std::byte> bytes(as_size(at_once * size));
  for (std::int64_t begin = 0; begin < numel; begin += at_once) {
    const std::int64_t count = std::min(at_once, numel - begin);
    const auto read = std::span(bytes).first(as_size(count * size));
    file.read(place.offset + (first + begin) * size, read);
    decode(place.format, read, values.subspan(as_size(begin), as_size(count)));
  }
  return numel * size;
}

/// Reads our rows [first, first + rows) of a transposed matrix: columns of what lies in the file.
std::int64_t read_columns(const InputFile& file, const Part& place, std::int64_t first,
                          std::int64_t rows, float* values) {
  const std::int64_t columns = place.shape[1], all_rows = place.shape[0];
  const std::int64_t size = size_of(place.format);
  const std::int64_t at_once =
      std::min(columns, std::max<std::int64_t>(1, kPieceBytes / (rows * size)));
  std::vector<std::byte> bytes(as_size(at_once * rows * size));
  std::vector<float> piece(as_size(at_once * rows));
  for (std::int64_t begin = 0; begin < columns; begin += at_once) {
    const std::int64_t count = std::min(at_once, columns - begin);
    const auto read = std::span(bytes).first(as_size(count * rows * size));
    const auto place_of_column = [&](std::int64_t column) {
      return place.offset + (column * all_rows + first) * size;
    };
    if (rows == all_rows) {
      file.read(place_of_column(begin), read);
    } else {
      for (std::int64_t c = 0; c < count; ++c) {
        file.read(place_of_column(begin + c),
                  read.subspan(as_size(c * rows * size), as_size(rows * size)));
      }
    }
    decode(place.format, read, std::span(piece).first(as_size(count * rows)));
    transpose(piece.data(), rows, values + begin, columns, count, rows);
  }
  return rows * columns * size;
}

}  // namespace

std::int64_t read_part(const InputFile& file, const Part& place, std::int64_t first,
                       std::span<float> values) {
  if (values.empty()) return 0;
  if (!place.transposed) return read_plain(file, place, first, values);
  const std::int64_t columns = place.shape[1];
  const std::int64_t begin = first / columns;
  const std::int64_t end =
      (first + static_cast<std::int64_t>(values.size()) + columns - 1) / columns;
  const bool whole_rows = std::cmp_equal((end - begin) * columns, values.size());
  if (whole_rows) return read_columns(file, place, begin, end - begin, values.data());
  std::vector<float> rows(as_size((end - begin) * columns));
  const std::int64_t bytes = read_columns(file, place, begin, end - begin, rows.data());
  std::copy_n(rows.begin() + (first - begin * columns), values.size(), values.begin());
  return bytes;
}

void write_part(Storage::File& file, const Part& place, std::span<const float> values) {
  const auto [rows, columns, at_once] = layout_of(place);
  std::vector<std::byte> bytes(as_size(std::min(at_once, rows) * columns * size_of(place.format)));
  std::vector<float> piece(place.transposed ? as_size(std::min(at_once, rows) * columns) : 0);
  for (std::int64_t row = 0; row < rows; row += at_once) {
    const std::int64_t count = std::min(at_once, rows - row);
    auto from = values.subspan(place.transposed ? 0 : as_size(row));
    if (place.transposed) {
      transpose(values.data() + row, rows, piece.data(), columns, columns, count);
      from = piece;
    }
    const auto written = std::span(bytes).first(as_size(count * columns * size_of(place.format)));
    encode(place.format, from.first(as_size(count * columns)), written);
    file.write(place.offset + row * columns * size_of(place.format), written);
  }
}

}  // namespace tessera::pretrained

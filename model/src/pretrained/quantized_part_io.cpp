#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "pretrained/quantized_part.h"
#include "pretrained/read_array.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"
#include "tessera/kernels/dynamic_map.h"
#include "tessera/kernels/kernel_table.h"

namespace tessera::pretrained {
namespace {

std::int64_t columns_of(const Shape& shape) { return shape[0] == 0 ? 0 : shape.numel() / shape[0]; }

/// fp32 scales of blocks [begin, end).
std::vector<float> read_scales(const std::vector<InputFile>& files, const Part& part,
                               std::int64_t begin, std::int64_t end) {
  const StoredScales& of = part.quantized;
  if (!has_coded_scales(of.format)) {
    return read_array<float>(files[of.scales.file], of.scales.offset + 4 * begin, end - begin);
  }
  const auto codes =
      read_array<std::uint8_t>(files[of.scales.file], of.scales.offset + begin, end - begin);
  const std::int64_t first = begin / kScaleGroup;
  const auto groups = read_array<float>(files[of.groups.file], of.groups.offset + 4 * first,
                                        (end - 1) / kScaleGroup + 1 - first);
  std::vector<float> scales;
  for (std::int64_t b = begin; b < end; ++b) {
    scales.push_back(dynamic_map(true)[codes[as_size(b - begin)]] *
                         groups[as_size(b / kScaleGroup - first)] +
                     of.mean);
  }
  return scales;
}

/// The format of the same codes whose scales have none.
WeightFormat with_plain_scales(WeightFormat format) {
  if (!has_coded_scales(format)) return format;
  return is_nf4(format) ? WeightFormat::kNf4 : WeightFormat::kFp4;
}

}  // namespace

bool is_stored_in(const Place& place, WeightFormat format) {
  return format != WeightFormat::kNone && std::ranges::all_of(place.parts, [&](const Part& part) {
           return part.quantized.format == format;
         });
}

std::vector<std::byte> read_stored(const std::vector<InputFile>& files, const Part& part) {
  const StoredScales& of = part.quantized;
  const QuantizedSizes sizes = quantized_sizes(of.format, part.shape);
  std::vector<std::byte> bytes(as_size(sizes.bytes));
  const auto span = [&](std::int64_t begin, std::int64_t count) {
    return std::span(bytes).subspan(as_size(begin), as_size(count));
  };
  files[part.file].read(part.offset, span(0, sizes.codes_bytes));
  if (!has_coded_scales(of.format)) {
    files[of.scales.file].read(of.scales.offset, span(sizes.scales_begin, 4 * sizes.scales));
    return bytes;
  }
  std::memcpy(bytes.data() + sizes.scales_begin, &of.mean, sizeof of.mean);
  files[of.groups.file].read(of.groups.offset,
                             span(sizes.scales_begin + 4, 4 * (sizes.scales - 1)));
  files[of.scales.file].read(of.scales.offset, span(sizes.scale_codes_begin, sizes.scale_codes));
  return bytes;
}

std::int64_t read_stored(const std::vector<InputFile>& files, const Place& place,
                         std::span<std::byte> to) {
  const WeightFormat format = place.parts.front().quantized.format;
  std::vector<std::int64_t> joined;
  for (const Part& part : place.parts) joined.push_back(part.shape[0]);
  const QuantizedSizes sizes = quantized_sizes(format, place.shape, joined);
  require(std::cmp_equal(to.size(), sizes.bytes), ErrorCode::kInvalidArgument, "a matrix ",
          place.shape, " in ", to_string(format), " has ", sizes.bytes, " bytes, not ", to.size());
  std::ranges::fill(to, std::byte{0});
  if (const auto apart = matrices_apart(format, place.shape, joined); !apart.empty()) {
    for (std::size_t p = 0; p < apart.size(); ++p) {
      const std::vector<std::byte> bytes = read_stored(files, place.parts[p]);
      std::ranges::copy(bytes, to.begin() + apart[p].begin);
    }
    return sizes.bytes;
  }
  std::int64_t codes = 0, scales = sizes.scales_begin, scale_codes = sizes.scale_codes_begin;
  for (const Part& part : place.parts) {
    const std::vector<std::byte> bytes = read_stored(files, part);
    const QuantizedSizes own = quantized_sizes(format, part.shape);
    const auto put = [&](std::int64_t from, std::int64_t count, std::int64_t& at) {
      std::memcpy(to.data() + at, bytes.data() + from, as_size(count));
      at += count;
    };
    put(0, own.codes_bytes, codes);
    put(own.scales_begin, 4 * own.scales, scales);
    put(own.scale_codes_begin, own.scale_codes, scale_codes);
  }
  return sizes.bytes;
}

std::int64_t read_decoded(const std::vector<InputFile>& files, const Part& part, std::int64_t first,
                          std::span<float> values) {
  const WeightFormat format = with_plain_scales(part.quantized.format);
  const bool four = has_short_codes(format);
  const std::int64_t columns = columns_of(part.shape);
  const std::int64_t group = four ? kQuantizedBlock : columns;  // elements that have one scale
  const std::int64_t last = first + static_cast<std::int64_t>(values.size());
  const std::int64_t at_once = std::max<std::int64_t>(1, (std::int64_t{1} << 20) / group);
  const auto stream = make_cpu_device()->create_stream({.name = "dequantize"});
  std::int64_t read = 0;
  for (std::int64_t g = first / group; g * group < last; g += at_once) {
    const std::int64_t end = std::min(g + at_once, (last + group - 1) / group);
    const std::int64_t begin_element = g * group;
    const std::int64_t count = std::min(end * group, part.shape.numel()) - begin_element;
    const Shape shape = four ? Shape{1, count} : Shape{count / columns, columns};
    const QuantizedSizes sizes = quantized_sizes(format, shape);
    std::vector<std::byte> bytes(as_size(sizes.bytes));
    files[part.file].read(part.offset + (four ? begin_element / 2 : begin_element),
                          std::span(bytes).first(as_size(sizes.codes_bytes)));
    const std::vector<float> scales = read_scales(files, part, g, end);
    std::memcpy(bytes.data() + sizes.scales_begin, scales.data(), 4 * scales.size());
    std::vector<float> decoded(as_size(count));
    cpu_kernels().dequantize({.format = format,
                              .src = TensorView(bytes.data(), DType::kUInt8, Shape{sizes.bytes}),
                              .dst = TensorView(decoded.data(), DType::kFloat32, shape)},
                             *stream);
    const std::int64_t from = std::max(first, begin_element);
    const std::int64_t to = std::min(last, begin_element + count);
    std::copy_n(decoded.begin() + (from - begin_element), to - from,
                values.begin() + (from - first));
    read += sizes.bytes;
  }
  return read;
}

void write_tables(Storage::File& file, const Part& part) {
  const StoredScales& of = part.quantized;
  if (!has_short_codes(of.format)) return;
  std::array<float, 16> table = code_table(of.format);
  for (float& number : table) number += 0.0F;  // bitsandbytes' has no -0
  file.write(of.table, std::as_bytes(std::span(table)));
  if (has_coded_scales(of.format)) {
    file.write(of.map, std::as_bytes(std::span(dynamic_map(true))));
  }
}

namespace {

std::string description(const Part& part, float mean) {
  const WeightFormat format = part.quantized.format;
  nlohmann::ordered_json state{{"quant_type", is_nf4(format) ? "nf4" : "fp4"},
                               {"blocksize", kQuantizedBlock},
                               {"dtype", "float32"},
                               {"shape", {part.shape[0], columns_of(part.shape)}}};
  if (has_coded_scales(format)) {
    state["nested_blocksize"] = kScaleGroup;
    state["nested_dtype"] = "float32";
    state["nested_offset"] = static_cast<double>(mean);
  }
  std::string text = state.dump();
  text.resize(kDescriptionBytes, ' ');
  return text;
}

}  // namespace

void write_stored(Storage::File& file, const Part& part, std::span<const std::byte> bytes) {
  const StoredScales& of = part.quantized;
  const QuantizedSizes sizes = quantized_sizes(of.format, part.shape);
  const auto write = [&](std::int64_t to, std::int64_t begin, std::int64_t count) {
    file.write(to, bytes.subspan(as_size(begin), as_size(count)));
  };
  write(part.offset, 0, sizes.codes_bytes);
  if (!has_short_codes(of.format)) {
    write(of.scales.offset, sizes.scales_begin, 4 * sizes.scales);
    const std::byte rows{0};
    return file.write(of.description, {&rows, 1});
  }
  float mean = 0.0F;
  if (has_coded_scales(of.format)) {
    std::memcpy(&mean, bytes.data() + sizes.scales_begin, sizeof mean);
    write(of.groups.offset, sizes.scales_begin + 4, 4 * (sizes.scales - 1));
    write(of.scales.offset, sizes.scale_codes_begin, sizes.scale_codes);
  } else {
    write(of.scales.offset, sizes.scales_begin, 4 * sizes.scales);
  }
  const std::string text = description(part, mean);
  file.write(of.description, std::as_bytes(std::span(text)));
}

}  // namespace tessera::pretrained

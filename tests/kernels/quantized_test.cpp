#include <bit>

#include "kernels/golden.h"
#include "kernels/support.h"
#include "nlohmann/json.hpp"
#include "tessera/kernels/dynamic_map.h"
#include "tessera/kernels/philox.h"
#include "tessera/kernels/weight_format.h"

// Quantised weights: what bitsandbytes makes of them, on every device.
namespace tessera::quantized_test {
namespace {

using Bytes = std::vector<std::uint8_t>;

std::span<std::byte> as_bytes(Bytes& bytes) {
  return {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()};
}

Bytes quantized(WeightFormat format, const Shape& shape, const std::vector<float>& values) {
  Bytes bytes(at(quantized_sizes(format, shape).bytes));
  quantize(format, shape, values, as_bytes(bytes), "w");
  return bytes;
}

template <typename T>
std::vector<T> dequantized(WeightFormat format, const Shape& shape, Bytes bytes) {
  std::vector<T> values(at(shape.numel()));
  StreamUnderTest stream;
  kernels_under_test().dequantize(
      {.format = format,
       .src = TensorView(bytes.data(), DType::kUInt8, Shape{std::ssize(bytes)}),
       .dst = view_of(values, shape)},
      stream);
  return values;
}

Bytes bytes_of_hex(const std::string& text) {
  Bytes bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    bytes.push_back(static_cast<std::uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::vector<float> floats_of_hex(const std::string& text) {
  const Bytes bytes = bytes_of_hex(text);
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// The weights by their definition, in double; one rounding of fp32 for each multiplication.
Doubles oracle(WeightFormat format, const Shape& shape, const Bytes& bytes) {
  const QuantizedSizes sizes = quantized_sizes(format, shape);
  std::vector<float> scales(at(sizes.scales));
  std::memcpy(scales.data(), bytes.data() + sizes.scales_begin, 4 * scales.size());
  if (has_coded_scales(format)) {
    const std::vector<float> coded = std::move(scales);
    scales.clear();
    for (std::int64_t b = 0; b < sizes.scale_codes; ++b) {
      const float entry = dynamic_map(true)[bytes[at(sizes.scale_codes_begin + b)]];
      scales.push_back(entry * coded[at(1 + b / kScaleGroup)] + coded[0]);
    }
  }
  Doubles weights;
  for (std::int64_t i = 0; i < shape.numel(); ++i) {
    if (format == WeightFormat::kInt8) {
      const auto code = static_cast<std::int8_t>(bytes[at(i)]);
      const double scale = static_cast<double>(scales[at(i / (shape.numel() / shape[0]))]);
      weights.push_back(code * scale / 127.0);
      continue;
    }
    const int code = i % 2 == 0 ? bytes[at(i / 2)] >> 4 : bytes[at(i / 2)] & 15;
    weights.push_back(static_cast<double>(code_table(format)[at(code)]) *
                      static_cast<double>(scales[at(i / kQuantizedBlock)]));
  }
  return weights;
}

/// fp4 has two codes of zero, 0 and 8; bitsandbytes' devices differ in which of them they write.
Bytes without_signs_of_zero(WeightFormat format, Bytes codes) {
  if (format != WeightFormat::kFp4) return codes;
  for (std::uint8_t& pair : codes) {
    if (pair >> 4 == 8) pair &= 15;
    if ((pair & 15) == 8) pair &= 0xf0;
  }
  return codes;
}

TEST(Quantized, HasTheCodesScalesAndWeightsOfBitsandbytes) {
  const auto golden = kernel_golden("quantized.json");
  for (const WeightFormat format : {WeightFormat::kNf4, WeightFormat::kFp4}) {
    const auto& table = code_table(format);
    const auto wanted =
        floats_of_hex(golden.at("tables").at(std::string(to_string(format))).get<std::string>());
    EXPECT_EQ(std::vector<float>(table.begin(), table.end()), wanted);
  }
  ASSERT_EQ(golden.at("cases").size(), 42U);
  for (const auto& at_case : golden.at("cases")) {
    const auto text = [&](const char* key) { return at_case.at(key).get<std::string>(); };
    const WeightFormat format = parse_weight_format(text("format"));
    const Shape shape{at_case.at("rows").get<std::int64_t>(),
                      at_case.at("columns").get<std::int64_t>()};
    SCOPED_TRACE(concat(text("format"), ' ', shape));
    const QuantizedSizes sizes = quantized_sizes(format, shape);
    const Bytes bytes = quantized(format, shape, floats_of_hex(text("input")));
    const Bytes codes(bytes.begin(), bytes.begin() + sizes.codes_bytes);
    EXPECT_EQ(without_signs_of_zero(format, codes),
              without_signs_of_zero(format, bytes_of_hex(text("codes"))));
    EXPECT_EQ(Bytes(bytes.begin() + sizes.scales_begin, bytes.end()), bytes_of_hex(text("scales")));
    on_every_target([&] {
      const auto weights = dequantized<float>(format, shape, bytes);
      EXPECT_EQ(weights, floats_of_hex(text("weights")));
    });
  }
}

std::uint64_t fnv(const void* data, std::size_t bytes) {
  std::uint64_t value = 0xcbf29ce484222325;
  for (std::size_t i = 0; i < bytes; ++i) {
    value = (value ^ static_cast<const std::uint8_t*>(data)[i]) * 0x100000001b3;
  }
  return value;
}

/// As make_quantized_golden.py has it.
std::vector<float> formula(std::int64_t numel) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < numel; ++i) {
    const auto mixed = static_cast<std::uint32_t>(static_cast<std::uint64_t>(i) * 2654435761U);
    const float magnitude = static_cast<float>(1 + i / 64 % 7) * 0.01F;
    values.push_back((static_cast<float>(mixed / 256) * 0x1p-24F - 0.5F) * magnitude);
  }
  return values;
}

TEST(Quantized, HasTheScalesThatBitsandbytesHasQuantised) {
  const auto golden = kernel_golden("quantized.json");
  ASSERT_EQ(golden.at("double cases").size(), 12U);
  for (const auto& at_case : golden.at("double cases")) {
    const auto text = [&](const char* key) { return at_case.at(key).get<std::string>(); };
    const auto hash = [&](const char* key) { return std::stoull(text(key), nullptr, 16); };
    const WeightFormat format = parse_weight_format(text("format"));
    const Shape shape{at_case.at("rows").get<std::int64_t>(),
                      at_case.at("columns").get<std::int64_t>()};
    SCOPED_TRACE(concat(text("format"), ' ', shape));
    const QuantizedSizes sizes = quantized_sizes(format, shape);
    const Bytes bytes = quantized(format, shape, formula(shape.numel()));
    const auto numbers = bytes.begin() + sizes.scales_begin;
    EXPECT_EQ(Bytes(numbers, numbers + 4), bytes_of_hex(text("mean")));
    EXPECT_EQ(Bytes(numbers + 4, numbers + 4 * sizes.scales), bytes_of_hex(text("groups")));
    EXPECT_EQ(fnv(&bytes[at(sizes.scale_codes_begin)], at(sizes.scale_codes)), hash("scale codes"));
    EXPECT_EQ(fnv(bytes.data(), at(sizes.codes_bytes)), hash("codes"));
    if (shape.numel() > 1'000'000) continue;  // for its mean
    on_every_target([&] {
      auto weights = dequantized<float>(format, shape, bytes);
      for (float& weight : weights)
        weight += 0.0F;  // zeros have a sign where bitsandbytes has none
      EXPECT_EQ(fnv(weights.data(), 4 * weights.size()), hash("weights"));
    });
  }
}

// Of each matrix that one of ours joins, the codes and scales that it has alone.
TEST(Quantized, JoinsMatricesThatAreQuantisedOneByOne) {
  const std::array<std::int64_t, 3> rows{300, 64, 13};
  const Shape shape{377, 64};
  const std::vector<float> values = formula(shape.numel());
  for (const WeightFormat format : {WeightFormat::kNf4Double, WeightFormat::kFp4Double}) {
    Bytes bytes(at(quantized_sizes(format, shape, rows).bytes));
    quantize(format, shape, values, as_bytes(bytes), "w", rows);
    EXPECT_NE(bytes.size(), quantized(format, shape, values).size());
    std::vector<float> expected;
    for (std::int64_t p = 0, first = 0; p < 3; first += rows[at(p++)]) {
      const Shape own{rows[at(p)], 64};
      const auto from = values.begin() + first * 64;
      const auto weights =
          dequantized<float>(format, own, quantized(format, own, {from, from + own.numel()}));
      expected.insert(expected.end(), weights.begin(), weights.end());
    }
    on_every_target([&] {
      std::vector<float> all(at(shape.numel()));
      StreamUnderTest stream;
      kernels_under_test().dequantize(
          {.format = format,
           .src = TensorView(bytes.data(), DType::kUInt8, Shape{std::ssize(bytes)}),
           .dst = view_of(all, shape),
           .joined = rows},
          stream);
      EXPECT_TRUE(same_bits(all, expected));
    });
  }
  EXPECT_THROW(quantized_sizes(WeightFormat::kNf4Double, shape, std::array{300L, 64L}), Error);
}

// Their last blocks are shorter; where the number of elements is odd, a half of a byte is padding.
TEST(Quantized, JoinsMatricesThatEndWithinABlock) {
  for (const auto& [rows, columns] : {std::pair{std::array{3L, 2L, 1L}, 33L},
                                      {std::array{60L, 30L, 30L}, 14L},
                                      {std::array{1L, 1L, 1L}, 1L},
                                      {std::array{301L, 1L, 64L}, 65L},
                                      {std::array{64L, 3L, 2L}, 64L}}) {
    const Shape shape{rows[0] + rows[1] + rows[2], columns};
    const std::vector<float> values = formula(shape.numel());
    for (const WeightFormat format : weight_formats()) {
      if (!has_short_codes(format)) continue;
      SCOPED_TRACE(concat(to_string(format), " ", shape));
      Bytes bytes(at(quantized_sizes(format, shape, rows).bytes));
      quantize(format, shape, values, as_bytes(bytes), "w", rows);
      std::vector<float> expected;
      for (std::int64_t p = 0, first = 0; p < 3; first += rows[at(p++)]) {
        const Shape own{rows[at(p)], columns};
        const auto from = values.begin() + first * columns;
        const auto weights =
            dequantized<float>(format, own, quantized(format, own, {from, from + own.numel()}));
        expected.insert(expected.end(), weights.begin(), weights.end());
      }
      on_every_target([&] {
        std::vector<float> all(at(shape.numel()));
        StreamUnderTest stream;
        kernels_under_test().dequantize(
            {.format = format,
             .src = TensorView(bytes.data(), DType::kUInt8, Shape{std::ssize(bytes)}),
             .dst = view_of(all, shape),
             .joined = rows},
            stream);
        EXPECT_TRUE(same_bits(all, expected));
      });
    }
  }
  EXPECT_THROW(quantized_sizes(WeightFormat::kNf4, Shape{4, 33}, std::array{2L, 1L}), Error);
}

TEST(Quantized, IsDecodedAlikeByEveryWay) {
  for (const WeightFormat format : weight_formats()) {
    for (const Shape& shape : {Shape{1, 1}, Shape{1, 7}, Shape{1, 63}, Shape{1, 65}, Shape{3, 43},
                               Shape{2, 64}, Shape{37, 1000}}) {
      SCOPED_TRACE(concat(to_string(format), ' ', shape));
      const Bytes bytes = quantized(format, shape, random_values<float>(shape.numel(), 3));
      std::vector<float> expected;
      on_every_target([&] {
        const auto weights =
            run_on_any_threads([&] { return dequantized<float>(format, shape, bytes); });
        if (expected.empty()) expected = weights;
        EXPECT_TRUE(same_bits(weights, expected));
        const auto halves = dequantized<bfloat16>(format, shape, bytes);
        const auto fp16 = dequantized<float16>(format, shape, bytes);
        for (std::size_t i = 0; i < halves.size(); ++i) {
          ASSERT_EQ(halves[i].bits, bfloat16(expected[i]).bits) << i;
          ASSERT_EQ(fp16[i].bits, float16(expected[i]).bits) << i;
        }
      });
      expect_close(expected, oracle(format, shape, bytes), 3 * rounding<float>(), "weights");
    }
  }
}

/// Codes without a pattern, and scales that are whole numbers.
Bytes weights_of_any_bits(WeightFormat format, const Shape& shape) {
  const QuantizedSizes sizes = quantized_sizes(format, shape);
  Bytes bytes(at(sizes.bytes));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(i * 2654435761U >> 13);
  }
  std::vector<float> scales(at(sizes.scales));
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<float>(i % 1009 + 1);
  std::memcpy(bytes.data() + sizes.scales_begin, scales.data(), 4 * scales.size());
  return bytes;
}

/// Decodes into dst[first ...].
void dequantize_to(std::vector<bfloat16>& dst, std::int64_t first, WeightFormat format,
                   const Shape& shape, Bytes bytes) {
  StreamUnderTest stream;
  kernels_under_test().dequantize(
      {.format = format,
       .src = TensorView(bytes.data(), DType::kUInt8, Shape{std::ssize(bytes)}),
       .dst = view_of(dst, first, shape.numel()).reshape(shape)},
      stream);
}

/// The first element that begins a line of the cache.
std::int64_t first_aligned(const std::vector<bfloat16>& dst) {
  const auto address = reinterpret_cast<std::uintptr_t>(dst.data());
  return static_cast<std::int64_t>((64 - address % 64) % 64 / sizeof(bfloat16));
}

TEST(Quantized, LargeMatricesAreWrittenAroundTheCacheWithTheSameBits) {
  // A little above 32 MiB of bf16, and not a multiple of a block.
  const std::int64_t n = testing_cuda() ? 4 * 1024 + 70 : (std::int64_t{16} << 20) + 70;
  const Bytes bytes = weights_of_any_bits(WeightFormat::kNf4, Shape{1, n});
  const Doubles weights = oracle(WeightFormat::kNf4, Shape{1, n}, bytes);

  std::vector<bfloat16> dst(at(n) + 64);
  const std::int64_t aligned = first_aligned(dst);
  for (const std::int64_t first : {aligned, aligned + 1}) {  // the latter fits no vector
    std::fill(dst.begin(), dst.end(), bfloat16(7.0F));
    dequantize_to(dst, first, WeightFormat::kNf4, Shape{1, n}, bytes);
    for (std::int64_t i = 0; i < n; ++i) {
      const bfloat16 expected(static_cast<float>(weights[at(i)]));
      ASSERT_EQ(dst[at(first + i)].bits, expected.bits) << i;
    }
    EXPECT_TRUE(first == 0 || as_float(dst[at(first - 1)]) == 7.0F);
    EXPECT_EQ(as_float(dst[at(first + n)]), 7.0F);
  }
}

TEST(Quantized, LargeMatricesOfInt8AreWrittenAroundTheCacheWithTheSameBits) {
  // 32 MiB of bf16 on CPUs.
  const Shape shape{testing_cuda() ? 16 : 4096, 4096};
  const Bytes bytes = weights_of_any_bits(WeightFormat::kInt8, shape);
  const Doubles weights = oracle(WeightFormat::kInt8, shape, bytes);

  const std::int64_t n = shape.numel();
  std::vector<bfloat16> dst(at(n) + 64);
  const std::int64_t aligned = first_aligned(dst);
  std::vector<bfloat16> around, through;
  for (const std::int64_t first : {aligned, aligned + 1}) {  // the latter fits no vector
    dequantize_to(dst, first, WeightFormat::kInt8, shape, bytes);
    auto& got = first == aligned ? around : through;
    got.assign(dst.begin() + first, dst.begin() + first + n);
  }
  EXPECT_EQ(std::memcmp(around.data(), through.data(), at(n) * sizeof(bfloat16)), 0);
  double worst = 0.0;  // of the weights, in their own size
  for (std::int64_t i = 0; i < n; ++i) {
    const double error = std::abs(static_cast<double>(as_float(around[at(i)])) - weights[at(i)]);
    if (error > 0.0) worst = std::max(worst, error / std::abs(weights[at(i)]));
  }
  EXPECT_LE(worst, 1.001 / 256);  // half a unit of bf16, and the roundings of fp32
}

TEST(Quantized, ScalesThatAreNoNumbersAreRoundedAsAnyFloat) {
  const Shape shape{3, 40};
  const QuantizedSizes sizes = quantized_sizes(WeightFormat::kInt8, shape);
  Bytes bytes(at(sizes.bytes));
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 7);
  // Rounding the first as if it were a number would carry into its sign.
  const std::vector<float> scales{std::bit_cast<float>(0x7fffffffU),
                                  std::numeric_limits<float>::infinity(), 1.0F};
  std::memcpy(bytes.data() + sizes.scales_begin, scales.data(), 4 * scales.size());
  const auto exact = dequantized<float>(WeightFormat::kInt8, shape, bytes);
  const auto rounded = dequantized<bfloat16>(WeightFormat::kInt8, shape, bytes);
  EXPECT_TRUE(std::isnan(exact[0]));
  for (std::size_t i = 0; i < exact.size(); ++i) {
    ASSERT_EQ(rounded[i].bits, bfloat16(exact[i]).bits) << i;
  }
}

TEST(Quantized, KeepsCodesAndScalesOfWhatItHasDecoded) {
  for (const WeightFormat format : {WeightFormat::kNf4, WeightFormat::kFp4}) {
    const Shape shape{7, 96};
    const Bytes bytes = quantized(format, shape, random_values<float>(shape.numel(), 5));
    EXPECT_EQ(quantized(format, shape, dequantized<float>(format, shape, bytes)), bytes);
  }
}

/// Relative root mean square errors of normal numbers; those of larger blocks are known from
/// others' simulations.
TEST(Quantized, IsAsExactAsItsFormat) {
  const Shape shape{64, 1024};
  std::vector<float> values(at(shape.numel()));
  for (std::int64_t i = 0; i < shape.numel(); ++i) values[at(i)] = random_normal({1, 2}, i);
  const auto error = [&](WeightFormat format) {
    const auto weights = dequantized<float>(format, shape, quantized(format, shape, values));
    double squares = 0.0, errors = 0.0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      squares += static_cast<double>(values[i]) * static_cast<double>(values[i]);
      errors += std::pow(static_cast<double>(weights[i]) - static_cast<double>(values[i]), 2);
    }
    return std::sqrt(errors / squares);
  };
  EXPECT_NEAR(error(WeightFormat::kNf4), 0.0920, 0.001);
  EXPECT_NEAR(error(WeightFormat::kFp4), 0.1220, 0.0015);
  EXPECT_NEAR(error(WeightFormat::kInt8), 0.0078, 0.0005);
  EXPECT_NEAR(error(WeightFormat::kNf4Double), 0.0920, 0.001);
  EXPECT_NEAR(error(WeightFormat::kFp4Double), 0.1220, 0.0015);
}

TEST(Quantized, NamesTheElementThatIsNotFinite) {
  Bytes bytes(at(quantized_sizes(WeightFormat::kNf4, Shape{2, 64}).bytes));
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> values(128, 1.0F);
    values[70] = bad;
    try {
      quantize(WeightFormat::kNf4, Shape{2, 64}, values, as_bytes(bytes), "h.0.w");
      ADD_FAILURE() << "took " << bad;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("'h.0.w': element 70 is"), std::string::npos);
    }
  }
  std::vector<float> wide(2, 70000.0F);  // fp16 has no such number
  Bytes two(at(quantized_sizes(WeightFormat::kInt8, Shape{1, 2}).bytes));
  EXPECT_THROW(quantize(WeightFormat::kInt8, Shape{1, 2}, wide, as_bytes(two), "w"), Error);
}

TEST(Quantized, RefusesWhatDoesNotFit) {
  const std::int64_t size = quantized_sizes(WeightFormat::kNf4, Shape{2, 64}).bytes;
  Bytes bytes(at(4 * size));  // which other_bytes takes for that many int32
  std::vector<float> values(128);
  StreamUnderTest stream;
  const DequantizeArgs args{.format = WeightFormat::kNf4,
                            .src = TensorView(bytes.data(), DType::kUInt8, Shape{size}),
                            .dst = view_of(values, Shape{2, 64})};
  DequantizeArgs other_format = args, too_short = args, other_bytes = args, other_dst = args;
  other_format.format = WeightFormat::kInt8;
  too_short.src = too_short.src.narrow(0, 0, 8);
  other_bytes.src.dtype = DType::kInt32;
  other_dst.dst.dtype = DType::kInt32;
  for (const DequantizeArgs& wrong : {other_format, too_short, other_bytes, other_dst}) {
    EXPECT_THROW(kernels_under_test().dequantize(wrong, stream), Error);
  }
  EXPECT_THROW(parse_weight_format("gptq"), Error);
  EXPECT_THROW(quantized_sizes(WeightFormat::kNone, Shape{1}), Error);
}

}  // namespace
}  // namespace tessera::quantized_test

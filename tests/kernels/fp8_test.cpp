#include "tessera/kernels/fp8.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/golden.h"
#include "kernels/support.h"

// Conversions to and from fp8, held to CUDA's own functions for all codes and all bf16 numbers, and
// scales, held to torchao's.
namespace tessera::fp8_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::array kFormats{Fp8Format::kE4M3, Fp8Format::kE5M2};

const nlohmann::json& golden_of(Fp8Format format) {
  static const nlohmann::json golden = kernel_golden("fp8.json");
  return golden.at(format == Fp8Format::kE4M3 ? "e4m3" : "e5m2");
}

std::vector<std::uint8_t> golden_codes(Fp8Format format) {
  std::vector<std::uint8_t> codes;
  for (const nlohmann::json& run : golden_of(format).at("runs")) {
    codes.insert(codes.end(), run.at(1).get<std::size_t>(), run.at(0).get<std::uint8_t>());
  }
  return codes;
}

std::vector<float> golden_values(Fp8Format format) {
  const auto digits = golden_of(format).at("values").get<std::string>();
  std::vector<float> values;
  for (std::size_t i = 0; i < digits.size(); i += 8) {
    std::uint32_t word = 0;
    for (std::size_t byte = 0; byte < 4; ++byte) {
      word |= static_cast<std::uint32_t>(std::stoul(digits.substr(i + 2 * byte, 2), nullptr, 16))
              << (8 * byte);
    }
    values.push_back(std::bit_cast<float>(word));
  }
  return values;
}

std::vector<bfloat16> all_bfloat16() {
  std::vector<bfloat16> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<std::uint16_t>(i);
  return all;
}

std::uint32_t word_of(float value) { return std::bit_cast<std::uint32_t>(value); }

template <typename T>
std::uint32_t amax_of(std::vector<T> x, std::int64_t begin = 0) {
  std::vector<std::int32_t> amax{-1};
  StreamUnderTest stream;
  kernels_under_test().amax({.x = view_of(x, begin), .amax = view_of(amax)}, stream);
  return static_cast<std::uint32_t>(amax.front());
}

template <typename T>
std::vector<std::uint8_t> encoded(std::vector<T> x, std::uint32_t amax, Fp8Format format,
                                  Fp8Scales scales = Fp8Scales::kPowerOfTwo,
                                  std::int64_t begin = 0) {
  std::vector<std::uint8_t> codes(x.size(), 0xee);
  std::vector<std::int32_t> word{static_cast<std::int32_t>(amax)};
  StreamUnderTest stream;
  kernels_under_test().fp8_encode({.x = view_of(x, begin),
                                   .amax = view_of(word),
                                   .codes = view_of(codes, begin),
                                   .format = format,
                                   .scales = scales},
                                  stream);
  return codes;
}

template <typename T>
std::vector<T> decoded(std::vector<std::uint8_t> codes, std::uint32_t amax, Fp8Format format,
                       Fp8Scales scales = Fp8Scales::kPowerOfTwo) {
  std::vector<T> y(codes.size());
  std::vector<std::int32_t> word{static_cast<std::int32_t>(amax)};
  StreamUnderTest stream;
  kernels_under_test().fp8_decode({.codes = view_of(codes),
                                   .amax = view_of(word),
                                   .y = view_of(y),
                                   .format = format,
                                   .scales = scales},
                                  stream);
  return y;
}

TEST(Fp8, CodesOfAllBf16NumbersAreThoseOfCuda) {
  for (const Fp8Format format : kFormats) {
    const std::vector<std::uint8_t> golden = golden_codes(format);
    const std::vector<bfloat16> all = all_bfloat16();
    ASSERT_EQ(golden.size(), all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(fp8_code(static_cast<float>(all[i]), format), golden[i]) << i;
    }
    // The largest magnitude that has a scale of 1.
    const std::uint32_t amax = layout_of(format).largest;
    on_every_target([&] { EXPECT_TRUE(same_bits(encoded(all, amax, format), golden)); });
  }
}

TEST(Fp8, ValuesOfAllCodesAreThoseOfCuda) {
  for (const Fp8Format format : kFormats) {
    const std::vector<float> golden = golden_values(format);
    std::vector<std::uint8_t> codes;
    for (int code = 0; code < 256; ++code) codes.push_back(static_cast<std::uint8_t>(code));
    const auto check = [&](std::size_t i, float value, const char* what) {
      const bool is_nan = (i & 0x7fU) > (format == Fp8Format::kE4M3 ? 0x7eU : 0x7cU);
      EXPECT_EQ(std::isnan(value), is_nan) << what << " of code " << i;
      if (!is_nan) {
        EXPECT_EQ(word_of(value), word_of(golden[i])) << what << " of code " << i;
      }
    };
    for (std::size_t i = 0; i < 256; ++i) check(i, fp8_value(codes[i], format), "fp8_value()");
    on_every_target([&] {
      const auto wide = decoded<float>(codes, layout_of(format).largest, format);
      const auto narrow = decoded<bfloat16>(codes, layout_of(format).largest, format);
      for (std::size_t i = 0; i < 256; ++i) {
        check(i, wide[i], "the kernel's fp32");
        check(i, as_float(narrow[i]), "the kernel's bf16");
      }
    });
  }
}

TEST(Fp8, ScalesAreThoseOfTorchao) {
  for (const Fp8Format format : kFormats) {
    for (const nlohmann::json& row : golden_of(format).at("scales")) {
      const auto amax = row.at(0).get<std::uint32_t>();
      EXPECT_EQ(word_of(fp8_scale(amax, format, Fp8Scales::kExact)), row.at(1).get<std::uint32_t>())
          << std::hex << amax;
      EXPECT_EQ(word_of(fp8_scale(amax, format, Fp8Scales::kPowerOfTwo)),
                row.at(2).get<std::uint32_t>())
          << std::hex << amax;
    }
  }
}

TEST(Fp8, ScalesHaveALimitAndAreNanWhereTheMagnitudeIsNotFinite) {
  for (const Fp8Format format : kFormats) {
    for (const Fp8Scales rule : {Fp8Scales::kPowerOfTwo, Fp8Scales::kExact}) {
      for (const float small : {0.0F, 1e-45F, 1e-38F, 1e-32F}) {
        EXPECT_EQ(fp8_scale(word_of(small), format, rule), kLargestFp8Scale) << small;
      }
      EXPECT_TRUE(std::isnan(fp8_scale(word_of(kInfinity), format, rule)));
      EXPECT_TRUE(std::isnan(fp8_scale(0x7fc00000U, format, rule)));
      EXPECT_TRUE(std::isfinite(1.0F / fp8_scale(0x7f7fffffU, format, rule)));
    }
  }
}

// Decoded numbers are normal in bf16, at every scale.
TEST(Fp8, PowersOfTwoMakeDecodedNumbersFitBf16) {
  for (const Fp8Format format : kFormats) {
    std::vector<std::uint8_t> codes;
    for (std::uint8_t code = 0; code < layout_of(format).infinity; ++code) codes.push_back(code);
    for (const float amax : {0.0F, 1e-45F, 1e-30F, 3e-7F, 1.0F, 1.75F, 1.76F, 5e4F, 1e37F}) {
      const std::uint32_t word = word_of(amax);
      const auto exact = decoded<float>(codes, word, format);
      const auto narrow = decoded<bfloat16>(codes, word, format);
      for (std::size_t i = 0; i < codes.size(); ++i) {
        ASSERT_EQ(as_float(narrow[i]), exact[i]) << amax << " code " << i;
        ASSERT_EQ(exact[i] * fp8_scale(word, format, Fp8Scales::kPowerOfTwo),
                  fp8_value(codes[i], format));
      }
    }
  }
}

template <typename T>
class Fp8Kernels : public testing::Test {};
using Types = testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(Fp8Kernels, Types);

TYPED_TEST(Fp8Kernels, AmaxIsTheLargestMagnitude) {
  for (const std::int64_t n : kSizes) {
    SCOPED_TRACE(n);
    const auto x = random_values<TypeParam>(n, 3);
    for (const std::int64_t begin : {std::int64_t{0}, std::min<std::int64_t>(n, 1)}) {
      float largest = 0.0F;
      for (std::int64_t i = begin; i < n; ++i)
        largest = std::max(largest, std::abs(as_float(x[at(i)])));
      on_every_target([&] {
        for (const int threads : {1, 3}) {
          const TeamLimit limit(threads);
          EXPECT_EQ(amax_of(x, begin), word_of(largest));
        }
      });
    }
  }
}

// Each place of a vector, and behind the last whole one.
TYPED_TEST(Fp8Kernels, AmaxTellsInfinityAndNan) {
  constexpr std::int64_t kNumel = 75;
  const auto zeros = std::vector<TypeParam>(kNumel, TypeParam(-0.0F));
  on_every_target([&] {
    EXPECT_EQ(amax_of(zeros), 0U);
    for (std::size_t i = 0; i < kNumel; i += testing_cuda() ? 17 : 1) {
      auto x = zeros;
      x[i] = TypeParam(-0.5F);
      EXPECT_EQ(amax_of(x), word_of(0.5F));
      x[i] = TypeParam(-kInfinity);
      EXPECT_EQ(amax_of(x), word_of(kInfinity));
      x[(i + 40) % kNumel] = TypeParam(-std::numeric_limits<float>::quiet_NaN());
      EXPECT_GT(amax_of(x), word_of(kInfinity));
    }
  });
}

TYPED_TEST(Fp8Kernels, EncodeAndDecodeAreTheLoop) {
  for (const std::int64_t n : kSizes) {
    SCOPED_TRACE(n);
    auto x = random_values<TypeParam>(n, 4, 0.01F);
    if (n > 16) x[at(n / 2)] = TypeParam(0.0F);
    const std::uint32_t amax = amax_of(x);
    const std::int64_t begin = n > 100 ? 1 : 0;
    for (const Fp8Format format : kFormats) {
      for (const Fp8Scales rule : {Fp8Scales::kPowerOfTwo, Fp8Scales::kExact}) {
        const float scale = fp8_scale(amax, format, rule);
        std::vector<std::uint8_t> codes(at(n), 0xee);
        std::vector<TypeParam> y(at(n));
        for (std::int64_t i = begin; i < n; ++i) {
          codes[at(i)] = fp8_code(as_float(x[at(i)]) * scale, format);
        }
        for (std::int64_t i = 0; i < n; ++i) {
          y[at(i)] = TypeParam(fp8_value(codes[at(i)], format) * (1.0F / scale));
        }
        on_every_target([&] {
          EXPECT_TRUE(same_bits(
              run_on_any_threads([&] { return encoded(x, amax, format, rule, begin); }), codes));
          EXPECT_TRUE(same_bits(
              run_on_any_threads([&] { return decoded<TypeParam>(codes, amax, format, rule); }),
              y));
        });
      }
    }
  }
}

/// Magnitudes whose scales are the largest one, small and large powers of two, and 1.
constexpr std::array kMagnitudes{0.0F,  1e-45F, 1e-38F, 1e-30F, 3e-7F,   1.0F,
                                 1.75F, 448.0F, 5e4F,   1e37F,  3.38e38F};

// All bf16 numbers, and fp32 numbers beside those half way between codes, whatever their scale:
// also larger ones than it is made of, as with delayed scaling.
TEST(Fp8, EncodesEveryNumberAtEveryScaleAsTheLoop) {
  std::vector<float> wide;
  for (const std::uint32_t upper :
       {0x3c80U, 0x3c90U, 0x3fc8U, 0x3b00U, 0x3b80U, 0x37c0U, 0x43e0U}) {
    for (int step = -40; step <= 40; ++step) {
      for (const std::uint32_t lower : {0U, 1U, 0x7fffU, 0x8000U, 0xffffU}) {
        const std::uint32_t word = ((upper + static_cast<std::uint32_t>(step)) << 16) | lower;
        wide.push_back(std::bit_cast<float>(word));
        wide.push_back(-wide.back());
      }
    }
  }
  for (const Fp8Format format : kFormats) {
    for (const float amax : kMagnitudes) {
      SCOPED_TRACE(amax);
      const float scale = fp8_scale(word_of(amax), format, Fp8Scales::kPowerOfTwo);
      const auto expected = [&](const auto& x) {
        std::vector<std::uint8_t> codes;
        for (const auto& value : x) codes.push_back(fp8_code(as_float(value) * scale, format));
        return codes;
      };
      const std::vector<std::uint8_t> of_narrow = expected(all_bfloat16()),
                                      of_wide = expected(wide);
      on_every_target([&] {
        EXPECT_TRUE(same_bits(encoded(all_bfloat16(), word_of(amax), format), of_narrow));
        EXPECT_TRUE(same_bits(encoded(wide, word_of(amax), format), of_wide));
      });
    }
  }
}

TEST(Fp8, DecodesEveryCodeAtEveryScaleAsTheLoop) {
  std::vector<std::uint8_t> codes;  // in each place of a vector
  for (int shift = 0; shift < 32; ++shift) {
    for (int code = 0; code < 256; ++code) codes.push_back(static_cast<std::uint8_t>(code));
    codes.push_back(0);
  }
  for (const Fp8Format format : kFormats) {
    for (const float amax : kMagnitudes) {
      SCOPED_TRACE(amax);
      const float reciprocal = 1.0F / fp8_scale(word_of(amax), format, Fp8Scales::kPowerOfTwo);
      on_every_target([&] {
        const auto y = decoded<bfloat16>(codes, word_of(amax), format);
        for (std::size_t i = 0; i < codes.size(); ++i) {
          const bfloat16 wanted(fp8_value(codes[i], format) * reciprocal);
          const bool is_nan = std::isnan(as_float(wanted));
          ASSERT_EQ(std::isnan(as_float(y[i])), is_nan) << int{codes[i]};
          if (is_nan) continue;
          ASSERT_EQ(y[i].bits, wanted.bits) << int{codes[i]};
        }
      });
    }
  }
}

// A saturated code would hide the overflow.
TYPED_TEST(Fp8Kernels, EveryCodeIsNanWhereOneNumberIsNotFinite) {
  for (const float bad : {kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    auto x = random_values<TypeParam>(67, 5);
    x[13] = TypeParam(bad);
    const std::uint32_t amax = amax_of(x);
    for (const Fp8Format format : kFormats) {
      on_every_target([&] {
        const auto codes = encoded(x, amax, format);
        EXPECT_TRUE(same_bits(codes, std::vector<std::uint8_t>(67, 0x7f)));
        for (const TypeParam y : decoded<TypeParam>(codes, amax, format)) {
          EXPECT_TRUE(std::isnan(as_float(y)));
        }
      });
    }
  }
}

TEST(Fp8, MaxWordsTakesTheLargestOfEachColumn) {
  for (const auto& [rows, columns] : {std::pair{1, 1}, {2, 3}, {7, 260}, {3, 600}, {2, 0}}) {
    const auto width = static_cast<std::size_t>(columns);
    std::vector<std::int32_t> words(static_cast<std::size_t>(rows) * width), expected(width, 0);
    for (std::size_t i = 0; i < words.size(); ++i) {
      words[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(i) * 2654435761U);
    }
    if (words.size() > 4) words[4] = 0x7fc00001;  // NaN
    for (std::size_t i = 0; i < words.size(); ++i) {
      const auto larger = [](std::int32_t a, std::int32_t b) {
        return static_cast<std::uint32_t>(a) < static_cast<std::uint32_t>(b);
      };
      expected[i % width] = std::max(expected[i % width], words[i], larger);
    }
    std::vector<std::int32_t> largest(width, -1);
    StreamUnderTest stream;
    kernels_under_test().max_words(
        {.rows = view_of(words).reshape({rows, columns}), .words = view_of(largest)}, stream);
    EXPECT_EQ(largest, expected) << rows << " rows of " << columns;
  }
}

TEST(Fp8, RefusesOperandsThatDoNotFit) {
  std::vector<float> x(8);
  std::vector<std::uint8_t> codes(8), few(7);
  std::vector<std::int32_t> word(1), words(2);
  const KernelTable& kernels = kernels_under_test();
  const AmaxArgs amax{.x = view_of(x), .amax = view_of(word)};
  expect_refused(kernels.amax, amax, &AmaxArgs::amax, view_of(words), "amax: amax is (2)");
  expect_refused(kernels.amax, amax, &AmaxArgs::x, view_of(codes), "amax: x is (8) of uint8");
  const MaxWordsArgs most{.rows = view_of(words).reshape({2, 1}), .words = view_of(word)};
  expect_refused(kernels.max_words, most, &MaxWordsArgs::words, view_of(words),
                 "max_words: words is (2)");
  expect_refused(kernels.max_words, most, &MaxWordsArgs::rows, view_of(words),
                 "max_words: rows is (2)");
  const Fp8EncodeArgs encode{.x = view_of(x), .amax = view_of(word), .codes = view_of(codes)};
  expect_refused(kernels.fp8_encode, encode, &Fp8EncodeArgs::codes, view_of(few),
                 "fp8_encode: codes is (7)");
  expect_refused(kernels.fp8_encode, encode, &Fp8EncodeArgs::amax, view_of(x),
                 "fp8_encode: amax is (8)");
  const Fp8DecodeArgs decode{.codes = view_of(codes), .amax = view_of(word), .y = view_of(x)};
  expect_refused(kernels.fp8_decode, decode, &Fp8DecodeArgs::codes, view_of(few),
                 "fp8_decode: codes is (7)");
  expect_refused(kernels.fp8_decode, decode, &Fp8DecodeArgs::y, view_of(codes),
                 "fp8_decode: y is (8) of uint8");
}

}  // namespace
}  // namespace tessera::fp8_test

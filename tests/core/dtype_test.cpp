#include "tessera/core/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr DType kAll[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64,
                          DType::kInt32,   DType::kInt64,    DType::kUInt8};

TEST(DTypeTest, NamesRoundTrip) {
  for (DType dtype : kAll) EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
  EXPECT_EQ(parse_dtype("float32"), DType::kFloat32);
  EXPECT_EQ(parse_dtype("bfloat16"), DType::kBFloat16);
  EXPECT_EQ(parse_dtype("float16"), DType::kFloat16);
}

TEST(DTypeTest, UnknownNameListsTheChoices) {
  try {
    parse_dtype("fp8");
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_NE(std::string(error.what()).find("'fp8'"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("bf16"), std::string::npos);
  }
}

TEST(DTypeTest, SizesMatchTheElementTypes) {
  EXPECT_EQ(size_of(dtype_of<float>()), sizeof(float));
  EXPECT_EQ(size_of(dtype_of<bfloat16>()), sizeof(bfloat16));
  EXPECT_EQ(size_of(dtype_of<float16>()), sizeof(float16));
  EXPECT_EQ(size_of(dtype_of<double>()), sizeof(double));
  EXPECT_EQ(size_of(dtype_of<std::int32_t>()), sizeof(std::int32_t));
  EXPECT_EQ(size_of(dtype_of<std::int64_t>()), sizeof(std::int64_t));
  EXPECT_EQ(size_of(dtype_of<std::uint8_t>()), sizeof(std::uint8_t));
}

TEST(BFloat16Test, EveryValueSurvivesFloat) {
  for (std::uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    bfloat16 value;
    value.bits = static_cast<std::uint16_t>(bits);
    const auto wide = static_cast<float>(value);
    const bfloat16 back(wide);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(back))) << bits;
    } else {
      ASSERT_EQ(back.bits, value.bits);
    }
  }
}

TEST(BFloat16Test, RoundsToNearestTiesToEven) {
  const auto rounded = [](std::uint32_t word) { return bfloat16(std::bit_cast<float>(word)).bits; };
  EXPECT_EQ(rounded(0x3f807fffU), 0x3f80U);  // below the tie
  EXPECT_EQ(rounded(0x3f808000U), 0x3f80U);  // tie, even below
  EXPECT_EQ(rounded(0x3f808001U), 0x3f81U);  // above the tie
  EXPECT_EQ(rounded(0x3f818000U), 0x3f82U);  // tie, even above
  EXPECT_EQ(rounded(0x7f7fffffU), 0x7f80U);  // the largest float becomes infinity
  EXPECT_TRUE(std::isnan(static_cast<float>(bfloat16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(rounded(0x7f800001U) & 0x7fffU, 0x7fc0U);  // a NaN in the low bits only stays NaN
}

/// What the standard says of the bits.
double value_of(std::uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
  const double magnitude = exponent == 0    ? std::ldexp(fraction, -24)
                           : exponent == 31 ? (fraction == 0 ? INFINITY : NAN)
                                            : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(Float16Test, EveryValueIsThatOfTheStandardAndSurvivesFloat) {
  for (std::uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    float16 value;
    value.bits = static_cast<std::uint16_t>(bits);
    const auto wide = static_cast<float>(value);
    const float16 back(wide);
    if (std::isnan(value_of(value.bits))) {
      EXPECT_TRUE(std::isnan(wide) && std::isnan(static_cast<float>(back))) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(wide), value_of(value.bits)) << bits;
      ASSERT_EQ(back.bits, value.bits);
    }
  }
}

// Half-way between two neighbours the even one; on either side the nearer one. Above the largest,
// as if the exponent went on.
TEST(Float16Test, RoundsToNearestTiesToEven) {
  for (std::uint16_t bits = 0; bits < 0x7c00U; ++bits) {
    const double low = value_of(bits), high = bits == 0x7bffU ? 0x1p16 : value_of(bits + 1);
    const auto middle = static_cast<float>((low + high) / 2.0);
    const std::uint16_t above = bits + 1, even = bits % 2 == 0 ? bits : above;
    for (const float sign : {1.0F, -1.0F}) {
      const std::uint16_t signs = sign < 0.0F ? 0x8000U : 0U;
      ASSERT_EQ(float16(sign * middle).bits, signs | even) << bits;
      ASSERT_EQ(float16(sign * std::nextafter(middle, 0.0F)).bits, signs | bits) << bits;
      ASSERT_EQ(float16(sign * std::nextafter(middle, INFINITY)).bits, signs | above) << bits;
    }
  }
  EXPECT_EQ(float16(65519.996F).bits, 0x7bffU);
  EXPECT_EQ(float16(65520.0F).bits, 0x7c00U);
  EXPECT_EQ(float16(-3e38F).bits, 0xfc00U);
  EXPECT_EQ(float16(1e-45F).bits, 0U);
  EXPECT_TRUE(std::isnan(static_cast<float>(float16(std::bit_cast<float>(0x7f800001U)))));
}

}  // namespace
}  // namespace tessera

#include <cmath>

#include "kernels/every_way.h"
#include "tessera/core/error.h"
#include "tessera/kernels/kernel_table.h"

namespace tessera {
namespace {

template <typename Src, typename Dst>
std::vector<Dst> cast_of(std::vector<Src> src) {
  return run_every_way([&] {
    std::vector<Dst> dst(src.size());
    StreamUnderTest stream;
    kernels_under_test().cast({.src = view_of(src), .dst = view_of(dst)}, stream);
    return dst;
  });
}

template <typename Src, typename Dst>
void check_cast_and_add() {
  for (const std::int64_t n : kSizes) {
    SCOPED_TRACE(n);
    std::vector<Src> src = random_values<Src>(n, 1);
    const std::vector<Dst> start = random_values<Dst>(n, 2);
    std::vector<Dst> converted, sums;
    for (std::size_t i = 0; i < src.size(); ++i) {
      converted.push_back(Dst(as_float(src[i])));
      sums.push_back(Dst(as_float(start[i]) + as_float(src[i])));
    }
    EXPECT_TRUE(same_bits(cast_of<Src, Dst>(src), converted));
    EXPECT_TRUE(same_bits(run_every_way([&] {
                            std::vector<Dst> dst = start;
                            StreamUnderTest stream;
                            kernels_under_test().add({.src = view_of(src), .dst = view_of(dst)},
                                                     stream);
                            return dst;
                          }),
                          sums));
  }
}

TEST(CastAndAdd, Float32ToFloat32) { check_cast_and_add<float, float>(); }
TEST(CastAndAdd, Float32ToBFloat16) { check_cast_and_add<float, bfloat16>(); }
TEST(CastAndAdd, BFloat16ToFloat32) { check_cast_and_add<bfloat16, float>(); }
TEST(CastAndAdd, BFloat16ToBFloat16) { check_cast_and_add<bfloat16, bfloat16>(); }
TEST(CastAndAdd, Float16) {
  check_cast_and_add<float, float16>();
  check_cast_and_add<float16, float>();
  check_cast_and_add<float16, float16>();
  if (testing_cuda()) return;  // Fp16.IsNotMixedWithBf16ByCuda
  check_cast_and_add<float16, bfloat16>();
  check_cast_and_add<bfloat16, float16>();
}

TEST(Cast, EveryBFloat16SurvivesTheWayThroughFloat32) {
  std::vector<bfloat16> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<std::uint16_t>(i);
  const auto back = cast_of<float, bfloat16>(cast_of<bfloat16, float>(all));
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (std::isnan(as_float(all[i]))) {
      EXPECT_TRUE(std::isnan(as_float(back[i])));
    } else {
      EXPECT_EQ(back[i].bits, all[i].bits);
    }
  }
}

TEST(Cast, RoundsAllKindsOfFloat32LikeTheScalarType) {
  std::mt19937 generator(5);
  std::vector<float> words(100003);  // any bits: denormals, infinities, NaN
  for (float& word : words) word = std::bit_cast<float>(static_cast<std::uint32_t>(generator()));
  words[0] = std::bit_cast<float>(0x3f808000U);  // a tie, to even: down
  words[1] = std::bit_cast<float>(0x3f818000U);  // a tie, to even: up
  words[2] = std::bit_cast<float>(0x7f7fffffU);  // rounds to infinity
  words[3] = std::bit_cast<float>(0x7f800001U);  // NaN whose upper half alone is infinity
  std::vector<bfloat16> expected;
  for (const float word : words) expected.emplace_back(word);
  auto converted = cast_of<float, bfloat16>(words);
  for (std::size_t i = 0; testing_cuda() && i < words.size(); ++i) {
    if (!std::isnan(words[i])) continue;
    EXPECT_TRUE(std::isnan(as_float(converted[i]))) << i;  // of other bits: GPUs have one NaN
    converted[i] = expected[i];
  }
  EXPECT_TRUE(same_bits(converted, expected));
}

template <typename T>
void check_fill() {
  for (const std::int64_t n : kSizes) {
    const auto result = run_every_way([&] {
      std::vector<T> dst(static_cast<std::size_t>(n) + 2, T(1.0F));
      StreamUnderTest stream;
      kernels_under_test().fill({.dst = view_of(dst, 1, n), .value = 3.14159F}, stream);
      return dst;
    });
    std::vector<T> expected(static_cast<std::size_t>(n) + 2, T(3.14159F));
    expected.front() = expected.back() = T(1.0F);
    EXPECT_TRUE(same_bits(result, expected)) << n;
  }
}

TEST(Fill, TouchesItsElementsOnly) {
  check_fill<float>();
  check_fill<bfloat16>();
  check_fill<float16>();
}

TEST(Elementwise, LargeTensorsAreWrittenAroundTheCacheWithTheSameBits) {
  // A little above 32 MiB of bf16.
  const std::int64_t n = testing_cuda() ? 100003 : (std::int64_t{16} << 20) + 1009;
  std::vector<float> src(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < src.size(); ++i) src[i] = static_cast<float>(i % 100003);
  std::vector<bfloat16> dst(src.size() + 3);
  StreamUnderTest stream;
  kernels_under_test().fill({.dst = view_of(dst, 1), .value = 3.0F}, stream);
  for (std::size_t i = 1; i < dst.size(); ++i) ASSERT_EQ(as_float(dst[i]), 3.0F) << i;
  kernels_under_test().cast({.src = view_of(src), .dst = view_of(dst, 1, n)}, stream);
  for (std::size_t i = 0; i < src.size(); ++i) {
    ASSERT_EQ(dst[i + 1].bits, bfloat16(src[i]).bits) << i;
  }
  EXPECT_EQ(dst.front().bits, 0);
  EXPECT_EQ(as_float(dst[dst.size() - 2]), 3.0F);
}

TEST(Fill, TakesAFactorFromMemory) {
  std::vector<float> factor{0.1F};
  std::vector<float> dst(1000);
  std::vector<bfloat16> half(1000);
  StreamUnderTest stream;
  kernels_under_test().fill({.dst = view_of(dst), .value = 3.0F, .factor = view_of(factor)},
                            stream);
  kernels_under_test().fill({.dst = view_of(half), .value = 3.0F, .factor = view_of(factor)},
                            stream);
  for (const float value : dst) EXPECT_EQ(value, 3.0F * 0.1F);
  for (const bfloat16 value : half) EXPECT_EQ(value.bits, bfloat16(3.0F * 0.1F).bits);
}

TEST(Elementwise, TakesViewsThatNoVectorIsAlignedTo) {
  for (const std::int64_t begin : {0, 1, 2, 3, 4, 7, 8}) {
    const std::int64_t n = 5003;
    std::vector<float> src = random_values<float>(n + 8, 1);
    std::vector<bfloat16> dst = random_values<bfloat16>(n + 10, 2);
    auto expected = dst;
    for (std::int64_t i = 0; i < n; ++i) {
      bfloat16& sum = expected[static_cast<std::size_t>(i + 8 - begin)];
      sum = bfloat16(as_float(sum) + src[static_cast<std::size_t>(i + begin)]);
    }
    StreamUnderTest stream;
    kernels_under_test().add({.src = view_of(src, begin, n), .dst = view_of(dst, 8 - begin, n)},
                             stream);
    EXPECT_TRUE(same_bits(dst, expected)) << "from " << begin;
  }
}

TEST(Elementwise, RejectsWhatDoesNotFit) {
  std::vector<float> three(3), four(4);
  std::vector<double> doubles(3);
  StreamUnderTest stream;
  EXPECT_THROW(kernels_under_test().cast({.src = view_of(four), .dst = view_of(three)}, stream),
               Error);
  EXPECT_THROW(kernels_under_test().add({.src = view_of(four), .dst = view_of(three)}, stream),
               Error);
  EXPECT_THROW(kernels_under_test().fill({.dst = view_of(doubles)}, stream), Error);
}

}  // namespace
}  // namespace tessera

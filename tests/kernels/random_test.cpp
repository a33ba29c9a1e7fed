#include <cmath>
#include <set>

#include "kernels/every_way.h"
#include "tessera/core/error.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/kernels/philox.h"

namespace tessera {
namespace {

TEST(Philox, GivesThePublishedVectors) {  // kat_vectors of Random123
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U}));
  constexpr std::uint32_t kOnes = 0xffffffffU;
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (PhiloxCounter{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU}));
  EXPECT_EQ(
      philox4x32({0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U}, {0xa4093822U, 0x299f31d0U}),
      (PhiloxCounter{0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U}));
}

TEST(Philox, UniformsStayInTheirInterval) {
  EXPECT_EQ(uniform_to_one(0), 0x1p-32F);
  EXPECT_EQ(uniform_to_one(0xffffffffU), 1.0F);
}

TEST(Philox, StreamsAreTheHashOfTheName) {  // FNV-1a test vectors
  static_assert(stream_of("") == 0xcbf29ce484222325U);
  static_assert(stream_of("a") == 0xaf63dc4c8601ec8cU);
  static_assert(stream_of("foobar") == 0x85944171f73967e8U);
  EXPECT_NE(stream_of("dropout", 1), stream_of("dropout", 2));
  EXPECT_NE(stream_of("dropout", 1), stream_of("dropout", 256));
}

// Runs of one seed draw the same masks for ever.
TEST(Philox, KeysOfDropoutAreThoseOfTheirPlace) {
  constexpr auto kStream = [](std::uint64_t layer, std::uint64_t call) {
    return key_of_call({.seed = 17, .stream = dropout_stream(layer)}, call).stream;
  };
  static_assert(kStream(0, 0) == 0xa706dd2f4d197e6fU);
  static_assert(kStream(2, 1) == 0xe06dd043328bd285U);
  static_assert(kStream(47, 3) == 0x59e8bba01228f1f1U);
  std::set<std::uint64_t> streams;
  for (const std::uint64_t layer : {0U, 1U, 2U}) {
    for (const std::uint64_t call : {0U, 1U, 2U}) streams.insert(kStream(layer, call));
  }
  EXPECT_EQ(streams.size(), 9U);
}

TEST(Philox, KeysSurviveTheirWayThroughMemory) {
  constexpr RandomKey kKey{.seed = ~std::uint64_t{0}, .stream = std::uint64_t{1} << 63};
  const RandomKey loaded = load_random_key(words_of(kKey).data());
  EXPECT_EQ(loaded.seed, kKey.seed);
  EXPECT_EQ(loaded.stream, kKey.stream);
}

TEST(RandomNormal, IsBoxMuller) {
  for (std::uint32_t word = 0; word < 0xfff00000U; word += 0x000fedcbU) {
    const std::uint32_t radius_word = word * 2654435761U;
    const double radius =
        std::sqrt(-2 * std::log((static_cast<double>(radius_word >> 1) + 0.5) * 0x1p-31));
    const double angle = 2 * M_PI * static_cast<double>(word) * 0x1p-32;
    const auto [first, second] = normal_pair(radius_word, word);
    // The uniform is rounded to fp32 before its logarithm is taken: near 1 this is an absolute
    // error of 2^-25 in what is then a small number, 2^-25 / radius in the result.
    const double tolerance = 4e-7 * radius + 4e-8 / std::max(radius, 1e-4);
    ASSERT_NEAR(static_cast<double>(first), radius * std::cos(angle), tolerance) << word;
    ASSERT_NEAR(static_cast<double>(second), radius * std::sin(angle), tolerance) << word;
  }
}

std::vector<float> normals(std::int64_t first, std::int64_t n, RandomKey key, float mean = 0.0F,
                           float stddev = 1.0F) {
  std::vector<float> dst(static_cast<std::size_t>(n));
  StreamUnderTest stream;
  kernels_under_test().fill_normal(
      {.dst = view_of(dst), .mean = mean, .stddev = stddev, .key = key, .first_index = first},
      stream);
  return dst;
}

TEST(FillNormal, EqualsTheDefinitionBitForBit) {
  const RandomKey key{0x0123456789abcdefU, stream_of("wte")};
  // The last one starts where the counter's lower word overflows within a vector.
  for (const std::int64_t first : {0L, 1L, 2L, 3L, 1009L, (1L << 34) - 27L}) {
    for (const std::int64_t n : kSizes) {
      const auto result = run_every_way([&] { return normals(first, n, key, 0.5F, 0.02F); });
      std::vector<float> expected;
      for (std::int64_t i = 0; i < n; ++i)
        expected.push_back(std::fma(0.02F, random_normal(key, first + i), 0.5F));
      EXPECT_TRUE(same_bits(result, expected)) << first << " + " << n;
    }
  }
}

TEST(FillNormal, ShardsReproduceTheWhole) {
  const RandomKey key{1, 2};
  const std::int64_t n = testing_cuda() ? 331 : 10007;
  const auto whole = normals(0, n, key);
  for (const std::int64_t shard : {1, 3, 64, 1001, 5000}) {
    std::vector<float> joined;
    for (std::int64_t begin = 0; begin < n; begin += shard) {
      const auto part = normals(begin, std::min<std::int64_t>(shard, n - begin), key);
      joined.insert(joined.end(), part.begin(), part.end());
    }
    EXPECT_TRUE(same_bits(joined, whole)) << "shards of " << shard;
  }
}

TEST(FillNormal, HasTheMomentsOfANormal) {
  const std::int64_t count = testing_cuda() ? 1 << 18 : 1 << 22;
  const auto values = normals(0, count, {42, 7});
  double sum = 0, squares = 0, cubes = 0, fourths = 0, neighbours = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = static_cast<double>(values[i]);
    sum += x;
    squares += x * x;
    cubes += x * x * x;
    fourths += x * x * x * x;
    if (i > 0) neighbours += x * static_cast<double>(values[i - 1]);
  }
  const auto n = static_cast<double>(count);
  const double deviation = 5 / std::sqrt(n);  // five standard errors
  EXPECT_NEAR(sum / n, 0, deviation);
  EXPECT_NEAR(squares / n, 1, std::sqrt(2.0) * deviation);
  EXPECT_NEAR(cubes / n, 0, std::sqrt(15.0) * deviation);
  EXPECT_NEAR(fourths / n, 3, std::sqrt(96.0) * deviation);
  EXPECT_NEAR(neighbours / n, 0, deviation);
}

TEST(FillNormal, SeedsAndStreamsDiffer) {
  const auto base = normals(0, 1000, {1, 1});
  for (const RandomKey other : {RandomKey{2, 1}, RandomKey{1, 2}, RandomKey{1, 1ULL << 32 | 1},
                                RandomKey{1ULL << 32 | 1, 1}}) {
    const auto values = normals(0, 1000, other);
    double product = 0;
    for (std::size_t i = 0; i < 1000; ++i)
      product += static_cast<double>(base[i]) * static_cast<double>(values[i]);
    EXPECT_LT(std::abs(product / 1000), 0.16);
  }
}

}  // namespace
}  // namespace tessera

#include <cmath>

#include "kernels/every_way.h"
#include "tessera/core/error.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/kernels/philox.h"

namespace tessera::dropout_test {
namespace {

constexpr RandomKey kKey{77, dropout_stream(2)};
constexpr std::uint64_t kCall = 5;

template <typename T>
std::vector<T> dropout_of(std::vector<T> x, float probability, std::int64_t first) {
  std::vector<std::int64_t> key = words_of(kKey);
  StreamUnderTest stream;  // in place: y may alias x
  kernels_under_test().dropout({.x = view_of(x),
                                .y = view_of(x),
                                .probability = probability,
                                .key = view_of(key),
                                .call = kCall,
                                .first_index = first},
                               stream);
  return x;
}

template <typename T>
void check(std::int64_t n, float probability, std::int64_t first) {
  const auto x = random_values<T>(n, 3);
  const auto result = run_every_way([&] { return dropout_of(x, probability, first); });
  const RandomKey key = key_of_call(kKey, kCall);
  std::vector<T> expected;
  for (std::int64_t i = 0; i < n; ++i) {
    const bool drop = static_cast<double>(random_word(key, first + i)) <
                      static_cast<double>(probability) * 0x1p32;
    expected.push_back(
        T(drop ? 0.0F : as_float(x[static_cast<std::size_t>(i)]) * (1.0F / (1.0F - probability))));
  }
  EXPECT_TRUE(same_bits(result, expected)) << n << " from " << first << " with " << probability;
}

TEST(Dropout, DrawsTheMaskByGlobalIndex) {
  for (const std::int64_t n : kSizes) {
    for (const float probability : {0.0F, 0.1F, 0.5F, 0.999F}) {
      for (const std::int64_t first : {0, 1, 6, 1009}) {
        check<float>(n, probability, first);
        check<bfloat16>(n, probability, first);
        check<float16>(n, probability, first);
      }
    }
  }
}

TEST(Dropout, ShardsReproduceTheWhole) {
  const std::int64_t n = testing_cuda() ? 331 : 10007;
  const auto x = random_values<float>(n, 4);
  const auto whole = dropout_of(x, 0.3F, 0);
  for (const std::int64_t shard : {1, 5, 66, 4097}) {
    std::vector<float> joined;
    for (std::int64_t begin = 0; begin < n; begin += shard) {
      const auto end = std::min<std::int64_t>(begin + shard, n);
      const auto part =
          dropout_of(std::vector<float>(x.begin() + begin, x.begin() + end), 0.3F, begin);
      joined.insert(joined.end(), part.begin(), part.end());
    }
    EXPECT_TRUE(same_bits(joined, whole)) << "shards of " << shard;
  }
}

/// Two samples of a micro-batch of five have the masks that they have in one of two.
TEST(Dropout, MasksAreThoseOfTheSample) {
  for (const std::int64_t numel : {1, 7, 64, 331}) {
    const auto batch = [&](std::int64_t first, std::int64_t samples) {
      std::vector<float> x(static_cast<std::size_t>(numel * samples), 1.0F);
      std::vector<std::int64_t> key = words_of(kKey), number{first};
      StreamUnderTest stream;
      kernels_under_test().dropout({.x = view_of(x),
                                    .y = view_of(x),
                                    .probability = 0.4F,
                                    .key = view_of(key),
                                    .call = kCall,
                                    .first_sample = view_of(number),
                                    .sample_numel = numel},
                                   stream);
      return x;
    };
    const auto five = batch(10, 5), two = batch(12, 2);
    EXPECT_TRUE(
        same_bits(two, std::vector<float>(five.begin() + 2 * numel, five.begin() + 4 * numel)));
    const std::vector<float> ones(static_cast<std::size_t>(2 * numel), 1.0F);
    EXPECT_TRUE(same_bits(two, dropout_of(ones, 0.4F, 12 * numel)));
  }
}

TEST(Dropout, DropsTheGivenShareAndKeepsTheMean) {
  constexpr std::int64_t kCount = 1 << 20;
  const auto y = dropout_of(std::vector<float>(kCount, 1.0F), 0.25F, 0);
  double dropped = 0, sum = 0;
  for (const float value : y) {
    dropped += value == 0.0F ? 1 : 0;
    sum += static_cast<double>(value);
  }
  const double five_errors = 5 * std::sqrt(0.25 * 0.75 / kCount);
  EXPECT_NEAR(dropped / kCount, 0.25, five_errors);
  EXPECT_NEAR(sum / kCount, 1.0, five_errors / 0.75);
}

TEST(Dropout, RejectsWhatDoesNotFit) {
  EXPECT_THROW(dropout_of(std::vector<float>(3), 1.0F, 0), Error);
  EXPECT_THROW(dropout_of(std::vector<float>(3), -0.1F, 0), Error);
  EXPECT_THROW(dropout_of(std::vector<float>(3), 0.1F, -1), Error);
  std::vector<float> x(3);
  std::vector<std::int64_t> key = words_of(kKey);
  for (const TensorView& wrong : {TensorView(), view_of(key, 0, 1), view_of(x, 0, 2)}) {
    StreamUnderTest stream;
    EXPECT_THROW(
        kernels_under_test().dropout({.x = view_of(x), .y = view_of(x), .key = wrong}, stream),
        Error);
  }
}

}  // namespace
}  // namespace tessera::dropout_test

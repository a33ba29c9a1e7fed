#include "tessera/kernels/exact_sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "kernels/every_way.h"
#include "tessera/core/error.h"
#include "tessera/kernels/kernel_table.h"

namespace tessera {
namespace {

using Words = std::vector<std::int64_t>;
__extension__ using Int128 = __int128;

void add(Words& words, double term) {
  add_exactly(std::bit_cast<std::uint64_t>(term), [&](int word, std::int64_t value) {
    words.at(static_cast<std::size_t>(word)) += value;
  });
}

double rounded(const Words& words) { return std::bit_cast<double>(exact_sum_bits(words.data())); }

double sum_of(const std::vector<double>& terms) {
  Words words(kExactSumWords);
  for (const double term : terms) add(words, term);
  return rounded(words);
}

TEST(ExactSum, KeepsWhatRoundingWouldLose) {
  EXPECT_EQ(sum_of({}), 0.0);
  EXPECT_EQ(sum_of({0.0, -0.0}), 0.0);
  EXPECT_EQ(sum_of({1e17, 1.0, -1e17, 1.0}), 2.0);
  const double smallest = std::ldexp(1.0, -298), largest = std::ldexp(1.0, 262);
  EXPECT_EQ(sum_of({smallest}), smallest);
  EXPECT_EQ(sum_of({largest, smallest, -largest}), smallest);
  EXPECT_EQ(sum_of({-largest, -smallest, largest}), -smallest);
  EXPECT_EQ(sum_of({std::ldexp(1.0 + 0x1p-52, -298), -smallest}), std::ldexp(1.0, -350));
}

TEST(ExactSum, RoundsOnceToNearestEven) {
  const double half = 0x1p-53, odd = 1.0 + 0x1p-52;
  EXPECT_EQ(sum_of({1.0, half}), 1.0);
  EXPECT_EQ(sum_of({odd, half}), 1.0 + 0x1p-51);
  EXPECT_EQ(sum_of({1.0, half, 0x1p-200}), odd);
  EXPECT_EQ(sum_of({-1.0, -half, -0x1p-200}), -odd);
  EXPECT_EQ(sum_of({odd, half, -0x1p-200}), odd);
  EXPECT_EQ(sum_of({2.0 - 0x1p-52, half}), 2.0);  // the carry goes through every bit
  // Two roundings, to 64 and then to 53 bits, would give 1.
  EXPECT_EQ(sum_of({1.0, half, 0x1p-66}), odd);
}

TEST(ExactSum, IsThatOfIntegers) {
  // Multiples of 2^-70 below 2^-10: their sum is exact in 128 bits, and the compiler rounds it.
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<double> terms;
    Int128 expected = 0;
    for (int i = 0; i < 1000; ++i) {
      // 53 bits and a random exponent
      const auto mantissa = static_cast<std::int64_t>(random() >> 11) *
                            (random() % 3 == 0 && trial % 2 == 0 ? -1 : 1);
      const int shift = static_cast<int>(random() % 60);
      expected += static_cast<Int128>(mantissa) << shift;
      terms.push_back(std::ldexp(static_cast<double>(mantissa), shift - 130));
    }
    EXPECT_EQ(sum_of(terms), std::ldexp(static_cast<double>(expected), -130)) << trial;
    std::shuffle(terms.begin(), terms.end(), random);
    EXPECT_EQ(sum_of(terms), std::ldexp(static_cast<double>(expected), -130)) << trial;
  }
}

TEST(ExactSum, HoldsTheCarriesOfManyTerms) {
  Words words(kExactSumWords);
  add(words, 2.0 - 0x1p-52);
  for (std::int64_t& word : words) word *= kExactSumTerms;  // as so many equal terms
  EXPECT_EQ(rounded(words), std::ldexp(2.0 - 0x1p-52, 37));
  for (std::int64_t& word : words) word = -word;
  EXPECT_EQ(rounded(words), -std::ldexp(2.0 - 0x1p-52, 37));
}

TEST(ExactSum, ShowsWhatIsNotFinite) {
  EXPECT_EQ(sum_of({1.0, INFINITY, 2.0}), INFINITY);
  EXPECT_EQ(sum_of({1.0, -INFINITY, -INFINITY}), -INFINITY);
  EXPECT_TRUE(std::isnan(sum_of({INFINITY, -INFINITY})));
  EXPECT_TRUE(std::isnan(sum_of({1.0, NAN})));
  EXPECT_TRUE(std::isnan(sum_of({-NAN, INFINITY})));
}

// ---- Kernels
// --------------------------------------------------------------------------------------

/// The order within a block that the kernel promises, spelled out.
template <typename T>
double block_square(const T* x) {
  double lane[8] = {};
  for (std::int64_t i = 0; i < kNormBlock; ++i) {
    const auto value = static_cast<double>(as_float(x[i]));
    lane[i % 8] += value * value;
  }
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

template <typename T>
void check_squares(std::int64_t blocks) {
  SCOPED_TRACE(blocks);
  std::vector<T> x = random_values<T>(blocks * kNormBlock, 7);
  for (std::size_t i = 0; i < x.size(); i += 97) {
    x[i] = T(std::is_same_v<T, float16> ? 6e4F : 1e20F);  // its square exceeds fp32, or fp16
  }
  Words expected(kExactSumWords);
  add(expected, 0.5);  // was there before
  for (std::int64_t i = 0; i < blocks; ++i) add(expected, block_square(x.data() + i * kNormBlock));
  const auto words = run_every_way([&] {
    Words result(kExactSumWords);
    add(result, 0.5);
    StreamUnderTest stream;
    kernels_under_test().exact_squares({.x = view_of(x), .words = view_of(result)}, stream);
    return result;
  });
  EXPECT_EQ(words, expected);
}

TEST(ExactSquares, AddsTheBlocksInThePromisedOrder) {
  for (const std::int64_t blocks : {0, 1, 2, 3, 7, 15, 16, 63, 64, 65, 255, 257, 1009}) {
    check_squares<float>(blocks);
    check_squares<bfloat16>(blocks);
    check_squares<float16>(blocks);
  }
}

TEST(ExactSquares, DependOnNoBoundary) {
  std::vector<float> x = random_values<float>(100 * kNormBlock, 11);
  StreamUnderTest stream;
  Words whole(kExactSumWords), parts(kExactSumWords);
  kernels_under_test().exact_squares({.x = view_of(x), .words = view_of(whole)}, stream);
  for (const auto& [begin, end] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{61, 100}, {0, 1}, {1, 61}}) {
    kernels_under_test().exact_squares(
        {.x = view_of(x, begin * kNormBlock, (end - begin) * kNormBlock), .words = view_of(parts)},
        stream);
  }
  EXPECT_EQ(parts, whole);
}

TEST(ExactSquares, RejectsWhatDoesNotFit) {
  std::vector<float> x(65);
  Words words(kExactSumWords);
  StreamUnderTest stream;
  ExactSquaresArgs args{.x = view_of(x), .words = view_of(words)};
  EXPECT_THROW(kernels_under_test().exact_squares(args, stream), Error);
  args = {.x = view_of(x, 0, 64), .words = view_of(words, 0, kExactSumWords - 1)};
  EXPECT_THROW(kernels_under_test().exact_squares(args, stream), Error);
}

TEST(ExactSumKernel, AddsEveryValue) {
  for (const std::int64_t n : kSizes) {
    auto x = random_values<float>(n, 3);
    for (std::size_t i = 0; i < x.size(); i += 7) x[i] *= 1e12F;
    Words expected(kExactSumWords);
    for (const float value : x) add(expected, static_cast<double>(value));
    const auto words = run_every_way([&] {
      Words result(kExactSumWords);
      StreamUnderTest stream;
      kernels_under_test().exact_sum({.x = view_of(x), .words = view_of(result)}, stream);
      return result;
    });
    EXPECT_EQ(rounded(words), rounded(expected)) << n;
    EXPECT_EQ(words, expected) << n;
  }
}

// ---- What a step makes of them
// ---------------------------------------------------------------------

float loss_scale_of(std::int64_t count) {
  std::vector<std::int64_t> counts{count};
  std::vector<float> scale(1, -1.0F);
  StreamUnderTest stream;
  kernels_under_test().loss_scale({.count = view_of(counts), .scale = view_of(scale)}, stream);
  return scale[0];
}

TEST(LossScale, IsTheReciprocalOfTheCount) {
  EXPECT_EQ(loss_scale_of(4), 0.25F);
  const auto many = (std::int64_t{1} << 33) + 1;  // more than an fp32 can count
  EXPECT_EQ(loss_scale_of(many), static_cast<float>(1.0 / static_cast<double>(many)));
  EXPECT_EQ(loss_scale_of(0), 0.0F);
}

struct Results {
  double losses, norm;
  float clip_factor;
};

Results results_of(const std::vector<double>& losses, const std::vector<double>& squares,
                   double clip_norm) {
  Words loss_words(kExactSumWords), square_words(kExactSumWords);
  for (const double loss : losses) add(loss_words, loss);
  for (const double square : squares) add(square_words, square);
  std::vector<double> results(2, -1.0);
  std::vector<float> clip_factor(1, -1.0F);
  StreamUnderTest stream;
  kernels_under_test().step_results({.losses = view_of(loss_words),
                                     .squares = view_of(square_words),
                                     .clip_norm = clip_norm,
                                     .results = view_of(results),
                                     .clip_factor = view_of(clip_factor)},
                                    stream);
  return {results[0], results[1], clip_factor[0]};
}

TEST(StepResults, ClipsLargeGradientsOnly) {
  const Results results = results_of({1.5, -4.0}, {9.0, 16.0}, 10.0);
  EXPECT_EQ(results.losses, -2.5);
  EXPECT_EQ(results.norm, 5.0);
  EXPECT_EQ(results.clip_factor, 1.0F);
  EXPECT_EQ(results_of({}, {9.0, 16.0}, 2.5).clip_factor, static_cast<float>(2.5 / (5.0 + 1e-6)));
  EXPECT_EQ(results_of({}, {9.0, 16.0}, 0.0).clip_factor, 1.0F);
}

TEST(StepResults, AreZeroWithoutTerms) {
  const Results results = results_of({}, {}, 1.0);
  EXPECT_EQ(results.losses, 0.0);
  EXPECT_EQ(results.norm, 0.0);
  EXPECT_EQ(results.clip_factor, 1.0F);
}

TEST(StepResults, ShowNaN) {
  const Results results = results_of({1.0}, {1.0, NAN}, 1.0);
  EXPECT_TRUE(std::isnan(results.norm));
  EXPECT_TRUE(std::isnan(results.clip_factor));
  EXPECT_EQ(results.losses, 1.0);
  EXPECT_TRUE(std::isnan(results_of({NAN}, {1.0}, 1.0).losses));
  EXPECT_EQ(results_of({}, {INFINITY}, 1.0).clip_factor, 0.0F);
}

}  // namespace
}  // namespace tessera

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/support.h"
#include "tessera/core/error.h"
#include "tessera/kernels/kernel_table.h"

namespace tessera::cross_entropy_test {
namespace {

constexpr float kCanary = 1234.0F;
constexpr std::int32_t kIgnored = -100;

/// Logits (rows, columns) of which the first `vocab` count, in rows `stride` apart.
struct Problem {
  std::int64_t rows, vocab, columns, stride;
  float scale = 0.125F;
  float soft_cap = 0.0F;

  /// A logit as the softmax takes it, and the derivative.
  double capped(double x) const {
    const auto cap = static_cast<double>(soft_cap);
    return cap == 0.0 ? x : cap * std::tanh(x / cap);
  }
  double slope(double x) const {
    return soft_cap == 0.0F ? 1.0 : 1.0 - std::pow(std::tanh(x / static_cast<double>(soft_cap)), 2);
  }

  template <typename T>
  std::vector<T> logits(float size = 3.0F) const {
    auto values = random_values<T>(rows * stride, 1, size);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = vocab; c < stride; ++c) {
        values[static_cast<std::size_t>(r * stride + c)] = T(c < columns ? 1e30F : kCanary);
      }
    }
    return values;
  }
  std::vector<std::int32_t> targets() const {
    std::vector<std::int32_t> result;
    for (std::int64_t r = 0; r < rows; ++r) {
      result.push_back(r % 5 == 3 ? kIgnored : static_cast<std::int32_t>(r * 7919 % vocab));
    }
    return result;
  }
  template <typename T>
  TensorView view(std::vector<T>& logits) const {
    TensorView whole = view_of(logits, Shape{rows, stride});
    return whole.narrow(1, 0, columns);
  }
};

template <typename T>
struct Result {
  std::vector<float> losses;
  std::vector<T> logits;
};

template <typename T>
Result<T> cross_entropy_of(const Problem& p, std::vector<T> logits, bool gradient = true) {
  Result<T> result{std::vector<float>(static_cast<std::size_t>(p.rows)), std::move(logits)};
  auto targets = p.targets();
  float scale = p.scale;
  StreamUnderTest stream;
  kernels_under_test().cross_entropy({.logits = p.view(result.logits),
                                      .targets = view_of(targets),
                                      .losses = view_of(result.losses),
                                      .vocab_size = p.vocab,
                                      .ignore_index = kIgnored,
                                      .gradient = gradient,
                                      .scale = TensorView(&scale, DType::kFloat32, Shape{1}),
                                      .soft_cap = p.soft_cap},
                                     stream);
  return result;
}

template <typename T>
void check(const Problem& p, float size) {
  SCOPED_TRACE(concat(p.rows, " rows of ", p.vocab, " in ", p.columns, ", ", p.stride,
                      " apart, cap ", p.soft_cap));
  const auto logits = p.logits<T>(size);
  const auto targets = p.targets();
  std::vector<float> losses;
  const auto gradient = run_every_way([&] {
    auto result = cross_entropy_of(p, logits);
    if (losses.empty()) losses = result.losses;
    EXPECT_TRUE(same_bits(result.losses, losses));
    return result.logits;
  });
  // exp is good to 2 ulp, the sum and the scaling add a little; a bf16 is rounded by up to 2^-8, an
  // fp16 by 2^-11, or 2^-25 where it is subnormal.
  const double relative = 8 * 0x1p-24 + (sizeof(T) == 2 ? rounding<T>() : 0.0);
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const T* const row = logits.data() + r * p.stride;
    const T* const got = gradient.data() + r * p.stride;
    const auto target = targets[static_cast<std::size_t>(r)];
    const auto logit = [&](std::int64_t c) { return static_cast<double>(as_float(row[c])); };
    double maximum = -INFINITY, sum = 0;
    for (std::int64_t c = 0; c < p.vocab; ++c) maximum = std::max(maximum, p.capped(logit(c)));
    for (std::int64_t c = 0; c < p.vocab; ++c) sum += std::exp(p.capped(logit(c)) - maximum);
    const double loss =
        target == kIgnored ? 0.0 : std::log(sum) + maximum - p.capped(logit(target));
    // What tanh is off by: a few units in the last place of the cap.
    const double of_cap = static_cast<double>(p.soft_cap) * 0x1p-21;
    ASSERT_NEAR(static_cast<double>(losses[static_cast<std::size_t>(r)]), loss,
                3e-7 * (1 + loss) + 2 * of_cap);
    for (std::int64_t c = 0; c < p.stride; ++c) {
      double expected = 0;
      if (c >= p.columns) {
        expected = static_cast<double>(as_float(T(kCanary)));
      } else if (c < p.vocab && target != kIgnored) {
        const double probability = std::exp(p.capped(logit(c)) - maximum) / sum;
        expected = (probability - (c == target ? 1.0 : 0.0)) * static_cast<double>(p.scale) *
                   p.slope(logit(c));
      }
      // A difference x - maximum is rounded to fp32 before exp, which matters when it is large.
      const double spread = c < p.vocab ? maximum - p.capped(logit(c)) : 0.0;
      // And 1 - tanh^2 is off by as much where it is next to nothing.
      const double of_slope = p.soft_cap == 0.0F ? 0.0 : 0x1p-20 * static_cast<double>(p.scale);
      const double tolerance = (relative + spread * 0x1p-24 + 2 * of_cap) * std::abs(expected) +
                               (c == target ? 4 * 0x1p-24 * static_cast<double>(p.scale) : 0.0) +
                               of_slope + least_rounding<T>() + 1e-38;
      ASSERT_NEAR(static_cast<double>(as_float(got[c])), expected, tolerance)
          << "row " << r << " column " << c;
    }
  }
}

TEST(CrossEntropy, GivesLossAndGradient) {
  for (const std::int64_t vocab : {1, 2, 7, 16, 31, 32, 33, 65, 127, 1009, 50257}) {
    const std::int64_t rows = vocab > 10000 ? 5 : 23;
    for (const float size : {3.0F, 30.0F}) {
      check<float>({rows, vocab, vocab, vocab}, size);
      check<float>({rows, vocab, vocab + 5, vocab + 9}, size);
      check<bfloat16>({rows, vocab, vocab + 3, vocab + 3}, size);
      check<float16>({rows, vocab, vocab + 3, vocab + 3}, size);
    }
  }
  check<float>({0, 7, 7, 7}, 3.0F);
}

// Caps that bend logits and one that hardly does.
TEST(CrossEntropy, CapsLogits) {
  for (const std::int64_t vocab : {1, 2, 33, 127, 1009}) {
    for (const float cap : {2.0F, 30.0F, 500.0F}) {
      check<float>({23, vocab, vocab + 5, vocab + 9, 0.125F, cap}, 3.0F);
      check<bfloat16>({23, vocab, vocab + 3, vocab + 3, 0.125F, cap}, 10.0F);
      check<float16>({23, vocab, vocab, vocab, 0.125F, cap}, 3.0F);
    }
  }
}

TEST(CrossEntropy, WithoutGradientLeavesTheLogits) {
  const Problem p{11, 65, 70, 70};
  const auto logits = p.logits<float>();
  const auto result = cross_entropy_of(p, logits, false);
  EXPECT_TRUE(same_bits(result.logits, logits));
  EXPECT_TRUE(same_bits(result.losses, cross_entropy_of(p, logits).losses));
  Problem capped = p;
  capped.soft_cap = 4.0F;
  EXPECT_TRUE(same_bits(cross_entropy_of(capped, logits, false).logits, logits));
}

/// Hits of some rows that have two largest logits, at columns 3 and 6 (as far as there are).
template <typename T>
void check_hits(const Problem& p, float size, bool of_classes) {
  SCOPED_TRACE(concat(p.rows, " rows of ", p.vocab, " of size ", size));
  auto logits = p.logits<T>(size);
  auto targets = p.targets();
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const auto target = targets[static_cast<std::size_t>(r)];
    T* const row = logits.data() + r * p.stride;
    if (r % 3 == 0 && target != kIgnored) row[target] = T(100.0F);
    if (r % 3 == 1) {
      row[std::min<std::int64_t>(3, p.vocab - 1)] = T(100.0F);
      row[std::min<std::int64_t>(6, p.vocab - 1)] = T(100.0F);
      if (target != kIgnored) {
        targets[static_cast<std::size_t>(r)] =
            static_cast<std::int32_t>(std::min<std::int64_t>(r % 2 == 0 ? 3 : 6, p.vocab - 1));
      }
    }
  }
  std::vector<std::int64_t> before{40, 50};
  if (of_classes) before.resize(static_cast<std::size_t>(hit_words(p.vocab)), 60);
  std::vector<std::int64_t> expected = before;
  const auto add = [&](std::int64_t c, int word) {
    if (of_classes) ++expected[static_cast<std::size_t>(kHitWords + kClassHitWords * c + word)];
  };
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const auto target = targets[static_cast<std::size_t>(r)];
    if (target == kIgnored) continue;
    const T* const row = logits.data() + r * p.stride;
    const T* const first =
        std::max_element(row, row + p.vocab, [](T a, T b) { return as_float(a) < as_float(b); });
    expected[0] += first - row == target ? 1 : 0;
    ++expected[1];
    if (first - row == target) add(target, 0);
    add(first - row, 1);
    add(target, 2);
  }
  const auto hits = run_every_way([&] {
    std::vector<std::int64_t> words = before;
    std::vector<float> losses(static_cast<std::size_t>(p.rows));
    auto copy = logits;
    StreamUnderTest stream;
    kernels_under_test().cross_entropy({.logits = p.view(copy),
                                        .targets = view_of(targets),
                                        .losses = view_of(losses),
                                        .vocab_size = p.vocab,
                                        .ignore_index = kIgnored,
                                        .gradient = false,
                                        .hits = view_of(words)},
                                       stream);
    return words;
  });
  EXPECT_EQ(hits, expected);
}

TEST(CrossEntropy, CountsTargetsThatAreTheFirstOfTheLargestLogits) {
  for (const std::int64_t vocab : {1, 2, 7, 33, 1009, 50257}) {
    const std::int64_t rows = vocab > 10000 ? 9 : 37;
    for (const float size : {0.0F, 3.0F}) {  // at 0 all logits are equal
      check_hits<float>({rows, vocab, vocab + 5, vocab + 9}, size, false);
      check_hits<bfloat16>({rows, vocab, vocab + 3, vocab + 3}, size, false);
      check_hits<float16>({rows, vocab, vocab, vocab}, size, false);
    }
  }
}

TEST(CrossEntropy, CountsEachClass) {
  for (const std::int64_t vocab : {1, 2, 7, 33, 1009}) {
    for (const float size : {0.0F, 3.0F}) {
      check_hits<float>({37, vocab, vocab + 5, vocab + 9}, size, true);
      check_hits<bfloat16>({37, vocab, vocab, vocab}, size, true);
      check_hits<float16>({37, vocab, vocab + 3, vocab + 3}, size, true);
    }
  }
}

/// Logits that are not numbers have no largest one: nothing is predicted, and none is out of range.
TEST(CrossEntropy, CountsNoPredictionOfLogitsThatAreNotNumbers) {
  std::vector<float> logits(3, std::numeric_limits<float>::quiet_NaN()), losses(1);
  std::vector<std::int32_t> targets{1};
  std::vector<std::int64_t> hits(static_cast<std::size_t>(hit_words(3)));
  StreamUnderTest stream;
  kernels_under_test().cross_entropy(
      {.logits = TensorView(logits.data(), DType::kFloat32, Shape{1, 3}),
       .targets = view_of(targets),
       .losses = view_of(losses),
       .vocab_size = 3,
       .gradient = false,
       .hits = view_of(hits)},
      stream);
  EXPECT_EQ(hits, (std::vector<std::int64_t>{0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0}));
}

TEST(CrossEntropyErrors, HitsAreCountedWithoutAGradient) {
  const Problem p{2, 9, 9, 9};
  auto logits = p.logits<float>();
  auto targets = p.targets();
  std::vector<float> losses(2);
  std::vector<std::int64_t> hits(2);
  const CrossEntropyArgs args{.logits = p.view(logits),
                              .targets = view_of(targets),
                              .losses = view_of(losses),
                              .vocab_size = p.vocab,
                              .ignore_index = kIgnored,
                              .hits = view_of(hits)};
  StreamUnderTest stream;
  EXPECT_THROW(kernels_under_test().cross_entropy(args, stream), Error);
  CrossEntropyArgs odd = args;
  odd.gradient = false;
  hits.resize(kHitWords + kClassHitWords);
  odd.hits = view_of(hits);
  EXPECT_THROW(kernels_under_test().cross_entropy(odd, stream), Error);
}

TEST(CrossEntropy, GradientIsTheSlopeOfTheLoss) {
  const Problem p{2, 9, 9, 9, 1.0F};
  const auto logits = p.logits<float>();
  const auto gradient = cross_entropy_of(p, logits).logits;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    auto up = logits, down = logits;
    up[i] += 0x1p-6F;
    down[i] -= 0x1p-6F;
    const std::size_t row = i / 9;
    const float slope = (cross_entropy_of(p, up, false).losses[row] -
                         cross_entropy_of(p, down, false).losses[row]) *
                        32.0F;
    EXPECT_NEAR(gradient[i], slope, 1e-4F);
  }
}

TEST(CrossEntropy, SurvivesExtremeLogits) {
  const Problem p{1, 4, 4, 4, 1.0F};  // the target is column 0
  const auto large = cross_entropy_of<float>(p, {3e38F, -3e38F, 0.0F, -INFINITY});
  EXPECT_EQ(large.losses[0], 0.0F);
  EXPECT_EQ(large.logits, (std::vector<float>{0, 0, 0, 0}));
  const auto lost = cross_entropy_of<float>(p, {-200.0F, 0.0F, -INFINITY, -INFINITY});
  EXPECT_EQ(lost.losses[0], 200.0F);
  EXPECT_EQ(lost.logits, (std::vector<float>{-1, 1, 0, 0}));
}

TEST(CrossEntropy, LogitsOfMinusInfinityCountNothing) {
  const Problem p{1, 64, 64, 64, 1.0F};  // the target is column 0
  std::vector<float> logits(64, -INFINITY);
  logits[0] = logits[63] = 2.0F;
  const auto result = cross_entropy_of(p, logits);
  EXPECT_NEAR(result.losses[0], std::log(2.0F), 1e-6F);
  std::vector<float> expected(64, 0.0F);
  expected[0] = -0.5F;
  expected[63] = 0.5F;
  EXPECT_EQ(result.logits, expected);
}

TEST(CrossEntropy, ReportsNaN) {
  const Problem p{1, 40, 40, 40};
  for (const std::size_t where : {std::size_t{0}, std::size_t{1}, std::size_t{39}}) {
    auto logits = p.logits<float>();
    logits[where] = NAN;
    EXPECT_TRUE(std::isnan(cross_entropy_of(p, logits).losses[0])) << where;
  }
}

TEST(CrossEntropy, NeverTakesTargetsOutsideOfTheVocabulary) {
  for (const std::int32_t wrong : {7, -2, 1 << 30}) {
    std::vector<float> logits(3 * 8, 0.5F), losses(3);
    std::vector<std::int32_t> targets{2, wrong, 6};
    StreamUnderTest stream;
    const auto run = [&] {
      kernels_under_test().cross_entropy({.logits = view_of(logits, Shape{3, 8}),
                                          .targets = view_of(targets),
                                          .losses = view_of(losses),
                                          .vocab_size = 7},
                                         stream);
    };
    if (!testing_cuda()) {
      EXPECT_THROW(run(), Error);
      continue;
    }
    // The host cannot see them: the loss says so, and the row takes no part.
    run();
    EXPECT_TRUE(std::isnan(losses[1]));
    for (std::size_t c = 0; c < 8; ++c) EXPECT_EQ(logits[8 + c], 0.0F);
    for (const std::size_t row : {0U, 2U}) {
      EXPECT_NEAR(losses[row], std::log(7.0F), 1e-6F);
      EXPECT_NEAR(logits[8 * row], 1.0F / 7.0F, 1e-6F);
    }
  }
}

TEST(CrossEntropy, RejectsWhatDoesNotFit) {
  std::vector<float> logits(8), losses(1);
  std::vector<std::int32_t> targets{0};
  StreamUnderTest stream;
  CrossEntropyArgs args{.logits = view_of(logits, Shape{1, 8}),
                        .targets = view_of(targets),
                        .losses = view_of(losses),
                        .vocab_size = 9};
  EXPECT_THROW(kernels_under_test().cross_entropy(args, stream), Error);
  args.vocab_size = 8;
  args.losses = view_of(losses, 0, 0);
  EXPECT_THROW(kernels_under_test().cross_entropy(args, stream), Error);
}

}  // namespace
}  // namespace tessera::cross_entropy_test

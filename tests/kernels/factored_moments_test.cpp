#include "tessera/kernels/factored_moments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "kernels/every_way.h"
#include "kernels/golden.h"
#include "tessera/core/error.h"
#include "tessera/kernels/exact_sum.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/kernels/optimizer.h"
#include "tessera/kernels/philox.h"

namespace tessera::test::factored_moments_test {
namespace {

using Doubles = std::vector<double>;
using Floats = std::vector<float>;
using Words = std::vector<std::int64_t>;
using Matrices = std::vector<FactoredMatrix>;
using Parts = std::vector<FactoredPart>;

constexpr float kDecay = 0.6F, kEpsilon = 1e-30F;
/// Rounding one fp32 operation changes a result by no more than this part of it.
constexpr double kUnit = 0x1p-24;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
double widened(float value) { return static_cast<double>(value); }

/// Matrices in a flat parameter: each begins where the one before ends, or at the next multiple of
/// 64 elements.
struct Layout {
  Matrices matrices;
  std::vector<std::int64_t> begins;  ///< of their elements
  std::int64_t numel = 0, numbers = 0;

  void add(std::int64_t rows, std::int64_t columns, bool joined) {
    const auto index = static_cast<std::int64_t>(matrices.size());
    const SegmentRates rates{.weight_decay = index % 2 == 0 ? 0.1F : 0.0F,
                             .learning_rate_scale = index % 3 == 2 ? 0.3F : 1.0F};
    if (!joined) numel = (numel + kNormBlock - 1) / kNormBlock * kNormBlock;
    matrices.push_back(factored_matrix(rows, columns, numbers, index, rates));
    begins.push_back(numel);
    numel += rows * columns;
    numbers += matrices.back().numbers();
  }

  /// The parts of them that lie in [begin, end).
  Parts parts(std::int64_t begin, std::int64_t end) const {
    Parts parts;
    for (std::size_t m = 0; m < matrices.size(); ++m) {
      const std::int64_t from = std::max(begin, begins[m]);
      const std::int64_t to = std::min(end, begins[m] + matrices[m].numel());
      if (from < to) parts.push_back({matrices[m], from - begin, from - begins[m], to - from});
    }
    return parts;
  }
  Parts parts() const { return parts(0, numel); }
};

/// Odd sizes, vectors, one row and one column, narrow and wide; three that are joined, as the
/// weights of queries, keys and values are.
Layout odd_layout() {
  Layout layout;
  layout.add(6, 10, false);
  layout.add(7, 1, false);
  layout.add(1, 5, true);
  layout.add(9, 1, true);
  layout.add(65, 33, false);
  layout.add(11, 33, true);
  layout.add(11, 33, true);
  layout.add(3, 130, false);
  layout.add(300, 3, false);
  layout.add(2, 1000, true);
  layout.add(1, 1, true);
  layout.add(64, 64, false);
  layout.add(testing_cuda() ? 40 : 400, 257, true);
  return layout;
}

/// Gradients of which every column and some rows have a size of their own.
Floats gradients_of(std::int64_t n, unsigned seed) {
  Floats values = random_values<float>(n, seed);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] *= std::ldexp(1.0F, -static_cast<int>(i % 13));
  return values;
}

double norm_of(const Floats& values) {
  double squares = 0.0;
  for (const float value : values) squares += widened(value) * widened(value);
  return std::sqrt(squares);
}

/// A parameter with what a step needs and leaves.
struct State {
  Layout layout;
  Floats master, gradient, moments, factors;
  std::vector<bfloat16> parameter;
  Floats scalars = Floats(kOptimizerScalars), gradient_scale{0.7F};
  Doubles gradient_norm;
  Words sums, update_squares, parameter_squares, skip{0}, rounding_key;
  bool scales_parameter = true;

  explicit State(Layout of)
      : layout(std::move(of)),
        master(random_values<float>(layout.numel, 1, 0.5F)),
        gradient(gradients_of(layout.numel, 2)),
        moments(random_values<float>(layout.numbers, 3)),
        factors(at(layout.numbers)),
        parameter(at(layout.numel)),
        gradient_norm{norm_of(gradient)},
        sums(at(layout.numbers * kFactoredWords)),
        update_squares(layout.matrices.size() * kExactSumWords),
        parameter_squares(update_squares.size()) {
    for (float& moment : moments) moment *= moment;
    set(FactoredScalar::kLearningRate, 0.01F);
    set(FactoredScalar::kDecay, kDecay);
    set(FactoredScalar::kEpsilon, kEpsilon);
    set(FactoredScalar::kParameterEpsilon, 1e-3F);
    set(FactoredScalar::kClipThreshold, 1.0F);
  }

  void set(FactoredScalar scalar, float value) {
    scalars[static_cast<std::size_t>(scalar)] = value;
  }
  double scalar(FactoredScalar which) const {
    return widened(scalars[static_cast<std::size_t>(which)]);
  }

  /// Everything that a step writes, for comparing bits.
  Words written() const {
    Words all = sums;
    const auto append = [&](const auto& values, const auto& bits) {
      for (const auto value : values) all.push_back(static_cast<std::int64_t>(bits(value)));
    };
    const auto same = [](std::int64_t word) { return word; };
    const auto float_bits = [](float value) { return std::bit_cast<std::int32_t>(value); };
    append(moments, float_bits);
    append(factors, float_bits);
    append(update_squares, same);
    append(parameter_squares, same);
    append(master, float_bits);
    append(parameter, [](bfloat16 value) { return value.bits; });
    return all;
  }
};

using Cuts = std::vector<std::int64_t>;  ///< where shards end

/// Calls body(begin, end) for the shards.
template <typename Body>
void for_each_shard(const Cuts& cuts, const Body& body) {
  std::int64_t begin = 0;
  for (const std::int64_t end : cuts) {
    body(begin, end);
    begin = end;
  }
}

/// As ranks do: each has the sum of its own shard, and they add these.
template <typename Kernel>
void add_over_shards(const Cuts& cuts, Words& result, const Kernel& kernel) {
  for_each_shard(cuts, [&](std::int64_t begin, std::int64_t end) {
    Words of_shard(result.size());
    kernel(begin, end, view_of(of_shard));
    for (std::size_t i = 0; i < result.size(); ++i) result[i] += of_shard[i];
  });
}

void add_squares(State& s, const Cuts& cuts) {
  add_over_shards(cuts, s.sums, [&](std::int64_t begin, std::int64_t end, const TensorView& sums) {
    const Parts parts = s.layout.parts(begin, end);
    StreamUnderTest stream;
    kernels_under_test().factored_squares({.gradient = view_of(s.gradient, begin, end - begin),
                                           .gradient_scale = view_of(s.gradient_scale),
                                           .gradient_norm = view_of(s.gradient_norm),
                                           .parts = parts,
                                           .sums = sums},
                                          stream);
  });
}

void update_moments(State& s) {
  StreamUnderTest stream;
  kernels_under_test().factored_moments({.gradient_norm = view_of(s.gradient_norm),
                                         .scalars = view_of(s.scalars),
                                         .skip = view_of(s.skip),
                                         .matrices = s.layout.matrices,
                                         .sums = view_of(s.sums),
                                         .moments = view_of(s.moments),
                                         .factors = view_of(s.factors)},
                                        stream);
}

void add_update_squares(State& s, const Cuts& cuts) {
  add_over_shards(cuts, s.update_squares,
                  [&](std::int64_t begin, std::int64_t end, const TensorView& words) {
                    const Parts parts = s.layout.parts(begin, end);
                    StreamUnderTest stream;
                    kernels_under_test().factored_update_squares(
                        {.gradient = view_of(s.gradient, begin, end - begin),
                         .gradient_scale = view_of(s.gradient_scale),
                         .parts = parts,
                         .factors = view_of(s.factors),
                         .words = words},
                        stream);
                  });
}

void add_parameter_squares(State& s, const Cuts& cuts) {
  add_over_shards(
      cuts, s.parameter_squares,
      [&](std::int64_t begin, std::int64_t end, const TensorView& words) {
        const Parts parts = s.layout.parts(begin, end);
        StreamUnderTest stream;
        kernels_under_test().factored_update_squares(
            {.gradient = view_of(s.master, begin, end - begin), .parts = parts, .words = words},
            stream);
      });
}

FactoredStepArgs step_args(State& s, std::int64_t begin, std::int64_t end) {
  return {.master = view_of(s.master, begin, end - begin),
          .gradient = view_of(s.gradient, begin, end - begin),
          .parameter = view_of(s.parameter, begin, end - begin),
          .gradient_scale = view_of(s.gradient_scale),
          .parts = {},
          .factors = view_of(s.factors),
          .update_squares = view_of(s.update_squares),
          .parameter_squares = s.scales_parameter ? view_of(s.parameter_squares) : TensorView(),
          .scalars = view_of(s.scalars),
          .skip = view_of(s.skip),
          .stochastic_rounding = !s.rounding_key.empty(),
          .rounding_key = s.rounding_key.empty() ? TensorView() : view_of(s.rounding_key),
          .first_index = 100 + begin};
}

void step(State& s, const Cuts& cuts) {
  for_each_shard(cuts, [&](std::int64_t begin, std::int64_t end) {
    const Parts parts = s.layout.parts(begin, end);
    FactoredStepArgs args = step_args(s, begin, end);
    args.parts = parts;
    StreamUnderTest stream;
    kernels_under_test().factored_step(args, stream);
  });
}

/// All of a step of the optimizer.
void whole_step(State& s, const Cuts& cuts) {
  std::ranges::fill(s.sums, 0);
  std::ranges::fill(s.update_squares, 0);
  std::ranges::fill(s.parameter_squares, 0);
  add_squares(s, cuts);
  update_moments(s);
  add_update_squares(s, cuts);
  if (s.scales_parameter) add_parameter_squares(s, cuts);
  step(s, cuts);
}

// ---- What the kernels promise, spelled out ------------------------------------------------------

/// Adds the words of a square.
void add_words(double square, double norm, std::int64_t* words) {
  int e = 0;
  std::frexp((1.0 + 0x1p-20) * norm * norm, &e);
  const double scaled = std::ldexp(square, 60 - e), high = std::floor(scaled);
  words[0] += static_cast<std::int64_t>(high);
  words[1] += static_cast<std::int64_t>(std::nearbyint(std::ldexp(scaled - high, 44)));
}

/// Calls body(matrix, element, its place in the parameter).
template <typename Body>
void for_each_element(const Layout& layout, const Body& body) {
  for (std::size_t m = 0; m < layout.matrices.size(); ++m) {
    for (std::int64_t i = 0; i < layout.matrices[m].numel(); ++i) {
      body(layout.matrices[m], i, at(layout.begins[m] + i));
    }
  }
}

std::int64_t row_place(const FactoredMatrix& matrix, std::int64_t element) {
  return matrix.place + element / matrix.columns;
}
std::int64_t column_place(const FactoredMatrix& matrix, std::int64_t element) {
  return matrix.place + matrix.rows + element % matrix.columns;
}

Words expected_sums(const State& s) {
  Words sums = s.sums;
  for_each_element(s.layout, [&](const FactoredMatrix& matrix, std::int64_t i, std::size_t place) {
    const float g = s.gradient_scale[0] * s.gradient[place];
    const double square = widened(g) * widened(g);
    add_words(square, s.gradient_norm[0], &sums[at(kFactoredWords * row_place(matrix, i))]);
    if (matrix.is_vector()) return;
    add_words(square, s.gradient_norm[0], &sums[at(kFactoredWords * column_place(matrix, i))]);
  });
  return sums;
}

Floats expected_updates(const State& s) {
  Floats updates(s.gradient.size());
  for_each_element(s.layout, [&](const FactoredMatrix& matrix, std::int64_t i, std::size_t place) {
    const float g = s.gradient_scale[0] * s.gradient[place];
    const float row = s.factors[at(row_place(matrix, i))];
    const float factor = matrix.is_vector() ? row : row * s.factors[at(column_place(matrix, i))];
    updates[place] = g * factor;
  });
  return updates;
}

/// Squares of each matrix, a block of the parameter at a time.
Words expected_squares(const Layout& layout, const Floats& values) {
  Words words(layout.matrices.size() * kExactSumWords);
  for (std::size_t m = 0; m < layout.matrices.size(); ++m) {
    const std::int64_t begin = layout.begins[m], end = begin + layout.matrices[m].numel();
    for (std::int64_t block = begin / kNormBlock * kNormBlock; block < end; block += kNormBlock) {
      double lane[8] = {};
      for (std::int64_t i = std::max(begin, block); i < std::min(end, block + kNormBlock); ++i) {
        lane[i % 8] += widened(values[at(i)]) * widened(values[at(i)]);
      }
      const double square =
          ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
      add_exactly(std::bit_cast<std::uint64_t>(square), [&](int word, std::int64_t value) {
        words[m * kExactSumWords + static_cast<std::size_t>(word)] += value;
      });
    }
  }
  return words;
}

double root_mean_square(const Words& words, const FactoredMatrix& matrix) {
  const std::uint64_t bits = exact_sum_bits(words.data() + matrix.index * kExactSumWords);
  return std::sqrt(std::bit_cast<double>(bits) / static_cast<double>(matrix.numel()));
}

Floats expected_master(const State& s) {
  Floats master = s.master;
  const Floats updates = expected_updates(s);
  for_each_element(s.layout, [&](const FactoredMatrix& matrix, std::int64_t, std::size_t place) {
    double lr = widened(matrix.rates.learning_rate_scale) * s.scalar(FactoredScalar::kLearningRate);
    if (s.scales_parameter) {
      lr *= std::max(s.scalar(FactoredScalar::kParameterEpsilon),
                     root_mean_square(s.parameter_squares, matrix));
    }
    const double excess = std::max(
        1.0, root_mean_square(s.update_squares, matrix) / s.scalar(FactoredScalar::kClipThreshold));
    const auto keep = static_cast<float>(1.0 - lr * widened(matrix.rates.weight_decay));
    const float kept = keep * master[place];
    master[place] = std::fma(-static_cast<float>(lr / excess), updates[place], kept);
  });
  return master;
}

// ---- Each kernel --------------------------------------------------------------------------------

TEST(FactoredSquares, AreTheWordsOfTheirDefinition) {
  const State start(odd_layout());
  State seeded = start;
  for (std::size_t i = 0; i < seeded.sums.size(); ++i)
    seeded.sums[i] = static_cast<std::int64_t>(i);
  const Words sums = run_every_way([&] {
    Words all = seeded.sums;  // are added to
    const Parts parts = seeded.layout.parts();
    StreamUnderTest stream;
    kernels_under_test().factored_squares({.gradient = view_of(seeded.gradient),
                                           .gradient_scale = view_of(seeded.gradient_scale),
                                           .gradient_norm = view_of(seeded.gradient_norm),
                                           .parts = parts,
                                           .sums = view_of(all)},
                                          stream);
    return all;
  });
  EXPECT_EQ(sums, expected_sums(seeded));
  // Rows and columns have the same total.
  State zero = start;
  add_squares(zero, {zero.layout.numel});
  for (const FactoredMatrix& matrix : zero.layout.matrices) {
    if (matrix.is_vector()) continue;
    for (std::int64_t word = 0; word < kFactoredWords; ++word) {
      std::int64_t total = 0;
      for (std::int64_t i = 0; i < matrix.numbers(); ++i) {
        const std::int64_t of = zero.sums[at((matrix.place + i) * kFactoredWords + word)];
        total += i < matrix.rows ? of : -of;
      }
      EXPECT_EQ(total, 0) << matrix.rows << " x " << matrix.columns;
    }
  }
}

TEST(FactoredSquares, HoldAllMagnitudes) {
  State s(odd_layout());
  for (std::size_t i = 0; i < s.gradient.size(); ++i) {
    const float scales[] = {1e3F, 1e-4F, 1e-10F, 1e-20F, 1e-40F};
    s.gradient[i] *= scales[i / 3 % 5];
  }
  const Floats gradient = s.gradient;
  for (const float factor : {1.0F, 1e30F, 1e-35F}) {
    SCOPED_TRACE(factor);
    for (std::size_t i = 0; i < gradient.size(); ++i) s.gradient[i] = gradient[i] * factor;
    s.gradient_norm = {norm_of(s.gradient)};
    std::ranges::fill(s.sums, 0);
    const Words expected = expected_sums(s);
    add_squares(s, {s.layout.numel});
    EXPECT_EQ(s.sums, expected);
  }
}

TEST(FactoredSquares, AreZeroOfANormThatIsNoNumber) {
  State s(odd_layout());
  for (const double norm : {0.0, double{NAN}, double{INFINITY}}) {
    s.gradient_norm = {norm};
    add_squares(s, {s.layout.numel});
    EXPECT_EQ(s.sums, Words(s.sums.size())) << norm;
  }
}

/// Gradients that are all alike: each word is as large as it can be.
TEST(FactoredSquares, FitTheirWords) {
  Layout layout;
  layout.add(testing_cuda() ? 1024 : 1 << 15, 2, false);
  State s(layout);
  std::ranges::fill(s.gradient, 1.9999999F);
  s.gradient_scale = {1.0F};
  s.gradient_norm = {norm_of(s.gradient)};
  const Words expected = expected_sums(s);
  add_squares(s, {layout.numel});
  EXPECT_EQ(s.sums, expected);
}

TEST(FactoredMoments, FollowTheFormula) {
  State s(odd_layout());
  add_squares(s, {s.layout.numel});
  const State before = s;
  const Words bits = run_every_way([&] {
    s = before;
    update_moments(s);
    return s.written();
  });
  int e = 0;
  std::frexp((1.0 + 0x1p-20) * s.gradient_norm[0] * s.gradient_norm[0], &e);
  for (const FactoredMatrix& matrix : s.layout.matrices) {
    SCOPED_TRACE(concat(matrix.rows, " x ", matrix.columns));
    double lane[256] = {};
    for (std::int64_t i = 0; i < matrix.numbers(); ++i) {
      const std::size_t place = at(matrix.place + i);
      const double sum = std::ldexp(static_cast<double>(s.sums[2 * place]), e - 60) +
                         std::ldexp(static_cast<double>(s.sums[2 * place + 1]), e - 104);
      const auto n = static_cast<double>(matrix.is_vector() ? 1
                                         : i < matrix.rows  ? matrix.columns
                                                            : matrix.rows);
      const double moment = widened(kDecay) * widened(before.moments[place]) +
                            (1.0 - widened(kDecay)) * (sum / n + widened(kEpsilon));
      ASSERT_EQ(s.moments[place], static_cast<float>(moment)) << i;
      if (i < matrix.rows) lane[i % 256] += widened(s.moments[place]);
    }
    // The mean's order: within each 32 lanes, then of these.
    for (const int apart : {16, 8, 4, 2, 1}) {
      for (int i = 0; i < 256; ++i) lane[i] += i % 32 + apart < 32 ? lane[i + apart] : 0.0;
    }
    const double mean = (((lane[0] + lane[128]) + (lane[64] + lane[192])) +
                         ((lane[32] + lane[160]) + (lane[96] + lane[224]))) /
                        static_cast<double>(matrix.rows);
    for (std::int64_t i = 0; i < matrix.numbers(); ++i) {
      const std::size_t place = at(matrix.place + i);
      const double moment = widened(s.moments[place]);
      const bool is_row = !matrix.is_vector() && i < matrix.rows;
      const double factor = 1.0 / std::sqrt(is_row ? moment / mean : moment);
      ASSERT_EQ(s.factors[place], static_cast<float>(factor)) << i;
    }
  }
}

TEST(FactoredMoments, ShowANormThatIsNoNumberUnlessTheStepIsSkipped) {
  const State start(odd_layout());
  for (const double norm : {double{NAN}, double{INFINITY}}) {
    State s = start;
    s.gradient_norm = {norm};
    update_moments(s);
    for (const float moment : s.moments) EXPECT_TRUE(std::isnan(moment));
    for (const float factor : s.factors) EXPECT_TRUE(std::isnan(factor));
    State skipped = start;
    skipped.gradient_norm = {norm};
    skipped.skip = {1};
    update_moments(skipped);
    EXPECT_TRUE(same_bits(skipped.moments, start.moments));
    for (const float factor : skipped.factors) EXPECT_FALSE(std::isnan(factor));
  }
}

TEST(FactoredUpdateSquares, AddTheBlocksOfEachMatrixInThePromisedOrder) {
  State s(odd_layout());
  add_squares(s, {s.layout.numel});
  update_moments(s);
  const State before = s;
  run_every_way([&] {
    s = before;
    add_update_squares(s, {s.layout.numel});
    add_parameter_squares(s, {s.layout.numel});
    return s.written();
  });
  EXPECT_EQ(s.update_squares, expected_squares(s.layout, expected_updates(s)));
  EXPECT_EQ(s.parameter_squares, expected_squares(s.layout, s.master));
}

TEST(FactoredStep, GivesTheBitsOfItsOperations) {
  for (const bool scales_parameter : {false, true}) {
    State s(odd_layout());
    s.scales_parameter = scales_parameter;
    whole_step(s, {s.layout.numel});
    State again = s;
    const Floats expected = expected_master(again);
    const Words bits = run_every_way([&] {
      again = s;
      step(again, {s.layout.numel});
      return again.written();
    });
    for_each_element(s.layout, [&](const FactoredMatrix&, std::int64_t, std::size_t place) {
      ASSERT_EQ(again.master[place], expected[place]) << place;
      ASSERT_EQ(again.parameter[place].bits, bfloat16(expected[place]).bits) << place;
    });
    EXPECT_TRUE(same_bits(again.master, expected));  // nothing beside the matrices changes
  }
}

TEST(FactoredStep, RoundsAtRandomByKeyAndElement) {
  const RandomKey key{.seed = 11, .stream = stream_of("rounding", 3)};
  State s(odd_layout());
  whole_step(s, {s.layout.numel});
  s.rounding_key = words_of(key);
  State after = s;
  run_every_way([&] {
    after = s;
    step(after, {s.layout.numel});
    return after.written();
  });
  const Floats expected = expected_master(s);
  for_each_element(s.layout, [&](const FactoredMatrix&, std::int64_t, std::size_t place) {
    const auto word = random_word(key, 100 + static_cast<std::int64_t>(place));
    ASSERT_EQ(after.master[place], expected[place]) << place;
    ASSERT_EQ(after.parameter[place].bits, bf16_rounded_at_random(expected[place], word)) << place;
  });
}

TEST(FactoredStep, WritesAnFp16ParameterOrNone) {
  State s(odd_layout());
  whole_step(s, {s.layout.numel});
  const Floats expected = expected_master(s);
  const Parts parts = s.layout.parts();
  for (const bool has_parameter : {true, false}) {
    State after = s;
    std::vector<float16> parameter(s.master.size());
    FactoredStepArgs args = step_args(after, 0, s.layout.numel);
    args.parts = parts;
    args.parameter = has_parameter ? view_of(parameter) : TensorView();
    StreamUnderTest stream;
    kernels_under_test().factored_step(args, stream);
    EXPECT_TRUE(same_bits(after.master, expected));
    for_each_element(s.layout, [&](const FactoredMatrix&, std::int64_t, std::size_t place) {
      const float16 rounded = has_parameter ? float16(expected[place]) : float16();
      ASSERT_EQ(parameter[place].bits, rounded.bits) << place;
    });
  }
}

TEST(FactoredStep, LeavesEverythingWhereItIsSkipped) {
  State s(odd_layout());
  whole_step(s, {s.layout.numel});
  State after = s;
  after.skip = {1};
  step(after, {s.layout.numel});
  EXPECT_EQ(after.written(), s.written());
}

// ---- Together -----------------------------------------------------------------------------------

/// A NaN among gradients reaches every element of every matrix, as its norm is NaN.
TEST(Factored, ANanShowsEverywhere) {
  State s(odd_layout());
  s.gradient[3] = NAN;
  s.gradient_norm = {norm_of(s.gradient)};
  whole_step(s, {s.layout.numel});
  for_each_element(s.layout, [&](const FactoredMatrix&, std::int64_t, std::size_t place) {
    ASSERT_TRUE(std::isnan(s.master[place])) << place;
  });
}

TEST(Factored, WithoutGradientsOnlyWeightsDecay) {
  State s(odd_layout());
  std::ranges::fill(s.gradient, 0.0F);
  s.gradient_norm = {0.0};
  std::ranges::fill(s.moments, 0.0F);
  const Floats before = s.master;
  whole_step(s, {s.layout.numel});
  for_each_element(s.layout, [&](const FactoredMatrix& matrix, std::int64_t, std::size_t place) {
    const double size = std::max(1e-3, root_mean_square(s.parameter_squares, matrix));
    const double keep =
        1.0 - 0.01 * size * widened(matrix.rates.learning_rate_scale * matrix.rates.weight_decay);
    ASSERT_NEAR(s.master[place], widened(before[place]) * keep,
                2 * kUnit * std::abs(before[place]));
  });
}

Cuts random_cuts(std::mt19937& generator, std::int64_t n) {
  Cuts cuts;
  for (std::int64_t end = 0; end < n;) {
    end = std::min(n, end + kNormBlock * static_cast<std::int64_t>(generator() % 60));
    cuts.push_back(end);  // shards may be empty
  }
  return cuts;
}

TEST(Factored, ShardBoundariesChangeNoBit) {
  State start(odd_layout());
  start.rounding_key = words_of({.seed = 5, .stream = 6});
  const auto steps = [&](const Cuts& cuts) {
    State s = start;
    whole_step(s, cuts);
    whole_step(s, cuts);
    return s.written();
  };
  const Words expected = run_every_way([&] { return steps({start.layout.numel}); });
  std::mt19937 generator(11);
  for (int trial = 0; trial < (testing_cuda() ? 3 : 20); ++trial) {
    EXPECT_EQ(steps(random_cuts(generator, start.layout.numel)), expected) << "trial " << trial;
  }
}

/// One of many experts: more parts than a launch takes, some of a few elements.
TEST(Factored, TakesManyParts) {
  Layout layout;
  for (std::int64_t i = 0; i < 200; ++i) layout.add(1 + i % 5, 1 + i % 7, i % 11 != 0);
  State s(layout);
  whole_step(s, {layout.numel});
  const Words sums = s.sums;
  std::ranges::fill(s.sums, 0);
  EXPECT_EQ(sums, expected_sums(s));
  s.sums = sums;
  EXPECT_EQ(s.update_squares, expected_squares(layout, expected_updates(s)));
  State after = s;
  step(after, {layout.numel});
  EXPECT_TRUE(same_bits(after.master, expected_master(s)));
}

/// Parts whose first elements no vector is aligned to.
TEST(Factored, TakesUnalignedViews) {
  State s(odd_layout());
  whole_step(s, {s.layout.numel});
  const Words expected = s.written();
  const Parts parts = s.layout.parts();
  for (const std::int64_t shift : {1, 2, 3}) {
    State moved(odd_layout());
    Floats gradient(s.gradient.size() + 4), master(gradient.size());
    std::vector<bfloat16> parameter(gradient.size());
    std::ranges::copy(moved.gradient, gradient.begin() + shift);
    std::ranges::copy(moved.master, master.begin() + shift);
    const std::int64_t n = s.layout.numel;
    StreamUnderTest stream;
    const KernelTable& kernels = kernels_under_test();
    kernels.factored_squares({.gradient = view_of(gradient, shift, n),
                              .gradient_scale = view_of(moved.gradient_scale),
                              .gradient_norm = view_of(moved.gradient_norm),
                              .parts = parts,
                              .sums = view_of(moved.sums)},
                             stream);
    update_moments(moved);
    kernels.factored_update_squares({.gradient = view_of(gradient, shift, n),
                                     .gradient_scale = view_of(moved.gradient_scale),
                                     .parts = parts,
                                     .factors = view_of(moved.factors),
                                     .words = view_of(moved.update_squares)},
                                    stream);
    kernels.factored_update_squares({.gradient = view_of(master, shift, n),
                                     .parts = parts,
                                     .words = view_of(moved.parameter_squares)},
                                    stream);
    FactoredStepArgs args = step_args(moved, 0, n);
    args.parts = parts;
    args.gradient = view_of(gradient, shift, n);
    args.master = view_of(master, shift, n);
    args.parameter = view_of(parameter, shift, n);
    kernels.factored_step(args, stream);
    std::copy_n(master.begin() + shift, n, moved.master.begin());
    std::copy_n(parameter.begin() + shift, n, moved.parameter.begin());
    EXPECT_EQ(moved.written(), expected) << shift;
  }
}

/// The paper's algorithms 4 and 5, without a first moment, in double: of one matrix or vector.
struct Paper {
  std::int64_t rows, columns;
  Doubles master, row_moments, column_moments;

  void step(const Doubles& gradient, double decay, double lr, double weight_decay) {
    const auto r = static_cast<double>(rows), c = static_cast<double>(columns);
    const bool is_vector = rows == 1 || columns == 1;
    for (double& moment : row_moments) moment *= decay;
    for (double& moment : column_moments) moment *= decay;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const double square = (1.0 - decay) * (gradient[i] * gradient[i] + 1e-30);
      if (is_vector) {
        row_moments[i] += square;
      } else {
        row_moments[i / at(columns)] += square / c;
        column_moments[i % at(columns)] += square / r;
      }
    }
    double total = 0.0, mean = 0.0, size = 0.0;
    for (const double moment : row_moments) mean += moment / r;
    Doubles updates(gradient.size());
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const double moment =
          is_vector ? row_moments[i]
                    : row_moments[i / at(columns)] * column_moments[i % at(columns)] / mean;
      updates[i] = gradient[i] / std::sqrt(moment);
      total += updates[i] * updates[i];
      size += master[i] * master[i];
    }
    lr *= std::max(1e-3, std::sqrt(size / (r * c)));
    const double excess = std::max(1.0, std::sqrt(total / (r * c)));
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      master[i] -= lr * weight_decay * master[i] + lr / excess * updates[i];
    }
  }
};

TEST(Factored, FollowsThePaper) {
  State s(odd_layout());
  std::ranges::fill(s.moments, 0.0F);
  std::vector<Paper> papers;
  for (std::size_t m = 0; m < s.layout.matrices.size(); ++m) {
    const FactoredMatrix& matrix = s.layout.matrices[m];
    const auto from = s.master.begin() + s.layout.begins[m];
    papers.push_back({matrix.rows, matrix.columns, Doubles(from, from + matrix.numel()),
                      Doubles(at(matrix.rows)), Doubles(at(matrix.columns))});
  }
  for (const int step : {1, 2, 3}) {
    s.gradient = gradients_of(s.layout.numel, 100 + static_cast<unsigned>(step));
    s.gradient_norm = {norm_of(s.gradient)};
    s.set(FactoredScalar::kDecay, static_cast<float>(1.0 - std::pow(step, -0.8)));
    whole_step(s, {s.layout.numel});
    for (std::size_t m = 0; m < papers.size(); ++m) {
      const FactoredMatrix& matrix = s.layout.matrices[m];
      SCOPED_TRACE(concat("step ", step, ", ", matrix.rows, " x ", matrix.columns));
      Doubles gradient;
      for (std::int64_t i = 0; i < matrix.numel(); ++i) {
        gradient.push_back(widened(s.gradient_scale[0]) *
                           widened(s.gradient[at(s.layout.begins[m] + i)]));
      }
      const double lr =
          s.scalar(FactoredScalar::kLearningRate) * widened(matrix.rates.learning_rate_scale);
      papers[m].step(gradient, s.scalar(FactoredScalar::kDecay), lr,
                     widened(matrix.rates.weight_decay));
      for (std::int64_t i = 0; i < matrix.numel(); ++i) {
        const double expected = papers[m].master[at(i)];
        // Two roundings a step of the master, and some of updates of up to lr each.
        const double bound = step * kUnit * (2 * std::abs(expected) + 64 * lr);
        ASSERT_NEAR(widened(s.master[at(s.layout.begins[m] + i)]), expected, bound) << i;
      }
      for (std::int64_t i = 0; i < matrix.rows; ++i) {
        const double expected = papers[m].row_moments[at(i)];
        ASSERT_NEAR(widened(s.moments[at(matrix.place + i)]), expected,
                    3 * step * kUnit * expected);
      }
    }
  }
}

/// Five steps as transformers takes them: golden/make_adafactor_golden.py.
TEST(AdafactorGolden, FiveStepsStayWithTransformers) {
  const auto golden = kernel_golden("adafactor.json");
  const auto gradients = golden.at("gradients").get<std::vector<Floats>>();
  ASSERT_EQ(gradients.size(), 5U);
  const Optimizer& adafactor = find_optimizer("adafactor");
  for (const auto& run : golden.at("runs")) {
    SCOPED_TRACE(run.dump().substr(0, 120));
    std::vector<std::pair<std::string_view, double>> given;
    for (const auto& [name, value] : run.at("hyperparameters").items()) {
      given.emplace_back(name, value.get<double>());
    }
    const auto values = hyperparameter_values(adafactor, given);
    Layout layout;
    for (const auto& shape : golden.at("shapes")) {
      layout.add(shape.at(0).get<std::int64_t>(),
                 shape.size() == 1 ? 1 : shape.at(1).get<std::int64_t>(), true);
    }
    for (FactoredMatrix& matrix : layout.matrices) {
      matrix.rates = {.weight_decay = run.at("weight_decay").get<float>()};
    }
    State s(layout);
    s.master = golden.at("initial").get<Floats>();
    s.gradient_scale = {1.0F};
    std::ranges::fill(s.moments, 0.0F);
    s.scales_parameter = run.at("hyperparameters").contains("scale_parameter");
    const auto& rate = run.at("learning_rate");
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      s.gradient = gradients[i];
      s.gradient_norm = {norm_of(s.gradient)};
      const OptimizerScalars scalars =
          optimizer_scalars(adafactor, values, rate.is_null() ? 0.0 : rate.get<double>(),
                            static_cast<std::int64_t>(i) + 1);
      s.scalars.assign(scalars.begin(), scalars.end());
      whole_step(s, {layout.numel});
      const auto expected = run.at("steps").at(i).get<Doubles>();
      for (std::size_t k = 0; k < expected.size(); ++k) {
        EXPECT_NEAR(widened(s.master[k]), expected[k], 2e-6 * std::abs(expected[k]))
            << "step " << i << ", " << k;
      }
    }
  }
}

TEST(Factored, RejectsWhatDoesNotFit) {
  State s(odd_layout());
  Floats short_floats(3);
  Words short_words(3);
  Parts parts = s.layout.parts();
  const auto refuses_part = [&](const auto& change) {
    Parts changed = parts;
    change(changed.front());
    StreamUnderTest stream;
    FactoredStepArgs step = step_args(s, 0, s.layout.numel);
    step.parts = changed;
    EXPECT_THROW(kernels_under_test().factored_step(step, stream), Error);
    const FactoredSquaresArgs squares{.gradient = view_of(s.gradient),
                                      .gradient_scale = view_of(s.gradient_scale),
                                      .gradient_norm = view_of(s.gradient_norm),
                                      .parts = changed,
                                      .sums = view_of(s.sums)};
    EXPECT_THROW(kernels_under_test().factored_squares(squares, stream), Error);
    const FactoredUpdateSquaresArgs updates{.gradient = view_of(s.gradient),
                                            .gradient_scale = view_of(s.gradient_scale),
                                            .parts = changed,
                                            .factors = view_of(s.factors),
                                            .words = view_of(s.update_squares)};
    EXPECT_THROW(kernels_under_test().factored_update_squares(updates, stream), Error);
  };
  refuses_part([](FactoredPart& part) { part.begin = -1; });
  refuses_part([&](FactoredPart& part) { part.begin = s.layout.numel; });
  refuses_part([](FactoredPart& part) { part.first = 1; });
  refuses_part([](FactoredPart& part) { part.matrix.rows = 1; });
  refuses_part([](FactoredPart& part) { part.matrix.columns = kFactoredTerms + 1; });
  refuses_part([&](FactoredPart& part) { part.matrix.place = s.layout.numbers; });
  const auto refuses_step = [&](const auto& change) {
    FactoredStepArgs args = step_args(s, 0, s.layout.numel);
    args.parts = parts;
    change(args);
    StreamUnderTest stream;
    EXPECT_THROW(kernels_under_test().factored_step(args, stream), Error);
  };
  refuses_step([&](FactoredStepArgs& args) { args.gradient = view_of(short_floats); });
  refuses_step([&](FactoredStepArgs& args) { args.factors = view_of(short_floats); });
  refuses_step([&](FactoredStepArgs& args) { args.scalars = view_of(short_floats); });
  refuses_step([&](FactoredStepArgs& args) { args.gradient_scale = {}; });
  refuses_step([&](FactoredStepArgs& args) { args.update_squares = view_of(short_words); });
  refuses_step([&](FactoredStepArgs& args) { args.parameter_squares = view_of(short_words); });
  refuses_step([&](FactoredStepArgs& args) { args.skip = view_of(short_words); });
  refuses_step([&](FactoredStepArgs& args) { args.parameter = view_of(s.gradient); });
  refuses_step([&](FactoredStepArgs& args) { args.stochastic_rounding = true; });
  refuses_step([&](FactoredStepArgs& args) { args.first_index = -1; });
  StreamUnderTest stream;
  FactoredMomentsArgs moments{.gradient_norm = view_of(s.gradient_norm),
                              .scalars = view_of(s.scalars),
                              .matrices = s.layout.matrices,
                              .sums = view_of(s.sums),
                              .moments = view_of(short_floats),
                              .factors = view_of(s.factors)};
  EXPECT_THROW(kernels_under_test().factored_moments(moments, stream), Error);
}

}  // namespace
}  // namespace tessera::test::factored_moments_test

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/every_way.h"
#include "tessera/core/error.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/kernels/philox.h"

namespace tessera {
namespace {

constexpr float kLearningRate = 0.01F, kGradientScale = 0.7F;

std::vector<float> scalars_of_step_3() {
  const auto scalars = adamw_scalars(kLearningRate, AdamWArgs{}.beta1, AdamWArgs{}.beta2, 3);
  std::vector<float> values(scalars.begin(), scalars.end());
  values[kAdamWGradientScale] = kGradientScale;
  return values;
}

/// One shard's state, and what a step makes of it.
template <typename G>
struct State {
  std::vector<float> master, m, v;
  std::vector<G> gradient;
  std::vector<bfloat16> parameter;
  std::vector<float> scalars = scalars_of_step_3();

  explicit State(std::int64_t n)
      : master(random_values<float>(n, 1)),
        m(random_values<float>(n, 2, 0.1F)),
        v(random_values<float>(n, 3, 0.01F)),
        gradient(random_values<G>(n, 4)),
        parameter(static_cast<std::size_t>(n)) {
    for (float& x : v) x *= x;
  }

  AdamWArgs args(std::int64_t begin, std::int64_t count) {
    return {.master = view_of(master, begin, count),
            .gradient = view_of(gradient, begin, count),
            .m = view_of(m, begin, count),
            .v = view_of(v, begin, count),
            .parameter = view_of(parameter, begin, count),
            .segments = {},
            .scalars = view_of(scalars)};
  }

  /// Everything that a step writes, for comparing bits.
  std::vector<float> written() const {
    std::vector<float> all(master);
    all.insert(all.end(), m.begin(), m.end());
    all.insert(all.end(), v.begin(), v.end());
    for (const bfloat16 p : parameter) all.push_back(as_float(p));
    return all;
  }
};

/// Parameters in turn with and without weight decay.
std::vector<AdamWSegment> segments_of(std::int64_t n) {
  std::vector<AdamWSegment> segments;
  const std::int64_t step = std::max<std::int64_t>(1, n / 5 - 1);
  for (std::int64_t begin = 0; begin < n; begin += step) {
    segments.push_back({begin, std::min(n, begin + step), segments.size() % 2 == 0 ? 0.1F : 0.0F});
  }
  return segments;
}

/// Those of `segments` inside of the shard [begin, begin + count).
std::vector<AdamWSegment> narrow(const std::vector<AdamWSegment>& segments, std::int64_t begin,
                                 std::int64_t count) {
  std::vector<AdamWSegment> inside;
  for (const AdamWSegment& s : segments) {
    const std::int64_t from = std::max(s.begin, begin) - begin;
    const std::int64_t to = std::min(s.end, begin + count) - begin;
    if (from < to) inside.push_back({from, to, s.weight_decay});
  }
  return inside;
}

template <typename G>
void step_on(State<G>& state, const std::vector<AdamWSegment>& segments, std::int64_t begin,
             std::int64_t count) {
  const auto inside = narrow(segments, begin, count);
  AdamWArgs args = state.args(begin, count);
  args.segments = inside;
  StreamUnderTest stream;
  kernels_under_test().adamw(args, stream);
}

/// Rounding one fp32 operation changes a result by no more than this part of it; the factors below
/// count the roundings.
constexpr double kUnit = 0x1p-24;

template <typename G>
void check_against_double(std::int64_t n) {
  SCOPED_TRACE(n);
  State<G> before(n);
  State<G> after = before;
  const auto segments = segments_of(n);
  step_on(after, segments, 0, n);
  const AdamWArgs a = before.args(0, n);
  const double beta1 = a.beta1, beta2 = a.beta2, lr = kLearningRate;
  for (const AdamWSegment& segment : segments) {
    for (auto i = static_cast<std::size_t>(segment.begin);
         i < static_cast<std::size_t>(segment.end); ++i) {
      const double g =
          static_cast<double>(kGradientScale) * static_cast<double>(as_float(before.gradient[i]));
      const double m = beta1 * static_cast<double>(before.m[i]) + (1 - beta1) * g;
      const double v = beta2 * static_cast<double>(before.v[i]) + (1 - beta2) * g * g;
      const double p = static_cast<double>(before.master[i]) *
                       (1 - lr * static_cast<double>(segment.weight_decay));
      const double update =
          lr / (1 - std::pow(beta1, 3)) * m /
          (std::sqrt(v) / std::sqrt(1 - std::pow(beta2, 3)) + static_cast<double>(a.epsilon));
      const double m_size =
          std::abs(beta1 * static_cast<double>(before.m[i])) + std::abs((1 - beta1) * g);
      EXPECT_NEAR(static_cast<double>(after.m[i]), m, 3 * kUnit * m_size);
      EXPECT_NEAR(static_cast<double>(after.v[i]), v, 5 * kUnit * v);
      // The update inherits m's error, which cancellation may have made large relative to m.
      EXPECT_NEAR(static_cast<double>(after.master[i]), p - update,
                  3 * kUnit * std::abs(p) + 9 * kUnit * std::abs(update) * m_size / std::abs(m));
      EXPECT_EQ(after.parameter[i].bits, bfloat16(after.master[i]).bits);
    }
  }
}

TEST(AdamW, FollowsTheFormula) {
  for (const std::int64_t n : kSizes) {
    check_against_double<float>(n);
    check_against_double<bfloat16>(n);
  }
}

/// One step by plain scalar operations, in the order that all devices keep.
template <typename G>
void plain_step(State<G>& state, const std::vector<AdamWSegment>& segments) {
  const AdamWArgs a = state.args(0, 0);
  const std::vector<float>& scalars = state.scalars;
  for (const AdamWSegment& segment : segments) {
    const auto decay = static_cast<float>(1.0 - static_cast<double>(scalars[kAdamWLearningRate]) *
                                                    static_cast<double>(segment.weight_decay));
    for (auto i = static_cast<std::size_t>(segment.begin);
         i < static_cast<std::size_t>(segment.end); ++i) {
      float &m = state.m[i], &v = state.v[i], &p = state.master[i];
      const float g = scalars[kAdamWGradientScale] * as_float(state.gradient[i]);
      const float new_g = (1.0F - a.beta1) * g;
      m = std::fma(a.beta1, m, new_g);
      const float scaled_g = (1.0F - a.beta2) * g;
      const float square = scaled_g * g;
      v = std::fma(a.beta2, v, square);
      const float root = std::sqrt(v);
      const float denominator = std::fma(root, scalars[kAdamWInverseCorrection2], a.epsilon);
      const float decayed = decay * p;
      const float ratio = m / denominator;
      p = std::fma(-scalars[kAdamWStepSize], ratio, decayed);
      state.parameter[i] = bfloat16(p);
    }
  }
}

template <typename G>
void check_bits(std::int64_t n) {
  State<G> expected(n);
  State<G> state = expected;
  const auto segments = segments_of(n);
  plain_step(expected, segments);
  step_on(state, segments, 0, n);
  EXPECT_TRUE(same_bits(state.written(), expected.written())) << n;
}

TEST(AdamW, GivesTheBitsOfItsOperations) {
  for (const std::int64_t n : kSizes) {
    check_bits<float>(n);
    check_bits<bfloat16>(n);
  }
}

TEST(AdamW, TakesMoreSegmentsThanOneLaunch) {
  const std::int64_t n = 2000;
  State<float> expected(n);
  State<float> state = expected;
  std::vector<AdamWSegment> segments;
  for (std::int64_t begin = 0; begin < n; begin += 11) {  // some of them empty
    segments.push_back({begin, std::min(n, begin + begin % 12), begin % 2 == 0 ? 0.1F : 0.0F});
  }
  plain_step(expected, segments);
  step_on(state, segments, 0, n);
  EXPECT_TRUE(same_bits(state.written(), expected.written()));
}

template <typename G>
void check_cuts() {
  const std::int64_t n = 40009;
  const State<G> start(n);
  const auto segments = segments_of(n);
  const auto expected = run_every_way([&] {
    State<G> state = start;
    step_on(state, segments, 0, n);
    return state.written();
  });
  std::mt19937 generator(11);
  for (int trial = 0; trial < 20; ++trial) {
    State<G> state = start;
    for (std::int64_t begin = 0; begin < n;) {
      const auto count =
          std::min<std::int64_t>(n - begin, static_cast<std::int64_t>(generator() % 5000));
      step_on(state, segments, begin, count);
      begin += count;
    }
    EXPECT_TRUE(same_bits(state.written(), expected)) << "trial " << trial;
  }
}

TEST(AdamW, ShardBoundariesChangeNoBit) {
  check_cuts<float>();
  check_cuts<bfloat16>();
}

constexpr RandomKey kRoundingKey{.seed = 11, .stream = stream_of("rounding", 3)};

/// One step on [begin, begin + count) of a tensor, rounded at random.
template <typename G>
void random_step_on(State<G>& state, const std::vector<AdamWSegment>& segments, std::int64_t begin,
                    std::int64_t count, std::int64_t tensor_begin) {
  const auto inside = narrow(segments, begin, count);
  AdamWArgs args = state.args(begin, count);
  args.segments = inside;
  args.stochastic_rounding = true;
  args.rounding_key = kRoundingKey;
  args.first_index = tensor_begin + begin;
  StreamUnderTest stream;
  kernels_under_test().adamw(args, stream);
}

template <typename G>
void check_rounding(std::int64_t n, std::int64_t tensor_begin) {
  SCOPED_TRACE(concat(n, " elements from ", tensor_begin));
  const State<G> start(n);
  const auto segments = segments_of(n);
  State<G> nearest = start;
  step_on(nearest, segments, 0, n);
  State<G> expected = nearest;  // only the parameter is another one
  for (std::size_t i = 0; i < expected.master.size(); ++i) {
    const auto word = random_word(kRoundingKey, tensor_begin + static_cast<std::int64_t>(i));
    expected.parameter[i].bits = bf16_rounded_at_random(expected.master[i], word);
  }
  const auto written = run_every_way([&] {
    State<G> state = start;
    random_step_on(state, segments, 0, n, tensor_begin);
    return state.written();
  });
  EXPECT_TRUE(same_bits(written, expected.written()));
  std::mt19937 generator(11);
  State<G> in_shards = start;
  for (std::int64_t begin = 0; begin < n;) {
    const auto most = static_cast<std::int64_t>(generator() % 5000);
    const std::int64_t count = std::min(n - begin, most);
    random_step_on(in_shards, segments, begin, count, tensor_begin);
    begin += count;
  }
  EXPECT_TRUE(same_bits(in_shards.written(), expected.written()));
}

TEST(AdamW, RoundsAtRandomByKeyAndElement) {
  for (const std::int64_t n : kSizes) check_rounding<float>(n, 4 * n);
  for (const std::int64_t begin : {1, 2, 3}) check_rounding<bfloat16>(1009, begin);
  check_rounding<float>(10007, (std::int64_t{1} << 40) + 2);
}

TEST(AdamW, RoundingAtRandomIsUnbiased) {
  // Without gradient and decay the master stays: its roundings by many steps' keys average to it.
  const std::int64_t n = 64;
  State<float> state(n);
  std::fill(state.gradient.begin(), state.gradient.end(), 0.0F);
  std::fill(state.m.begin(), state.m.end(), 0.0F);
  const std::vector<AdamWSegment> segments{{0, n, 0.0F}};
  constexpr int kSteps = 4096;
  std::vector<double> mean(static_cast<std::size_t>(n));
  StreamUnderTest stream;
  for (int step = 0; step < kSteps; ++step) {
    AdamWArgs args = state.args(0, n);
    args.segments = segments;
    args.stochastic_rounding = true;
    args.rounding_key = {.seed = 5, .stream = stream_of("rounding", static_cast<unsigned>(step))};
    kernels_under_test().adamw(args, stream);
    for (std::size_t i = 0; i < mean.size(); ++i) {
      mean[i] += static_cast<double>(as_float(state.parameter[i])) / kSteps;
    }
  }
  double bias = 0.0;  // in units of the distance between neighbours
  for (std::size_t i = 0; i < mean.size(); ++i) {
    const auto master = static_cast<double>(state.master[i]);
    const double spacing = std::ldexp(1.0, std::ilogb(master) - 7);
    // The standard deviation of a mean of fair decisions is at most half a spacing / 64.
    EXPECT_NEAR(mean[i], master, 5 * spacing / 128) << i;
    bias += (mean[i] - master) / spacing / static_cast<double>(n);
  }
  EXPECT_NEAR(bias, 0.0, 5.0 / 128 / 8);
}

TEST(AdamW, RoundingAtRandomKeepsWhatIsExactAndWhatIsNoNumber) {
  EXPECT_EQ(bf16_rounded_at_random(1.5F, ~0U), bfloat16(1.5F).bits);
  EXPECT_EQ(bf16_rounded_at_random(-0.0F, ~0U), bfloat16(-0.0F).bits);
  EXPECT_EQ(bf16_rounded_at_random(INFINITY, ~0U), bfloat16(INFINITY).bits);
  const float nan = std::bit_cast<float>(0x7fffffffU);
  EXPECT_EQ(bf16_rounded_at_random(nan, ~0U), 0x7fffU);
  EXPECT_EQ(bf16_rounded_at_random(std::bit_cast<float>(0x7f800001U), ~0U), 0x7fc0U);
  // 1 + 2^-8 is half way between two neighbours.
  const float half_way = 1.00390625F;
  EXPECT_EQ(bf16_rounded_at_random(half_way, 0x7fffffffU), bfloat16(1.0F).bits);
  EXPECT_EQ(bf16_rounded_at_random(half_way, 0x80000000U), bfloat16(1.0078125F).bits);

  std::vector<float> master{nan, INFINITY, -INFINITY}, gradient(3), m(3), v(3, 1.0F);
  std::vector<float> scalars = scalars_of_step_3();
  std::vector<bfloat16> parameter(3);
  const std::vector<AdamWSegment> segments{{0, 3, 0.0F}};
  StreamUnderTest stream;
  kernels_under_test().adamw({.master = view_of(master),
                              .gradient = view_of(gradient),
                              .m = view_of(m),
                              .v = view_of(v),
                              .parameter = view_of(parameter),
                              .segments = segments,
                              .scalars = view_of(scalars),
                              .stochastic_rounding = true},
                             stream);
  EXPECT_TRUE(std::isnan(as_float(parameter[0])));
  EXPECT_EQ(as_float(parameter[1]), INFINITY);
  EXPECT_EQ(as_float(parameter[2]), -INFINITY);
}

TEST(AdamW, LeavesElementsOutsideOfSegmentsAlone) {
  State<float> state(100);
  const State<float> before = state;
  step_on(state, {{10, 27, 0.0F}, {50, 51, 0.1F}}, 0, 100);
  for (std::size_t i = 0; i < 100; ++i) {
    const bool inside = (i >= 10 && i < 27) || i == 50;
    EXPECT_EQ(state.master[i] != before.master[i], inside) << i;
    EXPECT_EQ(state.m[i] != before.m[i], inside) << i;
    EXPECT_EQ(state.v[i] != before.v[i], inside) << i;
    EXPECT_EQ(state.parameter[i].bits != 0, inside) << i;
  }
}

TEST(AdamW, FirstStepMovesByTheLearningRate) {
  std::vector<float> master{1.0F}, gradient{0.5F}, m{0.0F}, v{0.0F};
  const std::vector<AdamWSegment> segments{{0, 1, 0.0F}};
  const auto first = adamw_scalars(0.125F, AdamWArgs{}.beta1, AdamWArgs{}.beta2, 1);
  std::vector<float> scalars(first.begin(), first.end());
  StreamUnderTest stream;
  kernels_under_test().adamw({.master = view_of(master),
                              .gradient = view_of(gradient),
                              .m = view_of(m),
                              .v = view_of(v),
                              .parameter = {},
                              .segments = segments,
                              .scalars = view_of(scalars)},
                             stream);
  EXPECT_NEAR(master[0], 0.875F, 1e-7F);
}

TEST(AdamW, RejectsWhatDoesNotFit) {
  State<float> state(10);
  const std::vector<AdamWSegment> outside{{0, 11, 0.0F}};
  StreamUnderTest stream;
  AdamWArgs args = state.args(0, 10);
  args.segments = outside;
  EXPECT_THROW(kernels_under_test().adamw(args, stream), Error);
  args = state.args(0, 10);
  args.scalars = view_of(state.scalars, 0, 3);
  EXPECT_THROW(kernels_under_test().adamw(args, stream), Error);
  EXPECT_THROW(adamw_scalars(0.1F, 0.9F, 0.99F, 0), Error);
  args = state.args(0, 10);
  args.m = view_of(state.m, 0, 9);
  EXPECT_THROW(kernels_under_test().adamw(args, stream), Error);
  args = state.args(0, 10);
  args.first_index = -1;
  EXPECT_THROW(kernels_under_test().adamw(args, stream), Error);
}

}  // namespace
}  // namespace tessera

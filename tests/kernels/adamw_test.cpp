#include <algorithm>
#include <cmath>

#include "kernels/every_way.h"
#include "tessera/core/error.h"
#include "tessera/kernels/kernel_table.h"

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
  NoStream stream;
  cpu_kernels().adamw(args, stream);
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
  NoStream stream;
  cpu_kernels().adamw({.master = view_of(master),
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
  NoStream stream;
  AdamWArgs args = state.args(0, 10);
  args.segments = outside;
  EXPECT_THROW(cpu_kernels().adamw(args, stream), Error);
  args = state.args(0, 10);
  args.scalars = view_of(state.scalars, 0, 3);
  EXPECT_THROW(cpu_kernels().adamw(args, stream), Error);
  EXPECT_THROW(adamw_scalars(0.1F, 0.9F, 0.99F, 0), Error);
  args = state.args(0, 10);
  args.m = view_of(state.m, 0, 9);
  EXPECT_THROW(cpu_kernels().adamw(args, stream), Error);
}

}  // namespace
}  // namespace tessera

#include "tessera/kernels/optimizer.h"
#include "kernels/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <ostream>
#include <string>

#include "kernels/every_way.h"
#include "tessera/core/error.h"
#include "tessera/kernels/philox.h"

namespace tessera {
namespace {

constexpr float kLearningRate = 0.01F, kGradientScale = 0.7F;
constexpr float kBeta1 = 0.9F, kBeta2 = 0.999F, kEpsilon = 1e-8F, kMomentum = 0.9F;
constexpr std::int64_t kStep = 3;

using Given = std::vector<std::pair<std::string_view, double>>;

/// Rounding one fp32 operation changes a result by no more than this part of it; the factors below
/// count the roundings.
constexpr double kUnit = 0x1p-24;

struct Bounded {
  double value = 0.0, bound = 0.0;
};
/// Of one element: the master, and up to two states.
using Exact = std::array<Bounded, 3>;
using Element = std::array<double, 3>;

/// An optimizer, and what a step of it computes: in double, and by plain operations in the order
/// that all devices keep. `g` is the gradient, not scaled yet.
struct Case {
  std::string name;
  std::string optimizer;
  Given given;
  Exact (*exact)(double g, const SegmentRates& rates, const Element& before);
  void (*plain)(float g, const SegmentRates& rates, std::array<float, 3>& element);

  const Optimizer& row() const { return find_optimizer(optimizer); }
  std::vector<double> values() const { return hyperparameter_values(row(), given); }
  std::size_t states() const { return optimizer_states(row(), values()).size(); }
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

double widened(float value) { return static_cast<double>(value); }

double learning_rate(const SegmentRates& rates) {
  return widened(kLearningRate) * widened(rates.learning_rate_scale);
}

Exact exact_adamw(double g, const SegmentRates& rates, const Element& before) {
  const double beta1 = widened(kBeta1), beta2 = widened(kBeta2), lr = learning_rate(rates);
  g *= widened(kGradientScale);
  const double m = beta1 * before[1] + (1 - beta1) * g;
  const double v = beta2 * before[2] + (1 - beta2) * g * g;
  const double p = before[0] * (1 - lr * widened(rates.weight_decay));
  const double update = lr / (1 - std::pow(beta1, kStep)) * m /
                        (std::sqrt(v) / std::sqrt(1 - std::pow(beta2, kStep)) + widened(kEpsilon));
  const double m_size = std::abs(beta1 * before[1]) + std::abs((1 - beta1) * g);
  // The update inherits m's error, which cancellation may have made large relative to m.
  const double p_bound =
      3 * kUnit * std::abs(p) + 10 * kUnit * std::abs(update) * m_size / std::abs(m);
  return {{{p - update, p_bound}, {m, 3 * kUnit * m_size}, {v, 5 * kUnit * v}}};
}

/// 1 - lr * weight_decay, lr rounded to fp32.
float decay_of(const SegmentRates& rates) {
  const float lr = kLearningRate * rates.learning_rate_scale;
  return static_cast<float>(1.0 - widened(lr) * widened(rates.weight_decay));
}

void plain_adamw(float g, const SegmentRates& rates, std::array<float, 3>& element) {
  auto& [p, m, v] = element;
  const float decay = decay_of(rates);
  const float step_size =
      rates.learning_rate_scale *
      static_cast<float>(widened(kLearningRate) / (1.0 - std::pow(widened(kBeta1), kStep)));
  const auto correction2 =
      static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(widened(kBeta2), kStep)));
  g = kGradientScale * g;
  const float new_g = (1.0F - kBeta1) * g;
  m = std::fma(kBeta1, m, new_g);
  const float scaled_g = (1.0F - kBeta2) * g;
  const float square = scaled_g * g;
  v = std::fma(kBeta2, v, square);
  const float root = std::sqrt(v);
  const float denominator = std::fma(root, correction2, kEpsilon);
  const float decayed = decay * p;
  const float ratio = m / denominator;
  p = std::fma(-step_size, ratio, decayed);
}

template <bool kHasMomentum, bool kNesterov>
Exact exact_sgd(double g, const SegmentRates& rates, const Element& before) {
  const double momentum = kHasMomentum ? widened(kMomentum) : 0.0, lr = learning_rate(rates);
  const auto combine = [&](auto size) {  // the results, or with absolute values how large terms are
    const double sum =
        size(widened(kGradientScale) * g) + size(widened(rates.weight_decay) * before[0]);
    const double b = size(momentum * before[1]) + sum;
    return std::pair{b, kNesterov ? size(momentum * b) + sum : b};
  };
  const auto [b, direction] = combine([](double x) { return x; });
  const auto [b_size, direction_size] = combine([](double x) { return std::abs(x); });
  const double p = before[0] - lr * direction;
  return {
      {{p, kUnit * std::abs(p) + 5 * kUnit * lr * direction_size}, {b, 3 * kUnit * b_size}, {}}};
}

template <bool kHasMomentum, bool kNesterov>
void plain_sgd(float g, const SegmentRates& rates, std::array<float, 3>& element) {
  auto& [p, b, unused] = element;
  const float scaled = kGradientScale * g;
  const float sum = std::fma(rates.weight_decay, p, scaled);
  b = kHasMomentum ? std::fma(kMomentum, b, sum) : sum;
  const float direction = kNesterov ? std::fma(kMomentum, b, sum) : b;
  p = std::fma(-kLearningRate * rates.learning_rate_scale, direction, p);
}

/// The update of the paper (arXiv 2302.06675, program 1), with sign(0) = 0.
Exact exact_lion(double g, const SegmentRates& rates, const Element& before) {
  const double beta1 = widened(kBeta1), beta2 = widened(kBeta2), lr = learning_rate(rates);
  g *= widened(kGradientScale);
  const auto mean = [&](double beta) { return beta * before[1] + (1 - beta) * g; };
  const auto bound = [&](double beta) {
    return 4 * kUnit * (std::abs(beta * before[1]) + std::abs((1 - beta) * g));
  };
  const double c = mean(beta1), sign = c > 0 ? 1.0 : c < 0 ? -1.0 : 0.0;
  const double p = before[0] - lr * (sign + widened(rates.weight_decay) * before[0]);
  // Rounding may change the sign of what cancels almost.
  const double other_sign = c != 0 && std::abs(c) <= bound(beta1) ? 2 * lr : 0.0;
  return {
      {{p, 3 * kUnit * (std::abs(before[0]) + lr) + other_sign}, {mean(beta2), bound(beta2)}, {}}};
}

void plain_lion(float g, const SegmentRates& rates, std::array<float, 3>& element) {
  auto& [p, m, unused] = element;
  const float lr = kLearningRate * rates.learning_rate_scale;
  g = kGradientScale * g;
  const float new_share = (1.0F - kBeta1) * g;
  const float c = std::fma(kBeta1, m, new_share);
  const float decayed = decay_of(rates) * p;
  p = std::fma(-lr, c > 0 ? 1.0F : c < 0 ? -1.0F : c, decayed);
  const float new_g = (1.0F - kBeta2) * g;
  m = std::fma(kBeta2, m, new_g);
}

const std::vector<Case>& cases() {
  static const Given two_betas{{"beta1", widened(kBeta1)}, {"beta2", widened(kBeta2)}};
  static const Given betas{two_betas[0], two_betas[1], {"epsilon", widened(kEpsilon)}};
  static const std::vector<Case> all{
      {"adamw", "adamw", betas, exact_adamw, plain_adamw},
      {"sgd", "sgd", {}, exact_sgd<false, false>, plain_sgd<false, false>},
      {"sgd_momentum",
       "sgd",
       {{"momentum", widened(kMomentum)}},
       exact_sgd<true, false>,
       plain_sgd<true, false>},
      {"sgd_nesterov",
       "sgd",
       {{"momentum", widened(kMomentum)}, {"nesterov", 1.0}},
       exact_sgd<true, true>,
       plain_sgd<true, true>},
      {"lion", "lion", two_betas, exact_lion, plain_lion}};
  return all;
}

/// One shard's state, and what a step makes of it.
template <typename G>
struct State {
  const Optimizer* optimizer;
  std::vector<float> master;
  std::vector<std::vector<float>> states;
  std::vector<G> gradient;
  std::vector<bfloat16> parameter;
  std::vector<float> scalars, gradient_scale{kGradientScale};
  std::vector<std::int64_t> rounding_key;  ///< with stochastic rounding

  State(const Case& c, std::int64_t n)
      : optimizer(&c.row()),
        master(random_values<float>(n, 1)),
        gradient(random_values<G>(n, 4)),
        parameter(static_cast<std::size_t>(n)) {
    for (std::size_t s = 0; s < c.states(); ++s) {
      states.push_back(
          random_values<float>(n, 2 + static_cast<unsigned>(s), s == 0 ? 0.1F : 0.01F));
      if (s == 1) {
        for (float& x : states[s]) x *= x;
      }
    }
    const OptimizerScalars of_step =
        optimizer_scalars(*optimizer, c.values(), widened(kLearningRate), kStep);
    scalars.assign(of_step.begin(), of_step.end());
  }

  std::vector<TensorView> state_views(std::int64_t begin = 0, std::int64_t count = -1) {
    std::vector<TensorView> views;
    for (std::vector<float>& state : states) views.push_back(view_of(state, begin, count));
    return views;
  }

  /// Without states and segments, which are spans.
  OptimizerStepArgs args(std::int64_t begin, std::int64_t count) {
    return {.optimizer = optimizer,
            .master = view_of(master, begin, count),
            .gradient = view_of(gradient, begin, count),
            .states = {},
            .parameter = view_of(parameter, begin, count),
            .segments = {},
            .scalars = view_of(scalars),
            .gradient_scale = view_of(gradient_scale),
            .stochastic_rounding = !rounding_key.empty(),
            .rounding_key = rounding_key.empty() ? TensorView() : view_of(rounding_key)};
  }

  /// Everything that a step writes, for comparing bits.
  std::vector<float> written() const {
    std::vector<float> all(master);
    for (const auto& state : states) all.insert(all.end(), state.begin(), state.end());
    for (const bfloat16 p : parameter) all.push_back(as_float(p));
    return all;
  }
};

using Segments = std::vector<OptimizerSegment>;

/// Parameters in turn with and without weight decay, and every third with another learning rate.
Segments segments_of(std::int64_t n) {
  Segments segments;
  const std::int64_t step = std::max<std::int64_t>(1, n / 5 - 1);
  for (std::int64_t begin = 0; begin < n; begin += step) {
    const std::size_t turn = segments.size();
    segments.push_back({begin,
                        std::min(n, begin + step),
                        {turn % 2 == 0 ? 0.1F : 0.0F, turn % 3 == 2 ? 0.3F : 1.0F}});
  }
  return segments;
}

/// Those of `segments` inside of the shard [begin, begin + count).
Segments narrow(const Segments& segments, std::int64_t begin, std::int64_t count) {
  Segments inside;
  for (const OptimizerSegment& s : segments) {
    const std::int64_t from = std::max(s.begin, begin) - begin;
    const std::int64_t to = std::min(s.end, begin + count) - begin;
    if (from < to) inside.push_back({from, to, s.rates});
  }
  return inside;
}

/// A step on [begin, begin + count), after `change` has had the arguments.
template <typename G, typename Change>
void step_on(State<G>& state, const Segments& segments, std::int64_t begin, std::int64_t count,
             const Change& change) {
  const Segments inside = narrow(segments, begin, count);
  const auto states = state.state_views(begin, count);
  OptimizerStepArgs args = state.args(begin, count);
  args.states = states;
  args.segments = inside;
  change(args);
  StreamUnderTest stream;
  kernels_under_test().optimizer_step(args, stream);
}
template <typename G>
void step_on(State<G>& state, const Segments& segments, std::int64_t begin, std::int64_t count) {
  step_on(state, segments, begin, count, [](OptimizerStepArgs&) {});
}

/// Calls on_shard(begin, count) for shards of random sizes that cover [0, n).
template <typename OnShard>
void cut_at_random(std::mt19937& generator, std::int64_t n, const OnShard& on_shard) {
  for (std::int64_t begin = 0; begin < n;) {
    const auto count =
        std::min<std::int64_t>(n - begin, static_cast<std::int64_t>(generator() % 5000));
    on_shard(begin, count);
    begin += count;
  }
}

/// The step by plain operations.
template <typename G>
void plain_step(const Case& c, State<G>& state, const Segments& segments) {
  for (const OptimizerSegment& segment : segments) {
    for (auto i = static_cast<std::size_t>(segment.begin);
         i < static_cast<std::size_t>(segment.end); ++i) {
      std::array<float, 3> element{state.master[i]};
      for (std::size_t s = 0; s < state.states.size(); ++s) element[s + 1] = state.states[s][i];
      c.plain(as_float(state.gradient[i]), segment.rates, element);
      state.master[i] = element[0];
      for (std::size_t s = 0; s < state.states.size(); ++s) state.states[s][i] = element[s + 1];
      state.parameter[i] = bfloat16(state.master[i]);
    }
  }
}

class OptimizerStep : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, OptimizerStep, ::testing::ValuesIn(cases()),
                         [](const auto& tested) { return tested.param.name; });

template <typename G>
void check_against_double(const Case& c, std::int64_t n) {
  SCOPED_TRACE(n);
  State<G> before(c, n);
  State<G> after = before;
  const Segments segments = segments_of(n);
  step_on(after, segments, 0, n);
  for (const OptimizerSegment& segment : segments) {
    for (auto i = static_cast<std::size_t>(segment.begin);
         i < static_cast<std::size_t>(segment.end); ++i) {
      Element element{widened(before.master[i])};
      for (std::size_t s = 0; s < before.states.size(); ++s) {
        element[s + 1] = widened(before.states[s][i]);
      }
      const Exact exact = c.exact(widened(as_float(before.gradient[i])), segment.rates, element);
      EXPECT_NEAR(widened(after.master[i]), exact[0].value, exact[0].bound);
      for (std::size_t s = 0; s < before.states.size(); ++s) {
        EXPECT_NEAR(widened(after.states[s][i]), exact[s + 1].value, exact[s + 1].bound);
      }
      EXPECT_EQ(after.parameter[i].bits, bfloat16(after.master[i]).bits);
    }
  }
}

TEST_P(OptimizerStep, FollowsTheFormula) {
  for (const std::int64_t n : kSizes) {
    check_against_double<float>(GetParam(), n);
    check_against_double<bfloat16>(GetParam(), n);
  }
}

template <typename G>
void check_bits(const Case& c, std::int64_t n) {
  State<G> expected(c, n);
  State<G> state = expected;
  const Segments segments = segments_of(n);
  plain_step(c, expected, segments);
  step_on(state, segments, 0, n);
  EXPECT_TRUE(same_bits(state.written(), expected.written())) << n;
}

TEST_P(OptimizerStep, GivesTheBitsOfItsOperations) {
  for (const std::int64_t n : kSizes) {
    check_bits<float>(GetParam(), n);
    check_bits<bfloat16>(GetParam(), n);
  }
}

// An fp16 parameter is the master, rounded to the nearest; the rest is as with one of bf16.
TEST_P(OptimizerStep, WritesAnFp16Parameter) {
  for (const std::int64_t n : kSizes) {
    SCOPED_TRACE(n);
    State<float16> expected(GetParam(), n);
    State<float16> state = expected;
    plain_step(GetParam(), expected, segments_of(n));
    std::vector<float16> parameter(static_cast<std::size_t>(n)), rounded;
    for (const float master : expected.master) rounded.emplace_back(master);
    step_on(state, segments_of(n), 0, n,
            [&](OptimizerStepArgs& args) { args.parameter = view_of(parameter); });
    EXPECT_TRUE(same_bits(state.master, expected.master));
    EXPECT_TRUE(state.states == expected.states);
    EXPECT_TRUE(same_bits(parameter, rounded));
  }
}

TEST_P(OptimizerStep, NeedsNoParameter) {
  const std::int64_t n = 1009;
  State<float> expected(GetParam(), n);
  State<float> state = expected;
  step_on(expected, segments_of(n), 0, n);
  std::fill(expected.parameter.begin(), expected.parameter.end(), bfloat16());
  step_on(state, segments_of(n), 0, n, [](OptimizerStepArgs& args) { args.parameter = {}; });
  EXPECT_TRUE(same_bits(state.written(), expected.written()));
}

TEST_P(OptimizerStep, TakesMoreSegmentsThanOneLaunch) {
  const std::int64_t n = 2000;
  State<float> expected(GetParam(), n);
  State<float> state = expected;
  Segments segments;
  for (std::int64_t begin = 0; begin < n; begin += 11) {  // some of them empty
    segments.push_back({begin, std::min(n, begin + begin % 12), begin % 2 == 0 ? 0.1F : 0.0F});
  }
  plain_step(GetParam(), expected, segments);
  step_on(state, segments, 0, n);
  EXPECT_TRUE(same_bits(state.written(), expected.written()));
}

template <typename G>
void check_cuts(const Case& c) {
  const std::int64_t n = testing_cuda() ? 20011 : 40009;
  const State<G> start(c, n);
  const Segments segments = segments_of(n);
  const auto expected = run_every_way([&] {
    State<G> state = start;
    step_on(state, segments, 0, n);
    return state.written();
  });
  std::mt19937 generator(11);
  for (int trial = 0; trial < 10; ++trial) {
    State<G> state = start;
    cut_at_random(generator, n, [&](std::int64_t begin, std::int64_t count) {
      step_on(state, segments, begin, count);
    });
    EXPECT_TRUE(same_bits(state.written(), expected)) << "trial " << trial;
  }
}

TEST_P(OptimizerStep, ShardBoundariesChangeNoBit) {
  check_cuts<float>(GetParam());
  check_cuts<bfloat16>(GetParam());
}

constexpr RandomKey kRoundingKey{.seed = 11, .stream = stream_of("rounding", 3)};

template <typename G>
void check_rounding(const Case& c, std::int64_t n, std::int64_t tensor_begin) {
  SCOPED_TRACE(concat(n, " elements from ", tensor_begin));
  const State<G> start(c, n);
  const Segments segments = segments_of(n);
  State<G> nearest = start;
  step_on(nearest, segments, 0, n);
  State<G> expected = nearest;  // only the parameter is another one
  for (std::size_t i = 0; i < expected.master.size(); ++i) {
    const auto word = random_word(kRoundingKey, tensor_begin + static_cast<std::int64_t>(i));
    expected.parameter[i].bits = bf16_rounded_at_random(expected.master[i], word);
  }
  const auto random_step = [&](State<G>& state, std::int64_t begin, std::int64_t count) {
    state.rounding_key = words_of(kRoundingKey);
    step_on(state, segments, begin, count,
            [&](OptimizerStepArgs& args) { args.first_index = tensor_begin + begin; });
  };
  const auto written = run_every_way([&] {
    State<G> state = start;
    random_step(state, 0, n);
    return state.written();
  });
  EXPECT_TRUE(same_bits(written, expected.written()));
  std::mt19937 generator(11);
  State<G> in_shards = start;
  cut_at_random(generator, n, [&](std::int64_t begin, std::int64_t count) {
    random_step(in_shards, begin, count);
  });
  EXPECT_TRUE(same_bits(in_shards.written(), expected.written()));
}

TEST_P(OptimizerStep, RoundsAtRandomByKeyAndElement) {
  for (const std::int64_t n : kSizes) check_rounding<float>(GetParam(), n, 4 * n);
  for (const std::int64_t begin : {1, 2, 3}) check_rounding<bfloat16>(GetParam(), 1009, begin);
  check_rounding<float>(GetParam(), 10007, (std::int64_t{1} << 40) + 2);
}

TEST_P(OptimizerStep, LeavesElementsOutsideOfSegmentsAlone) {
  State<float> state(GetParam(), 100);
  const State<float> before = state;
  step_on(state, {{10, 27, 0.0F}, {50, 51, 0.1F}}, 0, 100);
  for (std::size_t i = 0; i < 100; ++i) {
    const bool inside = (i >= 10 && i < 27) || i == 50;
    EXPECT_EQ(state.master[i] != before.master[i], inside) << i;
    for (std::size_t s = 0; s < state.states.size(); ++s) {
      EXPECT_EQ(state.states[s][i] != before.states[s][i], inside) << i;
    }
    EXPECT_EQ(state.parameter[i].bits != 0, inside) << i;
  }
}

TEST_P(OptimizerStep, RejectsWhatDoesNotFit) {
  const auto expect_refused = [&](const auto& change) {
    State<float> state(GetParam(), 10);
    EXPECT_THROW(step_on(state, {}, 0, 10, change), Error);
  };
  State<float> other(GetParam(), 10);
  const Segments outside{{0, 11, 0.0F}};
  const std::vector<TensorView> shorter(GetParam().row().states.size(),
                                        view_of(other.master, 0, 9));
  const std::vector<TensorView> too_many(GetParam().row().states.size() + 1, view_of(other.master));
  expect_refused([&](OptimizerStepArgs& args) { args.optimizer = nullptr; });
  expect_refused([&](OptimizerStepArgs& args) { args.segments = outside; });
  expect_refused([&](OptimizerStepArgs& args) { args.scalars = view_of(other.scalars, 0, 3); });
  expect_refused([&](OptimizerStepArgs& args) { args.gradient_scale = {}; });
  expect_refused([&](OptimizerStepArgs& args) { args.gradient = view_of(other.gradient, 0, 9); });
  expect_refused([&](OptimizerStepArgs& args) { args.states = shorter; });
  expect_refused([&](OptimizerStepArgs& args) { args.states = too_many; });
  expect_refused([&](OptimizerStepArgs& args) { args.first_index = -1; });
  expect_refused([&](OptimizerStepArgs& args) { args.stochastic_rounding = true; });
}

TEST(OptimizerStates, AdamWNeedsBothAndSgdNone) {
  State<float> adamw(cases()[0], 10);
  EXPECT_THROW(step_on(adamw, {}, 0, 10,
                       [](OptimizerStepArgs& args) { args.states = args.states.first(1); }),
               Error);
  // A momentum of 0 makes the same of a buffer and of none, in whichever way it is left out.
  State<float> none(cases()[1], 1009);
  State<float> null = none, buffer = none;
  const std::array absent{TensorView()};
  std::vector<float> zeros(1009);
  const std::array kept{view_of(zeros)};
  step_on(none, segments_of(1009), 0, 1009);
  step_on(null, segments_of(1009), 0, 1009, [&](auto& args) { args.states = absent; });
  step_on(buffer, segments_of(1009), 0, 1009, [&](auto& args) { args.states = kept; });
  EXPECT_TRUE(same_bits(none.written(), null.written()));
  EXPECT_TRUE(same_bits(none.written(), buffer.written()));
}

/// Where gradient and momentum are 0, only weight decay is left; a NaN does not pass for that.
TEST(OptimizerStates, LionHasNoSignOfZeroAndKeepsNan) {
  State<float> state(cases().back(), 4);
  state.master.assign(4, 2.0F);
  state.states[0] = {0.0F, -0.0F, 0.0F, -3.0F};
  state.gradient = {0.0F, -0.0F, NAN, 0.0F};
  step_on(state, {{0, 4, 0.5F}}, 0, 4);
  const float decayed = 2.0F * (1.0F - 0.5F * kLearningRate);
  EXPECT_EQ(state.master[0], decayed);
  EXPECT_EQ(state.master[1], decayed);
  EXPECT_TRUE(std::isnan(state.master[2]));
  EXPECT_EQ(state.master[3], decayed + kLearningRate);
}

TEST(OptimizerRounding, IsUnbiased) {
  // Without gradient and decay the master stays: its roundings by many steps' keys average to it.
  const std::int64_t n = 64;
  State<float> state(cases()[1], n);
  std::fill(state.gradient.begin(), state.gradient.end(), 0.0F);
  constexpr int kSteps = 4096;
  std::vector<double> mean(static_cast<std::size_t>(n));
  for (int step = 0; step < kSteps; ++step) {
    state.rounding_key =
        words_of({.seed = 5, .stream = stream_of("rounding", static_cast<unsigned>(step))});
    step_on(state, {{0, n, 0.0F}}, 0, n);
    for (std::size_t i = 0; i < mean.size(); ++i) {
      mean[i] += widened(as_float(state.parameter[i])) / kSteps;
    }
  }
  double bias = 0.0;  // in units of the distance between neighbours
  for (std::size_t i = 0; i < mean.size(); ++i) {
    const double master = widened(state.master[i]);
    const double spacing = std::ldexp(1.0, std::ilogb(master) - 7);
    // The standard deviation of a mean of fair decisions is at most half a spacing / 64.
    EXPECT_NEAR(mean[i], master, 5 * spacing / 128) << i;
    bias += (mean[i] - master) / spacing / static_cast<double>(n);
  }
  EXPECT_NEAR(bias, 0.0, 5.0 / 128 / 8);
}

TEST(OptimizerRounding, KeepsWhatIsExactAndWhatIsNoNumber) {
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

  State<float> state(cases()[0], 3);
  state.master = {nan, INFINITY, -INFINITY};
  state.rounding_key = words_of(kRoundingKey);
  step_on(state, {{0, 3, 0.0F}}, 0, 3);
  EXPECT_TRUE(std::isnan(as_float(state.parameter[0])));
  EXPECT_EQ(as_float(state.parameter[1]), INFINITY);
  EXPECT_EQ(as_float(state.parameter[2]), -INFINITY);
}

/// Ten steps as PyTorch takes them: golden/make_optimizer_golden.py.
TEST(OptimizerGolden, TenStepsStayWithPyTorch) {
  const auto golden = kernel_golden("optimizers.json");
  const auto initial = golden.at("initial").get<std::vector<float>>();
  const auto gradients = golden.at("gradients").get<std::vector<std::vector<float>>>();
  ASSERT_EQ(gradients.size(), 10U);
  for (const auto& run : golden.at("runs")) {
    SCOPED_TRACE(run.dump().substr(0, 200));
    const Optimizer& optimizer = find_optimizer(run.at("optimizer").get<std::string>());
    Given given;
    for (const auto& [name, value] : run.at("hyperparameters").items()) {
      given.emplace_back(name, value.get<double>());
    }
    const auto values = hyperparameter_values(optimizer, given);
    std::vector<float> master = initial, gradient_scale{1.0F};
    std::vector<std::vector<float>> states(optimizer_states(optimizer, values).size(),
                                           std::vector<float>(master.size()));
    std::vector<TensorView> views;
    for (auto& state : states) views.push_back(view_of(state));
    const Segments segments{
        {0, static_cast<std::int64_t>(master.size()), run.at("weight_decay").get<float>()}};
    StreamUnderTest stream;
    for (std::size_t step = 0; step < gradients.size(); ++step) {
      std::vector<float> gradient = gradients[step];
      const OptimizerScalars of_step =
          optimizer_scalars(optimizer, values, run.at("learning_rate").get<double>(),
                            static_cast<std::int64_t>(step) + 1);
      std::vector<float> scalars(of_step.begin(), of_step.end());
      kernels_under_test().optimizer_step({.optimizer = &optimizer,
                                           .master = view_of(master),
                                           .gradient = view_of(gradient),
                                           .states = views,
                                           .parameter = {},
                                           .segments = segments,
                                           .scalars = view_of(scalars),
                                           .gradient_scale = view_of(gradient_scale)},
                                          stream);
      const auto expected = run.at("steps").at(step).get<std::vector<double>>();
      for (std::size_t i = 0; i < master.size(); ++i) {
        EXPECT_NEAR(widened(master[i]), expected[i], 2e-6) << "step " << step << ", " << i;
      }
    }
  }
}

}  // namespace
}  // namespace tessera

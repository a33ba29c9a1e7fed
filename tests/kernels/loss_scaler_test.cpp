#include "tessera/kernels/loss_scaler.h"
#include "kernels/golden.h"

#include <cmath>
#include <limits>
#include <set>

#include "kernels/support.h"
#include "tessera/core/error.h"
#include "tessera/kernels/exact_sum.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/kernels/optimizer.h"

namespace tessera {
namespace {

using Words = std::vector<std::int64_t>;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Words scaler_of(const LossScalerState& state) {
  Words words(kLossScalerWords);
  store_scaler(state, words.data());
  words[kFirstBadWord] = kNoElement;
  return words;
}

/// The squares of a gradient that has overflown, or not.
Words squares_of(bool overflow) {
  Words words(kExactSumWords);
  add_exactly(std::bit_cast<std::uint64_t>(overflow ? static_cast<double>(kInfinity) : 4.0),
              [&](int word, std::int64_t value) { words.at(at(word)) += value; });
  return words;
}

/// Runs update_loss_scaler, and returns the scalars that it chose.
std::vector<float> judge(const LossScalerRule& rule, bool overflow, std::vector<float> candidates,
                         std::int64_t base, Words& scaler) {
  Words squares = squares_of(overflow), bases{base};
  std::vector<float> scalars(kOptimizerScalars, -1.0F);
  StreamUnderTest stream;
  kernels_under_test().update_loss_scaler({.rule = rule,
                                           .squares = view_of(squares),
                                           .scaler = view_of(scaler),
                                           .candidates = view_of(candidates),
                                           .base = view_of(bases),
                                           .scalars = view_of(scalars)},
                                          stream);
  return scalars;
}

LossScaleDialect dialect_named(const std::string& name) {
  if (name == "torch") return LossScaleDialect::kTorch;
  return name == "deepspeed" ? LossScaleDialect::kDeepSpeed : LossScaleDialect::kMegatron;
}

/// The scale of every step, as the scalers have it whose rules these are:
/// golden/make_loss_scale_golden.py.
TEST(LossScalerGolden, EveryDialectHasTheScalesOfItsModel) {
  const auto golden = kernel_golden("loss_scales.json");
  ASSERT_EQ(golden.at("runs").size(), 9U);
  for (const auto& run : golden.at("runs")) {
    SCOPED_TRACE(run.dump().substr(0, 200));
    const LossScalerRule rule{.dialect = dialect_named(run.at("dialect").get<std::string>()),
                              .growth_factor = run.value("growth_factor", 2.0),
                              .backoff_factor = run.value("backoff_factor", 0.5),
                              .window = run.at("window").get<std::int64_t>(),
                              .minimum = run.value("minimum", 0.0F),
                              .hysteresis = run.value("hysteresis", std::int64_t{1}),
                              .refills_hysteresis = run.value("consecutive_hysteresis", false)};
    const auto overflows = run.at("overflows").get<std::set<int>>();
    const auto scales = run.at("scales").get<std::vector<float>>();
    const int error = run.value("error", -1);
    Words scaler =
        scaler_of({.scale = run.at("initial").get<float>(), .hysteresis_left = rule.hysteresis});
    std::int64_t skipped = 0;
    for (int step = 0; step < run.at("steps").get<int>(); ++step) {
      EXPECT_EQ(scale_of(scaler.data()), scales.at(at(step))) << "step " << step;
      const bool overflow = overflows.contains(step);
      judge(rule, overflow, std::vector<float>(kOptimizerScalars), 0, scaler);
      skipped += overflow ? 1 : 0;
      EXPECT_EQ(used_scale_of(scaler.data()), scales.at(at(step)));
      EXPECT_EQ(scaler[kSkipWord], overflow ? 1 : 0);
      EXPECT_EQ(scaler[kSkippedWord], skipped);
      EXPECT_EQ(scaler[kExhaustedWord], step == error ? 1 : 0) << "step " << step;
      if (step == error) break;
    }
    if (error < 0) {
      EXPECT_EQ(scale_of(scaler.data()), scales.back());
    }
  }
}

TEST(LossScaler, OfTorchIsExhaustedWhereItsInverseWouldBeInfinite) {
  const LossScalerRule rule{};
  LossScalerState state{.scale = 0x1p-125F};
  EXPECT_TRUE(update_scaler(rule, state, true));
  EXPECT_EQ(state.scale, 0x1p-126F);
  EXPECT_FALSE(update_scaler(rule, state, true));
}

TEST(LossScaler, ThatIsFixedCountsAndStays) {
  const LossScalerRule rule{.dynamic = false, .window = 1};
  Words scaler = scaler_of({.scale = 768.0F});
  for (const bool overflow : {false, true, true, false}) {
    judge(rule, overflow, std::vector<float>(kOptimizerScalars), 0, scaler);
    EXPECT_EQ(scale_of(scaler.data()), 768.0F);
    EXPECT_EQ(scaler[kExhaustedWord], 0);
  }
  EXPECT_EQ(scaler[kSkippedWord], 2);
}

TEST(LossScaler, ChoosesTheScalarsByTheStepsThatWereSkippedBefore) {
  std::vector<float> candidates(2 * kOptimizerScalars, 1.0F);
  std::fill_n(candidates.begin() + kOptimizerScalars, kOptimizerScalars, 2.0F);
  const std::vector<float> first(kOptimizerScalars, 1.0F), second(kOptimizerScalars, 2.0F);
  Words scaler = scaler_of({.skipped = 7});
  EXPECT_EQ(judge({}, true, candidates, 7, scaler), first);  // its own verdict does not count
  EXPECT_EQ(judge({}, false, candidates, 7, scaler), second);
  EXPECT_EQ(judge({}, false, candidates, 8, scaler), first);
}

TEST(LossScaler, MultipliesTheLossAndDividesNormAndClipFactor) {
  StreamUnderTest stream;
  Words scaler = scaler_of({.scale = 1024.0F}), count{4};
  scaler[kFirstBadWord] = 3;
  std::vector<float> scale(1);
  kernels_under_test().loss_scale(
      {.count = view_of(count), .scale = view_of(scale), .scaler = view_of(scaler)}, stream);
  EXPECT_EQ(scale[0], 256.0F);
  EXPECT_EQ(scaler[kFirstBadWord], kNoElement);

  Words losses(kExactSumWords), squares(kExactSumWords);
  add_exactly(std::bit_cast<std::uint64_t>(25.0 * 1024.0 * 1024.0),
              [&](int word, std::int64_t value) { squares.at(at(word)) += value; });
  std::vector<double> results(2);
  std::vector<float> clip_factor(1);
  for (const auto& [clip_norm, expected] :
       {std::pair{0.0, 1.0F}, std::pair{10.0, 1.0F},
        std::pair{2.5, static_cast<float>(2.5 / (5.0 + 1e-6))}}) {
    kernels_under_test().step_results({.losses = view_of(losses),
                                       .squares = view_of(squares),
                                       .clip_norm = clip_norm,
                                       .results = view_of(results),
                                       .clip_factor = view_of(clip_factor),
                                       .scaler = view_of(scaler)},
                                      stream);
    EXPECT_EQ(results[1], 5.0);
    EXPECT_EQ(clip_factor[0], expected / 1024.0F);
  }
}

template <typename T>
void expect_found(std::size_t n, std::size_t bad, float value) {
  std::vector<T> x(n, T(1.0F));
  for (std::size_t i = bad; i < n; i += 300) x[i] = T(value);
  Words scaler = scaler_of({}), squares = squares_of(true);
  StreamUnderTest stream;
  const auto find = [&](std::int64_t first_index) {
    kernels_under_test().find_non_finite({.x = view_of(x),
                                          .squares = view_of(squares),
                                          .first_index = first_index,
                                          .scaler = view_of(scaler)},
                                         stream);
    return scaler[kFirstBadWord];
  };
  const auto place = static_cast<std::int64_t>(bad);
  EXPECT_EQ(find(1000), bad < n ? 1000 + place : kNoElement);
  EXPECT_EQ(find(5000), bad < n ? 1000 + place : kNoElement);  // an earlier one was found
  scaler = scaler_of({});
  squares = squares_of(false);
  EXPECT_EQ(find(0), kNoElement) << "not looked for";
}

TEST(FindNonFinite, FindsTheFirst) {
  for (const float value : {kInfinity, -kInfinity, std::nanf("")}) {
    for (const std::size_t bad : {0U, 1U, 511U, 1022U, 1023U}) {
      expect_found<float>(1023, bad, value);
      expect_found<bfloat16>(1023, bad, value);
      expect_found<float16>(1023, bad, value);
    }
  }
  expect_found<float>(0, 0, kInfinity);
}

/// All that an optimizer could change.
struct Trained {
  std::vector<float> master{1.0F, -2.0F, 3.0F}, gradient{kInfinity, 0.5F, -1.0F};
  std::vector<float> m{0.5F, 0.25F, 0.0F}, v{0.25F, 0.5F, 1.0F};
  std::vector<bfloat16> parameter{bfloat16(7.0F), bfloat16(8.0F), bfloat16(9.0F)};
};

TEST(OptimizerStep, ThatIsSkippedLeavesEverythingAsItIs) {
  const Optimizer& adamw = find_optimizer("adamw");
  const OptimizerScalars of_step = optimizer_scalars(adamw, hyperparameter_values(adamw), 0.1, 1);
  for (const bool at_random : {false, true}) {
    for (const std::int64_t skip : {0, 1}) {
      Trained t;
      std::vector<float> scalars(of_step.begin(), of_step.end()), gradient_scale{1.0F};
      Words skips{skip}, key{1, 2};
      const std::vector<TensorView> states{view_of(t.m), view_of(t.v)};
      const std::vector<OptimizerSegment> segments{{0, 3, 0.1F}};
      StreamUnderTest stream;
      kernels_under_test().optimizer_step({.optimizer = &adamw,
                                           .master = view_of(t.master),
                                           .gradient = view_of(t.gradient),
                                           .states = states,
                                           .parameter = view_of(t.parameter),
                                           .segments = segments,
                                           .scalars = view_of(scalars),
                                           .gradient_scale = view_of(gradient_scale),
                                           .skip = view_of(skips),
                                           .stochastic_rounding = at_random,
                                           .rounding_key = view_of(key)},
                                          stream);
      EXPECT_EQ(t.master == Trained().master, skip == 1);
      EXPECT_EQ(t.m == Trained().m, skip == 1);
      EXPECT_EQ(t.v == Trained().v, skip == 1);
      EXPECT_EQ(as_float(t.parameter[1]) == 8.0F, skip == 1);
    }
  }
}

}  // namespace
}  // namespace tessera

#include "kernels/gelu_oracle.h"
#include "kernels/support.h"

// GELU, SiLU and tanh, which differ in their formulas alone.
namespace tessera {
namespace {

double logistic(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double silu(double x) { return x * logistic(x); }

double silu_slope(double x) { return logistic(x) * (1.0 + x * (1.0 - logistic(x))); }

/// A function, its derivative, its kernels, and where their exp under- or overflows.
struct GeluKernels {
  using Forward = GeluForwardArgs;
  using Backward = GeluBackwardArgs;
  static double value(double x) { return gelu(x); }
  static double slope(double x) { return gelu_slope(x); }
  static auto forward() { return kernels_under_test().gelu_forward; }
  static auto backward() { return kernels_under_test().gelu_backward; }
  static constexpr float kStddev = 2.0F, kTails[] = {12.0F, 100.0F};
  static constexpr const char* kName = "gelu";
};
struct ErfGeluKernels : GeluKernels {
  static double value(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }
  static double slope(double x) {
    const double bell = std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::acos(-1.0));
    return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * bell;
  }
  static auto forward() {
    return [](GeluForwardArgs args, Stream& stream) {
      args.form = GeluForm::kErf;
      kernels_under_test().gelu_forward(args, stream);
    };
  }
  static auto backward() {
    return [](GeluBackwardArgs args, Stream& stream) {
      args.form = GeluForm::kErf;
      kernels_under_test().gelu_backward(args, stream);
    };
  }
};
struct SiluKernels {
  using Forward = SiluForwardArgs;
  using Backward = SiluBackwardArgs;
  static double value(double x) { return silu(x); }
  static double slope(double x) { return silu_slope(x); }
  static auto forward() { return kernels_under_test().silu_forward; }
  static auto backward() { return kernels_under_test().silu_backward; }
  static constexpr float kStddev = 3.0F, kTails[] = {20.0F, 150.0F};
  static constexpr const char* kName = "silu";
};

/// Both tails and all between.
template <typename Kernels, typename T>
std::vector<T> inputs(std::int64_t n) {
  std::vector<T> values = random_values<T>(n, 7, Kernels::kStddev);
  const float special[] = {0.0F,
                           -0.0F,
                           1e-30F,
                           -6.0F,
                           6.0F,
                           -Kernels::kTails[0],
                           Kernels::kTails[0],
                           -Kernels::kTails[1],
                           Kernels::kTails[1]};
  for (std::size_t i = 0; i < std::size(special) && i < values.size(); ++i) {
    values[i] = T(special[i]);
  }
  return values;
}

template <typename Kernels, typename T>
std::vector<T> forward(std::vector<T> x, bool in_place) {
  std::vector<T> y(x.size());
  StreamUnderTest stream;
  Kernels::forward()({.x = view_of(x), .y = in_place ? view_of(x) : view_of(y)}, stream);
  return in_place ? x : y;
}

template <typename Kernels, typename T>
std::vector<T> backward(std::vector<T> x, std::vector<T> dy, bool in_place) {
  std::vector<T> dx(x.size());
  StreamUnderTest stream;
  Kernels::backward()(
      {.x = view_of(x), .dy = view_of(dy), .dx = in_place ? view_of(dy) : view_of(dx)}, stream);
  return in_place ? dy : dx;
}

/// A few roundings of the result for fp32; one rounding of the result for bf16 and
/// fp16.
template <typename T>
Doubles bounds(const Doubles& expected, const Doubles& magnitude) {
  Doubles result;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    result.push_back(4e-7 * std::abs(magnitude[i]) + rounding<T>() * std::abs(expected[i]) +
                     least_rounding<T>() + 1e-37);
  }
  return result;
}

template <typename KernelsAndElement>
class SmoothActivation : public testing::Test {};
using Cases = testing::Types<std::pair<GeluKernels, float>, std::pair<GeluKernels, bfloat16>,
                             std::pair<SiluKernels, float>, std::pair<SiluKernels, bfloat16>,
                             std::pair<GeluKernels, float16>, std::pair<SiluKernels, float16>,
                             std::pair<ErfGeluKernels, float>, std::pair<ErfGeluKernels, bfloat16>,
                             std::pair<ErfGeluKernels, float16>>;
TYPED_TEST_SUITE(SmoothActivation, Cases);

TYPED_TEST(SmoothActivation, ForwardFollowsTheFormula) {
  using Kernels = typename TypeParam::first_type;
  using T = typename TypeParam::second_type;
  for (const std::int64_t n : {0, 1, 7, 16, 33, 1009, 40009}) {
    SCOPED_TRACE(n);
    const auto x = inputs<Kernels, T>(n);
    Doubles expected;
    for (const double value : to_doubles(x)) expected.push_back(Kernels::value(value));
    on_every_target([&] {
      const auto y = run_on_any_threads([&] { return forward<Kernels>(x, false); });
      expect_within(y, expected, bounds<T>(expected, to_doubles(x)), "y");
      EXPECT_TRUE(same_bits(y, forward<Kernels>(x, true))) << "in place";
    });
  }
}

TYPED_TEST(SmoothActivation, BackwardFollowsTheFormula) {
  using Kernels = typename TypeParam::first_type;
  using T = typename TypeParam::second_type;
  for (const std::int64_t n : {0, 1, 7, 16, 33, 1009, 40009}) {
    SCOPED_TRACE(n);
    const auto x = inputs<Kernels, T>(n);
    const auto dy = random_values<T>(n, 8);
    Doubles expected, magnitude;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double gradient = static_cast<double>(as_float(dy[i]));
      expected.push_back(gradient * Kernels::slope(static_cast<double>(as_float(x[i]))));
      magnitude.push_back(2.0 * gradient);
    }
    on_every_target([&] {
      const auto dx = run_on_any_threads([&] { return backward<Kernels>(x, dy, false); });
      expect_within(dx, expected, bounds<T>(expected, magnitude), "dx");
      EXPECT_TRUE(same_bits(dx, backward<Kernels>(x, dy, true))) << "in place";
    });
  }
}

TYPED_TEST(SmoothActivation, NanStaysNan) {
  using T = typename TypeParam::second_type;
  const std::vector<T> x(19, T(std::nanf("")));
  for (const T y : forward<typename TypeParam::first_type>(x, false)) {
    EXPECT_TRUE(std::isnan(as_float(y)));
  }
}

template <typename Kernels>
void expect_flat_views() {
  using Forward = typename Kernels::Forward;
  using Backward = typename Kernels::Backward;
  const std::string name = Kernels::kName;
  std::vector<float> a(16), b(16), c(16);
  const Forward forward{.x = view_of(a, 0, 8), .y = view_of(b, 0, 8)};
  const auto f = Kernels::forward();
  expect_flat_floats(f, forward, &Forward::x, name + "_forward: x ");
  expect_flat_floats(f, forward, &Forward::y, name + "_forward: y ");
  std::vector<bfloat16> half(8);
  expect_refused(f, forward, &Forward::y, view_of(half), name + "_forward: y is bf16");
  const Backward backward{.x = view_of(a, 0, 8), .dy = view_of(b, 0, 8), .dx = view_of(c, 0, 8)};
  const auto g = Kernels::backward();
  expect_flat_floats(g, backward, &Backward::x, name + "_backward: x ");
  expect_flat_floats(g, backward, &Backward::dy, name + "_backward: dy ");
  expect_flat_floats(g, backward, &Backward::dx, name + "_backward: dx ");
}

TEST(SmoothActivationErrors, ViewsThatAreNotFlatFloatsAreNamed) {
  expect_flat_views<GeluKernels>();
  expect_flat_views<SiluKernels>();
}

TEST(SmoothActivationErrors, DifferentSizesAreNamed) {
  std::vector<float> x(4), y(5);
  StreamUnderTest stream;
  EXPECT_THROW(kernels_under_test().gelu_forward({.x = view_of(x), .y = view_of(y)}, stream),
               Error);
}

// Its derivative is taken at its output.
TEST(TanhActivation, FollowsTheFormula) {
  const std::vector<float> x = random_values<float>(1009, 7, 3.0F),
                           dy = random_values<float>(1009, 8);
  on_every_target([&] {
    std::vector<float> y(x), dx(dy);
    StreamUnderTest stream;
    kernels_under_test().relu_forward(
        {.x = view_of(y), .y = view_of(y), .function = OutputActivation::kTanh}, stream);
    kernels_under_test().relu_backward({.y = view_of(y),
                                        .dy = view_of(dx),
                                        .dx = view_of(dx),
                                        .function = OutputActivation::kTanh},
                                       stream);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double expected = std::tanh(static_cast<double>(x[i]));
      EXPECT_NEAR(y[i], expected, 4e-7);
      EXPECT_NEAR(dx[i], static_cast<double>(dy[i]) * (1.0 - expected * expected), 4e-6);
    }
  });
}

TEST(GeluOracle, SlopeIsTheDerivative) {
  for (double x = -6.0; x < 6.0; x += 0.37) {
    EXPECT_NEAR(ErfGeluKernels::slope(x),
                (ErfGeluKernels::value(x + 1e-6) - ErfGeluKernels::value(x - 1e-6)) / 2e-6, 1e-8);
    EXPECT_NEAR(gelu_slope(x), (gelu(x + 1e-6) - gelu(x - 1e-6)) / 2e-6, 1e-8) << x;
  }
}

}  // namespace
}  // namespace tessera

#include "kernels/support.h"

namespace tessera::silu_test {
namespace {

double logistic(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double silu(double x) { return x * logistic(x); }

double silu_slope(double x) { return logistic(x) * (1.0 + x * (1.0 - logistic(x))); }

/// Both tails, where exp under- or overflows, and all between.
template <typename T>
std::vector<T> inputs(std::int64_t n) {
  std::vector<T> values = random_values<T>(n, 7, 3.0F);
  const float special[] = {0.0F, -0.0F, 1e-30F, -6.0F, 6.0F, -20.0F, 20.0F, -150.0F, 150.0F};
  for (std::size_t i = 0; i < std::size(special) && i < values.size(); ++i) {
    values[i] = T(special[i]);
  }
  return values;
}

template <typename T>
std::vector<T> forward(std::vector<T> x, bool in_place) {
  std::vector<T> y(x.size());
  StreamUnderTest stream;
  kernels_under_test().silu_forward({.x = view_of(x), .y = in_place ? view_of(x) : view_of(y)},
                                    stream);
  return in_place ? x : y;
}

template <typename T>
std::vector<T> backward(std::vector<T> x, std::vector<T> dy, bool in_place) {
  std::vector<T> dx(x.size());
  StreamUnderTest stream;
  kernels_under_test().silu_backward(
      {.x = view_of(x), .dy = view_of(dy), .dx = in_place ? view_of(dy) : view_of(dx)}, stream);
  return in_place ? dy : dx;
}

/// A few roundings of the result for fp32; one rounding of the result for bf16.
template <typename T>
Doubles bounds(const Doubles& expected, const Doubles& magnitude) {
  Doubles result;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    result.push_back(4e-7 * std::abs(magnitude[i]) + rounding<T>() * std::abs(expected[i]) + 1e-37);
  }
  return result;
}

template <typename T>
class Silu : public testing::Test {};
using Types = testing::Types<float, bfloat16>;
TYPED_TEST_SUITE(Silu, Types);

TYPED_TEST(Silu, ForwardFollowsTheFormula) {
  for (const std::int64_t n : {0, 1, 7, 16, 33, 1009, 40009}) {
    SCOPED_TRACE(n);
    const auto x = inputs<TypeParam>(n);
    Doubles expected;
    for (const double value : to_doubles(x)) expected.push_back(silu(value));
    on_every_target([&] {
      const auto y = run_on_any_threads([&] { return forward(x, false); });
      expect_within(y, expected, bounds<TypeParam>(expected, to_doubles(x)), "y");
      EXPECT_TRUE(same_bits(y, forward(x, true))) << "in place";
    });
  }
}

TYPED_TEST(Silu, BackwardFollowsTheFormula) {
  for (const std::int64_t n : {0, 1, 7, 16, 33, 1009, 40009}) {
    SCOPED_TRACE(n);
    const auto x = inputs<TypeParam>(n);
    const auto dy = random_values<TypeParam>(n, 8);
    Doubles expected, magnitude;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double gradient = static_cast<double>(as_float(dy[i]));
      expected.push_back(gradient * silu_slope(static_cast<double>(as_float(x[i]))));
      magnitude.push_back(2.0 * gradient);
    }
    on_every_target([&] {
      const auto dx = run_on_any_threads([&] { return backward(x, dy, false); });
      expect_within(dx, expected, bounds<TypeParam>(expected, magnitude), "dx");
      EXPECT_TRUE(same_bits(dx, backward(x, dy, true))) << "in place";
    });
  }
}

TEST(SiluErrors, ViewsThatAreNotFlatFloatsAreNamed) {
  std::vector<float> a(16), b(16), c(16);
  const SiluForwardArgs forward{.x = view_of(a, 0, 8), .y = view_of(b, 0, 8)};
  const auto f = kernels_under_test().silu_forward;
  expect_flat_floats(f, forward, &SiluForwardArgs::x, "silu_forward: x ");
  expect_flat_floats(f, forward, &SiluForwardArgs::y, "silu_forward: y ");
  const SiluBackwardArgs backward{
      .x = view_of(a, 0, 8), .dy = view_of(b, 0, 8), .dx = view_of(c, 0, 8)};
  const auto g = kernels_under_test().silu_backward;
  expect_flat_floats(g, backward, &SiluBackwardArgs::x, "silu_backward: x ");
  expect_flat_floats(g, backward, &SiluBackwardArgs::dy, "silu_backward: dy ");
  expect_flat_floats(g, backward, &SiluBackwardArgs::dx, "silu_backward: dx ");
}

TEST(SiluForward, NanStaysNan) {
  for (const float y : forward(std::vector<float>(19, std::nanf("")), false)) {
    EXPECT_TRUE(std::isnan(y));
  }
}

}  // namespace
}  // namespace tessera::silu_test

#include "kernels/gelu_oracle.h"
#include "kernels/support.h"

namespace tessera::swiglu_test {
namespace {

/// f and f'.
struct Point {
  double value, slope;
};
Point at_gate(GateFunction function, double x) {
  if (function == GateFunction::kGelu) return {gelu(x), gelu_slope(x)};
  const double s = 1.0 / (1.0 + std::exp(-x));
  return {x * s, s * (1.0 + x * (1.0 - s))};
}

/// y (rows, F) of x (rows, 2 F).
Doubles forward_oracle(const Doubles& x, std::int64_t width, GateFunction function) {
  Doubles y(x.size() / 2);
  for (std::int64_t e = 0; e < static_cast<std::int64_t>(y.size()); ++e) {
    const std::int64_t gate = e / width * 2 * width + e % width;
    y[at(e)] = at_gate(function, x[at(gate)]).value * x[at(gate + width)];
  }
  return y;
}

Doubles backward_oracle(const Doubles& x, const Doubles& dy, std::int64_t width,
                        GateFunction function) {
  Doubles dx(x.size());
  for (std::int64_t e = 0; e < static_cast<std::int64_t>(dy.size()); ++e) {
    const std::int64_t gate = e / width * 2 * width + e % width;
    const Point f = at_gate(function, x[at(gate)]);
    dx[at(gate)] = dy[at(e)] * x[at(gate + width)] * f.slope;
    dx[at(gate + width)] = dy[at(e)] * f.value;
  }
  return dx;
}

template <typename T>
std::vector<T> forward(std::vector<T> x, std::int64_t rows, std::int64_t width,
                       GateFunction function) {
  std::vector<T> y(at(rows * width));
  StreamUnderTest stream;
  kernels_under_test().swiglu_forward({.x = view_of(x, Shape{rows, 2 * width}),
                                       .y = view_of(y, Shape{rows, width}),
                                       .function = function},
                                      stream);
  return y;
}

template <typename T>
std::vector<T> backward(std::vector<T> x, std::vector<T> dy, std::int64_t rows, std::int64_t width,
                        GateFunction function, bool in_place) {
  std::vector<T> dx(x.size());
  const Shape both{rows, 2 * width};
  StreamUnderTest stream;
  kernels_under_test().swiglu_backward({.x = view_of(x, both),
                                        .dy = view_of(dy, Shape{rows, width}),
                                        .dx = view_of(in_place ? x : dx, both),
                                        .function = function},
                                       stream);
  return in_place ? x : dx;
}

template <typename T>
void check(std::int64_t rows, std::int64_t width, GateFunction function) {
  SCOPED_TRACE(concat(rows, " x ", width, function == GateFunction::kGelu ? ", GELU" : ""));
  auto x = random_values<T>(rows * 2 * width, 1, 3.0F);
  const float tails[] = {0.0F, -0.0F, 20.0F, -20.0F, 150.0F, -150.0F};
  for (std::size_t i = 0; i < std::size(tails) && i < x.size(); ++i) x[i] = T(tails[i]);
  const auto dy = random_values<T>(rows * width, 2);
  const Doubles exact = to_doubles(x);
  const auto y = run_on_any_threads([&] { return forward(x, rows, width, function); });
  expect_close(y, forward_oracle(exact, width, function), 1e-6 + rounding<T>(), "y");
  const auto dx = run_on_any_threads([&] { return backward(x, dy, rows, width, function, false); });
  expect_close(dx, backward_oracle(exact, to_doubles(dy), width, function), 1e-6 + rounding<T>(),
               "dx");
  EXPECT_TRUE(same_bits(backward(x, dy, rows, width, function, true), dx)) << "in place";
}

TEST(Swiglu, FollowsTheFormula) {
  on_every_target([] {
    for (const std::int64_t rows : {0, 1, 3, 50}) {
      for (const std::int64_t width : {1, 7, 8, 33, 352}) {
        for (const GateFunction function : {GateFunction::kSilu, GateFunction::kGelu}) {
          check<float>(rows, width, function);
          check<bfloat16>(rows, width, function);
          check<float16>(rows, width, function);
        }
      }
    }
  });
}

TEST(SwigluOracle, BackwardIsTheGradientOfForward) {
  const Doubles x = to_doubles(random_values<float>(20, 1));
  const Doubles dy = to_doubles(random_values<float>(10, 2));
  for (const GateFunction function : {GateFunction::kSilu, GateFunction::kGelu}) {
    const Doubles expected = numeric_gradient(
        [&](const Doubles& v) { return dot(dy, forward_oracle(v, 5, function)); }, x);
    const Doubles actual = backward_oracle(x, dy, 5, function);
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-7);
  }
}

TEST(Swiglu, RefusesShapesThatDoNotFit) {
  std::vector<float> x(12), y(6);
  StreamUnderTest stream;
  EXPECT_THROW(kernels_under_test().swiglu_forward(
                   {.x = view_of(x, Shape{3, 4}), .y = view_of(y, Shape{2, 3})}, stream),
               Error);
  EXPECT_THROW(kernels_under_test().swiglu_forward(
                   {.x = view_of(x, Shape{2, 6}), .y = view_of(y, Shape{6})}, stream),
               Error);
}

}  // namespace
}  // namespace tessera::swiglu_test

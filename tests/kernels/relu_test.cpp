#include <limits>

#include "kernels/support.h"

namespace tessera::relu_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Both signs, and what lies between and beyond.
template <typename T>
std::vector<T> inputs(std::int64_t n) {
  std::vector<T> values = random_values<T>(n, 7);
  const float special[] = {0.0F, -0.0F, 1e-38F, -1e-38F, kInfinity, -kInfinity};
  for (std::size_t i = 0; i < std::size(special) && i < values.size(); ++i) {
    values[i] = T(special[i]);
  }
  return values;
}

template <typename T>
std::vector<T> forward(std::vector<T> x, bool in_place) {
  std::vector<T> y(x.size());
  StreamUnderTest stream;
  kernels_under_test().relu_forward({.x = view_of(x), .y = in_place ? view_of(x) : view_of(y)},
                                    stream);
  return in_place ? x : y;
}

template <typename T>
std::vector<T> backward(std::vector<T> y, std::vector<T> dy, bool in_place) {
  std::vector<T> dx(y.size());
  StreamUnderTest stream;
  kernels_under_test().relu_backward(
      {.y = view_of(y), .dy = view_of(dy), .dx = in_place ? view_of(dy) : view_of(dx)}, stream);
  return in_place ? dy : dx;
}

template <typename T>
class Relu : public testing::Test {};
using Types = testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(Relu, Types);

// Nothing is rounded, so the formula holds to the bit.
TYPED_TEST(Relu, FollowsTheFormula) {
  for (const std::int64_t n : kSizes) {
    SCOPED_TRACE(n);
    const auto x = inputs<TypeParam>(n);
    const auto dy = random_values<TypeParam>(n, 8);
    std::vector<TypeParam> y, dx;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const bool passes = static_cast<double>(as_float(x[i])) > 0.0;
      y.push_back(passes ? x[i] : TypeParam(0.0F));
      dx.push_back(passes ? dy[i] : TypeParam(0.0F));
    }
    on_every_target([&] {
      EXPECT_TRUE(same_bits(run_on_any_threads([&] { return forward(x, false); }), y));
      EXPECT_TRUE(same_bits(run_on_any_threads([&] { return backward(y, dy, false); }), dx));
      EXPECT_TRUE(same_bits(forward(x, true), y)) << "in place";
      EXPECT_TRUE(same_bits(backward(y, dy, true), dx)) << "in place";
    });
  }
}

TEST(ReluErrors, ViewsThatAreNotFlatFloatsAreNamed) {
  std::vector<float> a(16), b(16), c(16);
  const ReluForwardArgs forward{.x = view_of(a, 0, 8), .y = view_of(b, 0, 8)};
  const auto f = kernels_under_test().relu_forward;
  expect_flat_floats(f, forward, &ReluForwardArgs::x, "relu_forward: x ");
  expect_flat_floats(f, forward, &ReluForwardArgs::y, "relu_forward: y ");
  const ReluBackwardArgs backward{
      .y = view_of(a, 0, 8), .dy = view_of(b, 0, 8), .dx = view_of(c, 0, 8)};
  const auto g = kernels_under_test().relu_backward;
  expect_flat_floats(g, backward, &ReluBackwardArgs::y, "relu_backward: y ");
  expect_flat_floats(g, backward, &ReluBackwardArgs::dy, "relu_backward: dy ");
  expect_flat_floats(g, backward, &ReluBackwardArgs::dx, "relu_backward: dx ");
}

TEST(ReluOfNan, StaysNan) {
  const std::vector<float> nan(19, std::nanf(""));
  for (const float y : forward(nan, false)) EXPECT_TRUE(std::isnan(y));
  for (const float dx : backward(nan, std::vector<float>(19, 2.0F), false)) EXPECT_EQ(dx, 2.0F);
}

}  // namespace
}  // namespace tessera::relu_test

#include <limits>

#include "kernels/support.h"

namespace tessera::squared_error_test {
namespace {

template <typename T>
struct Result {
  std::vector<float> losses;
  std::vector<T> x;
};

template <typename T>
Result<T> squared_error_of(std::vector<T> x, std::vector<float> targets, std::int64_t rows,
                           float scale, bool gradient = true) {
  Result<T> result{std::vector<float>(at(rows)), std::move(x)};
  const Shape shape{rows, rows == 0 ? 5 : static_cast<std::int64_t>(targets.size()) / rows};
  StreamUnderTest stream;
  kernels_under_test().squared_error({.x = view_of(result.x, shape),
                                      .targets = view_of(targets, shape),
                                      .losses = view_of(result.losses),
                                      .gradient = gradient,
                                      .scale = TensorView(&scale, DType::kFloat32, Shape{1})},
                                     stream);
  return result;
}

template <typename T>
class SquaredError : public testing::Test {};
using Types = testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(SquaredError, Types);

// The mean of n squares in fp32 over 32 lanes: each lane adds at most 2048 / 32 numbers at once.
TYPED_TEST(SquaredError, LossesAndGradientsFollowTheFormula) {
  constexpr float kScale = 0.125F;
  for (const auto& [rows, columns] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {0, 5}, {1, 1}, {7, 1}, {3, 31}, {5, 33}, {300, 3}, {2, 5003}}) {
    SCOPED_TRACE(concat(rows, " rows of ", columns));
    const auto x = random_values<TypeParam>(rows * columns, 3);
    const auto targets = random_values<float>(rows * columns, 4);
    Doubles losses, gradients;
    for (std::int64_t r = 0; r < rows; ++r) {
      double sum = 0.0;
      for (std::int64_t i = r * columns; i < (r + 1) * columns; ++i) {
        const double error =
            static_cast<double>(as_float(x[at(i)])) - static_cast<double>(targets[at(i)]);
        sum += error * error;
        gradients.push_back(2.0 * error * static_cast<double>(kScale) /
                            static_cast<double>(columns));
      }
      losses.push_back(sum / static_cast<double>(columns));
    }
    on_every_target([&] {
      const auto of_threads = [&](bool gradient) {
        return run_on_any_threads(
            [&] { return squared_error_of(x, targets, rows, kScale, gradient).losses; });
      };
      const std::vector<float> actual = of_threads(true);
      expect_close(actual, losses, 2e-5, "losses");
      EXPECT_TRUE(same_bits(of_threads(false), actual)) << "without gradients";
      const auto dx =
          run_on_any_threads([&] { return squared_error_of(x, targets, rows, kScale).x; });
      expect_close(dx, gradients, 2e-7 + rounding<TypeParam>(), "gradients");
      EXPECT_TRUE(same_bits(squared_error_of(x, targets, rows, kScale, false).x, x))
          << "x is overwritten without gradients";
    });
  }
}

TEST(SquaredErrorKernel, NanShowsInItsOwnRowOnly) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto result = squared_error_of<float>({1, 2, 3, 4}, {1, nan, 3, 6}, 2, 1.0F);
  EXPECT_TRUE(std::isnan(result.losses[0]));
  EXPECT_EQ(result.losses[1], 2.0F);
  EXPECT_EQ(result.x[3], -2.0F);
}

TEST(SquaredErrorKernel, NamesViewsThatDoNotFit) {
  std::vector<float> x(12), targets(12), losses(6);
  const SquaredErrorArgs args{.x = view_of(x, Shape{3, 2}),
                              .targets = view_of(targets, Shape{3, 2}),
                              .losses = view_of(losses, 0, 3)};
  const auto f = kernels_under_test().squared_error;
  expect_flat_floats(f, args, &SquaredErrorArgs::x, "squared_error: x ");
  expect_flat_floats(f, args, &SquaredErrorArgs::targets, "squared_error: targets ");
  expect_flat_floats(f, args, &SquaredErrorArgs::losses, "squared_error: losses ");
  expect_refused(f, args, &SquaredErrorArgs::x, view_of(x, 0, 6), "squared_error: x has shape");
  expect_refused(f, args, &SquaredErrorArgs::targets, view_of(targets, 0, 3),
                 "squared_error: targets has shape");
  expect_refused(f, args, &SquaredErrorArgs::losses, view_of(losses, 0, 2),
                 "squared_error: losses has shape");
}

}  // namespace
}  // namespace tessera::squared_error_test

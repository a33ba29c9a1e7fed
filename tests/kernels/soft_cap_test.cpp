#include "kernels/support.h"

namespace tessera::soft_cap_test {
namespace {

template <typename T>
std::vector<T> soft_cap(std::vector<T> x, float cap, bool in_place) {
  std::vector<T> y(x.size());
  StreamUnderTest stream;
  kernels_under_test().soft_cap(
      {.x = view_of(x), .y = in_place ? view_of(x) : view_of(y), .cap = cap}, stream);
  return in_place ? x : y;
}

template <typename T>
void check(std::int64_t n, float cap) {
  SCOPED_TRACE(concat(n, " elements, cap ", cap));
  auto x = random_values<T>(n, 1, 2.0F * cap);
  const float special[] = {0.0F, -0.0F, 1e-3F, -1e-3F, 3e4F, -3e4F};
  for (std::size_t i = 0; i < std::size(special) && i < x.size(); ++i) x[i] = T(special[i]);
  Doubles expected;
  for (const double value : to_doubles(x)) {
    const auto c = static_cast<double>(cap);
    expected.push_back(c * std::tanh(value / c));
  }
  const auto y = run_on_any_threads([&] { return soft_cap(x, cap, false); });
  expect_close(y, expected, 5e-7 + rounding<T>(), "y");
  EXPECT_TRUE(same_bits(soft_cap(x, cap, true), y)) << "in place";
}

TEST(SoftCapKernel, FollowsTheFormula) {
  on_every_target([] {
    for (const std::int64_t n : {0, 1, 7, 64, 1001}) {
      for (const float cap : {0.5F, 30.0F}) {
        check<float>(n, cap);
        check<bfloat16>(n, cap);
        check<float16>(n, cap);
      }
    }
  });
}

/// Of numbers so small that the cap does not bend them, each is off by a few roundings of its own.
TEST(SoftCapKernel, KeepsSmallNumbersOfFloat32) {
  on_every_target([] {
    const auto x = random_values<float>(1001, 2, 1e-3F);
    const auto y = soft_cap(x, 30.0F, false);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(y[i], x[i], 1e-6 * std::abs(static_cast<double>(x[i])));
    }
  });
}

TEST(SoftCapKernel, RefusesACapThatIsNotPositive) {
  EXPECT_THROW(soft_cap(std::vector<float>(3), 0.0F, false), Error);
  EXPECT_THROW(soft_cap(std::vector<float>(3), -1.0F, false), Error);
}

}  // namespace
}  // namespace tessera::soft_cap_test

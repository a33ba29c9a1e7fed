#include "kernels/support.h"

// Multiplication by element, softmax of rows, and the mean of a sequence's rows.
namespace tessera::row_ops_test {
namespace {

template <typename T>
class RowOps : public testing::Test {};
using Types = testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(RowOps, Types);

template <typename T>
std::vector<T> multiply(std::vector<T> a, std::vector<T> b, bool in_place) {
  std::vector<T> y(a.size());
  StreamUnderTest stream;
  kernels_under_test().multiply(
      {.a = view_of(a), .b = view_of(b), .y = in_place ? view_of(a) : view_of(y)}, stream);
  return in_place ? a : y;
}

// One rounding, so the formula holds to the bit.
TYPED_TEST(RowOps, MultiplyRoundsOnce) {
  for (const std::int64_t n : kSizes) {
    SCOPED_TRACE(n);
    const auto a = random_values<TypeParam>(n, 1), b = random_values<TypeParam>(n, 2);
    std::vector<TypeParam> expected;
    for (std::size_t i = 0; i < a.size(); ++i) {
      expected.push_back(TypeParam(as_float(a[i]) * as_float(b[i])));
    }
    on_every_target([&] {
      EXPECT_TRUE(same_bits(run_on_any_threads([&] { return multiply(a, b, false); }), expected));
      EXPECT_TRUE(same_bits(multiply(a, b, true), expected)) << "in place";
    });
  }
}

struct Matrix {
  std::int64_t rows, columns;
};
const std::vector<Matrix> kMatrices{{0, 5}, {1, 1}, {3, 7}, {9, 32}, {8, 33}, {5, 129}, {2, 1031}};

template <typename T>
std::vector<T> softmax(std::vector<T> x, const Matrix& m, bool in_place) {
  std::vector<T> y(x.size());
  const Shape shape{m.rows, m.columns};
  StreamUnderTest stream;
  kernels_under_test().softmax_forward(
      {.x = view_of(x, shape), .y = in_place ? view_of(x, shape) : view_of(y, shape)}, stream);
  return in_place ? x : y;
}

template <typename T>
std::vector<T> softmax_backward(std::vector<T> y, std::vector<T> dy, const Matrix& m,
                                bool in_place) {
  std::vector<T> dx(y.size());
  const Shape shape{m.rows, m.columns};
  StreamUnderTest stream;
  kernels_under_test().softmax_backward({.y = view_of(y, shape),
                                         .dy = view_of(dy, shape),
                                         .dx = in_place ? view_of(dy, shape) : view_of(dx, shape)},
                                        stream);
  return in_place ? dy : dx;
}

TYPED_TEST(RowOps, SoftmaxFollowsTheFormula) {
  using T = TypeParam;
  for (const Matrix& m : kMatrices) {
    SCOPED_TRACE(concat(m.rows, " x ", m.columns));
    const std::int64_t n = m.rows * m.columns;
    const auto x = random_values<T>(n, 3, 4.0F), dy = random_values<T>(n, 4);
    const Doubles from = to_doubles(x), d = to_doubles(dy);
    Doubles y(from.size()), y_bound = y, dx = y, dx_bound = y;
    std::vector<T> rounded(from.size());
    for (std::size_t begin = 0; begin < y.size(); begin += at(m.columns)) {
      const std::size_t end = begin + at(m.columns);
      double sum = 0.0, dot = 0.0, size = 0.0;
      for (std::size_t i = begin; i < end; ++i) sum += y[i] = std::exp(from[i]);
      for (std::size_t i = begin; i < end; ++i) {
        y[i] /= sum;
        // The scores are rounded before exp, and exp and the sum err by some units.
        y_bound[i] = half_unit<T>(y[i]) + 0x1p-24 * (40 + 2 * std::abs(from[i])) * y[i] + 1e-30;
        rounded[i] = T(static_cast<float>(y[i]));
        dot += static_cast<double>(as_float(rounded[i])) * d[i];
        size += std::abs(static_cast<double>(as_float(rounded[i])) * d[i]);
      }
      for (std::size_t i = begin; i < end; ++i) {
        const auto p = static_cast<double>(as_float(rounded[i]));
        dx[i] = p * (d[i] - dot);
        dx_bound[i] = half_unit<T>(dx[i]) + 0x1p-24 * 40 * p * (std::abs(d[i]) + size) + 1e-30;
      }
    }
    on_every_target([&] {
      const auto forward = run_on_any_threads([&] { return softmax(x, m, false); });
      expect_within(forward, y, y_bound, "y");
      EXPECT_TRUE(same_bits(softmax(x, m, true), forward)) << "in place";
      const auto backward =
          run_on_any_threads([&] { return softmax_backward(rounded, dy, m, false); });
      expect_within(backward, dx, dx_bound, "dx");
      EXPECT_TRUE(same_bits(softmax_backward(rounded, dy, m, true), backward)) << "in place";
    });
  }
}

TEST(Softmax, LargeNumbersDoNotOverflow) {
  const std::vector<float> y = softmax<float>({1e4F, 1e4F, -1e4F, -3e38F}, {1, 4}, false);
  EXPECT_FLOAT_EQ(y[0], 0.5F);
  EXPECT_FLOAT_EQ(y[1], 0.5F);
  EXPECT_NEAR(y[2], 0.0F, 1e-37F);
  EXPECT_NEAR(y[3], 0.0F, 1e-37F);
}

TYPED_TEST(RowOps, MeanRowsFollowsTheFormula) {
  using T = TypeParam;
  struct Sizes {
    std::int64_t batch, length, width;
  };
  for (const Sizes& s : {Sizes{0, 3, 4}, Sizes{1, 1, 1}, Sizes{2, 3, 5}, Sizes{3, 17, 33},
                         Sizes{1, 200, 130}, Sizes{5, 2, 16}}) {
    SCOPED_TRACE(concat(s.batch, " x ", s.length, " x ", s.width));
    auto x = random_values<T>(s.batch * s.length * s.width, 5);
    auto dy = random_values<T>(s.batch * s.width, 6);
    Doubles y(dy.size()), bound = y, dx(x.size()), dx_bound = dx;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t of = i / at(s.length * s.width) * at(s.width) + i % at(s.width);
      const auto length = static_cast<double>(s.length);
      y[of] += static_cast<double>(as_float(x[i])) / length;
      bound[of] += 0x1p-24 * (length + 1) * std::abs(static_cast<double>(as_float(x[i]))) / length;
      dx[i] = static_cast<double>(as_float(dy[of])) / length;
      dx_bound[i] = half_unit<T>(dx[i]) + 0x1p-24 * std::abs(dx[i]) + 1e-30;
    }
    for (std::size_t i = 0; i < y.size(); ++i) bound[i] += half_unit<T>(y[i]) + 1e-30;
    const Shape sequence{s.batch, s.length, s.width}, mean{s.batch, s.width};
    on_every_target([&] {
      const auto forward = run_on_any_threads([&] {
        std::vector<T> result(dy.size());
        StreamUnderTest stream;
        kernels_under_test().mean_rows_forward(
            {.x = view_of(x, sequence), .y = view_of(result, mean)}, stream);
        return result;
      });
      expect_within(forward, y, bound, "y");
      const auto backward = run_on_any_threads([&] {
        std::vector<T> result(x.size());
        StreamUnderTest stream;
        kernels_under_test().mean_rows_backward(
            {.dy = view_of(dy, mean), .dx = view_of(result, sequence)}, stream);
        return result;
      });
      expect_within(backward, dx, dx_bound, "dx");
    });
  }
}

TEST(RowOpsErrors, ShapesThatDoNotFitAreNamed) {
  std::vector<float> six(6), four(4);
  StreamUnderTest stream;
  const KernelTable& k = kernels_under_test();
  EXPECT_THROW(k.multiply({.a = view_of(six), .b = view_of(four), .y = view_of(six)}, stream),
               Error);
  EXPECT_THROW(k.softmax_forward({.x = view_of(six), .y = view_of(six)}, stream), Error);
  EXPECT_THROW(k.softmax_backward({.y = view_of(six, Shape{2, 3}),
                                   .dy = view_of(four, Shape{2, 2}),
                                   .dx = view_of(six, Shape{2, 3})},
                                  stream),
               Error);
  EXPECT_THROW(k.mean_rows_forward(
                   {.x = view_of(six, Shape{1, 2, 3}), .y = view_of(four, Shape{1, 4})}, stream),
               Error);
}

}  // namespace
}  // namespace tessera::row_ops_test

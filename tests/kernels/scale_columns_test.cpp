#include <array>

#include "kernels/support.h"

// Products of columns with numbers of their own, and the sums of their gradients, which must be
// those of one loop on every device and instruction set.
namespace tessera::scale_columns_test {
namespace {

/// Rows of `width` columns in memory that has `gap` more between them.
struct Layout {
  std::int64_t rows = 0, width = 0, gap = 0;
  std::int64_t numel() const { return rows * (width + gap); }
  std::int64_t at(std::int64_t row, std::int64_t column) const {
    return row * (width + gap) + column;
  }
  template <typename T>
  TensorView view(std::vector<T>& values) const {
    return view_of(values, Shape{rows, width + gap}).narrow(1, 0, width);
  }
};

template <typename T>
float product(T a, T b) {
  return as_float(a) * as_float(b);
}

/// Column sums of dy * x in the order of all devices: in blocks of 16 rows, or of a 128th of them
/// if that is more, then block by block, then to what is there.
template <typename T>
std::vector<float> sums_of(const std::vector<T>& dy, const std::vector<T>& x, const Layout& layout,
                           const Layout& of_x, const std::vector<float>& before) {
  std::vector<float> sums(before.size());
  const std::int64_t block = std::max<std::int64_t>(16, (layout.rows + 127) / 128);
  for (std::int64_t begin = 0; begin < layout.rows; begin += block) {
    for (std::int64_t j = 0; j < layout.width; ++j) {
      float sum = 0.0F;
      for (std::int64_t i = begin; i < std::min(begin + block, layout.rows); ++i) {
        sum += product(dy[tessera::at(layout.at(i, j))], x[tessera::at(of_x.at(i, j))]);
      }
      sums[tessera::at(j)] += sum;
    }
  }
  for (std::size_t j = 0; j < sums.size(); ++j) sums[j] = before[j] + sums[j];
  return sums;
}

template <typename T>
struct Case {
  Layout layout;
  std::vector<T> x, dy, scale;

  explicit Case(const Layout& rows)
      : layout(rows),
        x(random_values<T>(rows.numel(), 1)),
        dy(random_values<T>(rows.numel(), 2)),
        scale(random_values<T>(rows.width, 3)) {}

  /// What forward makes of x in place, and behind it what it keeps.
  std::vector<T> forward() const {
    std::vector<T> in_place = x, factors = scale, kept(at(layout.rows * layout.width));
    const TensorView view = layout.view(in_place);
    StreamUnderTest stream;
    kernels_under_test().scale_columns_forward(
        {.x = view,
         .scale = view_of(factors),
         .y = view,
         .kept = view_of(kept, Shape{layout.rows, layout.width})},
        stream);
    in_place.insert(in_place.end(), kept.begin(), kept.end());
    return in_place;
  }

  /// dx in place of dy; `sums` are added to, unless they are empty: then they are not wanted.
  template <typename D>
  std::vector<T> backward(std::vector<D>& sums) const {
    std::vector<T> in_place = dy, from = x, factors = scale;
    const TensorView view = layout.view(in_place);
    StreamUnderTest stream;
    kernels_under_test().scale_columns_backward(
        {.dy = view,
         .x = sums.empty() ? TensorView() : layout.view(from),
         .scale = view_of(factors),
         .dx = view,
         .d_scale = sums.empty() ? TensorView() : view_of(sums),
         .accumulate = true},
        stream);
    return in_place;
  }
};

template <typename T>
void check(const Layout& layout) {
  SCOPED_TRACE(concat(layout.rows, " x ", layout.width, " + ", layout.gap));
  const Case<T> c(layout);
  std::vector<T> y = c.x, dx = c.dy;
  for (std::int64_t i = 0; i < layout.rows; ++i) {
    for (std::int64_t j = 0; j < layout.width; ++j) {
      const std::size_t e = at(layout.at(i, j));
      y[e] = T(product(c.x[e], c.scale[at(j)]));
      dx[e] = T(product(c.dy[e], c.scale[at(j)]));
    }
  }
  for (std::int64_t i = 0; i < layout.rows; ++i) {
    for (std::int64_t j = 0; j < layout.width; ++j) y.push_back(c.x[at(layout.at(i, j))]);
  }
  EXPECT_TRUE(same_bits(run_every_way([&] { return c.forward(); }), y));

  const auto before = random_values<float>(layout.width, 4);
  const auto sums = sums_of(c.dy, c.x, layout, layout, before);
  std::vector<float> d_scale;
  const auto actual = run_every_way([&] {
    d_scale = before;
    return c.backward(d_scale);
  });
  EXPECT_TRUE(same_bits(actual, dx));
  if (layout.width == 0) return;
  EXPECT_TRUE(same_bits(d_scale, sums));
  std::vector<T> rounded = from_doubles<T>(to_doubles(before));
  std::vector<float> expected;
  for (const T value : rounded) expected.push_back(as_float(value));
  expected = sums_of(c.dy, c.x, layout, layout, expected);
  c.backward(rounded);
  for (std::size_t j = 0; j < rounded.size(); ++j) {
    EXPECT_EQ(as_float(rounded[j]), as_float(T(expected[j])));
  }
  std::vector<float> none;
  EXPECT_TRUE(same_bits(c.backward(none), dx)) << "without d_scale";
}

TEST(ScaleColumns, FollowTheFormulaBitForBit) {
  for (const std::int64_t rows : {0, 1, 19, 2100}) {
    for (const std::int64_t width : {1, 8, 33, 264}) {
      if (rows > 100 && width != 8) continue;
      for (const std::int64_t gap : {0, 3, 8}) {
        check<float>({rows, width, gap});
        check<bfloat16>({rows, width, gap});
        check<float16>({rows, width, gap});
      }
    }
  }
}

TEST(ScaleColumns, TakeNoColumns) { check<float>({5, 0, 0}); }

TEST(ScaleColumns, RefuseWhatDoesNotFit) {
  std::vector<float> x(12), y(12), scale(4), sums(4);
  const ScaleColumnsForwardArgs forward{
      .x = view_of(x, Shape{3, 4}), .scale = view_of(scale), .y = view_of(y, Shape{3, 4})};
  const auto refuse_forward = kernels_under_test().scale_columns_forward;
  using Forward = ScaleColumnsForwardArgs;
  expect_refused(refuse_forward, forward, &Forward::x, view_of(x, Shape{4, 3}),
                 "scale_columns_forward: scale ");
  expect_refused(refuse_forward, forward, &Forward::y, view_of(y, Shape{4, 3}),
                 "scale_columns_forward: y ");
  expect_refused(refuse_forward, forward, &Forward::kept, view_of(y, Shape{2, 4}),
                 "scale_columns_forward: kept ");
  const ScaleColumnsBackwardArgs backward{.dy = view_of(x, Shape{3, 4}),
                                          .x = view_of(y, Shape{3, 4}),
                                          .scale = view_of(scale),
                                          .dx = view_of(x, Shape{3, 4}),
                                          .d_scale = view_of(sums)};
  const auto refuse_backward = kernels_under_test().scale_columns_backward;
  using Backward = ScaleColumnsBackwardArgs;
  expect_refused(refuse_backward, backward, &Backward::x, view_of(y, Shape{2, 4}),
                 "scale_columns_backward: x ");
  expect_refused(refuse_backward, backward, &Backward::dx, view_of(x, Shape{4, 3}),
                 "scale_columns_backward: dx ");
  expect_refused(refuse_backward, backward, &Backward::d_scale, view_of(sums, 0, 3),
                 "scale_columns_backward: d_scale ");
}

}  // namespace
}  // namespace tessera::scale_columns_test

#include "kernels/support.h"

namespace tessera::layer_norm_test {
namespace {

constexpr double kEpsilon = 1e-5;

struct Moments {
  double mean, rstd;
};

/// Moments of row i of s (rows, width).
Moments moments_of(const Doubles& s, std::int64_t i, std::int64_t width) {
  double mean = 0.0;
  for (std::int64_t j = 0; j < width; ++j) mean += s[at(i * width + j)];
  mean /= static_cast<double>(width);
  double variance = 0.0;
  for (std::int64_t j = 0; j < width; ++j) variance += std::pow(s[at(i * width + j)] - mean, 2);
  return {mean, 1.0 / std::sqrt(variance / static_cast<double>(width) + kEpsilon)};
}

Doubles forward_oracle(const Doubles& s, const Doubles& gamma, const Doubles& beta) {
  const auto width = static_cast<std::int64_t>(gamma.size());
  Doubles y(s.size());
  for (std::int64_t i = 0; i * width < static_cast<std::int64_t>(s.size()); ++i) {
    const Moments m = moments_of(s, i, width);
    for (std::int64_t j = 0; j < width; ++j) {
      const std::int64_t e = i * width + j;
      y[at(e)] = (s[at(e)] - m.mean) * m.rstd * gamma[at(j)] + beta[at(j)];
    }
  }
  return y;
}

struct Gradients {
  Doubles dx, dgamma, dbeta;
};

Gradients backward_oracle(const Doubles& dy, const Doubles& x, const Doubles& gamma) {
  const auto width = static_cast<std::int64_t>(gamma.size());
  Gradients g{Doubles(x.size()), Doubles(gamma.size()), Doubles(gamma.size())};
  for (std::int64_t i = 0; i * width < static_cast<std::int64_t>(x.size()); ++i) {
    const Moments m = moments_of(x, i, width);
    double mean_g = 0.0, mean_gh = 0.0;
    const auto h = [&](std::int64_t j) { return (x[at(i * width + j)] - m.mean) * m.rstd; };
    for (std::int64_t j = 0; j < width; ++j) {
      const double d = dy[at(i * width + j)];
      mean_g += d * gamma[at(j)] / static_cast<double>(width);
      mean_gh += d * gamma[at(j)] * h(j) / static_cast<double>(width);
      g.dgamma[at(j)] += d * h(j);
      g.dbeta[at(j)] += d;
    }
    for (std::int64_t j = 0; j < width; ++j) {
      const double d = dy[at(i * width + j)] * gamma[at(j)];
      g.dx[at(i * width + j)] = m.rstd * (d - mean_g - h(j) * mean_gh);
    }
  }
  return g;
}

/// Inputs of both passes. Rows have a mean well away from zero, so that cancellation would show,
/// and no tiny variance, which would magnify the rounding of the saved mean.
template <typename T>
struct Problem {
  Problem(std::int64_t row_count, std::int64_t row_width)
      : rows(row_count),
        width(row_width),
        x(random_values<T>(rows * width, 1)),
        residual(random_values<T>(rows * width, 2)),
        gamma(random_values<T>(width, 3)),
        beta(random_values<T>(width, 4)),
        dy(random_values<T>(rows * width, 5)) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = T(0.5F * as_float(x[i]) + 5.0F + 2.0F * (static_cast<float>(i % 3) - 1.0F));
    }
  }
  Shape shape() const { return Shape{rows, width}; }

  std::int64_t rows, width;
  std::vector<T> x, residual, gamma, beta, dy;
};

enum class Sum { kNone, kSeparate, kIntoX, kIntoResidual };

/// y, then sum, mean and rstd as T.
template <typename T>
struct Output {
  std::vector<T> y, sum;
  std::vector<float> mean, rstd;
};

template <typename T>
Output<T> forward(Problem<T> p, Sum where) {
  Output<T> out;
  out.y.resize(p.x.size());
  std::vector<T> sum(p.x.size());
  out.mean.resize(at(p.rows));
  out.rstd.resize(at(p.rows));
  LayerNormForwardArgs args;
  args.x = view_of(p.x, p.shape());
  if (where != Sum::kNone) {
    args.residual = view_of(p.residual, p.shape());
    args.sum = view_of(where == Sum::kIntoX          ? p.x
                       : where == Sum::kIntoResidual ? p.residual
                                                     : sum,
                       p.shape());
  }
  args.gamma = view_of(p.gamma);
  args.beta = view_of(p.beta);
  args.y = view_of(out.y, p.shape());
  args.mean = view_of(out.mean);
  args.rstd = view_of(out.rstd);
  args.epsilon = static_cast<float>(kEpsilon);
  StreamUnderTest stream;
  kernels_under_test().layer_norm_forward(args, stream);
  out.sum = where == Sum::kIntoX ? p.x : where == Sum::kIntoResidual ? p.residual : sum;
  return out;
}

/// What the kernel normalises: x, or the stored (rounded) sum.
template <typename T>
std::vector<T> summed(const Problem<T>& p, bool residual) {
  std::vector<T> s = p.x;
  for (std::size_t i = 0; residual && i < s.size(); ++i) {
    s[i] = T(as_float(p.x[i]) + as_float(p.residual[i]));
  }
  return s;
}

template <typename T>
void check_forward(std::int64_t rows, std::int64_t width) {
  SCOPED_TRACE(concat(rows, " x ", width));
  const Problem<T> p(rows, width);
  for (const bool residual : {false, true}) {
    const auto s = summed(p, residual);
    const Doubles expected = forward_oracle(to_doubles(s), to_doubles(p.gamma), to_doubles(p.beta));
    const auto out = forward(p, residual ? Sum::kSeparate : Sum::kNone);
    const auto y =
        run_on_any_threads([&] { return forward(p, residual ? Sum::kSeparate : Sum::kNone).y; });
    // fp32: the mean (about 5) is good to a few of its ulps, 5e-7; at width 1 rstd is 316.
    expect_close(out.y, expected, (width == 1 ? 2e-4 : 4e-6) + rounding<T>(), "y");
    // Rounding errors of a sum add up as a random walk does.
    const double error = 0x1p-24 * (4.0 + std::sqrt(static_cast<double>(width)));
    const Doubles normalized = to_doubles(s);
    for (std::int64_t i = 0; i < rows; ++i) {
      const Moments m = moments_of(normalized, i, width);
      EXPECT_NEAR(static_cast<double>(out.mean[at(i)]), m.mean, error * 6.0);
      EXPECT_NEAR(static_cast<double>(out.rstd[at(i)]) / m.rstd, 1.0, 3.0 * error);
    }
    if (!residual) continue;
    EXPECT_TRUE(same_bits(out.sum, s)) << "sum";
    for (const Sum where : {Sum::kIntoX, Sum::kIntoResidual}) {
      const auto aliased = forward(p, where);
      EXPECT_TRUE(same_bits(aliased.y, out.y) && same_bits(aliased.sum, out.sum)) << "in place";
    }
  }
}

/// dx, dgamma, dbeta, with dx and d_residual in buffers of their own or in those of others.
template <typename T, typename D>
struct Result {
  std::vector<T> dx;
  std::vector<D> dgamma, dbeta;
};
enum class Dx { kSeparate, kIntoDy, kIntoResidual };

template <typename D, typename T>
Result<T, D> backward(Problem<T> p, bool residual, bool accumulate, Dx where) {
  Result<T, D> r{std::vector<T>(p.x.size()), random_values<D>(p.width, 6),
                 random_values<D>(p.width, 7)};
  std::vector<float> mean, rstd;
  const Doubles x = to_doubles(p.x);
  for (std::int64_t i = 0; i < p.rows; ++i) {
    const Moments m = moments_of(x, i, p.width);
    mean.push_back(static_cast<float>(m.mean));
    rstd.push_back(static_cast<float>(m.rstd));
  }
  std::vector<T>& dx = where == Dx::kIntoDy ? p.dy : where == Dx::kIntoResidual ? p.residual : r.dx;
  LayerNormBackwardArgs args;
  args.dy = view_of(p.dy, p.shape());
  args.x = view_of(p.x, p.shape());
  args.mean = view_of(mean);
  args.rstd = view_of(rstd);
  args.gamma = view_of(p.gamma);
  if (residual) args.d_residual = view_of(p.residual, p.shape());
  args.dx = view_of(dx, p.shape());
  args.dgamma = view_of(r.dgamma);
  args.dbeta = view_of(r.dbeta);
  args.accumulate_parameters = accumulate;
  StreamUnderTest stream;
  kernels_under_test().layer_norm_backward(args, stream);
  if (where != Dx::kSeparate) r.dx = dx;
  return r;
}

Doubles plus(Doubles a, const Doubles& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

template <typename T, typename D>
void check_backward(std::int64_t rows, std::int64_t width, bool residual, bool accumulate) {
  SCOPED_TRACE(
      concat(rows, " x ", width, residual ? ", residual" : "", accumulate ? ", accumulate" : ""));
  const Problem<T> p(rows, width);
  Gradients expected = backward_oracle(to_doubles(p.dy), to_doubles(p.x), to_doubles(p.gamma));
  if (residual) expected.dx = plus(expected.dx, to_doubles(p.residual));
  if (accumulate) {
    expected.dgamma = plus(expected.dgamma, to_doubles(random_values<D>(width, 6)));
    expected.dbeta = plus(expected.dbeta, to_doubles(random_values<D>(width, 7)));
  }
  const auto r = backward<D>(p, residual, accumulate, Dx::kSeparate);
  expect_close(r.dx, expected.dx, 4e-6 + rounding<T>(), "dx");
  expect_close(r.dgamma, expected.dgamma, 4e-6 + rounding<D>(), "dgamma");
  expect_close(r.dbeta, expected.dbeta, 2e-6 + rounding<D>(), "dbeta");
  for (const Dx where : {Dx::kIntoDy, Dx::kIntoResidual}) {
    if (where == Dx::kIntoResidual && !residual) continue;
    const auto aliased = backward<D>(p, residual, accumulate, where);
    EXPECT_TRUE(same_bits(aliased.dx, r.dx) && same_bits(aliased.dgamma, r.dgamma)) << "in place";
  }
}

TEST(LayerNorm, ForwardFollowsTheFormula) {
  on_every_target([] {
    for (const std::int64_t rows : {0, 1, 3}) {
      for (const std::int64_t width : {1, 2, 7, 16, 33, 768, 1009}) {
        check_forward<float>(rows, width);
        check_forward<bfloat16>(rows, width);
        check_forward<float16>(rows, width);
      }
    }
  });
}

TEST(LayerNorm, BackwardFollowsTheFormula) {
  on_every_target([] {
    for (const std::int64_t rows : {0, 1, 3, 16, 100}) {
      // At widths 1 and 2 all of dx cancels but for epsilon: nothing to compare with.
      for (const std::int64_t width : {3, 7, 33, 129}) {
        for (unsigned flags = 0; flags < 4; ++flags) {
          check_backward<float, float>(rows, width, (flags & 1U) != 0, (flags & 2U) != 0);
          check_backward<bfloat16, float>(rows, width, (flags & 1U) != 0, (flags & 2U) != 0);
          check_backward<bfloat16, bfloat16>(rows, width, (flags & 1U) != 0, (flags & 2U) != 0);
          check_backward<float16, float>(rows, width, (flags & 1U) != 0, (flags & 2U) != 0);
          check_backward<float16, float16>(rows, width, (flags & 1U) != 0, (flags & 2U) != 0);
        }
      }
    }
  });
}

TEST(LayerNorm, WideRowsFollowTheFormula) {
  // On CUDA: rows of a warp, of a block, and too wide for its registers; whole vectors or not.
  for (const std::int64_t width : {2048, 2056, 4104, 8200}) {
    check_forward<float>(2, width);
    check_forward<bfloat16>(2, width);
    check_backward<float, float>(2, width, true, true);
    check_backward<bfloat16, bfloat16>(2, width, true, false);
  }
  check_forward<bfloat16>(1, 16392);
}

TEST(LayerNorm, RowsOfWholeVectorsFollowTheFormula) {
  // On CUDA: threads in groups of one warp and more, several to a block or one; forward, every
  // number of vectors to a thread.
  for (const std::int64_t width : {8, 64, 200, 264, 400, 768, 1600}) {
    check_forward<float>(21, width);
    check_forward<bfloat16>(21, width);
    check_backward<float, float>(21, width, true, false);
    check_backward<bfloat16, float>(21, width, true, true);
    check_backward<bfloat16, bfloat16>(37, width, false, false);
  }
}

TEST(LayerNorm, BackwardOfSmallShapesTakesEveryPath) {
  // For the sanitizers, to whom the tests above are too large. On CUDA: rows of whole vectors, one
  // and two to a thread, in two slabs; and rows that are not, whose sums are in memory.
  check_backward<bfloat16, float>(17, 40, true, true);
  check_backward<float, float>(5, 264, false, true);
  check_backward<float, float>(2, 1288, true, false);
  check_backward<bfloat16, bfloat16>(3, 2568, true, true);
  check_backward<bfloat16, float>(18, 35, true, true);
}

TEST(LayerNorm, DoesNotDependOnTheThreads) {
  const Problem<float> p(2100, 129);  // blocks of more than the least number of rows
  check_backward<float, float>(2100, 129, true, true);
  run_on_any_threads([&] { return forward(p, Sum::kSeparate).y; });
  run_on_any_threads([&] { return backward<float>(p, false, false, Dx::kSeparate).dx; });
  run_on_any_threads([&] { return backward<float>(p, false, false, Dx::kSeparate).dgamma; });
}

TEST(LayerNorm, LeavesOutParametersThatAreNotWanted) {
  Problem<float> p(5, 12);
  std::vector<float> mean(5, 0.5F), rstd(5, 2.0F), with(60), without(60), dgamma(12), dbeta(12);
  LayerNormBackwardArgs args;
  args.dy = view_of(p.dy, p.shape());
  args.x = view_of(p.x, p.shape());
  args.mean = view_of(mean);
  args.rstd = view_of(rstd);
  args.gamma = view_of(p.gamma);
  args.dx = view_of(without, p.shape());
  StreamUnderTest stream;
  kernels_under_test().layer_norm_backward(args, stream);
  args.dx = view_of(with, p.shape());
  args.dgamma = view_of(dgamma);
  EXPECT_THROW(kernels_under_test().layer_norm_backward(args, stream), Error);
  args.dbeta = view_of(dbeta, 0, 11);
  EXPECT_THROW(kernels_under_test().layer_norm_backward(args, stream), Error);
  args.dbeta = view_of(dbeta);
  kernels_under_test().layer_norm_backward(args, stream);
  EXPECT_TRUE(same_bits(with, without));
}

TEST(LayerNormOracle, BackwardIsTheGradientOfForward) {
  const Problem<float> p(3, 5);
  const Doubles x = to_doubles(p.x), gamma = to_doubles(p.gamma), beta = to_doubles(p.beta);
  const Doubles dy = to_doubles(p.dy);
  const Gradients g = backward_oracle(dy, x, gamma);
  const auto near = [](const Doubles& a, const Doubles& b) {
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-7);
  };
  near(g.dx, numeric_gradient(
                 [&](const Doubles& v) { return dot(dy, forward_oracle(v, gamma, beta)); }, x));
  near(g.dgamma, numeric_gradient(
                     [&](const Doubles& v) { return dot(dy, forward_oracle(x, v, beta)); }, gamma));
  near(g.dbeta, numeric_gradient(
                    [&](const Doubles& v) { return dot(dy, forward_oracle(x, gamma, v)); }, beta));
}

TEST(LayerNormErrors, WrongSizesAreNamed) {
  Problem<float> p(5, 12);
  std::vector<float> mean(5), rstd(4), y(60);
  LayerNormForwardArgs args;
  args.x = view_of(p.x, p.shape());
  args.gamma = view_of(p.gamma);
  args.beta = view_of(p.beta);
  args.y = view_of(y, p.shape());
  args.mean = view_of(mean);
  args.rstd = view_of(rstd);
  StreamUnderTest stream;
  EXPECT_THROW(kernels_under_test().layer_norm_forward(args, stream), Error);
}

TEST(LayerNormErrors, ViewsThatAreNotFlatFloatsAreNamed) {
  const Shape shape{3, 4};
  std::vector<float> x(24), y(24), residual(24), sum(24), gamma(8), beta(8), mean(6), rstd(6);
  using Forward = LayerNormForwardArgs;
  const Forward forward{.x = view_of(x, shape),
                        .residual = view_of(residual, shape),
                        .sum = view_of(sum, shape),
                        .gamma = view_of(gamma, 0, 4),
                        .beta = view_of(beta, 0, 4),
                        .y = view_of(y, shape),
                        .mean = view_of(mean, 0, 3),
                        .rstd = view_of(rstd, 0, 3)};
  const auto f = kernels_under_test().layer_norm_forward;
  expect_flat_floats(f, forward, &Forward::x, "layer_norm: x ");
  expect_flat_floats(f, forward, &Forward::residual, "layer_norm: residual ");
  expect_flat_floats(f, forward, &Forward::sum, "layer_norm: sum ");
  expect_flat_floats(f, forward, &Forward::gamma, "layer_norm: gamma ");
  expect_flat_floats(f, forward, &Forward::beta, "layer_norm: beta ");
  expect_flat_floats(f, forward, &Forward::y, "layer_norm: y ");
  expect_flat_floats(f, forward, &Forward::mean, "layer_norm: mean ");
  expect_flat_floats(f, forward, &Forward::rstd, "layer_norm: rstd ");

  using Backward = LayerNormBackwardArgs;
  const Backward backward{.dy = forward.residual,
                          .x = forward.x,
                          .mean = forward.mean,
                          .rstd = forward.rstd,
                          .gamma = forward.gamma,
                          .d_residual = forward.sum,
                          .dx = forward.y,
                          .dgamma = forward.beta,
                          .dbeta = forward.beta};
  const auto b = kernels_under_test().layer_norm_backward;
  expect_flat_floats(b, backward, &Backward::dy, "layer_norm: dy ");
  expect_flat_floats(b, backward, &Backward::d_residual, "layer_norm: d_residual ");
  expect_flat_floats(b, backward, &Backward::dx, "layer_norm: dx ");
  expect_flat_floats(b, backward, &Backward::dgamma, "layer_norm: dgamma ");
  expect_flat_floats(b, backward, &Backward::dbeta, "layer_norm: dbeta ");
}

}  // namespace
}  // namespace tessera::layer_norm_test

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/support.h"

// Kernels that leave the largest magnitude of what they write, or its column sums: what a pass over
// it finds, and the same bits of everything else.
namespace tessera::left_magnitude_test {
namespace {

/// A kernel that writes rows of `width` elements, to where it is given, and leaves the magnitude
/// where `amax` is.
template <typename T>
struct Producer {
  std::string name;
  std::int64_t columns = 1;  ///< of what it writes, for each of `width`
  std::function<void(std::int64_t rows, std::int64_t width, std::vector<T>& x, const TensorView& y,
                     const TensorView& amax)>
      run;
};

template <typename T>
Producer<T> norm(bool has_mean, bool has_residual) {
  return {.name = has_mean ? "layer norm" : "RMS norm",
          .run = [=](std::int64_t rows, std::int64_t width, std::vector<T>& x, const TensorView& y,
                     const TensorView& amax) {
            auto gamma = random_values<T>(width, 11), beta = random_values<T>(width, 12);
            std::vector<T> residual = random_values<T>(rows * width, 13), sum(residual.size());
            std::vector<float> mean(static_cast<std::size_t>(rows)), rstd(mean.size());
            const Shape shape{rows, width};
            StreamUnderTest stream;
            kernels_under_test().layer_norm_forward(
                {.x = view_of(x).reshape(shape),
                 .residual = has_residual ? view_of(residual).reshape(shape) : TensorView(),
                 .sum = has_residual ? view_of(sum).reshape(shape) : TensorView(),
                 .gamma = view_of(gamma),
                 .beta = has_mean ? view_of(beta) : TensorView(),
                 .y = y.reshape(shape),
                 .mean = has_mean ? view_of(mean) : TensorView(),
                 .rstd = view_of(rstd),
                 .amax = amax},
                stream);
          }};
}

template <typename T>
Producer<T> norm_backward(bool has_mean, bool has_residual) {
  return {.name = has_mean ? "layer norm backward" : "RMS norm backward",
          .run = [=](std::int64_t rows, std::int64_t width, std::vector<T>& x, const TensorView& dx,
                     const TensorView& amax) {
            auto gamma = random_values<T>(width, 11), dy = random_values<T>(rows * width, 16);
            std::vector<T> residual = random_values<T>(rows * width, 13);
            std::vector<float> mean(static_cast<std::size_t>(rows), 0.25F);
            std::vector<float> rstd(mean.size(), 0.5F), dgamma(gamma.size()), dbeta(gamma.size());
            const Shape shape{rows, width};
            StreamUnderTest stream;
            kernels_under_test().layer_norm_backward(
                {.dy = view_of(dy).reshape(shape),
                 .x = view_of(x).reshape(shape),
                 .mean = has_mean ? view_of(mean) : TensorView(),
                 .rstd = view_of(rstd),
                 .gamma = view_of(gamma),
                 .d_residual = has_residual ? view_of(residual).reshape(shape) : TensorView(),
                 .dx = dx.reshape(shape),
                 .dgamma = view_of(dgamma),
                 .dbeta = has_mean ? view_of(dbeta) : TensorView(),
                 .amax = amax},
                stream);
          }};
}

template <typename T>
Producer<T> gelu(GeluForm form, bool backward) {
  return {.name = backward ? "GELU backward" : "GELU",
          .run = [=](std::int64_t, std::int64_t, std::vector<T>& x, const TensorView& y,
                     const TensorView& amax) {
            StreamUnderTest stream;
            if (!backward) {
              kernels_under_test().gelu_forward(
                  {.x = view_of(x), .y = y, .form = form, .amax = amax}, stream);
              return;
            }
            auto dy = random_values<T>(static_cast<std::int64_t>(x.size()), 14);
            kernels_under_test().gelu_backward(
                {.x = view_of(x), .dy = view_of(dy), .dx = y, .form = form, .amax = amax}, stream);
          }};
}

template <typename T>
Producer<T> swiglu(GateFunction function, bool backward) {
  return {.name = backward ? "SwiGLU backward" : "SwiGLU",
          .columns = backward ? 2 : 1,
          .run = [=](std::int64_t rows, std::int64_t width, std::vector<T>& x, const TensorView& y,
                     const TensorView& amax) {
            std::vector<T> gates = random_values<T>(2 * rows * width, 15, 2.0F);
            const Shape half{rows, width}, whole{rows, 2 * width};
            StreamUnderTest stream;
            if (!backward) {
              std::copy(x.begin(), x.end(), gates.begin());
              kernels_under_test().swiglu_forward({.x = view_of(gates).reshape(whole),
                                                   .y = y.reshape(half),
                                                   .function = function,
                                                   .amax = amax},
                                                  stream);
              return;
            }
            kernels_under_test().swiglu_backward({.x = view_of(gates).reshape(whole),
                                                  .dy = view_of(x).reshape(half),
                                                  .dx = y.reshape(whole),
                                                  .function = function,
                                                  .amax = amax},
                                                 stream);
          }};
}

template <typename T>
std::vector<Producer<T>> producers() {
  std::vector<Producer<T>> all;
  for (const bool has_mean : {false, true}) {
    for (const bool has_residual : {false, true}) {
      all.push_back(norm<T>(has_mean, has_residual));
      all.push_back(norm_backward<T>(has_mean, has_residual));
    }
  }
  for (const bool backward : {false, true}) {
    for (const GeluForm form : {GeluForm::kTanh, GeluForm::kErf}) {
      all.push_back(gelu<T>(form, backward));
    }
    for (const GateFunction function : {GateFunction::kSilu, GateFunction::kGelu}) {
      all.push_back(swiglu<T>(function, backward));
    }
  }
  return all;
}

template <typename T>
void expect_what_amax_finds(const Producer<T>& producer, std::int64_t rows, std::int64_t width,
                            std::vector<T> x, std::int64_t begin = 0) {
  SCOPED_TRACE(concat(producer.name, ", ", rows, " x ", width, " from ", begin));
  const std::int64_t n = rows * width * producer.columns;
  std::vector<T> plain(static_cast<std::size_t>(begin + n)), y(plain.size());
  producer.run(rows, width, x, view_of(plain).narrow(0, begin, n), {});
  std::vector<std::int32_t> left{-1}, found{-1};
  producer.run(rows, width, x, view_of(y).narrow(0, begin, n), view_of(left));
  StreamUnderTest stream;
  kernels_under_test().amax({.x = view_of(y).narrow(0, begin, n), .amax = view_of(found)}, stream);
  EXPECT_EQ(left, found);
  EXPECT_TRUE(same_bits(y, plain));
}

template <typename T>
class LeftMagnitude : public testing::Test {};
using Types = testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(LeftMagnitude, Types);

TYPED_TEST(LeftMagnitude, IsWhatAmaxFinds) {
  // Rows of one warp and of a block, with and without a whole vector at the end; odd ones; none.
  const std::pair<std::int64_t, std::int64_t> sizes[] = {{1, 8},    {3, 40}, {9, 768}, {5, 1600},
                                                         {2, 4096}, {3, 33}, {1, 1},   {0, 64}};
  for (const auto& [rows, width] : sizes) {
    const auto x = random_values<TypeParam>(rows * width, 7, 3.0F);
    for (const auto& producer : producers<TypeParam>()) {
      expect_what_amax_finds(producer, rows, width, x);
    }
  }
}

TYPED_TEST(LeftMagnitude, IsLeftOfTensorsThatAreNotAligned) {
  const auto x = random_values<TypeParam>(6 * 64, 8, 3.0F);
  for (const auto& producer : producers<TypeParam>()) {
    expect_what_amax_finds(producer, 6, 64, x, 1);
  }
}

TYPED_TEST(LeftMagnitude, TellsInfinityAndNan) {
  for (const float special :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    auto x = random_values<TypeParam>(4 * 64, 9);
    x[100] = TypeParam(special);
    for (const auto& producer : producers<TypeParam>()) {
      expect_what_amax_finds(producer, 4, 64, x);
    }
  }
}

/// dx with its column sums, and what a pass over dx makes of it.
template <typename T>
void expect_column_sums(std::int64_t rows, std::int64_t width, bool leaves_amax) {
  SCOPED_TRACE(concat(rows, " x ", width, leaves_amax ? ", with its magnitude" : ""));
  auto x = random_values<T>(rows * width, 7), dy = random_values<T>(rows * width, 8);
  auto residual = random_values<T>(rows * width, 9), gamma = random_values<T>(width, 10);
  std::vector<float> mean(static_cast<std::size_t>(rows), 0.25F), rstd(mean.size(), 0.5F);
  const auto run = [&](bool sums_columns, bool sums_parameters) {
    std::vector<T> dx(x.size());
    std::vector<float> dgamma(gamma.size()), dbeta(gamma.size()), sums(gamma.size(), -1.0F);
    std::vector<std::int32_t> amax{-1};
    StreamUnderTest stream;
    const Shape shape{rows, width};
    kernels_under_test().layer_norm_backward(
        {.dy = view_of(dy).reshape(shape),
         .x = view_of(x).reshape(shape),
         .mean = view_of(mean),
         .rstd = view_of(rstd),
         .gamma = view_of(gamma),
         .d_residual = view_of(residual).reshape(shape),
         .dx = view_of(dx).reshape(shape),
         .dgamma = sums_parameters ? view_of(dgamma) : TensorView(),
         .dbeta = sums_parameters ? view_of(dbeta) : TensorView(),
         .amax = leaves_amax ? view_of(amax) : TensorView(),
         .dx_sums = sums_columns ? view_of(sums) : TensorView()},
        stream);
    return std::tuple(dx, dgamma, dbeta, sums, amax);
  };
  const auto [dx, dgamma, dbeta, none, amax] = run(false, true);
  const auto [same_dx, same_dgamma, same_dbeta, sums, same_amax] = run(true, true);
  EXPECT_TRUE(same_bits(same_dx, dx));
  EXPECT_TRUE(same_bits(same_dgamma, dgamma));
  EXPECT_TRUE(same_bits(same_dbeta, dbeta));
  EXPECT_EQ(same_amax, amax);
  EXPECT_TRUE(same_bits(std::get<3>(run(true, false)), sums)) << "without dgamma";
  Doubles expected, bound;
  for (std::int64_t j = 0; j < width; ++j) {
    double sum = 0.0, magnitude = 0.0;
    for (std::int64_t i = 0; i < rows; ++i) {
      const auto value = static_cast<double>(as_float(dx[at(i * width + j)]));
      sum += value;
      magnitude += std::abs(value);
    }
    expected.push_back(sum);
    bound.push_back(0x1p-21 * magnitude + 1e-30);
  }
  expect_within(sums, expected, bound, "sums");
  auto passed = dx;
  std::vector<float> of_a_pass(sums.size(), -1.0F);
  StreamUnderTest stream;
  kernels_under_test().bias_gradient(
      {.dy = view_of(passed).reshape({rows, width}), .db = view_of(of_a_pass)}, stream);
  EXPECT_TRUE(same_bits(sums, of_a_pass)) << "of a pass over dx";
}

TYPED_TEST(LeftMagnitude, ColumnSumsOfANormsGradientAreThoseOfAPass) {
  // A warp's row, some warps', a block's, two vectors to a thread, an odd one; one slab and
  // several; groups of rows that are not whole.
  const std::pair<std::int64_t, std::int64_t> sizes[] = {
      {1, 8}, {70, 64}, {331, 256}, {95, 768}, {40, 1600}, {5, 2880}, {9, 33}, {0, 64}};
  for (const auto& [rows, width] : sizes) {
    for (const bool leaves_amax : {false, true}) {
      expect_column_sums<TypeParam>(rows, width, leaves_amax);
    }
  }
}

TEST(LeftMagnitudeErrors, WordsThatAreNotOneAreNamed) {
  std::vector<float> x(8), y(8), rstd(1);
  std::vector<std::int32_t> two(2);
  const KernelTable& kernels = kernels_under_test();
  const auto refuses = [&](const auto& kernel, auto args, const char* name) {
    expect_refused(kernel, args, &decltype(args)::amax, view_of(two),
                   concat(name, ": amax is (2)").c_str());
    expect_refused(kernel, args, &decltype(args)::amax, view_of(rstd),
                   concat(name, ": amax is (1) of fp32").c_str());
  };
  const TensorView row = view_of(x).reshape({1, 8}),
                   half = view_of(y).narrow(0, 0, 4).reshape({1, 4});
  refuses(
      kernels.layer_norm_forward,
      LayerNormForwardArgs{.x = row, .gamma = view_of(x), .y = view_of(y), .rstd = view_of(rstd)},
      "layer_norm");
  refuses(kernels.layer_norm_backward,
          LayerNormBackwardArgs{
              .dy = row, .x = row, .rstd = view_of(rstd), .gamma = view_of(x), .dx = view_of(y)},
          "layer_norm");
  refuses(kernels.gelu_forward, GeluForwardArgs{.x = view_of(x), .y = view_of(y)}, "gelu_forward");
  refuses(kernels.gelu_backward,
          GeluBackwardArgs{.x = view_of(x), .dy = view_of(y), .dx = view_of(y)}, "gelu_backward");
  refuses(kernels.swiglu_forward, SwigluForwardArgs{.x = row, .y = half}, "swiglu_forward");
  refuses(kernels.swiglu_backward, SwigluBackwardArgs{.x = row, .dy = half, .dx = row},
          "swiglu_backward");
}

}  // namespace
}  // namespace tessera::left_magnitude_test

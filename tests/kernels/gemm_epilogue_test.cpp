#include "kernels/gelu_oracle.h"
#include "kernels/support.h"
#include "kernels/under_test.h"

// GemmArgs takes these along with a product: GELU, its derivative, a residual.
namespace tessera::gemm_epilogue_test {
namespace {

constexpr double kSteepest = 1.13;  // of |gelu'|
constexpr double kGeluError =
    4e-7;  // of the kernels, relative to their argument; see smooth_activation_test.cpp

/// A linear layer's sizes. Rows of 8 elements and more are what GPUs have fused kernels for.
struct Layer {
  std::int64_t rows, inputs, outputs;
};
const Layer kLayers[] = {{1, 1, 1},    {3, 5, 7},     {16, 32, 24}, {33, 64, 40}, {64, 128, 48},
                         {65, 130, 8}, {128, 96, 56}, {0, 8, 16},   {8, 0, 16},   {8, 16, 0}};

std::string name(const Layer& layer) {
  return concat(layer.rows, " rows, ", layer.inputs, " to ", layer.outputs);
}

/// A contiguous matrix. `offset` elements before it take its alignment away; tests give each
/// operand another one.
template <typename T>
struct Matrix {
  Matrix(std::int64_t row_count, std::int64_t column_count, unsigned seed, std::int64_t before = 0)
      : rows(row_count),
        columns(column_count),
        offset(before),
        values(random_values<T>(before + row_count * column_count, seed)) {}

  TensorView view() {
    return TensorView(values.data() + offset, dtype_of<T>(), Shape{rows, columns});
  }
  double get(std::int64_t i, std::int64_t j) const {
    return static_cast<double>(as_float(values[at(offset + i * columns + j)]));
  }
  std::vector<T> elements() const { return {values.begin() + offset, values.end()}; }

  std::int64_t rows, columns, offset;
  std::vector<T> values;
};

/// A sum in double, and how far fp32 may be off.
struct Sum {
  double value = 0.0, magnitude = 0.0;
  std::int64_t terms = 0;
  void add(double term) {
    value += term;
    magnitude += std::abs(term);
    ++terms;
  }
  double error() const {
    return 0x1p-24 * (8.0 + std::sqrt(static_cast<double>(terms))) * magnitude;
  }
};

template <typename T>
class GemmEpilogue : public testing::Test {
 protected:
  /// x W^T + b, and gelu of it.
  struct Forward {
    std::vector<T> y, gelu_input;
  };
  static Forward forward(const Layer& layer, bool bias, bool keep_input, std::int64_t offset) {
    Matrix<T> x(layer.rows, layer.inputs, 1, offset);
    Matrix<T> w(layer.outputs, layer.inputs, 2, 2 * offset);
    Matrix<T> b(1, layer.outputs, 3, offset);
    Matrix<T> y(layer.rows, layer.outputs, 4, 4 * offset);
    Matrix<T> input(layer.rows, layer.outputs, 5, offset);
    StreamUnderTest stream;
    kernels_under_test().gemm({.a = x.view(),
                               .b = w.view(),
                               .c = y.view(),
                               .bias = bias ? b.view().flat() : TensorView(),
                               .transpose_b = true,
                               .gelu = true,
                               .gelu_input = keep_input ? input.view() : TensorView()},
                              stream);
    return {y.elements(), input.elements()};
  }

  static void check_forward(const Layer& layer, bool bias, bool keep_input, std::int64_t offset) {
    const Matrix<T> x(layer.rows, layer.inputs, 1, offset);
    const Matrix<T> w(layer.outputs, layer.inputs, 2, 2 * offset);
    const Matrix<T> b(1, layer.outputs, 3, offset);
    Doubles input, input_bound, expected, bound;
    for (std::int64_t i = 0; i < layer.rows; ++i) {
      for (std::int64_t j = 0; j < layer.outputs; ++j) {
        Sum sum;
        if (bias) sum.add(b.get(0, j));
        for (std::int64_t l = 0; l < layer.inputs; ++l) sum.add(x.get(i, l) * w.get(j, l));
        // GELU may be taken of the sum or of what is stored of it.
        const double off = sum.error() + half_unit<T>(sum.value) + 1e-30;
        input.push_back(sum.value);
        input_bound.push_back(off);
        expected.push_back(gelu(sum.value));
        bound.push_back(kSteepest * off + kGeluError * std::abs(sum.value) +
                        half_unit<T>(expected.back()));
      }
    }
    const Forward result = forward(layer, bias, keep_input, offset);
    expect_within(result.y, expected, bound, "gelu");
    if (keep_input) expect_within(result.gelu_input, input, input_bound, "gelu_input");
  }

  /// x W^T + b + residual.
  static std::vector<T> with_residual(const Layer& layer, bool bias, std::int64_t offset) {
    Matrix<T> x(layer.rows, layer.inputs, 1, offset);
    Matrix<T> w(layer.outputs, layer.inputs, 2, 2 * offset);
    Matrix<T> b(1, layer.outputs, 3, offset);
    Matrix<T> y(layer.rows, layer.outputs, 4, 4 * offset);
    Matrix<T> residual(layer.rows, layer.outputs, 5, offset);
    const auto before = residual.elements();
    StreamUnderTest stream;
    kernels_under_test().gemm({.a = x.view(),
                               .b = w.view(),
                               .c = y.view(),
                               .bias = bias ? b.view().flat() : TensorView(),
                               .transpose_b = true,
                               .residual = residual.view()},
                              stream);
    EXPECT_TRUE(same_bits(residual.elements(), before));
    return y.elements();
  }

  static void check_residual(const Layer& layer, bool bias, std::int64_t offset) {
    const Matrix<T> x(layer.rows, layer.inputs, 1, offset);
    const Matrix<T> w(layer.outputs, layer.inputs, 2, 2 * offset);
    const Matrix<T> b(1, layer.outputs, 3, offset);
    const Matrix<T> residual(layer.rows, layer.outputs, 5, offset);
    Doubles expected, bound;
    for (std::int64_t i = 0; i < layer.rows; ++i) {
      for (std::int64_t j = 0; j < layer.outputs; ++j) {
        Sum sum;
        if (bias) sum.add(b.get(0, j));
        for (std::int64_t l = 0; l < layer.inputs; ++l) sum.add(x.get(i, l) * w.get(j, l));
        // The product may be rounded before the residual is added.
        const double rounded = half_unit<T>(sum.value);
        sum.add(residual.get(i, j));
        expected.push_back(sum.value);
        bound.push_back(sum.error() + rounded + half_unit<T>(sum.value) + 1e-30);
      }
    }
    expect_within(with_residual(layer, bias, offset), expected, bound, "with residual");
  }

  /// (dy W) * gelu'(input)
  static std::vector<T> backward(const Layer& layer, std::int64_t offset) {
    Matrix<T> dy(layer.rows, layer.outputs, 1, offset);
    Matrix<T> w(layer.outputs, layer.inputs, 2, 2 * offset);
    Matrix<T> input(layer.rows, layer.inputs, 3, offset);
    Matrix<T> dx(layer.rows, layer.inputs, 4, 4 * offset);
    StreamUnderTest stream;
    kernels_under_test().gemm(
        {.a = dy.view(), .b = w.view(), .c = dx.view(), .gelu_backward_input = input.view()},
        stream);
    return dx.elements();
  }

  static void check_backward(const Layer& layer, std::int64_t offset) {
    const Matrix<T> dy(layer.rows, layer.outputs, 1, offset);
    const Matrix<T> w(layer.outputs, layer.inputs, 2, 2 * offset);
    const Matrix<T> input(layer.rows, layer.inputs, 3, offset);
    Doubles expected, bound;
    for (std::int64_t i = 0; i < layer.rows; ++i) {
      for (std::int64_t j = 0; j < layer.inputs; ++j) {
        Sum sum;
        for (std::int64_t l = 0; l < layer.outputs; ++l) sum.add(dy.get(i, l) * w.get(l, j));
        const double slope = gelu_slope(input.get(i, j));
        const double off = sum.error() + half_unit<T>(sum.value);
        expected.push_back(sum.value * slope);
        bound.push_back(std::abs(slope) * off + 2.0 * kGeluError * std::abs(sum.value) +
                        half_unit<T>(expected.back()) + 1e-30);
      }
    }
    expect_within(backward(layer, offset), expected, bound, "gradient");
  }
};
using Types = testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(GemmEpilogue, Types);

TYPED_TEST(GemmEpilogue, TakesGeluOfTheProduct) {
  for (const Layer& layer : kLayers) {
    for (unsigned flags = 0; flags < 8; ++flags) {
      SCOPED_TRACE(name(layer) + (flags & 1U ? ", bias" : "") + (flags & 2U ? ", kept" : "") +
                   (flags & 4U ? ", unaligned" : ""));
      TestFixture::check_forward(layer, flags & 1U, flags & 2U, flags & 4U ? 1 : 0);
    }
  }
}

TYPED_TEST(GemmEpilogue, AddsAResidual) {
  for (const Layer& layer : kLayers) {
    for (unsigned flags = 0; flags < 4; ++flags) {
      SCOPED_TRACE(name(layer) + (flags & 1U ? ", bias" : "") + (flags & 2U ? ", unaligned" : ""));
      TestFixture::check_residual(layer, flags & 1U, flags & 2U ? 1 : 0);
    }
  }
}

TYPED_TEST(GemmEpilogue, MultipliesByTheSlopeOfGelu) {
  for (const Layer& layer : kLayers) {
    for (const std::int64_t offset : {0, 1, 8}) {
      SCOPED_TRACE(concat(name(layer), ", offset ", offset));
      TestFixture::check_backward(layer, offset);
    }
  }
}

TYPED_TEST(GemmEpilogue, GivesTheSameBitsTwice) {
  const Layer layer{64, 136, 96};
  const auto first = this->forward(layer, true, true, 0);
  const auto second = this->forward(layer, true, true, 0);
  EXPECT_TRUE(same_bits(first.y, second.y));
  EXPECT_TRUE(same_bits(first.gelu_input, second.gelu_input));
  EXPECT_TRUE(same_bits(this->backward(layer, 0), this->backward(layer, 0)));
}

TYPED_TEST(GemmEpilogue, ServesOtherAddressesWithWhatItPreparedForSome) {
  constexpr std::int64_t kSize = 16;
  const Shape square{kSize, kSize};
  std::vector<std::vector<TypeParam>> kept;
  const auto run = [&](Stream& where, unsigned seed) {
    auto x = random_values<TypeParam>(kSize * kSize, seed);
    auto w = random_values<TypeParam>(kSize * kSize, seed + 1);
    auto b = random_values<TypeParam>(kSize, seed + 2);
    std::vector<TypeParam> y(x.size()), input(x.size());
    kernels_under_test().gemm({.a = view_of(x, square),
                               .b = view_of(w, square),
                               .c = view_of(y, square),
                               .bias = view_of(b),
                               .gelu = true,
                               .gelu_input = view_of(input, square)},
                              where);
    y.insert(y.end(), input.begin(), input.end());
    std::fill(b.begin(), b.end(), TypeParam(NAN));  // in case anyone still looks
    kept.push_back(std::move(b));                   // its address is not given out again
    return y;
  };
  StreamUnderTest stream;
  const auto first = run(stream, 10);
  EXPECT_FALSE(same_bits(run(stream, 20), first));
  EXPECT_TRUE(same_bits(run(stream, 10), first));
}

TEST(GemmEpilogueOnTheCpu, GivesTheBitsOfSeparateKernels) {
  const std::int64_t m = 37, n = 29, k = 31;
  auto a = random_values<bfloat16>(m * k, 1), b = random_values<bfloat16>(n * k, 2);
  auto bias = random_values<bfloat16>(n, 3);
  std::vector<bfloat16> fused(at(m * n)), fused_input(at(m * n)), y(at(m * n)), input(at(m * n));
  NoStream stream;
  const Shape shape{m, n};
  const GemmArgs product{.a = view_of(a, Shape{m, k}),
                         .b = view_of(b, Shape{n, k}),
                         .c = view_of(input, shape),
                         .bias = view_of(bias),
                         .transpose_b = true};
  GemmArgs with_gelu = product;
  with_gelu.c = view_of(fused, shape);
  with_gelu.gelu = true;
  with_gelu.gelu_input = view_of(fused_input, shape);
  cpu_kernels().gemm(with_gelu, stream);
  cpu_kernels().gemm(product, stream);
  cpu_kernels().gelu_forward({.x = product.c, .y = view_of(y, shape)}, stream);
  EXPECT_TRUE(same_bits(fused_input, input));
  EXPECT_TRUE(same_bits(fused, y));
  with_gelu.gelu_input = {};
  cpu_kernels().gemm(with_gelu, stream);
  EXPECT_TRUE(same_bits(fused, y)) << "in place";

  auto residual = random_values<bfloat16>(m * n, 4);
  GemmArgs with_residual = product;
  with_residual.c = view_of(fused, shape);
  with_residual.residual = view_of(residual, shape);
  cpu_kernels().gemm(with_residual, stream);
  cpu_kernels().add({.src = with_residual.residual, .dst = product.c}, stream);
  EXPECT_TRUE(same_bits(fused, input));
}

TEST(GemmEpilogueErrors, CombinationsThatMeanNothingAreRefused) {
  std::vector<float> values(64), other(64);
  std::vector<bfloat16> half(64);
  const auto view = [&](std::int64_t rows, std::int64_t columns) {
    return view_of(values, Shape{rows, columns});
  };
  StreamUnderTest stream;
  const GemmArgs good{.a = view(3, 2), .b = view(3, 5), .c = view(2, 5), .transpose_a = true};
  const auto refused = [&](const auto& change) {
    GemmArgs args = good;
    change(args);
    try {
      kernels_under_test().gemm(args, stream);
    } catch (const Error& error) {
      return error.code() == ErrorCode::kInvalidArgument;
    }
    return false;
  };
  EXPECT_FALSE(refused([](GemmArgs&) {}));
  EXPECT_TRUE(refused([&](GemmArgs& args) { args.gelu_input = view_of(other, Shape{2, 5}); }));
  EXPECT_TRUE(refused([&](GemmArgs& args) {
    args.gelu = true;
    args.accumulate = true;
  }));
  EXPECT_TRUE(refused([&](GemmArgs& args) {
    args.gelu = true;
    args.gelu_input = view_of(other, Shape{5, 2});
  }));
  EXPECT_TRUE(refused([&](GemmArgs& args) {
    args.gelu = true;
    args.gelu_input = view_of(half, Shape{2, 5});
  }));
  EXPECT_TRUE(refused([&](GemmArgs& args) {  // rows with a gap
    args.gelu = true;
    args.c = view_of(other, Shape{2, 8}).narrow(1, 0, 5);
  }));
  EXPECT_TRUE(refused([&](GemmArgs& args) {
    args.gelu_backward_input = view_of(other, Shape{2, 5});
    args.bias = view_of(other, 0, 5);
  }));
  EXPECT_TRUE(refused([&](GemmArgs& args) {
    args.gelu_backward_input = view_of(other, Shape{2, 5});
    args.gelu = true;
  }));
  EXPECT_FALSE(refused([&](GemmArgs& args) { args.residual = view_of(other, Shape{2, 5}); }));
  EXPECT_TRUE(refused([&](GemmArgs& args) { args.residual = view_of(other, Shape{5, 2}); }));
  EXPECT_TRUE(refused([&](GemmArgs& args) { args.residual = args.c; }));
  EXPECT_TRUE(refused([&](GemmArgs& args) {
    args.residual = view_of(other, Shape{2, 5});
    args.accumulate = true;
  }));
  EXPECT_TRUE(refused([&](GemmArgs& args) {
    args.residual = view_of(other, Shape{2, 5});
    args.gelu = true;
  }));
}

}  // namespace
}  // namespace tessera::gemm_epilogue_test

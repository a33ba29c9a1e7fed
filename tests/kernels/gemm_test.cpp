#include "../../kernels/src/cpu/gemm_cpu.h"

#include <array>
#include <random>

#include "../../kernels/src/cpu/gemm_tiles.h"
#include "kernels/support.h"
#include "kernels/under_test.h"

namespace tessera::gemm_test {
namespace {

/// One product: sizes, flags, and how many elements longer than needed the stored rows are.
struct Case {
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false, accumulate = false, bias = false;
  std::int64_t padding = 0;
};

std::string name(const Case& c) {
  return concat(c.m, " x ", c.n, " x ", c.k, c.transpose_a ? ", a transposed" : "",
                c.transpose_b ? ", b transposed" : "", c.accumulate ? ", accumulate" : "",
                c.bias ? ", bias" : "", c.padding > 0 ? ", strided" : "");
}

/// A matrix in rows of columns + padding elements.
template <typename T>
struct Rows {
  Rows(std::int64_t row_count, std::int64_t column_count, std::int64_t padding, unsigned seed)
      : rows(row_count),
        columns(column_count),
        stride(column_count + padding),
        values(random_values<T>(rows * stride, seed)) {}

  TensorView view() {
    TensorView wide(values.data(), dtype_of<T>(), Shape{rows, stride});
    return wide.narrow(1, 0, columns);
  }
  double get(std::int64_t i, std::int64_t j) const {
    return static_cast<double>(as_float(values[at(i * stride + j)]));
  }

  std::int64_t rows, columns, stride;
  std::vector<T> values;
};

template <typename T, typename C>
struct Problem {
  explicit Problem(const Case& wanted)
      : shape(wanted),
        a(shape.transpose_a ? shape.k : shape.m, shape.transpose_a ? shape.m : shape.k,
          shape.padding, 1),
        b(shape.transpose_b ? shape.n : shape.k, shape.transpose_b ? shape.k : shape.n,
          shape.padding, 2),
        c(shape.m, shape.n, shape.padding, 3),
        bias(random_values<T>(shape.n, 4)) {}

  /// Expected C (padding unchanged) and the error allowed: fp32 accumulation, whose rounding
  /// errors add up as a random walk does, and one rounding to C's type.
  void oracle(Doubles& expected, Doubles& bound) const {
    expected = to_doubles(c.values);
    bound.assign(expected.size(), 0x1p-100);  // what is not C must not change
    for (std::int64_t i = 0; i < shape.m; ++i) {
      for (std::int64_t j = 0; j < shape.n; ++j) {
        double sum = shape.accumulate ? c.get(i, j) : 0.0;
        if (shape.bias) sum += static_cast<double>(as_float(bias[at(j)]));
        double magnitude = std::abs(sum);
        for (std::int64_t l = 0; l < shape.k; ++l) {
          const double product = (shape.transpose_a ? a.get(l, i) : a.get(i, l)) *
                                 (shape.transpose_b ? b.get(j, l) : b.get(l, j));
          sum += product;
          magnitude += std::abs(product);
        }
        expected[at(i * c.stride + j)] = sum;
        bound[at(i * c.stride + j)] =
            0x1p-24 * (8.0 + std::sqrt(static_cast<double>(shape.k))) * magnitude +
            rounding<C>() * std::abs(sum) * 1.001 + least_rounding<C>() + 0x1p-100;
      }
    }
  }

  std::vector<C> run() const {
    Problem copy = *this;
    StreamUnderTest stream;
    kernels_under_test().gemm({.a = copy.a.view(),
                               .b = copy.b.view(),
                               .c = copy.c.view(),
                               .bias = shape.bias ? view_of(copy.bias) : TensorView(),
                               .transpose_a = shape.transpose_a,
                               .transpose_b = shape.transpose_b,
                               .accumulate = shape.accumulate},
                              stream);
    return copy.c.values;
  }

  /// One of the ways of a bf16 product, whichever this processor takes.
  std::vector<C> run_by(void (*way)(const cpu::Product&)) const {
    Problem copy = *this;
    cpu::Product p;
    p.m = shape.m;
    p.n = shape.n;
    p.k = shape.k;
    p.a = {copy.a.values.data(), copy.a.stride, shape.transpose_a};
    p.b = {copy.b.values.data(), copy.b.stride, shape.transpose_b};
    p.c = copy.c.values.data();
    p.c_stride = copy.c.stride;
    p.bias = shape.bias ? copy.bias.data() : nullptr;
    p.accumulate = shape.accumulate;
    p.dtype = DType::kBFloat16;
    p.c_dtype = dtype_of<C>();
    way(p);
    return copy.c.values;
  }

  Case shape;
  Rows<T> a, b;
  Rows<C> c;
  std::vector<T> bias;
};

/// Every combination of flags for a few sizes; larger ones with the flags that training uses.
std::vector<Case> cases() {
  std::vector<Case> result;
  const std::int64_t sizes[][3] = {{1, 1, 1},  {3, 5, 7},    {17, 33, 19}, {64, 32, 16},
                                   {2, 65, 1}, {1, 129, 31}, {31, 1, 67},  {128, 64, 96}};
  for (const auto& size : sizes) {
    for (unsigned flags = 0; flags < 32; ++flags) {
      result.push_back({size[0], size[1], size[2], (flags & 1U) != 0, (flags & 2U) != 0,
                        (flags & 4U) != 0, (flags & 8U) != 0, (flags & 16U) != 0 ? 5 : 0});
    }
  }
  result.push_back({.m = 257, .n = 311, .k = 129, .transpose_b = true, .bias = true});
  result.push_back({.m = 193, .n = 100, .k = 523, .transpose_a = true, .accumulate = true});
  result.push_back({.m = 70, .n = 1100, .k = 1031, .transpose_b = true, .padding = 3});
  result.push_back({.m = 1009, .n = 90, .k = 60, .transpose_a = true, .bias = true, .padding = 2});
  result.push_back({.m = 40, .n = 821, .k = 2053, .bias = true, .padding = 1});
  result.push_back({.m = 1100, .n = 70, .k = 40, .accumulate = true, .padding = 1});
  // See [Note: inner sizes of 63 with AMX] in gemm_cpu.cpp.
  for (const bool transposed : {false, true}) {
    result.push_back({.m = 33, .n = 176, .k = 63, .transpose_a = transposed});
    result.push_back({.m = 132, .n = 49, .k = 63, .transpose_b = transposed});
  }
  return result;
}

template <typename T, typename C>
struct Types {
  using Operand = T;
  using Result = C;
};

template <typename P>
class Gemm : public testing::Test {};
using TypePairs =
    testing::Types<Types<float, float>, Types<bfloat16, float>, Types<bfloat16, bfloat16>,
                   Types<float16, float>, Types<float16, float16>>;
TYPED_TEST_SUITE(Gemm, TypePairs);

TYPED_TEST(Gemm, EqualsTheTripleLoop) {
  for (const Case& c : cases()) {
    const Problem<typename TypeParam::Operand, typename TypeParam::Result> problem(c);
    Doubles expected, bound;
    problem.oracle(expected, bound);
    expect_within(problem.run(), expected, bound, name(c));
  }
}

TYPED_TEST(Gemm, TakesEmptySizes) {
  const std::int64_t sizes[][3] = {{0, 5, 3}, {5, 0, 3}, {5, 3, 0}, {0, 0, 0}};
  for (const auto& size : sizes) {
    for (unsigned flags = 0; flags < 16; ++flags) {
      const Case c{size[0],           size[1],           size[2],           (flags & 1U) != 0,
                   (flags & 2U) != 0, (flags & 4U) != 0, (flags & 8U) != 0, 0};
      const Problem<typename TypeParam::Operand, typename TypeParam::Result> problem(c);
      Doubles expected, bound;
      problem.oracle(expected, bound);
      expect_within(problem.run(), expected, bound, name(c));
    }
  }
}

/// Products of all flags and sizes below 200, and some larger ones of few rows or columns.
std::vector<Case> random_cases(int count) {
  std::mt19937 generator(5);
  std::vector<Case> result;
  for (int i = 0; i < count; ++i) {
    const auto size = [&](std::uint64_t limit) {
      return static_cast<std::int64_t>(1 + generator() % limit);
    };
    Case c{.m = size(200), .n = size(200), .k = size(200)};
    if (i % 8 == 7) std::array{&c.m, &c.n, &c.k}[generator() % 3][0] *= 8;
    const auto flags = static_cast<unsigned>(generator());
    c.transpose_a = (flags & 1U) != 0;
    c.transpose_b = (flags & 2U) != 0;
    c.accumulate = (flags & 4U) != 0;
    c.bias = (flags & 8U) != 0;
    result.push_back(c);
  }
  return result;
}

/// See [Note: tiles of C] in gemm_tiles.h. tests/kernels/CMakeLists.txt runs it once more with
/// oneDNN's kernels for AVX2, whose sums depend more on the threads that oneDNN is given.
TYPED_TEST(Gemm, BitsDoNotDependOnTheNumberOfThreads) {
  std::vector<Case> all = random_cases(testing_cuda() ? 5 : 100);
  all.push_back({.m = 32, .n = 57, .k = 57});
  all.push_back({.m = 200, .n = 150, .k = 300, .transpose_a = true, .accumulate = true});
  for (const Case& c : all) {
    SCOPED_TRACE(name(c));
    const Problem<typename TypeParam::Operand, typename TypeParam::Result> problem(c);
    run_on_any_threads([&] { return problem.run(); });
  }
}

template <typename C>
class WaysOfBf16 : public testing::Test {
 public:
  static void equals_the_triple_loop(void (*way)(const cpu::Product&)) {
    for (const Case& c : cases()) {
      const Problem<bfloat16, C> problem(c);
      Doubles expected, bound;
      problem.oracle(expected, bound);
      expect_within(problem.run_by(way), expected, bound, name(c));
    }
  }
};
using ResultTypes = testing::Types<float, bfloat16>;
TYPED_TEST_SUITE(WaysOfBf16, ResultTypes);

TYPED_TEST(WaysOfBf16, WidenedEqualsTheTripleLoop) {
  this->equals_the_triple_loop(cpu::multiply_widened);
}

TYPED_TEST(WaysOfBf16, ByOneDnnEqualsTheTripleLoop) {
  if (!cpu::onednn_multiplies_bf16()) {
    GTEST_SKIP() << "oneDNN multiplies no bf16 matrices on this processor";
  }
  this->equals_the_triple_loop(cpu::multiply_bf16);
}

TYPED_TEST(WaysOfBf16, BitsDoNotDependOnTheNumberOfThreads) {
  if (testing_cuda()) GTEST_SKIP() << "ways of the CPU";
  for (const Case& c : random_cases(100)) {
    SCOPED_TRACE(name(c));
    const Problem<bfloat16, TypeParam> problem(c);
    run_on_any_threads([&] { return problem.run_by(cpu::multiply_widened); });
    if (!cpu::onednn_multiplies_bf16()) continue;
    run_on_any_threads([&] { return problem.run_by(cpu::multiply_bf16); });
  }
}

TEST(TilesOfCOnTheCpu, CoverItOnceAndDoNotDependOnThreads) {
  for (Case c : random_cases(200)) {
    c.m *= 7, c.k *= 5;
    SCOPED_TRACE(name(c));
    cpu::Product p;
    p.m = c.m, p.n = c.n, p.k = c.k;
    p.a.transposed = c.transpose_a;
    p.b.transposed = c.transpose_b;
    const cpu::TileGrid grid = cpu::tile_grid(p);
    std::vector<int> covered(at(c.m * c.n));
    for (std::int64_t i = 0; i < grid.count(); ++i) {
      const cpu::Tile tile = grid.tile(i);
      for (std::int64_t row = tile.row; row < tile.row + tile.rows; ++row) {
        for (std::int64_t j = 0; j < tile.columns; ++j) ++covered[at(row * c.n + tile.column + j)];
      }
    }
    EXPECT_EQ(covered, std::vector<int>(at(c.m * c.n), 1));
  }
}

TEST(GemmErrors, ShapesThatDoNotFitAreNamed) {
  std::vector<float> values(64);
  const auto view = [&](std::int64_t rows, std::int64_t columns) {
    return view_of(values, Shape{rows, columns});
  };
  StreamUnderTest stream;
  const auto run = [&](const GemmArgs& args) { kernels_under_test().gemm(args, stream); };
  EXPECT_THROW(run({.a = view(2, 3), .b = view(4, 5), .c = view(2, 5), .bias = {}}), Error);
  EXPECT_THROW(run({.a = view(2, 3), .b = view(3, 5), .c = view(2, 4), .bias = {}}), Error);
  std::vector<float> bias(4);
  EXPECT_THROW(run({.a = view(2, 3), .b = view(3, 5), .c = view(2, 5), .bias = view_of(bias)}),
               Error);
  std::vector<bfloat16> half(15);
  EXPECT_THROW(run({.a = view(2, 3), .b = view_of(half, Shape{3, 5}), .c = view(2, 5), .bias = {}}),
               Error);
}

TEST(GemmErrors, ABiasWithGapsIsNamed) {
  std::vector<float> a(6), b(10), c(15), bias(10);
  const GemmArgs args{.a = view_of(a, Shape{2, 3}),
                      .b = view_of(b, Shape{2, 5}),
                      .c = view_of(c, Shape{3, 5}),
                      .bias = view_of(bias, 0, 5),
                      .transpose_a = true};
  const auto kernel = kernels_under_test().gemm;
  expect_refused(kernel, args, &GemmArgs::bias, with_gaps(args.bias), "gemm: the bias ");
}

}  // namespace
}  // namespace tessera::gemm_test

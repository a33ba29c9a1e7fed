#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/support.h"
#include "tessera/kernels/fp8.h"

// GEMMs of codes of fp8, held to sums in double, and transposed codes, held to a loop.
namespace tessera::gemm_fp8_test {
namespace {

using Codes = std::vector<std::uint8_t>;
constexpr Fp8Format kE4M3 = Fp8Format::kE4M3, kE5M2 = Fp8Format::kE5M2;

/// A matrix in fp8, and the numbers that it stands for.
struct Coded {
  std::int64_t rows, columns;
  Fp8Operand operand;
  Codes codes;
  std::vector<std::int32_t> amax{0};
  Doubles values{};

  Coded(std::int64_t row_count, std::int64_t column_count, Fp8Format format, Fp8Scales scales,
        unsigned seed, float spread)
      : rows(row_count), columns(column_count), operand{.format = format, .scales = scales} {
    const std::vector<float> x = random_values<float>(rows * columns, seed, spread);
    float largest = 0.0F;
    for (const float value : x) largest = std::max(largest, std::abs(value));
    amax[0] = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(largest));
    const float scale = fp8_scale(std::bit_cast<std::uint32_t>(largest), format, scales);
    for (const float value : x) {
      codes.push_back(fp8_code(value * scale, format));
      values.push_back(static_cast<double>(fp8_value(codes.back(), format)) /
                       static_cast<double>(scale));
    }
  }
  TensorView view() { return view_of(codes).reshape({rows, columns}); }
  Fp8Operand in() {
    Fp8Operand result = operand;
    result.amax = view_of(amax);
    return result;
  }
};

struct Case {
  std::int64_t m, n, k;
  Fp8Format a = kE4M3, b = kE4M3;
  Fp8Scales scales = Fp8Scales::kPowerOfTwo;
  bool bias = false, accumulate = false, residual = false;
};

template <typename C>
void check(const Case& c) {
  Coded a(c.m, c.k, c.a, c.scales, 1, 3.0F);
  Coded b(c.n, c.k, c.b, c.scales, 2, 0.02F);
  const std::vector<C> before = random_values<C>(c.m * c.n, 3);
  const std::vector<bfloat16> bias = random_values<bfloat16>(c.n, 4);
  const std::vector<C> residual = random_values<C>(c.m * c.n, 5);
  Doubles expected, bound;
  for (std::int64_t i = 0; i < c.m; ++i) {
    for (std::int64_t j = 0; j < c.n; ++j) {
      // The product may be rounded before a residual is added.
      double sum = c.accumulate ? static_cast<double>(as_float(before[at(i * c.n + j)])) : 0.0;
      if (c.bias) sum += static_cast<double>(as_float(bias[at(j)]));
      if (c.residual) sum += static_cast<double>(as_float(residual[at(i * c.n + j)]));
      double terms = std::abs(sum), apart = 0.0;
      if (c.residual) apart = std::abs(static_cast<double>(as_float(residual[at(i * c.n + j)])));
      for (std::int64_t l = 0; l < c.k; ++l) {
        const double term = a.values[at(i * c.k + l)] * b.values[at(j * c.k + l)];
        sum += term;
        terms += std::abs(term);
      }
      expected.push_back(sum);
      bound.push_back(0x1p-23 * (4.0 + std::sqrt(static_cast<double>(c.k))) * terms +
                      2.0 * half_unit<C>(std::abs(sum) + apart) + 0x1p-100);
    }
  }
  on_every_target([&] {
    const std::vector<C> result = run_on_any_threads([&] {
      std::vector<C> values = before;
      std::vector<bfloat16> vector = bias;
      std::vector<C> added = residual;
      StreamUnderTest stream;
      kernels_under_test().gemm(
          {.a = a.view(),
           .b = b.view(),
           .c = view_of(values).reshape({c.m, c.n}),
           .bias = c.bias ? view_of(vector) : TensorView(),
           .transpose_b = true,
           .accumulate = c.accumulate,
           .residual = c.residual ? view_of(added).reshape({c.m, c.n}) : TensorView(),
           .a_fp8 = a.in(),
           .b_fp8 = b.in()},
          stream);
      return values;
    });
    expect_within(result, expected, bound,
                  concat("codes, ", c.m, " x ", c.n, " x ", c.k, c.bias ? ", bias" : "",
                         c.accumulate ? ", accumulate" : "", c.residual ? ", residual" : ""));
  });
}

TEST(GemmFp8, MultipliesCodesOfEveryPairOfFormats) {
  for (const Fp8Scales scales : {Fp8Scales::kPowerOfTwo, Fp8Scales::kExact}) {
    for (const auto& [a, b] : {std::pair{kE4M3, kE4M3}, {kE5M2, kE4M3}, {kE4M3, kE5M2}}) {
      check<bfloat16>({.m = 32, .n = 48, .k = 64, .a = a, .b = b, .scales = scales});
      check<float>({.m = 32, .n = 48, .k = 64, .a = a, .b = b, .scales = scales});
    }
  }
}

TEST(GemmFp8, AddsABiasAResidualAndWhatIsThere) {
  for (const std::int64_t m : {16, 17}) {
    check<bfloat16>({.m = m, .n = 32, .k = 48, .bias = true});
    check<bfloat16>({.m = m, .n = 32, .k = 48, .residual = true});
    check<bfloat16>({.m = m, .n = 32, .k = 48, .bias = true, .residual = true});
    check<bfloat16>({.m = m, .n = 32, .k = 48, .a = kE5M2, .accumulate = true});
    check<float>({.m = m, .n = 32, .k = 48, .a = kE5M2, .accumulate = true});
  }
}

// cuBLASLt takes none of these.
TEST(GemmFp8, TakesSizesThatAreNoMultiplesOf16) {
  for (const auto& [m, n, k] : {std::array{3, 5, 7}, {16, 16, 15}, {16, 9, 16}, {1, 1, 1}}) {
    check<bfloat16>({.m = m, .n = n, .k = k, .a = kE5M2, .bias = true, .residual = true});
    check<float>({.m = m, .n = n, .k = k, .accumulate = true});
  }
}

TEST(GemmFp8, ANumberThatIsNotFiniteMakesEveryResultNan) {
  Coded a(16, 16, kE4M3, Fp8Scales::kPowerOfTwo, 1, 1.0F);
  Coded b(16, 16, kE4M3, Fp8Scales::kPowerOfTwo, 2, 1.0F);
  a.amax[0] = 0x7f800000;
  std::ranges::fill(a.codes, std::uint8_t{0x7f});
  std::vector<float> c(256);
  StreamUnderTest stream;
  kernels_under_test().gemm({.a = a.view(),
                             .b = b.view(),
                             .c = view_of(c).reshape({16, 16}),
                             .transpose_b = true,
                             .a_fp8 = a.in(),
                             .b_fp8 = b.in()},
                            stream);
  for (const float value : c) EXPECT_TRUE(std::isnan(value));
}

TEST(GemmFp8, RefusesWhatDoesNotFit) {
  Coded a(16, 16, kE4M3, Fp8Scales::kPowerOfTwo, 1, 1.0F);
  Coded b(16, 16, kE5M2, Fp8Scales::kPowerOfTwo, 2, 1.0F);
  std::vector<float> c(256);
  std::vector<bfloat16> narrow(256);
  const KernelTable& kernels = kernels_under_test();
  const GemmArgs good{.a = a.view(),
                      .b = b.view(),
                      .c = view_of(c).reshape({16, 16}),
                      .transpose_b = true,
                      .a_fp8 = a.in(),
                      .b_fp8 = b.in()};
  const auto refused = [&](GemmArgs args, const char* message) {
    expect_refused(kernels.gemm, args, &GemmArgs::residual, TensorView(), message);
  };
  GemmArgs args = good;
  args.transpose_a = true;
  refused(args, "gemm: codes of fp8 are multiplied along the rows");
  args = good;
  args.a_fp8.format = kE5M2;
  refused(args, "gemm: a and b are both E5M2");
  args = good;
  args.b_fp8.amax = {};
  refused(args, "gemm: the amax of b is");
  args = good;
  args.b = view_of(narrow).reshape({16, 16});
  refused(args, "gemm: b is (16, 16) of bf16");
  args = good;
  args.c = view_of(narrow).reshape({16, 16});
  args.gelu = true;
  refused(args, "gemm: codes of fp8 go neither with GELU");
}

/// The transposed codes of x, in memory that begins `begin` bytes behind an aligned address, and
/// its codes as it lies if they are asked for.
template <typename T>
Codes transposed_codes(std::vector<T> x, std::int64_t rows, std::int64_t columns,
                       std::int64_t begin, Codes* in_rows) {
  const auto numel = rows * columns;
  Codes transposed(at(numel + begin), 0xee), codes(at(numel), 0xee);
  std::vector<std::int32_t> amax{0x40000000};  // of 2.0
  StreamUnderTest stream;
  kernels_under_test().fp8_encode(
      {.x = view_of(x).reshape({rows, columns}),
       .amax = view_of(amax),
       .codes = in_rows != nullptr ? view_of(codes).reshape({rows, columns}) : TensorView(),
       .transposed = view_of(transposed, begin).reshape({columns, rows})},
      stream);
  if (in_rows != nullptr) *in_rows = codes;
  return {transposed.begin() + begin, transposed.end()};
}

template <typename T>
class TransposedCodes : public testing::Test {};
using Types = testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(TransposedCodes, Types);

TYPED_TEST(TransposedCodes, AreTheCodesOfTheLoop) {
  for (const auto& [rows, columns] :
       {std::pair{64, 64}, {80, 144}, {16, 200}, {1, 1}, {65, 63}, {130, 7}, {48, 72}}) {
    SCOPED_TRACE(concat(rows, " x ", columns));
    const auto x = random_values<TypeParam>(std::int64_t{rows} * columns, 6, 0.7F);
    const float scale = fp8_scale(0x40000000U, kE4M3, Fp8Scales::kPowerOfTwo);
    Codes codes(x.size()), transposed(x.size());
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        const std::uint8_t code = fp8_code(as_float(x[at(i * columns + j)]) * scale, kE4M3);
        codes[at(i * columns + j)] = code;
        transposed[at(j * rows + i)] = code;
      }
    }
    for (const std::int64_t begin : {0, 1}) {
      const auto twice =
          run_on_any_threads([&] { return transposed_codes(x, rows, columns, begin, nullptr); });
      EXPECT_TRUE(same_bits(twice, transposed));
    }
    Codes in_rows;
    EXPECT_TRUE(same_bits(transposed_codes(x, rows, columns, 0, &in_rows), transposed));
    EXPECT_TRUE(same_bits(in_rows, codes));
    Codes moved(codes.size(), 0xee);
    StreamUnderTest stream;
    kernels_under_test().fp8_transpose({.codes = view_of(codes).reshape({rows, columns}),
                                        .transposed = view_of(moved).reshape({columns, rows})},
                                       stream);
    EXPECT_TRUE(same_bits(moved, transposed));
  }
}

TEST(GemmFp8, RefusesTransposedCodesThatDoNotFit) {
  std::vector<float> x(6);
  Codes codes(6), transposed(6);
  std::vector<std::int32_t> amax(1);
  const KernelTable& kernels = kernels_under_test();
  const Fp8EncodeArgs encode{.x = view_of(x).reshape({2, 3}),
                             .amax = view_of(amax),
                             .transposed = view_of(transposed).reshape({3, 2})};
  expect_refused(kernels.fp8_encode, encode, &Fp8EncodeArgs::transposed,
                 view_of(transposed).reshape({2, 3}), "fp8_encode: transposed is (2, 3)");
  expect_refused(kernels.fp8_encode, encode, &Fp8EncodeArgs::x, view_of(x),
                 "fp8_encode: transposed is (3, 2)");
  const Fp8TransposeArgs move{.codes = view_of(codes).reshape({2, 3}),
                              .transposed = view_of(transposed).reshape({3, 2})};
  expect_refused(kernels.fp8_transpose, move, &Fp8TransposeArgs::transposed, view_of(x),
                 "fp8_transpose: transposed is (6) of fp32");
}

}  // namespace
}  // namespace tessera::gemm_fp8_test

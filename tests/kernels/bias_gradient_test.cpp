#include "kernels/support.h"

namespace tessera::bias_gradient_test {
namespace {

template <typename T, typename D>
std::vector<D> run(std::vector<T> dy, std::vector<D> db, std::int64_t rows, bool accumulate) {
  StreamUnderTest stream;
  const auto columns = static_cast<std::int64_t>(db.size());
  kernels_under_test().bias_gradient(
      {.dy = view_of(dy, Shape{rows, columns}), .db = view_of(db), .accumulate = accumulate},
      stream);
  return db;
}

/// Sums of `rows` numbers in fp32 in an order of the kernel's choice, rounded once to D.
template <typename T, typename D>
void check(std::int64_t rows, std::int64_t columns, bool accumulate) {
  SCOPED_TRACE(concat(rows, " x ", columns, accumulate ? ", accumulate" : ""));
  const auto dy = random_values<T>(rows * columns, 5);
  const auto db = random_values<D>(columns, 6);
  Doubles expected, bound;
  for (std::int64_t j = 0; j < columns; ++j) {
    double sum = accumulate ? static_cast<double>(as_float(db[at(j)])) : 0.0;
    double magnitude = std::abs(sum);
    for (std::int64_t i = 0; i < rows; ++i) {
      const auto value = static_cast<double>(as_float(dy[at(i * columns + j)]));
      sum += value;
      magnitude += std::abs(value);
    }
    expected.push_back(sum);
    bound.push_back(0x1p-21 * magnitude + rounding<D>() * std::abs(sum) * 1.001 +
                    least_rounding<D>() + 1e-30);
  }
  // Column sums are per lane: no instruction set or thread count changes a bit.
  const auto result = run_every_way([&] { return run(dy, db, rows, accumulate); });
  expect_within(result, expected, bound, "db");
}

TEST(BiasGradient, SumsColumns) {
  for (const std::int64_t rows : {0, 1, 7, 8, 17, testing_cuda() ? 101 : 2101}) {
    for (const std::int64_t columns : {1, 37}) {
      for (const bool accumulate : {false, true}) {
        check<float, float>(rows, columns, accumulate);
        check<bfloat16, float>(rows, columns, accumulate);
        check<bfloat16, bfloat16>(rows, columns, accumulate);
        check<float16, float>(rows, columns, accumulate);
        check<float16, float16>(rows, columns, accumulate);
      }
    }
  }
}

TEST(BiasGradient, SumsMoreColumnsThanABlockTakes) {
  check<float, float>(77, 264, false);
  check<bfloat16, bfloat16>(77, 264, true);
}

TEST(BiasGradient, SumsMoreRowsThanAWarpLoadsAtOnce) {  // in each of very many blocks
  check<float, float>(70001, 4, false);
  check<bfloat16, float>(70001, 8, true);
}

/// So sums that another kernel leaves may be added later, with the same bits.
template <typename T, typename D>
void check_sum_comes_first(std::int64_t rows, std::int64_t columns) {
  const auto dy = random_values<T>(rows * columns, 5);
  auto db = random_values<D>(columns, 6);
  const std::vector<D> accumulated = run(dy, db, rows, true);
  std::vector<float> sums = run(dy, std::vector<float>(db.size()), rows, false);
  StreamUnderTest stream;
  kernels_under_test().add({.src = view_of(sums), .dst = view_of(db)}, stream);
  EXPECT_TRUE(same_bits(accumulated, db));
}

TEST(BiasGradient, SumsBeforeItAddsToWhatIsThere) {
  check_sum_comes_first<float, float>(1501, 40);
  check_sum_comes_first<bfloat16, float>(1501, 40);
  check_sum_comes_first<bfloat16, bfloat16>(701, 264);
  check_sum_comes_first<float16, float16>(701, 37);
}

TEST(BiasGradient, TakesNoColumns) { check<float, float>(5, 0, false); }

TEST(BiasGradient, RejectsAnotherWidth) {
  std::vector<float> dy(12), db(5);
  StreamUnderTest stream;
  EXPECT_THROW(kernels_under_test().bias_gradient(
                   {.dy = view_of(dy, Shape{3, 4}), .db = view_of(db)}, stream),
               Error);
}

TEST(BiasGradientErrors, ViewsThatAreNotFlatFloatsAreNamed) {
  std::vector<float> dy(24), db(8);
  const BiasGradientArgs args{.dy = view_of(dy, Shape{3, 4}), .db = view_of(db, 0, 4)};
  const auto kernel = kernels_under_test().bias_gradient;
  expect_flat_floats(kernel, args, &BiasGradientArgs::dy, "bias_gradient: dy ");
  expect_flat_floats(kernel, args, &BiasGradientArgs::db, "bias_gradient: db ");
}

}  // namespace
}  // namespace tessera::bias_gradient_test

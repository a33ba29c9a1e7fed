#include "kernels/every_way.h"
#include "tessera/core/error.h"
#include "tessera/kernels/kernel_table.h"

namespace tessera {
namespace {

/// The order that the kernel promises, spelled out.
template <typename T>
double block_square(const T* x) {
  double lane[8] = {};
  for (std::int64_t i = 0; i < kNormBlock; ++i) {
    const auto value = static_cast<double>(as_float(x[i]));
    lane[i % 8] += value * value;
  }
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

template <typename T>
void check(std::int64_t blocks) {
  std::vector<T> x = random_values<T>(blocks * kNormBlock, 7);
  if (blocks > 3) x[200] = T(1e20F);  // its square exceeds fp32
  const auto result = run_every_way([&] {
    std::vector<double> out(static_cast<std::size_t>(blocks));
    StreamUnderTest stream;
    kernels_under_test().block_squares({.x = view_of(x), .out = view_of(out)}, stream);
    return out;
  });
  std::vector<double> expected;
  for (std::int64_t i = 0; i < blocks; ++i)
    expected.push_back(block_square(x.data() + i * kNormBlock));
  EXPECT_TRUE(same_bits(result, expected)) << blocks;
}

TEST(BlockSquares, SumsInThePromisedOrder) {
  for (const std::int64_t blocks : {0, 1, 2, 3, 7, 255, 257, 1009}) {
    check<float>(blocks);
    check<bfloat16>(blocks);
  }
}

TEST(BlockSquares, RejectsPartsOfBlocks) {
  std::vector<float> x(65);
  std::vector<double> out(1);
  StreamUnderTest stream;
  EXPECT_THROW(kernels_under_test().block_squares({.x = view_of(x), .out = view_of(out)}, stream),
               Error);
}

}  // namespace
}  // namespace tessera

#include <fake_cuda.h>

#include "kernels/every_way.h"
#include "tessera/core/error.h"
#include "tessera/kernels/kernel_table.h"

// Rows of logits in shared memory, where two of them fit a multiprocessor, and elsewhere: a GPU's
// shared memory must not change a bit.
namespace tessera::cross_entropy_test {
namespace {

constexpr int kHopperBytes = 227 << 10;

template <typename T>
struct Result {
  std::vector<float> losses;
  std::vector<T> logits;
};

/// Five rows, `stride` elements apart, of a vocabulary of `vocab`, on a GPU of so much shared
/// memory.
template <typename T>
Result<T> cross_entropy_with(int block_shared_bytes, std::int64_t vocab, std::int64_t stride) {
  constexpr std::int64_t kRows = 5;
  Result<T> result{std::vector<float>(kRows), random_values<T>(kRows * stride, 1, 3.0F)};
  std::vector<std::int32_t> targets;
  for (std::int64_t r = 0; r < kRows; ++r) {
    targets.push_back(r == 3 ? -1 : static_cast<std::int32_t>(r * 7919 % vocab));
  }
  StreamUnderTest stream;
  fake_cuda::configure({.block_shared_bytes = block_shared_bytes});
  const std::int64_t bytes_before = fake_cuda::counters().dynamic_shared_bytes;
  kernels_under_test().cross_entropy({.logits = view_of(result.logits, Shape{kRows, stride}),
                                      .targets = view_of(targets),
                                      .losses = view_of(result.losses),
                                      .vocab_size = vocab},
                                     stream);
  const bool shared = fake_cuda::counters().dynamic_shared_bytes > bytes_before;
  fake_cuda::configure({});
  const auto row_bytes = static_cast<std::int64_t>(sizeof(T)) * vocab;
  EXPECT_EQ(shared, 2 * row_bytes < block_shared_bytes - 4096) << vocab;
  return result;
}

template <typename T>
void expect_same_bits(std::int64_t vocab, std::int64_t stride) {
  SCOPED_TRACE(concat(vocab, " logits in rows of ", stride));
  const auto in_shared = cross_entropy_with<T>(kHopperBytes, vocab, stride);
  const auto in_global = cross_entropy_with<T>(0, vocab, stride);
  EXPECT_TRUE(same_bits(in_shared.losses, in_global.losses));
  EXPECT_TRUE(same_bits(in_shared.logits, in_global.logits));
}

TEST(CrossEntropyRowsOnTheCpu, GivesTheBitsOfGlobalMemory) {
  expect_same_bits<bfloat16>(50257, 50304);
  expect_same_bits<bfloat16>(50257, 50257);  // every row at another alignment
  for (const std::int64_t vocab : {17, 1009, 4096, 4097, 20011}) {
    expect_same_bits<bfloat16>(vocab, vocab);
    expect_same_bits<float>(vocab, vocab + 3);
  }
}

TEST(CrossEntropyRowsOnTheCpu, IsLeftOutWhereTwoRowsDoNotFit) {
  cross_entropy_with<float>(kHopperBytes, 50257, 50304);
  cross_entropy_with<bfloat16>(163 << 10, 50257, 50304);  // an A100
}

}  // namespace
}  // namespace tessera::cross_entropy_test

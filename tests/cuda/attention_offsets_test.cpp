#include <gtest/gtest.h>

#include "cuda/attention_tiles_cuda.h"

// Where a block of the tensor-core kernels finds its head, in tensors too large to be allocated
// here.
namespace tessera::cuda {
namespace {

/// What a thread of block `block` computes with.
Place place_of(const AttentionLayout& layout, unsigned block, int tiles) {
  emulator::Identity identity{};
  identity.block = {block, 0, 0};
  emulator::current_identity = &identity;
  const Place place(layout, tiles);
  emulator::current_identity = nullptr;
  return place;
}

TEST(AttentionOffsets, ExceedThirtyTwoBits) {
  // Of GPT-2 XL: some 5 * 10^9 elements in qkv.
  constexpr std::int64_t kBatch = 1024, kLength = 1024, kHeads = 25, kDim = 64;
  const AttentionLayout layout(
      TensorView(nullptr, DType::kBFloat16, {kBatch, kLength, 3, kHeads, kDim}), 0);
  constexpr int kTiles = 8;
  constexpr std::int64_t kBatchIndex = 1000, kHead = 7, kTile = 3;
  const Place place = place_of(
      layout, static_cast<unsigned>((kBatchIndex * kHeads + kHead) * kTiles + kTile), kTiles);
  EXPECT_EQ(place.tile, kTile);
  EXPECT_EQ(place.head, kHead);
  EXPECT_EQ(place.batch, kBatchIndex);
  EXPECT_EQ(place.index(layout), kBatchIndex * kHeads + kHead);
  for (int part = 0; part < 3; ++part) {
    EXPECT_EQ(place.qkv_offset(layout, part),
              ((kBatchIndex * kLength * 3 + part) * kHeads + kHead) * kDim);
  }
  EXPECT_EQ(place.out_offset(layout), (kBatchIndex * kLength * kHeads + kHead) * kDim);
}

}  // namespace
}  // namespace tessera::cuda

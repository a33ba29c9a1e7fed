#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <set>

#include "tessera/core/address_space.h"
#include "tessera/core/fixed_text.h"
#include "tessera/core/free_lists.h"

// What errors and freed memory rest on where there is none left.
namespace tessera {
namespace {

TEST(FixedText, HoldsTextsAndNumbers) {
  FixedText<64> text;
  text << "rank " << 3 << " failed: " << std::numeric_limits<int>::min();
  EXPECT_EQ(text.view(), "rank 3 failed: -2147483648");
}

TEST(FixedText, CutsOffWhatDoesNotFit) {
  FixedText<8> text;
  text << "12345"
       << "6789"
       << "0";
  EXPECT_EQ(text.view(), "12345678");
}

TEST(FreeLists, GivesOutBlocksOfTheSameSizeOnly) {
  FreeLists lists;
  alignas(64) std::array<std::array<std::byte, 128>, 3> blocks{};
  EXPECT_EQ(lists.take(64), nullptr);
  EXPECT_EQ(lists.take(128), nullptr);
  lists.give_back(blocks[0].data(), 64);
  lists.give_back(blocks[1].data(), 128);
  lists.give_back(blocks[2].data(), 128);
  EXPECT_EQ(lists.take(64), blocks[0].data());
  EXPECT_EQ(lists.take(64), nullptr);
  EXPECT_EQ((std::set<void*>{lists.take(128), lists.take(128)}),
            (std::set<void*>{blocks[1].data(), blocks[2].data()}));
  EXPECT_EQ(lists.take(128), nullptr);
}

TEST(FreeLists, AreEmptyOnceCleared) {
  FreeLists lists;
  alignas(64) std::array<std::byte, 64> block{};
  EXPECT_EQ(lists.take(64), nullptr);
  lists.give_back(block.data(), 64);
  std::set<void*> released;
  lists.clear([&](void* address) { released.insert(address); });
  EXPECT_EQ(released, std::set<void*>{block.data()});
  EXPECT_EQ(lists.take(64), nullptr);
}

TEST(AddressSpace, HasRoomForSomeAndNotForMoreThanThereIs) {
  EXPECT_TRUE(has_address_space(4096));
  EXPECT_FALSE(has_address_space(std::size_t{1} << 60U));
}

}  // namespace
}  // namespace tessera

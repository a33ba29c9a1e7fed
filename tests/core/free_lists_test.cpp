#include <gtest/gtest.h>

#include <array>
#include <set>

#include "tessera/core/free_lists.h"

namespace tessera {
namespace {

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

}  // namespace
}  // namespace tessera

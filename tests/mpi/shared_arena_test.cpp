#include "world/shared_arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace tessera {
namespace {

constexpr std::size_t kMiB = 1U << 20U;

/// Stands for a window of MPI: addresses for `bytes`, of which the file system gives `pages` only.
class Window {
 public:
  Window(std::size_t bytes, std::size_t pages) : bytes_(bytes), file_(memfd_create("window", 0)) {
    EXPECT_EQ(ftruncate(file_, static_cast<off_t>(pages)), 0);
    void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    EXPECT_NE(base, MAP_FAILED);
    base_ = static_cast<std::byte*>(base);
  }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  ~Window() {
    munmap(base_, bytes_);
    close(file_);
  }

  std::byte* base() const { return base_; }
  bool has(const void* address) const {
    const auto* const byte = static_cast<const std::byte*>(address);
    return base_ <= byte && byte < base_ + bytes_;
  }

 private:
  const std::size_t bytes_;
  const int file_;
  std::byte* base_ = nullptr;
};

/// A block of `arena` that can be written to its end.
std::byte* block_of(SharedArena& arena, std::size_t bytes) {
  void* const block = arena.allocate(bytes);
  std::memset(block, 1, bytes);
  EXPECT_TRUE(arena.contains(block, bytes));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 64, 0U);
  return static_cast<std::byte*>(block);
}

TEST(SharedArenaTest, TakesTheWindowFirstAndTheFileWhenItIsFull) {
  const Window window(4 * kMiB, 4 * kMiB);
  SharedArena arena;
  constexpr std::size_t kUnaligned = 264;  // as Open MPI's begin
  arena.add_window(window.base() + kUnaligned, 4 * kMiB - kUnaligned);
  EXPECT_TRUE(window.has(block_of(arena, 100)));
  EXPECT_TRUE(window.has(block_of(arena, kMiB)));
  EXPECT_FALSE(window.has(block_of(arena, 4 * kMiB)));
  EXPECT_TRUE(window.has(block_of(arena, kMiB)));  // what is smaller still fits
}

TEST(SharedArenaTest, OffsetsTellFileAndWindowApart) {
  const Window window(kMiB, kMiB);
  SharedArena arena;
  std::byte* const in_file = block_of(arena, 100);
  arena.add_window(window.base(), kMiB);
  std::byte* const in_window = block_of(arena, 100);
  const std::size_t file_bytes = arena.mapping().bytes();
  EXPECT_EQ(arena.mapping().base() + arena.offset_of(in_file), in_file);
  EXPECT_EQ(window.base() + (arena.offset_of(in_window) - file_bytes), in_window);
  EXPECT_FALSE(arena.contains(in_window, 2 * kMiB));
}

TEST(SharedArenaTest, AWindowWithoutPagesIsLeftBeforeItIsWritten) {
  const Window window(4 * kMiB, kMiB);  // a write beyond the first MiB would be SIGBUS
  SharedArena arena;
  arena.add_window(window.base(), 4 * kMiB);
  std::byte* const first = block_of(arena, kMiB / 2 + 100);
  EXPECT_TRUE(window.has(first));
  EXPECT_FALSE(window.has(block_of(arena, kMiB)));
  EXPECT_FALSE(window.has(block_of(arena, 100)));  // it is not asked again
  for (std::size_t i = 0; i < kMiB / 2 + 100; ++i) ASSERT_EQ(first[i], std::byte{1});
}

TEST(SharedArenaTest, FreedBlocksOfTheWindowAreUsedAgain) {
  const Window window(kMiB, kMiB);
  SharedArena arena;
  arena.add_window(window.base(), kMiB);
  std::byte* const block = block_of(arena, kMiB / 2);
  arena.deallocate(block, kMiB / 2);
  EXPECT_EQ(block_of(arena, kMiB / 2), block);
}

TEST(SharedArenaTest, WhatPeersLookAtForGoodIsZeroAndInTheFile) {
  const Window window(kMiB, kMiB);
  std::memset(window.base(), 1, kMiB);  // nobody promises zeros
  SharedArena arena;
  arena.add_window(window.base(), kMiB);
  const auto* const block = static_cast<const std::byte*>(arena.allocate_for_good(100));
  EXPECT_FALSE(window.has(block));
  for (int i = 0; i < 100; ++i) ASSERT_EQ(block[i], std::byte{0});
}

}  // namespace
}  // namespace tessera

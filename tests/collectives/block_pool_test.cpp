#include "../../collectives/src/block_pool.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <thread>
#include <vector>

namespace tessera {
namespace {

// Each test has a size, and by that a pool, of its own.

TEST(BlockPool, BlocksInUseAreApart) {
  using Pool = BlockPool<24>;
  std::set<std::uintptr_t> blocks;
  for (int i = 0; i < 100; ++i) blocks.insert(reinterpret_cast<std::uintptr_t>(Pool::take()));
  std::uintptr_t last = 0;
  for (const std::uintptr_t block : blocks) {
    EXPECT_EQ(block % alignof(std::max_align_t), 0U);
    EXPECT_GE(block - last, 24U);
    last = block;
  }
  EXPECT_EQ(blocks.size(), 100U);
  for (const std::uintptr_t block : blocks) Pool::give_back(reinterpret_cast<void*>(block));
}

TEST(BlockPool, WhatAnotherThreadGivesBackIsTakenAgain) {
  using Pool = BlockPool<40>;
  std::set<void*> first;
  for (int i = 0; i < 10; ++i) first.insert(Pool::take());
  std::thread([&] {
    for (void* const block : first) Pool::give_back(block);
  }).join();
  std::set<void*> again;
  for (int i = 0; i < 10; ++i) again.insert(Pool::take());
  EXPECT_EQ(again, first);
  void* const one_more = Pool::take();
  EXPECT_EQ(first.count(one_more), 0U);
  Pool::give_back(one_more);
  for (void* const block : again) Pool::give_back(block);
}

TEST(BlockPool, AnEndingThreadLeavesItsBlocksToOthers) {
  using Pool = BlockPool<56>;
  void* given = nullptr;
  std::thread([&] {
    void* const a = Pool::take();
    void* const b = Pool::take();
    Pool::give_back(a);
    Pool::give_back(b);
    given = Pool::take();  // of both that it has, uses one
    Pool::give_back(given);
  }).join();
  EXPECT_NE(given, nullptr);
  const std::set<void*> taken{Pool::take(), Pool::take()};
  EXPECT_EQ(taken.count(given), 1U);
  for (void* const block : taken) Pool::give_back(block);
}

TEST(BlockPool, AnEndingThreadLeavesAllThatItTookToOthers) {
  using Pool = BlockPool<88>;
  constexpr int kBlocks = 100;  // several times as many as are given at once
  std::set<void*> all;
  for (int i = 0; i < kBlocks; ++i) all.insert(Pool::take());
  std::thread([&] {
    for (void* const block : all) Pool::give_back(block);
  }).join();
  std::thread([&] {
    void* const one = Pool::take();  // takes the whole list
    void* const two = Pool::take();
    Pool::give_back(one);
    Pool::give_back(two);
  }).join();
  std::set<void*> again;
  for (int i = 0; i < kBlocks; ++i) again.insert(Pool::take());
  EXPECT_EQ(again, all);
  for (void* const block : again) Pool::give_back(block);
}

TEST(BlockPool, BlocksThatTravelBetweenThreadsKeepWhatIsWrittenInThem) {
  using Pool = BlockPool<72>;
  struct Box {
    std::array<std::uint64_t, 9> words;
  };
  constexpr int kMakers = 3, kRounds = 2000, kSlots = 16;
  std::array<std::array<std::atomic<Box*>, kSlots>, kMakers> slots{};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::uint64_t maker = 0; maker < kMakers; ++maker) {
    threads.emplace_back([&, maker] {
      for (std::uint64_t round = 0; round < kRounds; ++round) {
        Box* const box = new (Pool::take()) Box;
        box->words.fill(maker * kRounds + round);
        std::atomic<Box*>& slot = slots[maker][round % kSlots];
        while (slot.load() != nullptr) std::this_thread::yield();
        slot.store(box);
      }
    });
    threads.emplace_back([&, maker] {
      for (std::uint64_t round = 0; round < kRounds; ++round) {
        std::atomic<Box*>& slot = slots[maker][round % kSlots];
        Box* box = nullptr;
        while ((box = slot.load()) == nullptr) std::this_thread::yield();
        for (const std::uint64_t word : box->words)
          wrong += word != maker * kRounds + round ? 1 : 0;
        Pool::give_back(box);
        slot.store(nullptr);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Pooled, AFunctionKeepsItsTaskInAPool) {
  const void* lies_at = nullptr;
  const std::array<std::uint64_t, 30> numbers{7};
  const Pooled task{[numbers, &lies_at] { lies_at = &numbers; }};
  {
    const std::function<void()> function = task;
    function();
  }
  using Pool = BlockPool<sizeof(task)>;
  auto* const block = static_cast<std::byte*>(Pool::take());
  EXPECT_GE(lies_at, block);
  EXPECT_LT(lies_at, block + sizeof(task));
  Pool::give_back(block);
}

}  // namespace
}  // namespace tessera

#include "tessera/core/memory.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"
#include "tessera/core/sim_device.h"

namespace tessera {
namespace {

TEST(MemoryTest, CountsByCategoryAndKeepsPeaks) {
  SimDevice device;
  Memory memory(device);
  {
    const Buffer a = memory.allocate(100, MemoryCategory::kParameters, "a");
    {
      const Buffer b = memory.allocate(1, MemoryCategory::kGradients, "b");
      EXPECT_EQ(a.bytes(), 128);
      EXPECT_EQ(memory.current()[MemoryCategory::kParameters], 128);
      EXPECT_EQ(memory.current()[MemoryCategory::kGradients], 64);
    }
    const Buffer c = memory.allocate(64, MemoryCategory::kOptimizer, "c");
  }
  EXPECT_EQ(memory.current(), MemoryUse{});
  EXPECT_EQ(memory.peak().total, 192);  // a + b, and a + c: never all three
  EXPECT_EQ(memory.peak().by_category[MemoryCategory::kGradients], 64);
  EXPECT_EQ(memory.peak().by_category[MemoryCategory::kOptimizer], 64);
}

TEST(MemoryTest, BuffersMove) {
  SimDevice device;
  Memory memory(device);
  Buffer a = memory.allocate(64, MemoryCategory::kData, "a");
  std::byte* const address = a.data();
  Buffer b = std::move(a);
  EXPECT_FALSE(static_cast<bool>(a));  // NOLINT: moved from on purpose
  EXPECT_EQ(b.data(), address);
  b = memory.allocate(128, MemoryCategory::kWorkspace, "b");  // the first one dies
  EXPECT_EQ(memory.current()[MemoryCategory::kData], 0);
  EXPECT_EQ(memory.current()[MemoryCategory::kWorkspace], 128);
  b = Buffer();
  EXPECT_EQ(memory.current(), MemoryUse{});
}

TEST(MemoryTest, SumsStayWithin64Bits) {
  SimDevice device;
  Memory memory(device);
  constexpr std::int64_t kHalf = std::int64_t{1} << 61;
  const Buffer a = memory.allocate(kHalf, MemoryCategory::kActivations, "a");
  const Buffer b = memory.allocate(kHalf, MemoryCategory::kActivations, "b");
  try {
    memory.allocate(64, MemoryCategory::kActivations, "one more");
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_NE(std::string(error.what()).find("one more"), std::string::npos);
  }
  EXPECT_EQ(memory.peak().total, 2 * kHalf);
}

TEST(MemoryTest, TheLimitIsNamed) {
  SimDevice device;
  Memory memory(device, 256);
  const Buffer a = memory.allocate(192, MemoryCategory::kParameters, "a");
  const Buffer fits = memory.allocate(64, MemoryCategory::kParameters, "fits");
  try {
    memory.allocate(1, MemoryCategory::kActivations, "attention scores");
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    const std::string what = error.what();
    for (const char* part : {"64 bytes", "activations", "attention scores", "256"}) {
      EXPECT_NE(what.find(part), std::string::npos) << part << " is missing in: " << what;
    }
  }
  EXPECT_EQ(memory.peak().total, 256);
}

TEST(MemoryTest, ARefusalOfTheDeviceLeavesTheLedgerAlone) {
  const auto device = make_cpu_device();
  Memory memory(*device);
  try {
    memory.allocate(std::int64_t{1} << 61, MemoryCategory::kOptimizer, "moments");
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_NE(std::string(error.what()).find("moments"), std::string::npos);
  }
  EXPECT_EQ(memory.current(), MemoryUse{});
  EXPECT_EQ(memory.peak(), MemoryPeak{});
}

TEST(MemoryTest, LanesMayAllocateAtTheSameTime) {
  const auto device = make_cpu_device();
  Memory memory(*device);
  std::vector<std::thread> lanes;
  for (int lane = 0; lane < 4; ++lane) {
    lanes.emplace_back([&memory, lane] {
      for (std::int64_t i = 1; i < 200; ++i) {
        const Buffer buffer =
            memory.allocate(i * 2000 + lane, MemoryCategory::kActivations, "stress");
        buffer.data()[0] = std::byte{1};
        buffer.data()[buffer.bytes() - 1] = std::byte{2};
      }
    });
  }
  for (std::thread& lane : lanes) lane.join();
  EXPECT_EQ(memory.current(), MemoryUse{});
  EXPECT_GT(memory.peak().total, 199 * 2000);
}

TEST(MemoryTest, CategoriesHaveNames) {
  EXPECT_EQ(to_string(MemoryCategory::kUnshardedParameters), "unsharded_parameters");
  for (int i = 0; i < kMemoryCategories; ++i) {
    EXPECT_NE(to_string(static_cast<MemoryCategory>(i)), "unknown");
  }
}

}  // namespace
}  // namespace tessera

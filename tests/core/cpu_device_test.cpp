#include "tessera/core/cpu_device.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "tessera/core/error.h"

namespace tessera {
namespace {

TEST(CpuDeviceTest, MemoryIsAlignedWritableAndApart) {
  const auto device = make_cpu_device();
  struct Block {
    char* address;
    std::size_t bytes;
  };
  std::vector<Block> blocks;
  for (std::size_t bytes : {0UL, 1UL, 63UL, 64UL, 65UL, 4097UL, (256UL << 10U) - 1, 256UL << 10U,
                            (256UL << 10U) + 1, (2UL << 20U) + 4097, 5UL << 20U}) {
    auto* const address = static_cast<char*>(device->allocate(bytes));
    ASSERT_NE(address, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(address) % 64, 0U) << bytes;
    std::memset(address, static_cast<int>(blocks.size()) + 1, bytes);
    blocks.push_back({address, bytes});
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    for (std::size_t j = 0; j < blocks[i].bytes; j += 61) {
      ASSERT_EQ(blocks[i].address[j], static_cast<char>(i + 1));
    }
    device->deallocate(blocks[i].address, blocks[i].bytes);
  }
}

// AddressSanitizer builds do not pool, so that a use after free is found.
#ifndef __SANITIZE_ADDRESS__
TEST(CpuDeviceTest, ReusesFreedBlocksOfAboutTheSameSize) {
  const auto device = make_cpu_device();
  constexpr std::size_t kMiB = 1U << 20U;
  void* const big = device->allocate(10 * kMiB);
  device->deallocate(big, 10 * kMiB);
  void* const too_small = device->allocate(7 * kMiB);  // the free block is over 1.25 times this
  EXPECT_NE(too_small, big);
  void* const reused = device->allocate(8 * kMiB);
  EXPECT_EQ(reused, big);
  device->deallocate(reused, 8 * kMiB);
  void* const again = device->allocate(10 * kMiB);  // its capacity was not forgotten
  EXPECT_EQ(again, big);
  device->deallocate(too_small, 7 * kMiB);
  device->deallocate(again, 10 * kMiB);

  void* const small = device->allocate(1000);
  device->deallocate(small, 1000);
  EXPECT_NE(device->allocate(2000), small);
  EXPECT_EQ(device->allocate(1001), small);  // both round up to 1024
}

TEST(CpuDeviceTest, PrefersTheTightestFit) {
  const auto device = make_cpu_device();
  constexpr std::size_t kMiB = 1U << 20U;
  void* const loose = device->allocate(12 * kMiB);
  void* const tight = device->allocate(11 * kMiB);
  device->deallocate(loose, 12 * kMiB);
  device->deallocate(tight, 11 * kMiB);
  EXPECT_EQ(device->allocate(10 * kMiB), tight);
  EXPECT_EQ(device->allocate(10 * kMiB), loose);
}
#endif

TEST(CpuDeviceTest, AnImpossibleRequestIsOutOfMemory) {
  const auto device = make_cpu_device();
  std::vector<std::size_t> requests{~std::size_t{0}};
#ifndef __SANITIZE_ADDRESS__
  requests.push_back(std::size_t{1} << 50U);  // AddressSanitizer would end the program itself
#endif
  for (std::size_t bytes : requests) {
    try {
      device->allocate(bytes);
      FAIL() << "did not throw";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    }
  }
}

TEST(CpuDeviceTest, AvailableMemoryIsPlausible) {
  const std::int64_t physical =
      static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  EXPECT_GT(available_host_bytes(), 1 << 20);
  EXPECT_LE(available_host_bytes(), physical);
}

}  // namespace
}  // namespace tessera

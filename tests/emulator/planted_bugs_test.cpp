#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "device_run.h"
#include "tessera/core/error.h"

// Kernels with one mistake each, and what finds it: the emulator itself in any build, a wrong
// result, AddressSanitizer with UBSan, or ThreadSanitizer. What nothing finds in a build is
// expected to pass there, so that the limits are on record.

namespace tessera::emulator_test {
namespace {

using simt::bf16;

constexpr int kThreads = 64;

// ---- the mistakes; out has kThreads floats, of which thread t is to write number t
// -----------------

__global__ void dynamic_shared_overrun(float* out) {
  float* shared = simt::dynamic_shared<float>();
  shared[threadIdx.x + 1] = 1.0F;
  __syncthreads();
  out[threadIdx.x] = 1.0F;
}
__global__ void static_shared_overrun(float* out) {
  SIMT_SHARED(float[kThreads], shared);
  shared[threadIdx.x + 1] = 1.0F;
  __syncthreads();
  out[threadIdx.x] = 1.0F;
}
__global__ void barrier_that_some_miss(float* out) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else if (threadIdx.x < 48) {
    __syncwarp();
  }
  out[threadIdx.x] = 1.0F;
}
__global__ void barriers_in_two_branches(float* out) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = 1.0F;
}
__global__ void shuffle_that_some_miss(float* out) {
  float value = 1.0F;
  if (threadIdx.x % 32 < 16) value = __shfl_xor_sync(0xffffffffU, value, 1);
  out[threadIdx.x] = value;
}
__global__ void mask_without_the_caller(float* out) {
  out[threadIdx.x] = __shfl_sync(0x0000ffffU, 1.0F, 0);
}
__global__ void missing_barrier_before_read(float* out) {
  SIMT_SHARED(float[kThreads], shared);
  shared[threadIdx.x] = 1.0F;
  out[threadIdx.x] = shared[threadIdx.x ^ 32U];
}
__global__ void missing_barrier_before_write(float* out) {
  SIMT_SHARED(float[kThreads], shared);
  shared[threadIdx.x] = 1.0F;
  __syncthreads();
  const float value = shared[kThreads - 1 - threadIdx.x];
  shared[threadIdx.x] = 2.0F;
  out[threadIdx.x] = value;
}
__global__ void shuffle_for_a_barrier(float* out) {
  SIMT_SHARED(float[kThreads], shared);
  shared[threadIdx.x] = 1.0F;
  const float value = __shfl_sync(0xffffffffU, 1.0F, 0);
  out[threadIdx.x] = value * shared[threadIdx.x ^ 1U];
}
__global__ void uninitialised_shared(float* out) {
  SIMT_SHARED(float[kThreads + 1], shared);
  shared[threadIdx.x] = 1.0F;
  __syncthreads();
  out[threadIdx.x] = shared[threadIdx.x + 1];
}
__global__ void sum_without_atomics(float* out) {
  out[threadIdx.x] = 1.0F;
  out[0] += 1.0F;
  out[0] -= 1.0F;
}
__global__ void blocks_that_write_the_same(float* out) {
  for (int i = 0; i < kThreads; ++i) out[i] = 1.0F;
}
__global__ void global_overrun(float* out) {
  out[threadIdx.x] = 1.0F;
  out[threadIdx.x + blockDim.x * gridDim.x / 2] = 1.0F;
}
__global__ void unaligned_vector(float* out) {
  out[threadIdx.x] = 1.0F;
  if (threadIdx.x == 0) simt::store16(out + 1, simt::Vec16<float>{{1, 1, 1, 1}});
}
__global__ void unaligned_pair(float* out) {
  struct alignas(8) Pair {
    float x, y;
  };
  out[threadIdx.x] = 1.0F;
  __syncthreads();
  if (threadIdx.x == 0) *reinterpret_cast<Pair*>(out + 1) = {1.0F, 1.0F};
}
__global__ void offset_in_too_few_bits(float* out) {
  const int rows = static_cast<int>(gridDim.x) << 16;  // of as many elements each
  const std::int64_t end = rows * rows;
  out[threadIdx.x] = end >= 0 ? 1.0F : -1.0F;
}
__global__ void shift_by_all_bits(float* out) {
  const std::uint32_t below = (1U << (threadIdx.x % 32 + 1)) - 1;  // the last lane's is not full
  out[threadIdx.x] = below != 0 || threadIdx.x % 32 == 31 ? 1.0F : 0.0F;
}
__global__ void copy_without_wait(float* out) {
  SIMT_SHARED(float[4 * kThreads], shared);
  out[threadIdx.x] = 1.0F;
  __syncthreads();
  simt::cp_async16(&shared[4 * threadIdx.x], &out[threadIdx.x / 4 * 4]);
  simt::cp_async_commit();
  simt::cp_async_wait<1>();
  __syncthreads();
  out[threadIdx.x] = shared[4 * threadIdx.x + threadIdx.x % 4];
}
__global__ void tile_reused_too_early(float* out) {
  SIMT_SHARED(float[4 * kThreads], tile);
  for (int i = 0; i < 4; ++i) tile[4 * threadIdx.x + i] = 1.0F;
  out[threadIdx.x] = 2.0F;
  __syncthreads();
  // Overwrites what another warp is still to read.
  simt::cp_async16(&tile[4 * threadIdx.x], &out[threadIdx.x / 4 * 4]);
  simt::cp_async_commit();
  const float value = tile[4 * (threadIdx.x ^ 32U)];
  simt::cp_async_wait<0>();
  __syncthreads();
  out[threadIdx.x] = value;
}
__global__ void ldmatrix_without_syncwarp(float* out) {
  SIMT_SHARED(bf16[8 * kThreads], rows);
  for (unsigned i = 0; i < 8; ++i) rows[8 * threadIdx.x + i] = simt::from_float<bf16>(1.0F);
  std::uint32_t words[4];
  simt::ldmatrix_x4(words, rows + 8 * (threadIdx.x ^ 1U));  // what another lane has written
  out[threadIdx.x] = words[0] == simt::pack_pair<bf16>(1.0F, 1.0F) ? 1.0F : 0.0F;
}
__global__ void ldmatrix_of_global_memory(float* out) {
  std::uint32_t words[4];
  simt::ldmatrix_x4(words, out);
  out[threadIdx.x] = 1.0F;
}
__global__ void too_much_static_shared(float* out) {
  SIMT_SHARED(float[13000], shared);
  shared[threadIdx.x] = 1.0F;
  out[threadIdx.x] = shared[threadIdx.x];
}

// ---- how each is found
// ------------------------------------------------------------------------------

struct Found {
  enum class How { kThrows, kWrongResult, kReport, kUnseen };
  How how;
  const char* text = "";  ///< part of the message or of the report
};
Found throws(const char* text) { return {Found::How::kThrows, text}; }
Found reports(const char* text) { return {Found::How::kReport, text}; }
constexpr Found kWrong{Found::How::kWrongResult};
constexpr Found kUnseen{Found::How::kUnseen};

struct Mistake {
  const char* name;
  void (*kernel)(float*);
  Found plain, address, thread;
  int order = 0;
  unsigned blocks = 1;
  std::size_t dynamic_shared_bytes = 0;
};
std::ostream& operator<<(std::ostream& out, const Mistake& mistake) { return out << mistake.name; }

Found expected(const Mistake& mistake) {
  if (kAddressSanitizer) return mistake.address;
  return kThreadSanitizer ? mistake.thread : mistake.plain;
}

bool result_is_right(const Mistake& mistake) {
  const TestStream stream(mistake.order);
  const DeviceArray<float> out(kThreads);
  simt::launch(mistake.kernel, dim3(mistake.blocks), dim3(kThreads), mistake.dynamic_shared_bytes,
               stream, out.data());
  static_cast<void>(cudaStreamSynchronize(stream));
  const std::vector<float> values = out.values();
  return std::all_of(values.begin(), values.end(), [](float value) { return value == 1.0F; });
}

class PlantedBug : public testing::TestWithParam<Mistake> {};

TEST_P(PlantedBug, IsFound) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Mistake& mistake = GetParam();
  const Found found = expected(mistake);
  switch (found.how) {
    case Found::How::kThrows:
      try {
        result_is_right(mistake);
        FAIL() << "nothing was thrown";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr(found.text));
      }
      break;
    case Found::How::kWrongResult:
      EXPECT_FALSE(result_is_right(mistake));
      break;
    case Found::How::kUnseen:
      EXPECT_TRUE(result_is_right(mistake));
      break;
    case Found::How::kReport:
      EXPECT_EXIT((result_is_right(mistake), std::exit(0)),
                  [](int status) { return !testing::ExitedWithCode(0)(status); }, found.text);
      break;
  }
}

const char* const kRace = "data race.*planted_bugs_test.cpp";

INSTANTIATE_TEST_SUITE_P(
    All, PlantedBug,
    testing::Values(
        Mistake{.name = "DynamicSharedOverrun",
                .kernel = &dynamic_shared_overrun,
                .plain = throws("a write outside of a shared object of 256 bytes"),
                .address = reports("use-after-poison.*planted_bugs_test.cpp"),
                .thread = throws("a write outside of a shared object of 256 bytes"),
                .dynamic_shared_bytes = kThreads * sizeof(float)},
        Mistake{.name = "StaticSharedOverrun",
                .kernel = &static_shared_overrun,
                .plain = throws("a write outside of a shared object of 256 bytes"),
                .address = reports("planted_bugs_test.cpp"),
                .thread = throws("a write outside of a shared object of 256 bytes")},
        Mistake{.name = "BarrierThatSomeMiss",
                .kernel = &barrier_that_some_miss,
                .plain = throws("deadlock in block (0, 0, 0): 16 threads"),
                .address = throws("wait at __syncwarp of lanes ffffffff planted_bugs_test.cpp:"),
                .thread = throws("32 threads (the first is 0) wait at __syncthreads planted_bugs")},
        Mistake{.name = "BarriersInTwoBranches",
                .kernel = &barriers_in_two_branches,
                .plain = throws("while others wait at planted_bugs_test.cpp:"),
                .address = throws("while others wait at planted_bugs_test.cpp:"),
                .thread = throws("while others wait at planted_bugs_test.cpp:")},
        Mistake{.name = "ShuffleThatSomeMiss",
                .kernel = &shuffle_that_some_miss,
                .plain = throws("wait at a shuffle of lanes ffffffff planted_bugs_test.cpp:"),
                .address = throws("wait at a shuffle of lanes ffffffff planted_bugs_test.cpp:"),
                .thread = throws("wait at a shuffle of lanes ffffffff planted_bugs_test.cpp:")},
        Mistake{.name = "MaskWithoutTheCaller",
                .kernel = &mask_without_the_caller,
                .plain = throws("a lane that is not in the mask it gives at planted_bugs_test.cpp"),
                .address = throws("a lane that is not in the mask it gives"),
                .thread = throws("a lane that is not in the mask it gives")},
        Mistake{.name = "MissingBarrierBeforeRead",
                .kernel = &missing_barrier_before_read,
                .plain = kWrong,
                .address = kWrong,
                .thread = reports(kRace)},
        Mistake{.name = "MissingBarrierBeforeWrite",
                .kernel = &missing_barrier_before_write,
                .plain = kWrong,
                .address = kWrong,
                .thread = reports(kRace)},
        Mistake{.name = "ShuffleForABarrier",
                .kernel = &shuffle_for_a_barrier,
                .plain = kUnseen,
                .address = kUnseen,
                .thread = reports(kRace)},
        Mistake{.name = "UninitialisedShared",
                .kernel = &uninitialised_shared,
                .plain = kWrong,
                .address = kWrong,
                .thread = kWrong},
        Mistake{.name = "SumWithoutAtomics",
                .kernel = &sum_without_atomics,
                .plain = kUnseen,
                .address = kUnseen,
                .thread = reports(kRace)},
        Mistake{.name = "BlocksThatWriteTheSame",
                .kernel = &blocks_that_write_the_same,
                .plain = kUnseen,
                .address = kUnseen,
                .thread = reports(kRace),
                .blocks = 2},
        Mistake{.name = "UnalignedVector",
                .kernel = &unaligned_vector,
                .plain = throws("not 16-byte aligned at planted_bugs_test.cpp:"),
                .address = throws("not 16-byte aligned at planted_bugs_test.cpp:"),
                .thread = throws("not 16-byte aligned at planted_bugs_test.cpp:")},
        Mistake{.name = "UnalignedPair",
                .kernel = &unaligned_pair,
                .plain = kUnseen,
                .address = reports("misaligned address.*planted_bugs_test.cpp"),
                .thread = kUnseen},
        Mistake{.name = "OffsetInTooFewBits",
                .kernel = &offset_in_too_few_bits,
                .plain = kUnseen,
                .address = reports("planted_bugs_test.cpp.*signed integer overflow"),
                .thread = kUnseen},
        Mistake{.name = "ShiftByAllBits",
                .kernel = &shift_by_all_bits,
                .plain = kUnseen,
                .address = reports("planted_bugs_test.cpp.*shift exponent 32 is too large"),
                .thread = kUnseen},
        Mistake{.name = "CopyWithoutWait",
                .kernel = &copy_without_wait,
                .plain = kWrong,
                .address = kWrong,
                .thread = reports("data race")},
        Mistake{.name = "TileReusedTooEarly",
                .kernel = &tile_reused_too_early,
                .plain = kWrong,
                .address = kWrong,
                .thread = reports("data race"),
                .order = 1},
        Mistake{.name = "LdmatrixWithoutSyncwarp",
                .kernel = &ldmatrix_without_syncwarp,
                .plain = kUnseen,
                .address = kUnseen,
                .thread = reports("data race")},
        Mistake{.name = "LdmatrixOfGlobalMemory",
                .kernel = &ldmatrix_of_global_memory,
                .plain = throws("not in shared memory at planted_bugs_test.cpp:"),
                .address = throws("not in shared memory at planted_bugs_test.cpp:"),
                .thread = throws("not in shared memory at planted_bugs_test.cpp:")},
        Mistake{.name = "TooMuchStaticShared",
                .kernel = &too_much_static_shared,
                .plain = throws("more shared memory than the launch may use at planted_bugs"),
                .address = throws("more shared memory than the launch may use at planted_bugs"),
                .thread = throws("more shared memory than the launch may use at planted_bugs")}),
    [](const testing::TestParamInfo<Mistake>& test) { return std::string(test.param.name); });

TEST(PlantedMemoryBug, GlobalOverrunIsReportedAtTheLine) {
  if (!kAddressSanitizer) GTEST_SKIP() << "only AddressSanitizer sees this one";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(result_is_right({.name = "",
                                .kernel = &global_overrun,
                                .plain = kUnseen,
                                .address = kUnseen,
                                .thread = kUnseen,
                                .blocks = 2}),
               "heap-buffer-overflow.*global_overrun.*planted_bugs_test.cpp");
}

TEST(PlantedMemoryBug, UseAfterFreeIsReported) {
  if (!kAddressSanitizer) GTEST_SKIP() << "only AddressSanitizer sees this one";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto use_after_free = [] {
    const TestStream stream;
    float* out = nullptr;
    static_cast<void>(cudaMalloc(&out, kThreads * sizeof(float)));
    static_cast<void>(cudaFree(out));
    simt::launch(&barriers_in_two_branches, dim3(1), dim3(32), 0, stream, out);
    static_cast<void>(cudaStreamSynchronize(stream));
  };
  EXPECT_DEATH(use_after_free(), "heap-use-after-free.*planted_bugs_test.cpp");
}

__global__ void count_atomically(int* count, float* out) {
  atomicAdd(count, 1);
  SIMT_SHARED(float[kThreads], shared);
  shared[threadIdx.x] = static_cast<float>(threadIdx.x);
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = shared[threadIdx.x ^ 33U];
}

TEST(CorrectKernel, IsLeftInPeaceInEveryOrder) {
  for (const int order : {0, 1, 7, 8}) {
    const TestStream stream(order);
    const DeviceArray<int> count(std::vector<int>{0});
    const DeviceArray<float> out(5 * kThreads);
    simt::launch(&count_atomically, dim3(5), dim3(kThreads), 0, stream, count.data(), out.data());
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(count.values()[0], 5 * kThreads);
    const std::vector<float> values = out.values();
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(values[i], static_cast<float>((i % kThreads) ^ 33U)) << "order " << order;
    }
  }
}

}  // namespace
}  // namespace tessera::emulator_test

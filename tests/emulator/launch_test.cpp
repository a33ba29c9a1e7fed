#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "device_run.h"
#include "fake_cuda.h"
#include "tessera/core/error.h"

// Launches: what the driver refuses, what kernels are told of themselves, how failures surface.

namespace tessera::emulator_test {
namespace {

using testing::HasSubstr;

__global__ void write_indices(unsigned* out, unsigned stride) {
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  atomicAdd(&out[block * stride + thread], 1U + thread + 1000U * block);
}

TEST(Launch, RunsEveryThreadOnce) {
  for (const int order : {0, 1, 2, 3}) {
    const TestStream stream(order);
    const DeviceArray<unsigned> out(std::vector<unsigned>(2 * 3 * 4 * 45, 0));
    simt::launch(&write_indices, dim3(2, 3, 4), dim3(5, 3, 3), 0, stream, out.data(), 45);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    const std::vector<unsigned> values = out.values();
    for (unsigned block = 0; block < 24; ++block) {
      for (unsigned thread = 0; thread < 45; ++thread) {
        ASSERT_EQ(values[block * 45 + thread], 1 + thread + 1000 * block) << "order " << order;
      }
    }
  }
}

__global__ void nothing() {}
__global__ void nothing_with_room() {}
__global__ void use_dynamic() { simt::dynamic_shared<int>()[threadIdx.x] = 1; }

std::string refusal(dim3 grid, dim3 block, std::size_t shared) {
  const TestStream stream;
  try {
    simt::launch(&nothing, grid, block, shared, stream);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);  // nothing is left when the test ends
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Launch, IsRefusedOutsideOfTheLimits) {
  const std::string configuration = "cudaErrorInvalidConfiguration";
  EXPECT_EQ(refusal(dim3(1), dim3(1024), 48 << 10), "");
  EXPECT_THAT(refusal(dim3(1), dim3(1025), 0), HasSubstr(configuration));
  EXPECT_THAT(refusal(dim3(1), dim3(32, 32, 2), 0), HasSubstr(configuration));
  EXPECT_THAT(refusal(dim3(1), dim3(1, 1, 65), 0), HasSubstr(configuration));
  EXPECT_THAT(refusal(dim3(1), dim3(0), 0), HasSubstr(configuration));
  EXPECT_THAT(refusal(dim3(0), dim3(1), 0), HasSubstr(configuration));
  EXPECT_THAT(refusal(dim3(1, 65536), dim3(1), 0), HasSubstr(configuration));
  EXPECT_THAT(refusal(dim3(1), dim3(1), (48 << 10) + 1), HasSubstr("cudaErrorInvalidValue"));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "launch() takes the error that it throws";
}

TEST(Launch, MayUseMoreSharedMemoryOnceAllowed) {
  const TestStream stream;
  simt::allow_dynamic_shared(&nothing_with_room, 227 << 10);
  simt::launch(&nothing_with_room, dim3(1), dim3(1), 227 << 10, stream);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_THROW(simt::allow_dynamic_shared(&nothing_with_room, (227 << 10) + 1), Error);
}

TEST(Launch, NamesUseOfDynamicSharedMemoryThatThereIsNone) {
  const TestStream stream;
  simt::launch(&use_dynamic, dim3(1), dim3(1), 0, stream);
  try {
    cudaStreamSynchronize(stream);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_THAT(error.what(), HasSubstr("launch_test.cpp:"));
    EXPECT_THAT(error.what(), HasSubstr("thread (0, 0, 0) of block (0, 0, 0)"));
  }
}

__global__ void throw_something() { throw std::runtime_error("thrown by a kernel"); }

TEST(Fault, IsThrownOnceByTheNextWaitThatItConcerns) {
  const TestStream faulty, other, dependent;
  simt::launch(&throw_something, dim3(1), dim3(32), 0, faulty);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, faulty), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(dependent, event), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  try {
    cudaStreamSynchronize(dependent);
    FAIL() << "a fault follows the events";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("thrown by a kernel"));
  }
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess) << "it has been thrown";
  EXPECT_EQ(cudaStreamSynchronize(faulty), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);

  simt::launch(&nothing, dim3(1), dim3(32), 0, faulty);
  EXPECT_EQ(cudaStreamSynchronize(faulty), cudaSuccess) << "the stream goes on";

  simt::launch(&throw_something, dim3(1), dim3(32), 0, faulty);
  EXPECT_THROW(cudaDeviceSynchronize(), Error);
  EXPECT_EQ(fake_cuda::counters().unreported_faults, 0);
}

TEST(Fault, DoesNotGoUnreported) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto never_wait = [] {
    const TestStream stream;
    simt::launch(&throw_something, dim3(1), dim3(32), 0, stream);
    while (fake_cuda::counters().unreported_faults == 0) {
    }
    std::exit(0);
  };
  EXPECT_EXIT(never_wait(), testing::ExitedWithCode(70), "thrown by a kernel");
}

}  // namespace
}  // namespace tessera::emulator_test

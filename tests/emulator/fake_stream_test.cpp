#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "device_run.h"
#include "fake_cuda.h"

// The emulated runtime's streams, events and memory.

namespace tessera::emulator_test {
namespace {

constexpr std::size_t kCount = 1000;

class FakeCuda : public testing::Test {
 protected:
  ~FakeCuda() override {
    fake_cuda::configure({});
    fake_cuda::stop_failing();
  }
};

__global__ void fill(float* out, float value) {
  out[blockIdx.x * blockDim.x + threadIdx.x] = value;
}
__global__ void copy(float* out, const float* in) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = in[i];
}

/// Fills on one stream, copies on another that waits for the first, or forgets to. How many of the
/// copied values are right.
int right_values(bool wait) {
  const TestStream producer, consumer;
  const DeviceArray<float> from(64), to(64);
  cudaEvent_t event = nullptr;
  static_cast<void>(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  simt::launch(&fill, dim3(2), dim3(32), 0, producer, from.data(), 3.0F);
  static_cast<void>(cudaEventRecord(event, producer));
  if (wait) static_cast<void>(cudaStreamWaitEvent(consumer, event));
  simt::launch(&copy, dim3(2), dim3(32), 0, consumer, to.data(), from.data());
  for (cudaStream_t stream : {cudaStream_t(producer), cudaStream_t(consumer)}) {
    static_cast<void>(cudaStreamSynchronize(stream));
  }
  static_cast<void>(cudaEventDestroy(event));
  int right = 0;
  for (const float value : to.values()) right += value == 3.0F ? 1 : 0;
  return right;
}

TEST_F(FakeCuda, WaitsOrderStreams) {
  fake_cuda::configure({.max_delay_us = 2000, .seed = 4});
  for (int repeat = 0; repeat < 10; ++repeat) EXPECT_EQ(right_values(true), 64);
}

TEST_F(FakeCuda, AMissingWaitIsFoundByDelays) {
  if (kThreadSanitizer) GTEST_SKIP() << "it is a data race, and reported as one (below)";
  fake_cuda::configure({.max_delay_us = 2000, .seed = 4});
  int wrong = 0;
  for (int repeat = 0; repeat < 20; ++repeat) wrong += right_values(false) < 64 ? 1 : 0;
  EXPECT_GT(wrong, 0);
}

TEST_F(FakeCuda, AMissingWaitIsFoundByThreadSanitizer) {
  if (!kThreadSanitizer) GTEST_SKIP() << "needs a build with ThreadSanitizer";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // The first stream is done long before the second starts: what is found is the missing order.
  const auto forget_to_wait = [] {
    right_values(false);
    std::exit(0);
  };
  EXPECT_EXIT(
      forget_to_wait(), [](int status) { return !testing::ExitedWithCode(0)(status); },
      "data race.*fake_stream_test.cpp");
}

TEST_F(FakeCuda, CopiesHappenLater) {
  const TestStream stream;
  float* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, 4 * sizeof(float)), cudaSuccess);
  const DeviceArray<float> device(4);
  std::atomic<bool> go = false;
  ASSERT_EQ(cudaLaunchHostFunc(
                stream,
                [](void* data) {
                  while (!*static_cast<std::atomic<bool>*>(data)) std::this_thread::yield();
                },
                &go),
            cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(device.data(), 0, 16, stream), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(pinned, device.data(), 16, cudaMemcpyDeviceToHost, stream),
            cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  EXPECT_TRUE(std::isnan(pinned[0]));
  go = true;
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(pinned[0], 0.0F);
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(FakeCuda, PageableMemoryIsCopiedBeforeTheCallReturns) {
  fake_cuda::configure({.max_delay_us = 1000});
  const TestStream stream;
  const DeviceArray<int> device(2);
  const std::int64_t waits = fake_cuda::counters().host_waits;
  std::vector<int> host{1, 2}, back(2);
  ASSERT_EQ(cudaMemcpyAsync(device.data(), host.data(), 8, cudaMemcpyHostToDevice, stream),
            cudaSuccess);
  host = {7, 7};
  ASSERT_EQ(cudaMemcpyAsync(back.data(), device.data(), 8, cudaMemcpyDeviceToHost, stream),
            cudaSuccess);
  EXPECT_EQ(back, (std::vector<int>{1, 2}));
  EXPECT_EQ(fake_cuda::counters().host_waits, waits + 2);
}

TEST_F(FakeCuda, RefusesCopiesOutsideOfAllocations) {
  const TestStream stream;
  const DeviceArray<float> device(4);
  std::vector<float> host(8);
  EXPECT_EQ(cudaMemcpyAsync(device.data(), host.data(), 20, cudaMemcpyDefault, stream),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(device.data(), host.data(), 16, cudaMemcpyDeviceToHost, stream),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(host.data(), 0, 4, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(device.data() + 1, 0, 16), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(host.data()), cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST_F(FakeCuda, MemoryIsNanCountedAndLimited) {
  fake_cuda::configure({.memory_bytes = 1000});
  const fake_cuda::Counters before = fake_cuda::counters();
  std::size_t left_before = 0, left = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&left_before, &total), cudaSuccess);
  {
    const DeviceArray<float> device(100);
    for (const float value : device.values()) EXPECT_TRUE(std::isnan(value));
    EXPECT_EQ(fake_cuda::counters().live_bytes, before.live_bytes + 400);
    EXPECT_EQ(fake_cuda::counters().allocations, before.allocations + 1);
    ASSERT_EQ(cudaMemGetInfo(&left, &total), cudaSuccess);
    EXPECT_EQ(left, left_before - 400);
    EXPECT_EQ(total, 1000U);
    void* more = nullptr;
    EXPECT_EQ(cudaMalloc(&more, 601), cudaErrorMemoryAllocation);
    EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
    EXPECT_EQ(cudaMalloc(&more, 600), cudaSuccess);
    EXPECT_EQ(cudaFree(more), cudaSuccess);
  }
  EXPECT_EQ(fake_cuda::counters().live_allocations, before.live_allocations);
}

TEST_F(FakeCuda, EventsAnswerForTheirLatestRecording) {
  const TestStream stream;
  cudaEvent_t event = nullptr, untimed = nullptr;
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess) << "never recorded";
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, event, event), cudaErrorInvalidResourceHandle);
  ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  ASSERT_EQ(cudaEventSynchronize(event), cudaSuccess);
  std::atomic<bool> go = false;
  ASSERT_EQ(cudaLaunchHostFunc(
                stream,
                [](void* data) {
                  while (!*static_cast<std::atomic<bool>*>(data)) std::this_thread::yield();
                  std::this_thread::sleep_for(std::chrono::milliseconds(2));
                },
                &go),
            cudaSuccess);
  cudaEvent_t end = nullptr;
  ASSERT_EQ(cudaEventCreate(&end), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(end, stream), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(untimed, stream), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(end), cudaErrorNotReady);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, event, end), cudaErrorNotReady);
  go = true;
  ASSERT_EQ(cudaEventSynchronize(untimed), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(end), cudaSuccess);
  ASSERT_EQ(cudaEventElapsedTime(&milliseconds, event, end), cudaSuccess);
  EXPECT_GE(milliseconds, 2.0F);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, event, untimed), cudaErrorInvalidResourceHandle);
  for (cudaEvent_t one : {event, untimed, end}) EXPECT_EQ(cudaEventDestroy(one), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(end, stream), cudaErrorInvalidResourceHandle);
  cudaGetLastError();
}

TEST_F(FakeCuda, DevicesAreAsConfigured) {
  fake_cuda::configure({.devices = 3, .major = 8, .minor = 6});
  int count = 0, major = 0, can = -1;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 3);
  EXPECT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 2), cudaSuccess);
  EXPECT_EQ(major, 8);
  EXPECT_EQ(cudaSetDevice(3), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 0, 2), cudaSuccess);
  EXPECT_EQ(can, 1);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaSuccess);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
  fake_cuda::configure({.driver_version = 0});
  int version = -1;
  EXPECT_EQ(cudaDriverGetVersion(&version), cudaSuccess);
  EXPECT_EQ(version, 0);
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
  fake_cuda::configure({.devices = 0});
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorNoDevice), "cudaErrorNoDevice");
  cudaGetLastError();
}

TEST_F(FakeCuda, CallsFailWhenTold) {
  void* memory = nullptr;
  fake_cuda::fail_call("cudaMalloc", 2, cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&memory, 8), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&memory, 8), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&memory, 8), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  fake_cuda::fail_call("cudaMalloc", 1, cudaErrorUnknown, fake_cuda::Repeat::kFromThenOn);
  EXPECT_EQ(cudaMalloc(&memory, 8), cudaErrorUnknown);
  EXPECT_EQ(cudaMalloc(&memory, 8), cudaErrorUnknown);
  cudaGetLastError();
}

/// 0 if an illegal access has the effects that it has with CUDA, else the number of the first that
/// it has not.
int effects_of_an_illegal_access() {
  cudaStream_t stream = nullptr;
  void* memory = nullptr;
  int number = 0;
  const auto failed = [&](cudaError_t expected, cudaError_t error) {
    ++number;
    return error != expected;
  };
  if (failed(cudaSuccess, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking))) return number;
  if (failed(cudaSuccess, cudaMalloc(&memory, 8))) return number;
  fake_cuda::plant_illegal_access(1);
  simt::launch(
      +[] {}, dim3(1), dim3(1), 0, stream);  // nothing is known yet
  if (failed(cudaErrorIllegalAddress, cudaStreamSynchronize(stream))) return number;
  if (failed(cudaErrorIllegalAddress, cudaGetLastError())) return number;
  if (failed(cudaErrorIllegalAddress, cudaGetLastError())) return number;  // is not reset
  if (failed(cudaErrorIllegalAddress, cudaMemsetAsync(memory, 0, 8, stream))) return number;
  if (failed(cudaErrorIllegalAddress, cudaFree(memory))) return number;
  if (failed(cudaErrorIllegalAddress, cudaSetDevice(0))) return number;
  if (failed(cudaErrorIllegalAddress, cudaStreamDestroy(stream))) return number;
  return 0;
}

TEST_F(FakeCuda, AnIllegalAccessFailsEveryLaterCall) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(_exit(effects_of_an_illegal_access()), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tessera::emulator_test

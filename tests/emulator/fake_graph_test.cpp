#include <gtest/gtest.h>

#include <thread>

#include "device_run.h"
#include "fake_cuda.h"

// Captures and graphs of the emulated runtime: replay in any order that the captured one allows,
// and CUDA's errors for misuse.

namespace tessera::emulator_test {
namespace {

__global__ void add(int* out, int value) { out[threadIdx.x] += value; }
__global__ void multiply(int* out, const int* factor) { out[threadIdx.x] *= factor[threadIdx.x]; }

class FakeGraph : public testing::Test {
 protected:
  FakeGraph() {
    for (cudaEvent_t* event : {&forked_, &joined_}) {
      EXPECT_EQ(cudaEventCreateWithFlags(event, cudaEventDisableTiming), cudaSuccess);
    }
  }
  ~FakeGraph() override {
    for (cudaEvent_t event : {forked_, joined_}) EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
    fake_cuda::configure({});
    cudaGetLastError();
  }
  void launch_add(cudaStream_t stream, int value) {
    simt::launch(&add, dim3(1), dim3(32), 0, stream, a_.data(), value);
  }
  /// a = (a + value) * b, where b becomes b + 1 on another stream meanwhile.
  cudaGraph_t capture(int value, bool join = true) {
    EXPECT_EQ(cudaStreamBeginCapture(main_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(forked_, main_), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(side_, forked_), cudaSuccess);
    simt::launch(&add, dim3(1), dim3(32), 0, side_, b_.data(), 1);
    EXPECT_EQ(cudaEventRecord(joined_, side_), cudaSuccess);
    launch_add(main_, value);
    if (join) {
      EXPECT_EQ(cudaStreamWaitEvent(main_, joined_), cudaSuccess);
      simt::launch(&multiply, dim3(1), dim3(32), 0, main_, a_.data(), b_.data());
    }
    cudaGraph_t graph = nullptr;
    const cudaError_t status = cudaStreamEndCapture(main_, &graph);
    EXPECT_EQ(status, join ? cudaSuccess : cudaErrorStreamCaptureUnjoined);
    return graph;
  }
  void begin() {
    ASSERT_EQ(cudaStreamBeginCapture(main_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  }
  cudaError_t end() {
    cudaGraph_t graph = nullptr;
    const cudaError_t status = cudaStreamEndCapture(main_, &graph);
    EXPECT_EQ(graph == nullptr, status != cudaSuccess);
    if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
    return status;
  }

  TestStream main_, side_;
  DeviceArray<int> a_{std::vector<int>(32, 0)}, b_{std::vector<int>(32, 1)};
  cudaEvent_t forked_ = nullptr, joined_ = nullptr;
};

TEST_F(FakeGraph, RunsWhatWasCapturedAsOftenAsLaunched) {
  fake_cuda::configure({.max_delay_us = 500});
  cudaGraph_t graph = capture(3);
  EXPECT_EQ(a_.values()[0], 0) << "capturing runs nothing";
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  for (int launch = 0; launch < 2; ++launch) {
    ASSERT_EQ(cudaGraphLaunch(executable, main_), cudaSuccess);
  }
  launch_add(main_, 100);
  ASSERT_EQ(cudaStreamSynchronize(main_), cudaSuccess);
  EXPECT_EQ(a_.values(), std::vector<int>(32, ((0 + 3) * 2 + 3) * 3 + 100));

  graph = capture(5);
  cudaGraphExecUpdateResultInfo info{};
  ASSERT_EQ(cudaGraphExecUpdate(executable, graph, &info), cudaSuccess);
  EXPECT_EQ(info.result, cudaGraphExecUpdateSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(executable, main_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(main_), cudaSuccess);
  EXPECT_EQ(a_.values(), std::vector<int>(32, (127 + 5) * 4));

  begin();
  launch_add(main_, 1);
  ASSERT_EQ(cudaStreamEndCapture(main_, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphExecUpdate(executable, graph, &info), cudaErrorGraphExecUpdateFailure);
  EXPECT_EQ(info.result, cudaGraphExecUpdateErrorTopologyChanged);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  ASSERT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
}

TEST_F(FakeGraph, UnjoinedWorkIsAnError) { capture(1, false); }

TEST_F(FakeGraph, WaitingForTheStreamWhileCapturingIsAnError) {
  begin();
  EXPECT_EQ(cudaStreamSynchronize(main_), cudaErrorStreamCaptureUnsupported);
  cudaStreamCaptureStatus status{};
  EXPECT_EQ(cudaStreamIsCapturing(main_, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
  EXPECT_THROW(launch_add(main_, 1), Error);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaStreamIsCapturing(main_, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
}

TEST_F(FakeGraph, AllocatingInTheCapturingThreadIsAnError) {
  begin();
  void* memory = nullptr;
  std::thread([&] {
    EXPECT_EQ(cudaMalloc(&memory, 8), cudaSuccess) << "other threads may";
    EXPECT_EQ(cudaFree(memory), cudaSuccess);
  }).join();
  EXPECT_EQ(cudaMalloc(&memory, 8), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);

  begin();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(FakeGraph, PageableCopiesCannotBeCaptured) {
  begin();
  std::vector<int> host(32);
  EXPECT_EQ(cudaMemcpyAsync(a_.data(), host.data(), 4, cudaMemcpyDefault, main_),
            cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(FakeGraph, CapturesDoNotMixWithOtherWork) {
  ASSERT_EQ(cudaEventRecord(joined_, side_), cudaSuccess);
  begin();
  EXPECT_EQ(cudaStreamWaitEvent(main_, joined_), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);

  begin();
  ASSERT_EQ(cudaStreamBeginCapture(side_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(joined_, side_), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(joined_), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaStreamWaitEvent(main_, joined_), cudaErrorStreamCaptureMerge);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(side_, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(FakeGraph, OnlyTheOriginAndItsThreadEndACapture) {
  begin();
  EXPECT_EQ(cudaStreamBeginCapture(main_, cudaStreamCaptureModeThreadLocal), cudaErrorIllegalState);
  std::thread([&] { EXPECT_EQ(end(), cudaErrorStreamCaptureWrongThread); }).join();
  EXPECT_EQ(end(), cudaSuccess);
  EXPECT_EQ(end(), cudaErrorIllegalState);

  begin();
  ASSERT_EQ(cudaEventRecord(forked_, main_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(side_, forked_), cudaSuccess);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(side_, &graph), cudaErrorStreamCaptureUnmatched);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(FakeGraph, BranchesThatNothingOrdersRace) {
  if (!kThreadSanitizer) GTEST_SKIP() << "needs a build with ThreadSanitizer";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto race = [&] {
    begin();
    EXPECT_EQ(cudaEventRecord(forked_, main_), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(side_, forked_), cudaSuccess);
    launch_add(side_, 1);
    EXPECT_EQ(cudaEventRecord(joined_, side_), cudaSuccess);
    launch_add(main_, 1);
    EXPECT_EQ(cudaStreamWaitEvent(main_, joined_), cudaSuccess);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(main_, &graph), cudaSuccess);
    cudaGraphExec_t executable = nullptr;
    EXPECT_EQ(cudaGraphInstantiate(&executable, graph), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(executable, main_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(main_), cudaSuccess);
    std::exit(0);
  };
  EXPECT_EXIT(
      race(), [](int status) { return !testing::ExitedWithCode(0)(status); },
      "data race.*fake_graph_test.cpp");
}

}  // namespace
}  // namespace tessera::emulator_test

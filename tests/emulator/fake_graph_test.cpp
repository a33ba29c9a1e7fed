#include <gtest/gtest.h>

#include <atomic>
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

/// Keeps the device from the start of `hold` on until it is let go.
struct Holder {
  std::atomic<bool> began = false, go = false;
};
__global__ void hold(Holder* holder) {
  holder->began = true;
  while (!holder->go) std::this_thread::yield();
}
__global__ void take_turn(int* turn, int* turns) { *turn = ++*turns; }

/// The first and the second of two kernels that a replay may run in any order: on the stream that
/// captured, and on an urgent one.
std::pair<int, int> turns_of_replay(unsigned long long flags) {
  fake_cuda::configure({.one_kernel_at_a_time = true});
  const TestStream main, other;
  int least = 0, greatest = 0;
  EXPECT_EQ(cudaDeviceGetStreamPriorityRange(&least, &greatest), cudaSuccess);
  EXPECT_LT(greatest, least);
  cudaStream_t urgent = nullptr;
  EXPECT_EQ(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, greatest), cudaSuccess);
  const DeviceArray<int> turns(std::vector<int>(3, 0));
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(cudaStreamBeginCapture(main, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, main), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(urgent, event), cudaSuccess);
  simt::launch(&take_turn, dim3(1), dim3(1), 0, main, turns.data() + 1, turns.data());
  simt::launch(&take_turn, dim3(1), dim3(1), 0, urgent, turns.data() + 2, turns.data());
  EXPECT_EQ(cudaEventRecord(event, urgent), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(main, event), cudaSuccess);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(main, &graph), cudaSuccess);
  cudaGraphExec_t executable = nullptr;
  EXPECT_EQ(cudaGraphInstantiate(&executable, graph, flags), cudaSuccess);

  Holder holder;
  simt::launch(&hold, dim3(1), dim3(1), 0, other, &holder);
  while (!holder.began) std::this_thread::yield();
  EXPECT_EQ(cudaGraphLaunch(executable, main), cudaSuccess);
  while (fake_cuda::counters().waiting_kernels < 2) std::this_thread::yield();
  holder.go = true;
  EXPECT_EQ(cudaStreamSynchronize(main), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(urgent), cudaSuccess);
  const std::vector<int> taken = turns.values();
  return {taken[1], taken[2]};
}

TEST_F(FakeGraph, NodesKeepTheirStreamsPrioritiesOnlyIfAsked) {
  EXPECT_EQ(turns_of_replay(cudaGraphInstantiateFlagUseNodePriority), std::pair(2, 1));
  EXPECT_EQ(turns_of_replay(0), std::pair(1, 2));
}

/// An event that is external to a graph: replays record it, or wait for what was recorded last.
TEST_F(FakeGraph, ExternalEventsJoinReplaysAndOtherWork) {
  fake_cuda::configure({.max_delay_us = 500});
  cudaEvent_t ready = nullptr, done = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(cudaEventRecordWithFlags(done, main_, cudaEventRecordExternal), cudaErrorInvalidValue)
      << "outside of a capture";
  EXPECT_EQ(cudaStreamWaitEvent(main_, ready, cudaEventWaitExternal), cudaErrorInvalidValue);

  begin();
  ASSERT_EQ(cudaStreamWaitEvent(main_, ready, cudaEventWaitExternal), cudaSuccess);
  simt::launch(&multiply, dim3(1), dim3(32), 0, main_, a_.data(), b_.data());
  ASSERT_EQ(cudaEventRecordWithFlags(done, main_, cudaEventRecordExternal), cudaSuccess);
  launch_add(main_, 1);  // behind `done`
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(main_, &graph), cudaSuccess);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(done), cudaSuccess) << "no replay has recorded it";

  // b = b + 1 on the side, a = a * b + 1 in the replay, b = b + 1 again once a * b is taken.
  ASSERT_EQ(cudaMemsetAsync(a_.data(), 1, 32 * sizeof(int), main_), cudaSuccess);
  for (int replay = 0; replay < 3; ++replay) {
    simt::launch(&add, dim3(1), dim3(32), 0, side_, b_.data(), 1);
    ASSERT_EQ(cudaEventRecord(ready, side_), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(executable, main_), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(side_, done), cudaSuccess);
    simt::launch(&add, dim3(1), dim3(32), 0, side_, b_.data(), 1);
  }
  ASSERT_EQ(cudaEventSynchronize(done), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(main_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(side_), cudaSuccess);
  int expected = 0x01010101;
  for (int replay = 0; replay < 3; ++replay) {
    expected = static_cast<int>(static_cast<unsigned>(expected) * (2U + 2U * replay) + 1U);
  }
  EXPECT_EQ(a_.values(), std::vector<int>(32, expected));
  EXPECT_EQ(b_.values(), std::vector<int>(32, 7));

  ASSERT_EQ(cudaEventDestroy(done), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(executable, main_), cudaErrorInvalidValue) << "of a dead event";
  ASSERT_EQ(cudaEventDestroy(ready), cudaSuccess);
  ASSERT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

/// CUDA captures what is put on a capturing stream, whoever does it.
TEST_F(FakeGraph, WorkOfOtherThreadsIsCapturedAndCounted) {
  const std::int64_t before = fake_cuda::counters().foreign_captures;
  begin();
  launch_add(main_, 1);
  EXPECT_EQ(fake_cuda::counters().foreign_captures, before);
  std::thread([&] { launch_add(main_, 1); }).join();
  EXPECT_EQ(fake_cuda::counters().foreign_captures, before + 1);
  EXPECT_EQ(end(), cudaSuccess);
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

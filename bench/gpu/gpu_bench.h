#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/kernel_cases.h"
#include "support.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"

// Times kernels as training launches them, one behind the other in a CUDA graph, and from memory:
// launches go round over so many sets of operands that none finds its own in the L2 cache.
namespace tessera::bench {

/// The time of one operation.
struct Measurement {
  std::string name;
  double seconds = 0.0, bytes = 0.0, flops = 0.0;
  double launches = 0.0;  ///< kernels, and copies between them
};

/// Launches one behind the other for some seconds.
struct Sustained {
  double seconds = 0.0;  ///< on the GPU
  double launches = 0.0;
  double begin = 0.0, end = 0.0;  ///< by the host's clock, seconds since 1970
};

class GpuBench {
 public:
  explicit GpuBench(const KernelSizes& sizes)
      : lab_(make_cuda_device(), 1, sizes), stream_(dynamic_cast<CudaStream*>(&lab_.stream())) {
    require(stream_ != nullptr, ErrorCode::kInternal, "a CUDA device's stream is no CudaStream");
    check(cudaEventCreate(&begin_), "cudaEventCreate");
    check(cudaEventCreate(&end_), "cudaEventCreate");
    check(cudaEventCreate(&earlier_end_), "cudaEventCreate");
    int bytes = 0;
    check(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, 0), "cudaDeviceGetAttribute");
    l2_bytes_ = bytes;
  }
  ~GpuBench() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaEventDestroy(earlier_end_);
  }
  GpuBench(const GpuBench&) = delete;
  GpuBench& operator=(const GpuBench&) = delete;

  KernelLab& lab() { return lab_; }
  CudaStream& stream() { return *stream_; }

  /// Median over rounds of the mean time of a kernel, each with operands of its own from `prepare`.
  void measure(const std::string& name, const std::function<PreparedKernel(KernelLab&)>& prepare) {
    std::vector<PreparedKernel> sets;
    const auto allocated = [this] { return lab_.memory().current()[MemoryCategory::kWorkspace]; };
    const std::int64_t before = allocated();
    do {
      sets.push_back(prepare(lab_));
    } while (allocated() - before < kTimesL2 * l2_bytes_);
    for (const PreparedKernel& set : sets) set.call(*stream_);  // plans, scratch
    stream_->synchronize();

    const int times = std::max(kTimes, static_cast<int>(sets.size()));
    stream_->begin_capture();
    for (int i = 0; i < times; ++i) {
      sets[static_cast<std::size_t>(i) % sets.size()].call(*stream_);
    }
    const double launches = static_cast<double>(captured_nodes()) / times;
    const std::unique_ptr<CudaGraph> graph = stream_->end_capture(nullptr);
    std::vector<double> rounds;
    for (int round = 0; round <= kRounds; ++round) {
      check(cudaEventRecord(begin_, stream_->handle()), "cudaEventRecord");
      stream_->launch(*graph);
      check(cudaEventRecord(end_, stream_->handle()), "cudaEventRecord");
      stream_->synchronize();
      float milliseconds = 0.0F;
      check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
      if (round > 0) rounds.push_back(static_cast<double>(milliseconds) * 1e-3 / times);
    }
    results_.push_back({.name = name,
                        .seconds = median(rounds),
                        .bytes = sets.front().bytes,
                        .flops = sets.front().flops,
                        .launches = launches});
  }
  const std::vector<Measurement>& results() const { return results_; }

  /// Nothing for `seconds`, behind all that was launched.
  Sustained rest(double seconds) {
    stream_->synchronize();
    Sustained result{.seconds = seconds, .begin = since_1970()};
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    result.end = since_1970();
    return result;
  }

  /// Launches of the same for about `seconds`, after one that is not timed.
  template <typename Launch>
  Sustained sustain(double seconds, const Launch& launch) {
    launch();
    stream_->synchronize();
    Sustained result{.begin = since_1970()};
    const double until = now() + seconds;
    check(cudaEventRecord(begin_, stream_->handle()), "cudaEventRecord");
    while (now() < until) {
      for (int i = 0; i < kBurst; ++i) launch();
      result.launches += kBurst;
      check(cudaEventRecord(end_, stream_->handle()), "cudaEventRecord");
      // The host is one burst ahead: the GPU never waits for it.
      std::swap(end_, earlier_end_);
      check(cudaEventSynchronize(end_), "cudaEventSynchronize");
    }
    check(cudaEventSynchronize(earlier_end_), "cudaEventSynchronize");
    result.end = since_1970();
    float milliseconds = 0.0F;
    check(cudaEventElapsedTime(&milliseconds, begin_, earlier_end_), "cudaEventElapsedTime");
    result.seconds = static_cast<double>(milliseconds) * 1e-3;
    return result;
  }

 private:
  static constexpr int kRounds = 9;
  static constexpr int kBurst = 8;    // launches between two looks at the clock
  static constexpr int kTimes = 100;  // in a graph, whose own start then hardly counts
  static constexpr std::int64_t kTimesL2 = 4;

  static double since_1970() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
  static void check(cudaError_t status, const char* call) {
    require(status == cudaSuccess, ErrorCode::kInternal, call, ": ", cudaGetErrorString(status));
  }
  /// Nodes of the graph that the stream is being captured into.
  std::size_t captured_nodes() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaGraph_t graph = nullptr;
    check(cudaStreamGetCaptureInfo(stream_->handle(), &status, nullptr, &graph),
          "cudaStreamGetCaptureInfo");
    std::size_t nodes = 0;
    check(cudaGraphGetNodes(graph, nullptr, &nodes), "cudaGraphGetNodes");
    return nodes;
  }
  KernelLab lab_;
  CudaStream* const stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr, earlier_end_ = nullptr;
  std::int64_t l2_bytes_ = 0;
  std::vector<Measurement> results_;
};

}  // namespace tessera::bench

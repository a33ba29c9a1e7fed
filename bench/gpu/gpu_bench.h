#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/core/memory.h"
#include "tessera/core/tensor.h"
#include "tessera/kernels/kernel_table.h"

// Times kernels as training launches them, one behind the other in a CUDA graph, and from memory:
// launches go round over so many sets of operands that none finds its own in the L2 cache.
namespace tessera::bench {

/// What a launch must move at the least, each byte counted once.
struct Traffic {
  double bytes = 0.0;

  Traffic() = default;
  Traffic(std::initializer_list<const Tensor*> read, std::initializer_list<const Tensor*> written) {
    for (const auto& tensors : {read, written}) {
      for (const Tensor* tensor : tensors) bytes += static_cast<double>(tensor->view().bytes());
    }
  }
};

/// Of one operation.
struct Measurement {
  std::string name;
  double seconds = 0.0, bytes = 0.0, flops = 0.0;
  double launches = 0.0;  ///< kernels, and copies between them
};

/// Of launches one behind the other for some seconds.
struct Sustained {
  double seconds = 0.0;  ///< on the GPU
  double launches = 0.0;
  double begin = 0.0, end = 0.0;  ///< by the host's clock, seconds since 1970
};

class GpuBench {
 public:
  GpuBench() : device_(make_cuda_device()), memory_(*device_), made_(device_->create_stream({})) {
    stream_ = dynamic_cast<CudaStream*>(made_.get());
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

  const KernelTable& kernels() const { return device_->kernels(); }
  CudaStream& stream() { return *stream_; }

  /// Normal random numbers, as fp32 or bf16; another dtype is left as allocated.
  Tensor random(Shape shape, DType dtype, float stddev = 1.0F) {
    Tensor result = empty(shape, dtype);
    if (dtype == DType::kFloat32) fill_random(result, stddev);
    if (dtype == DType::kBFloat16) {
      const Tensor wide = empty(shape, DType::kFloat32);
      fill_random(wide, stddev);
      kernels().cast({.src = wide.view().flat(), .dst = result.view().flat()}, *stream_);
      stream_->synchronize();
    }
    return result;
  }
  /// Pinned.
  Buffer on_host(std::int64_t bytes) {
    return memory_.allocate(bytes, MemoryCategory::kWorkspace, "a benchmark", Tier::kHost);
  }
  Tensor constant(Shape shape, DType dtype, float value) {
    Tensor result = empty(shape, dtype);
    kernels().fill({.dst = result.view().flat(), .value = value}, *stream_);
    return result;
  }
  /// Numbers below `limit`, each once, in no order that a cache could use.
  Tensor tokens(Shape shape, std::int32_t limit) {
    constexpr std::int64_t kStride = 31337;  // prime
    require(shape.numel() <= limit && limit % kStride != 0, ErrorCode::kInvalidArgument,
            "there are no ", shape.numel(), " different tokens below ", limit);
    Tensor result = empty(shape, DType::kInt32);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(shape.numel()));
    std::int64_t next = 0;
    for (std::int32_t& id : ids) {
      id = static_cast<std::int32_t>(next);
      next = (next + kStride) % limit;
    }
    stream_->copy(result.view().data, ids.data(), ids.size() * sizeof(ids[0]));
    stream_->synchronize();
    return result;
  }

  /// Median over rounds of the mean time of an operation. `Operands` is made from this bench, tells
  /// its traffic() and enqueues the operation with launch(bench).
  template <typename Operands>
  void measure(const std::string& name, double flops = 0.0) {
    std::vector<std::unique_ptr<Operands>> sets;
    std::int64_t taken = 0;
    do {
      const std::int64_t before = allocated_;
      sets.push_back(std::make_unique<Operands>(*this));
      taken += allocated_ - before;
    } while (taken < kTimesL2 * l2_bytes_);
    for (const auto& set : sets) set->launch(*this);  // plans, scratch
    stream_->synchronize();

    const int times = std::max(kTimes, static_cast<int>(sets.size()));
    stream_->begin_capture();
    for (int i = 0; i < times; ++i) {
      sets[static_cast<std::size_t>(i) % sets.size()]->launch(*this);
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
                        .bytes = sets.front()->traffic().bytes,
                        .flops = flops,
                        .launches = launches});
  }
  const std::vector<Measurement>& results() const { return results_; }

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
  /// Of the graph that the stream is being captured into.
  std::size_t captured_nodes() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaGraph_t graph = nullptr;
    check(cudaStreamGetCaptureInfo(stream_->handle(), &status, nullptr, &graph),
          "cudaStreamGetCaptureInfo");
    std::size_t nodes = 0;
    check(cudaGraphGetNodes(graph, nullptr, &nodes), "cudaGraphGetNodes");
    return nodes;
  }
  Tensor empty(const Shape& shape, DType dtype) {
    Tensor result = Tensor::empty(memory_, shape, dtype, MemoryCategory::kWorkspace, "operand");
    allocated_ += result.view().bytes();
    return result;
  }
  void fill_random(const Tensor& tensor, float stddev) {
    kernels().fill_normal({.dst = tensor.view().flat(), .stddev = stddev, .key = {1, ++filled_}},
                          *stream_);
  }

  std::unique_ptr<CudaDevice> device_;
  Memory memory_;
  std::unique_ptr<Stream> made_;
  CudaStream* stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr, earlier_end_ = nullptr;
  std::int64_t l2_bytes_ = 0, allocated_ = 0;
  std::uint64_t filled_ = 0;
  std::vector<Measurement> results_;
};

}  // namespace tessera::bench

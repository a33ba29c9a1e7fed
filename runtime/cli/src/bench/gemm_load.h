#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "tessera/core/device.h"
#include "tessera/core/tensor.h"

namespace tessera::bench {

/// GEMMs of fp32, one after the other, on a stream of their own, for as long as they are wanted:
/// the computation that a step runs beside its collectives.
class GemmLoad {
 public:
  GemmLoad(Device& device, int threads);
  ~GemmLoad();
  GemmLoad(const GemmLoad&) = delete;
  GemmLoad& operator=(const GemmLoad&) = delete;

  /// Runs them from now on; returns when the first has ended.
  void start();
  /// Ends them. The mean seconds of one since start(). Throws what a GEMM has thrown.
  double stop();

 private:
  void run();

  Device& device_;
  Memory memory_;
  std::unique_ptr<Stream> stream_;
  Tensor a_, b_, c_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::atomic<std::int64_t> done_{0};
  std::atomic<bool> failed_{false};
  double first_end_ = 0.0, last_end_ = 0.0;
  std::exception_ptr failure_;
};

}  // namespace tessera::bench

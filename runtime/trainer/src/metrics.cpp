#include "tessera/trainer/metrics.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "tessera/core/tensor.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/trainer/launch.h"
#include "tessera/trainer/rank_device.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// Large enough to run at the peak rate, small enough that a slow machine repeats it within a
// window.
constexpr std::int64_t kCpuSize = 768;
constexpr std::int64_t kSmallestGpuSize = 128;
constexpr std::int64_t kLargestGpuSize = 8192;
constexpr std::chrono::microseconds kGpuProduct{1000};  // beside which a launch is nothing
constexpr int kGpuProducts = 16;  // between two looks at the clock: launching takes microseconds
constexpr std::chrono::milliseconds kWindow{80};
constexpr int kWindows = 3;  // the best counts: others may have disturbed one

/// What one rank did in one window.
struct Window {
  Clock::time_point begin;
  Clock::time_point end;
  double flops = 0.0;
};

Window run_window(Stream& stream, const std::function<void()>& products, double flops) {
  Window window;
  window.begin = Clock::now();
  do {
    stream.submit({.name = "measure"}, products);
    stream.synchronize();
    window.flops += flops;
    window.end = Clock::now();
  } while (window.end - window.begin < kWindow);
  return window;
}

/// FLOP/s of all ranks from the first's begin to the last's end: where ranks share cores one may
/// start late and have them to itself at the end, so single rates must not be added.
double rate_together(const std::vector<std::vector<Window>>& ranks, std::size_t index) {
  Window all = ranks.front()[index];
  all.flops = 0.0;
  for (const auto& windows : ranks) {
    all.begin = std::min(all.begin, windows[index].begin);
    all.end = std::max(all.end, windows[index].end);
    all.flops += windows[index].flops;
  }
  return all.flops / std::chrono::duration<double>(all.end - all.begin).count();
}

/// c = a b of square matrices.
class Product {
 public:
  Product(Memory& memory, Stream& stream, std::int64_t size, DType dtype)
      : stream_(stream), kernels_(kernels_for(memory.device())), size_(size) {
    const auto matrix = [&](const char* what) {
      return Tensor::empty(memory, Shape{size, size}, dtype, MemoryCategory::kWorkspace, what);
    };
    a_ = matrix("a");
    b_ = matrix("b");
    c_ = matrix("c");
    args_.a = a_;
    args_.b = b_;
    args_.c = c_;
    args_.transpose_b = true;  // as a linear layer has it
    stream.submit({.name = "measure"}, [this] {
      for (const Tensor& t : {a_, b_}) kernels_.fill({.dst = t, .value = 0.5F}, stream_);
      run(1);  // generates code, chooses algorithms
    });
    stream.synchronize();
  }

  /// A task.
  void run(int times) {
    for (int i = 0; i < times; ++i) kernels_.gemm(args_, stream_);
  }
  double flops() const {
    return 2.0 * static_cast<double>(size_ * size_) * static_cast<double>(size_);
  }

 private:
  Stream& stream_;
  const KernelTable& kernels_;
  const std::int64_t size_;
  Tensor a_, b_, c_;
  GemmArgs args_;
};

/// What is large enough differs between GPUs by orders of magnitude.
std::int64_t matrix_size(Memory& memory, Stream& stream, DType dtype) {
  if (memory.device().kind() != DeviceKind::kCuda) return kCpuSize;
  for (std::int64_t size = kSmallestGpuSize; size < kLargestGpuSize; size *= 2) {
    Product product(memory, stream, size, dtype);
    const Clock::time_point begin = Clock::now();
    stream.submit({.name = "measure"}, [&] { product.run(1); });
    stream.synchronize();
    if (Clock::now() - begin >= kGpuProduct) return size;
  }
  return kLargestGpuSize;
}

/// One rank's windows; the ranks begin each one together.
std::vector<Window> measure_rank(ProcessGroup& group, const TrainerOptions& options) {
  const auto device = make_rank_device(options, group.rank());
  const int repeats = device->kind() == DeviceKind::kCuda ? kGpuProducts : 1;
  Memory memory(*device);
  const auto stream =
      device->create_stream({.name = "measure", .threads = options.threads_per_rank});
  Product product(memory, *stream, matrix_size(memory, *stream, options.precision),
                  options.precision);
  std::vector<Window> windows;
  for (int window = 0; window < kWindows; ++window) {
    group.barrier(*stream);
    stream->synchronize();
    windows.push_back(run_window(
        *stream, [&] { product.run(repeats); }, repeats * product.flops()));
  }
  return windows;
}

}  // namespace

double measure_matmul_flops(const TrainerOptions& options) {
  std::vector<std::vector<Window>> windows(static_cast<std::size_t>(options.ranks));
  launch_ranks(make_groups(options), [&](int rank, ProcessGroup& group) {
    windows[static_cast<std::size_t>(rank)] = measure_rank(group, options);
  });
  double best = 0.0;
  for (std::size_t i = 0; i < kWindows; ++i) best = std::max(best, rate_together(windows, i));
  return best;
}

double model_flops_utilisation(const Model& model, double items_per_second,
                               double peak_flops_per_second) {
  return peak_flops_per_second > 0.0
             ? model.flops_per_item * items_per_second / peak_flops_per_second
             : 0.0;
}

}  // namespace tessera

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
constexpr std::int64_t kGpuSize = 8192;
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

/// One rank's windows; the ranks begin each one together.
std::vector<Window> measure_rank(ProcessGroup& group, const TrainerOptions& options) {
  const auto device = make_rank_device(options, group.rank());
  const bool on_gpu = device->kind() == DeviceKind::kCuda;
  const std::int64_t size = on_gpu ? kGpuSize : kCpuSize;
  const int repeats = on_gpu ? kGpuProducts : 1;
  Memory memory(*device);
  const auto matrix = [&](const char* what) {
    return Tensor::empty(memory, Shape{size, size}, options.precision, MemoryCategory::kWorkspace,
                         what);
  };
  const Tensor a = matrix("a");
  const Tensor b = matrix("b");
  const Tensor c = matrix("c");
  const KernelTable& kernels = kernels_for(*device);
  GemmArgs args;
  args.a = a;
  args.b = b;
  args.c = c;
  args.transpose_b = true;  // as a linear layer has it

  std::vector<Window> windows;
  const auto stream =
      device->create_stream({.name = "measure", .threads = options.threads_per_rank});
  const auto products = [&] {
    for (int i = 0; i < repeats; ++i) kernels.gemm(args, *stream);
  };
  stream->submit({.name = "measure"}, [&] {
    for (const Tensor& t : {a, b}) kernels.fill({.dst = t, .value = 0.5F}, *stream);
    products();  // generates code, chooses algorithms
  });
  const double flops = 2.0 * static_cast<double>(repeats * size) * static_cast<double>(size * size);
  for (int window = 0; window < kWindows; ++window) {
    group.barrier(*stream);
    stream->synchronize();
    windows.push_back(run_window(*stream, products, flops));
  }
  return windows;
}

}  // namespace

double measure_matmul_flops(const TrainerOptions& options) {
  std::vector<std::vector<Window>> windows(static_cast<std::size_t>(options.ranks));
  launch_ranks(make_local_world(options), [&](int rank, ProcessGroup& group) {
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

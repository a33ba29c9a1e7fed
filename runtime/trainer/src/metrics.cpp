#include "tessera/trainer/metrics.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "tessera/collectives/thread_group.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/tensor.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/trainer/launch.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// Large enough to run at the peak rate, small enough that a slow machine repeats it within a
// window.
constexpr std::int64_t kSize = 768;
constexpr std::chrono::milliseconds kWindow{80};
constexpr int kWindows = 3;  // the best counts: others may have disturbed one

/// What one rank did in one window.
struct Window {
  Clock::time_point begin;
  Clock::time_point end;
  double flops = 0.0;
};

Window run_window(const KernelTable& kernels, const GemmArgs& args, Stream& stream) {
  Window window;
  window.begin = Clock::now();
  do {
    kernels.gemm(args, stream);
    window.flops += 2.0 * kSize * kSize * kSize;
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
std::vector<Window> measure_rank(ProcessGroup& group, int threads, DType dtype) {
  const auto device = make_cpu_device();
  Memory memory(*device);
  const auto matrix = [&](const char* what) {
    return Tensor::empty(memory, Shape{kSize, kSize}, dtype, MemoryCategory::kWorkspace, what);
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
  const auto stream = device->create_stream({.name = "measure", .threads = threads});
  stream->submit({.name = "measure"}, [&] {
    for (const Tensor& t : {a, b}) kernels.fill({.dst = t, .value = 0.5F}, *stream);
    kernels.gemm(args, *stream);  // generates code
  });
  for (int window = 0; window < kWindows; ++window) {
    group.barrier(*stream);
    stream->submit({.name = "measure"},
                   [&] { windows.push_back(run_window(kernels, args, *stream)); });
  }
  stream->synchronize();
  return windows;
}

}  // namespace

double measure_matmul_flops(int ranks, int threads_per_rank, DType dtype) {
  std::vector<std::vector<Window>> windows(static_cast<std::size_t>(ranks));
  launch_ranks(make_thread_group(ranks), [&](int rank, ProcessGroup& group) {
    windows[static_cast<std::size_t>(rank)] = measure_rank(group, threads_per_rank, dtype);
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

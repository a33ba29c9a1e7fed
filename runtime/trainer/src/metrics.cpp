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

/// Multiplies for one window; returns FLOP/s.
double run_window(const KernelTable& kernels, const GemmArgs& args, Stream& stream) {
  const Clock::time_point begin = Clock::now();
  double flops = 0.0;
  do {
    kernels.gemm(args, stream);
    flops += 2.0 * kSize * kSize * kSize;
  } while (Clock::now() - begin < kWindow);
  return flops / std::chrono::duration<double>(Clock::now() - begin).count();
}

/// One rank's rates, window by window; the ranks begin each window together.
std::vector<double> measure_rank(ProcessGroup& group, int threads, DType dtype) {
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

  std::vector<double> rates;
  const auto stream = device->create_stream({.name = "measure", .threads = threads});
  stream->submit({.name = "measure"}, [&] {
    for (const Tensor& t : {a, b}) kernels.fill({.dst = t, .value = 0.5F}, *stream);
    kernels.gemm(args, *stream);  // generates code
  });
  for (int window = 0; window < kWindows; ++window) {
    group.barrier(*stream);
    stream->submit({.name = "measure"},
                   [&] { rates.push_back(run_window(kernels, args, *stream)); });
  }
  stream->synchronize();
  return rates;
}

}  // namespace

double measure_matmul_flops(int ranks, int threads_per_rank, DType dtype) {
  std::vector<std::vector<double>> rates(static_cast<std::size_t>(ranks));
  launch_ranks(make_thread_group(ranks), [&](int rank, ProcessGroup& group) {
    rates[static_cast<std::size_t>(rank)] = measure_rank(group, threads_per_rank, dtype);
  });
  double best = 0.0;
  for (std::size_t window = 0; window < kWindows; ++window) {
    double sum = 0.0;
    for (const auto& rank : rates) sum += rank[window];
    best = std::max(best, sum);
  }
  return best;
}

double model_flops_utilisation(const Model& model, double items_per_second,
                               double peak_flops_per_second) {
  return peak_flops_per_second > 0.0
             ? model.flops_per_item * items_per_second / peak_flops_per_second
             : 0.0;
}

}  // namespace tessera

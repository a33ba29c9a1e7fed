#include "tessera/trainer/metrics.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <vector>

#include "tessera/core/error.h"
#include "tessera/core/tensor.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/trainer/launch.h"
#include "tessera/trainer/rank_binding.h"
#include "tessera/trainer/rank_device.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// The largest size is grown to the device: a product of it takes so long that starting it, and
// waiting for its slowest thread, is nothing beside it.
constexpr std::int64_t kSmallestCpuSize = 512, kLargestCpuSize = 4096;
constexpr std::int64_t kSmallestGpuSize = 128, kLargestGpuSize = 8192;
constexpr std::chrono::microseconds kCpuProduct{4000}, kGpuProduct{1000};
constexpr int kGpuProducts = 6;  // between two looks at the clock: launching takes microseconds
constexpr std::chrono::milliseconds kWindow{20};
constexpr int kWindows = 8;  // the best counts: others may have disturbed one

/// The measurements of one rank in one window.
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

/// Which product of square matrices. Whether a size or a layout is fastest differs between
/// machines and dtypes.
struct Candidate {
  std::int64_t size;
  bool transpose_b;  ///< as a linear layer has it
  int products;      ///< between two looks at the clock
};

/// c = a b of square matrices of any size up to the largest.
class Products {
 public:
  Products(Memory& memory, Stream& stream, std::int64_t largest, DType dtype)
      : stream_(stream), kernels_(kernels_for(memory.device())) {
    // Random numbers: products of constants draw less power, which lets some processors run faster.
    a_ = random(memory, largest, dtype, 1);
    b_ = random(memory, largest, dtype, 2);
    c_ = random(memory, largest, dtype, 3);
  }

  /// A task.
  void run(const Candidate& candidate) {
    const Shape shape{candidate.size, candidate.size};
    const auto square = [&](const Tensor& t) {
      return TensorView(t.view().data, t.view().dtype, shape);
    };
    GemmArgs args;
    args.a = square(a_);
    args.b = square(b_);
    args.c = square(c_);
    args.transpose_b = candidate.transpose_b;
    for (int i = 0; i < candidate.products; ++i) kernels_.gemm(args, stream_);
  }

  static double flops(const Candidate& candidate) {
    const auto n = static_cast<double>(candidate.size);
    return 2.0 * n * n * n * candidate.products;
  }

  Clock::duration time(const Candidate& candidate) {
    const Clock::time_point begin = Clock::now();
    stream_.submit({.name = "measure"}, [&] { run(candidate); });
    stream_.synchronize();
    return Clock::now() - begin;
  }

 private:
  Tensor random(Memory& memory, std::int64_t size, DType dtype, std::uint64_t key) {
    const auto tensor = [&](DType type) {
      return Tensor::empty(memory, Shape{size, size}, type, MemoryCategory::kWorkspace, "operand");
    };
    const Tensor result = tensor(dtype);
    const Tensor numbers = dtype == DType::kFloat32 ? result : tensor(DType::kFloat32);
    stream_.submit({.name = "measure"}, [&] {
      kernels_.fill_normal({.dst = numbers.view().flat(), .key = {key, 0}}, stream_);
      if (dtype == DType::kFloat32) return;
      kernels_.cast({.src = numbers.view().flat(), .dst = result.view().flat()}, stream_);
    });
    stream_.synchronize();
    return result;
  }

  Stream& stream_;
  const KernelTable& kernels_;
  Tensor a_, b_, c_;
};

/// The smallest size, doubled until a product takes long enough.
std::int64_t large_size(Memory& memory, Stream& stream, DType dtype) {
  const bool gpu = memory.device().kind() == DeviceKind::kCuda;
  const std::int64_t largest = gpu ? kLargestGpuSize : kLargestCpuSize;
  std::int64_t size = gpu ? kSmallestGpuSize : kSmallestCpuSize;
  for (; size < largest; size *= 2) {
    Products products(memory, stream, size, dtype);
    const Candidate candidate{.size = size, .transpose_b = true, .products = 1};
    products.time(candidate);  // generates code, chooses algorithms
    const auto seconds = std::min(products.time(candidate), products.time(candidate));
    if (seconds >= (gpu ? kGpuProduct : kCpuProduct)) break;
  }
  return size;
}

/// One rank's windows, with each candidate in turn; the ranks begin each one together.
std::vector<Window> measure_rank(ProcessGroup& group, const TrainerOptions& options) {
  bind_rank(options, group.rank());
  const auto device = make_rank_device(options, group.rank());
  Memory memory(*device);
  const auto stream =
      device->create_stream({.name = "measure", .threads = options.threads_per_rank});
  const int often = device->kind() == DeviceKind::kCuda ? kGpuProducts : 1;
  const std::int64_t large = large_size(memory, *stream, options.precision);
  const Candidate candidates[] = {{large, true, often},
                                  {large, false, often},
                                  {large / 2, true, 8 * often},  // as long as the large ones
                                  {large / 2, false, 8 * often}};
  Products products(memory, *stream, large, options.precision);
  for (Candidate candidate : candidates) {
    candidate.products = 1;
    products.time(candidate);
  }
  std::vector<Window> windows;
  for (std::size_t window = 0; window < kWindows; ++window) {
    const Candidate& candidate = candidates[window % std::size(candidates)];
    group.barrier(*stream);
    stream->synchronize();
    windows.push_back(run_window(
        *stream, [&] { products.run(candidate); }, Products::flops(candidate)));
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

std::optional<double> model_flops_utilisation(const Model& model, double items_per_second,
                                              double peak_flops_per_second) {
  const double achieved = model.flops_per_item * items_per_second;
  if (achieved <= 0.0 || achieved > peak_flops_per_second) return std::nullopt;
  return achieved / peak_flops_per_second;
}

RunUtilisation utilisation_of_run(const Model& model, double items_per_second, double peak,
                                  const std::function<double()>& measure_again) {
  RunUtilisation result{.peak_flops_per_second = peak};
  const double achieved = model.flops_per_item * items_per_second;
  if (peak > 0.0 && achieved > peak) {
    result.peak_flops_per_second = std::max(peak, measure_again());
    const bool is_peak = achieved <= result.peak_flops_per_second;
    result.note =
        concat("before the run, GEMMs reached ", peak / 1e9, " GFLOP/s, less than the ",
               achieved / 1e9, " of the run itself: others used the machine; ",
               is_peak ? "the peak was measured again after the run, and steps have no MFU"
                       : "after the run it was no better, so there is no MFU");
  }
  result.mfu = model_flops_utilisation(model, items_per_second, result.peak_flops_per_second);
  return result;
}

}  // namespace tessera

#include <cstdint>

#include "cuda/cuda_kernels.h"
#include "cuda/cuda_launch.h"
#include "elementwise_arguments.h"
#include "simt.h"

// Mean squared error of each row, loss = mean of d^2 with d = x - target, and its gradient in place
// of x, 2 d scale / C. x (rows, C) fp32, bf16 or fp16, targets (rows, C) fp32, losses (rows) fp32.
//
// One warp per row: rows of a regression are short. Bytes: x and targets once, x once more for the
// gradient. Sums: a thread's elements in order, in fp32; then threads as warp_sum adds them, in
// fp64.

namespace tessera::cuda {
namespace {

constexpr int kSquaredErrorThreads = 256;  // eight rows
constexpr int kWarp = 32;

template <typename T>
struct SquaredErrorProblem {
  T* x;
  const float* targets;
  float* losses;
  const float* scale;  // null: 1
  std::int64_t rows, columns;
  bool gradient;
};

template <typename T>
__global__ void __launch_bounds__(kSquaredErrorThreads)
    mean_squared_error(const SquaredErrorProblem<T> p) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (kSquaredErrorThreads / kWarp) +
                           static_cast<std::int64_t>(threadIdx.x) / kWarp;
  if (row >= p.rows) return;  // the whole warp
  const std::int64_t lane = threadIdx.x % kWarp;
  const double scale = p.scale == nullptr ? 1.0 : static_cast<double>(*p.scale);
  const auto factor = static_cast<float>(2.0 * scale / static_cast<double>(p.columns));
  T* const x = p.x + row * p.columns;
  const float* const targets = p.targets + row * p.columns;
  float sum = 0.0F;
  for (std::int64_t i = lane; i < p.columns; i += kWarp) {
    const float error = simt::to_float(x[i]) - targets[i];
    sum += error * error;
    if (p.gradient) x[i] = simt::from_float<T>(factor * error);
  }
  const double of_row = simt::warp_sum(static_cast<double>(sum));
  if (lane == 0) p.losses[row] = static_cast<float>(of_row / static_cast<double>(p.columns));
}

}  // namespace

void squared_error(const SquaredErrorArgs& args, Stream& stream) {
  check_arguments(args);
  if (args.x.shape[0] == 0) return;
  with_element_type("squared_error", args.x.dtype, [&]<typename T>(ElementType<T>) {
    const SquaredErrorProblem<T> problem{.x = device_data<T>(args.x),
                                         .targets = args.targets.as<float>(),
                                         .losses = args.losses.as<float>(),
                                         .scale = args.scale ? args.scale.as<float>() : nullptr,
                                         .rows = args.x.shape[0],
                                         .columns = args.x.shape[1],
                                         .gradient = args.gradient};
    simt::launch(mean_squared_error<T>, blocks_for(problem.rows, kSquaredErrorThreads / kWarp),
                 kSquaredErrorThreads, 0, handle(stream), problem);
  });
}

}  // namespace tessera::cuda

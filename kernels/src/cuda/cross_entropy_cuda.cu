#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cross_entropy_arguments.h"
#include "cuda/cuda_kernels.h"
#include "cuda/cuda_launch.h"
#include "simt.h"

// Softmax cross-entropy and its gradient in place of the logits, one block per row:
//   loss = log(sum_j exp(x_j - m)) - (x_target - m), m the maximum
//   dx_j = (exp(x_j - m) / sum - [j = target]) scale
// logits (rows, stride >= V) fp32 or bf16, targets (rows) int32, losses (rows) fp32.
//
// The first pass keeps a maximum and a sum of exponentials per thread, rescaled when the maximum
// grows; the second computes the exponentials again. Bytes: logits once written and twice read. The
// second pass walks back, from what was read last: an L2 cache of 50 MB does not hold all rows in
// flight (V = 50257 in bf16: 4 blocks on each of 132 multiprocessors have 53 MB), but their ends.
// Sums: a thread's elements in order, in fp32; then threads as block_sum adds them, in fp64.
//
// 16-byte accesses whatever the alignment of a row: the elements before the first boundary and
// after the last are taken one by one.

namespace tessera::cuda {
namespace {

using simt::Vec16;

constexpr int kThreads = 512;  // some 100 logits each for a vocabulary of 50257
constexpr int kBlocks = 4;     // on a multiprocessor: all its threads, with 32 registers each

template <typename T>
struct Problem {
  T* logits;
  const std::int32_t* targets;
  float* losses;
  const float* scale;  // null: 1
  std::int64_t stride;
  int vocab, columns;
  std::int32_t ignore_index;
  bool gradient;
};

/// exp(x) for x <= 0. What is stored as bf16 needs no more than the hardware's estimate (2^-22).
template <typename T>
__device__ float exponential(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return expf(x);
  } else {
    return simt::exp2_approx(x * 1.44269504F);
  }
}

enum class Walk { kForward, kBackward };

/// Calls on_vector(pointer) for the aligned vectors of row[0, n) and on_element(pointer) for the
/// others, spread over the block. The same thread gets the same elements every time.
template <Walk kWalk, typename T, typename OnVector, typename OnElement>
__device__ void for_each_in_row(T* row, int n, const OnVector& on_vector,
                                const OnElement& on_element) {
  constexpr int kSize = Vec16<T>::kSize;
  const auto misaligned = static_cast<int>(reinterpret_cast<std::uintptr_t>(row) % 16 / sizeof(T));
  const int before = misaligned == 0 ? 0 : kSize - misaligned;
  const int head = before < n ? before : n;
  const int vectors = (n - head) / kSize;
  const int tail = head + vectors * kSize;
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread < head) on_element(row + thread);
  if (tail + thread < n) on_element(row + tail + thread);
  const int rounds = (vectors - thread + kThreads - 1) / kThreads;
#pragma unroll 2
  for (int round = 0; round < rounds; ++round) {
    const int step = kWalk == Walk::kForward ? round : rounds - 1 - round;
    on_vector(row + head + (thread + step * kThreads) * kSize);
  }
}

/// sum = the sum of exp(x - maximum) over some logits.
struct PartialSoftmax {
  float maximum = -INFINITY;
  float sum = 0.0F;
};

/// Adds kCount logits to the sum.
template <typename T, int kCount>
__device__ void add_logits(PartialSoftmax& s, const T (&x)[kCount]) {
  float maximum = s.maximum;
#pragma unroll
  for (int j = 0; j < kCount; ++j) maximum = fmaxf(maximum, simt::to_float(x[j]));
  if (maximum > s.maximum) {
    s.sum *= exponential<T>(s.maximum - maximum);
    s.maximum = maximum;
  }
  // If all are -inf so far, they count nothing; -inf - -inf would be NaN.
  const float shift = s.maximum == -INFINITY ? 0.0F : s.maximum;
  float sum = 0.0F;
#pragma unroll
  for (int j = 0; j < kCount; ++j) sum += exponential<T>(simt::to_float(x[j]) - shift);
  s.sum += sum;
}

/// The maximum and the sum of a row, in all threads.
struct RowSoftmax {
  float maximum;
  double sum;
};

template <typename T>
__device__ RowSoftmax row_softmax(T* row, int vocab) {
  PartialSoftmax s;
  for_each_in_row<Walk::kForward>(
      row, vocab, [&](const T* x) { add_logits(s, simt::load16(x).v); },
      [&](const T* x) {
        const T one[1] = {*x};
        add_logits(s, one);
      });
  const float maximum = simt::block_max(s.maximum);
  // A sum that is NaN stays it, a row of nothing but -inf becomes it.
  const float sum = s.sum * exponential<T>(s.maximum - maximum);
  return {maximum, simt::block_sum(static_cast<double>(sum))};
}

/// row[0, n) = value(logit).
template <typename T, typename Value>
__device__ void overwrite(T* row, int n, const Value& value) {
  for_each_in_row<Walk::kBackward>(
      row, n,
      [&](T* x) {
        Vec16<T> v = simt::load16_streaming(x);
#pragma unroll
        for (int j = 0; j < Vec16<T>::kSize; ++j) {
          v.v[j] = simt::from_float<T>(value(simt::to_float(v.v[j])));
        }
        simt::store16(x, v);
      },
      [&](T* x) { *x = simt::from_float<T>(value(simt::to_float(*x))); });
}

template <typename T>
__device__ void zero(T* row, int n) {
  for_each_in_row<Walk::kForward>(
      row, n, [](T* x) { simt::store16(x, Vec16<T>{}); },
      [](T* x) { *x = simt::from_float<T>(0.0F); });
}

template <typename T>
__global__ void __launch_bounds__(kThreads, kBlocks) softmax_cross_entropy(const Problem<T> p) {
  const std::int64_t i = blockIdx.x;
  T* const row = p.logits + i * p.stride;
  const std::int32_t target = p.targets[i];
  const bool ignored = target == p.ignore_index;
  if (ignored || target < 0 || target >= p.vocab) {
    // The host cannot see a wrong target: the loss shows it.
    if (threadIdx.x == 0) p.losses[i] = ignored ? 0.0F : std::numeric_limits<float>::quiet_NaN();
    if (p.gradient) zero(row, p.columns);
    return;
  }
  const float at_target = simt::to_float(row[target]);  // before anybody overwrites it
  const RowSoftmax softmax = row_softmax(row, p.vocab);
  const auto shifted = static_cast<double>(at_target - softmax.maximum);
  if (threadIdx.x == 0) p.losses[i] = static_cast<float>(log(softmax.sum) - shifted);
  if (!p.gradient) return;

  const double scale = p.scale == nullptr ? 1.0 : static_cast<double>(*p.scale);
  const auto factor = static_cast<float>(scale / softmax.sum);
  overwrite(row, p.vocab, [&](float x) { return factor * exponential<T>(x - softmax.maximum); });
  zero(row + p.vocab, p.columns - p.vocab);
  __syncthreads();  // the target's element is overwritten by now
  // 1 is subtracted before anything is rounded: the target's gradient is small when p is near 1.
  if (threadIdx.x == 0) {
    row[target] =
        simt::from_float<T>(static_cast<float>((exp(shifted) / softmax.sum - 1.0) * scale));
  }
}

}  // namespace

void cross_entropy(const CrossEntropyArgs& args, Stream& stream) {
  check_cross_entropy(args);
  const Shape& shape = args.logits.shape;
  require(shape[1] <= std::numeric_limits<std::int32_t>::max(), ErrorCode::kInvalidArgument,
          "cross_entropy: rows of ", shape[1], " logits; targets are int32");
  if (shape[0] == 0) return;
  with_element_type("cross_entropy", args.logits.dtype, [&]<typename T>(ElementType<T>) {
    const Problem<T> problem{.logits = device_data<T>(args.logits),
                             .targets = args.targets.as<std::int32_t>(),
                             .losses = args.losses.as<float>(),
                             .scale = args.scale ? args.scale.as<float>() : nullptr,
                             .stride = args.logits.strides[0],
                             .vocab = static_cast<int>(args.vocab_size),
                             .columns = static_cast<int>(shape[1]),
                             .ignore_index = args.ignore_index,
                             .gradient = args.gradient};
    simt::launch(softmax_cross_entropy<T>, blocks_for(shape[0], 1), kThreads, 0, handle(stream),
                 problem);
  });
}

}  // namespace tessera::cuda

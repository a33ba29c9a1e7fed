#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cross_entropy_arguments.h"
#include "cuda/cuda_kernels.h"
#include "cuda/cuda_launch.h"
#include "cuda/soft_cap_cuda.h"
#include "simt.h"

// Softmax cross-entropy and its gradient in place of the logits, one block per row:
//   loss = log(sum_j exp(x_j - m)) - (x_target - m), m the maximum
//   dx_j = (exp(x_j - m) / sum - [j = target]) scale
// With a soft cap y_j = cap * tanh(x_j / cap) takes the place of x_j, and dx_j has the factor
// 1 - tanh(x_j / cap)^2.
// logits (rows, stride >= V) fp32, bf16 or fp16, targets (rows) int32, losses (rows) fp32.
//
// The first pass keeps a maximum and a sum of exponentials per thread, rescaled when the maximum
// grows; the second computes the exponentials again. Where two rows fit a multiprocessor's shared
// memory (V = 50257 in 16 bits on Hopper: 98 KiB each) the first pass brings the row there, with
// kVectorsAhead 16-byte copies of each thread on their way, and the second reads it there. Bytes:
// logits once read and once written. Other rows are read from global memory twice; the second pass
// walks back, from what was read last, since an L2 cache of 50 MB does not hold all rows in flight,
// but their ends. Either way a thread has the same elements in the same order, so the bits are the
// same. Sums: a thread's elements in order, in fp32; then threads as block_sum adds them, in fp64.
//
// Where hits are counted there is no gradient. A row whose target has the largest logit looks for
// an equal one before it, which no other row does; counts are integers, so their order is no
// matter. Where each class is counted all rows look for the first of their largest logits: classes
// are few then.
//
// 16-byte accesses whatever the alignment of a row: the elements before the first boundary and
// after the last are taken one by one.

namespace tessera::cuda {
namespace {

using simt::Vec16;

constexpr int kCrossEntropyThreads = 512;  // some 100 logits each for a vocabulary of 50257
constexpr int kVectorsAhead = 8;  // with two blocks, 128 KiB on their way to a multiprocessor

template <typename T>
struct CrossEntropyProblem {
  T* logits;
  const std::int32_t* targets;
  float* losses;
  const float* scale;        // null: 1
  unsigned long long* hits;  // (kHitWords), or (hit_words(vocab)); null if kCount is kNothing
  std::int64_t stride;
  int vocab, columns;
  std::int32_t ignore_index;
  bool gradient;
  float soft_cap;  // 0 if the kernel's Cap is NoCap
};

/// Logits as they are.
template <typename T>
struct NoCap {
  constexpr explicit NoCap(float /*cap*/) {}
  __device__ float operator()(float x) const { return x; }
  __device__ float slope(float /*x*/) const { return 1.0F; }
};

/// exp(x) for x <= 0. What is stored in 16 bits needs no more than the hardware's estimate (2^-22).
template <typename T>
__device__ float exponential(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return expf(x);
  } else {
    return simt::exp2_approx(x * kLog2E);
  }
}

enum class Walk { kForward, kBackward };
enum class RowIn { kGlobal, kShared };

/// row[0, n): `head` elements before the first 16-byte boundary, `vectors` whole vectors, the rest.
/// Vector v is thread v % kCrossEntropyThreads's.
template <typename T>
struct SplitRow {
  static constexpr int kSize = Vec16<T>::kSize;
  __device__ SplitRow(T* elements, int n) : row(elements), end(n) {
    const auto misaligned =
        static_cast<int>(reinterpret_cast<std::uintptr_t>(row) % 16 / sizeof(T));
    const int before = misaligned == 0 ? 0 : kSize - misaligned;
    head = before < n ? before : n;
    vectors = (n - head) / kSize;
  }
  __device__ T* vector(int v) const { return row + head + v * kSize; }
  /// The vectors of this thread.
  __device__ int rounds() const {
    return (vectors - static_cast<int>(threadIdx.x) + kCrossEntropyThreads - 1) /
           kCrossEntropyThreads;
  }
  __device__ static int vector_of_round(int round) {
    return static_cast<int>(threadIdx.x) + round * kCrossEntropyThreads;
  }
  template <typename OnElement>
  __device__ void for_each_element(const OnElement& on_element) const {
    const auto thread = static_cast<int>(threadIdx.x);
    const int tail = head + vectors * kSize;
    if (thread < head) on_element(row + thread);
    if (tail + thread < end) on_element(row + tail + thread);
  }
  template <Walk kWalk, typename OnVector>
  __device__ void for_each_vector(const OnVector& on_vector) const {
    const int count = rounds();
#pragma unroll 2
    for (int round = 0; round < count; ++round) {
      on_vector(vector_of_round(kWalk == Walk::kForward ? round : count - 1 - round));
    }
  }

  T* row;
  int end, head, vectors;
};

/// sum = the sum of exp(x - maximum) over some logits.
struct PartialSoftmax {
  float maximum = -INFINITY;
  float sum = 0.0F;
};

/// Adds kCount logits to the sum.
template <typename Cap, typename T, int kCount>
__device__ void add_logits(PartialSoftmax& s, const T (&x)[kCount], const Cap& cap) {
  float maximum = s.maximum;
#pragma unroll
  for (int j = 0; j < kCount; ++j) maximum = fmaxf(maximum, cap(simt::to_float(x[j])));
  if (maximum > s.maximum) {
    s.sum *= exponential<T>(s.maximum - maximum);
    s.maximum = maximum;
  }
  // If all are -inf so far, they count nothing; -inf - -inf would be NaN.
  const float shift = s.maximum == -INFINITY ? 0.0F : s.maximum;
  float sum = 0.0F;
#pragma unroll
  for (int j = 0; j < kCount; ++j) sum += exponential<T>(cap(simt::to_float(x[j])) - shift);
  s.sum += sum;
}

/// The maximum and the sum of a row, in all threads.
struct RowSoftmax {
  float maximum;
  double sum;
};

/// Calls on_vector(v) for the thread's vectors, in order, each when it has arrived in shared
/// memory, at vector v there. No other thread reads it.
template <typename T, typename OnVector>
__device__ void for_each_copied(const SplitRow<T>& row, const OnVector& on_vector) {
  T* const shared = simt::dynamic_shared<T>();
  const int rounds = row.rounds();
  const auto copy = [&](int round) {
    const int v = row.vector_of_round(round);
    if (round < rounds) simt::cp_async16(shared + v * row.kSize, row.vector(v));
    simt::cp_async_commit();  // an empty group, too, so that there are always kVectorsAhead
  };
#pragma unroll
  for (int round = 0; round < kVectorsAhead; ++round) copy(round);
#pragma unroll 2
  for (int round = 0; round < rounds; ++round) {
    copy(round + kVectorsAhead);
    simt::cp_async_wait<kVectorsAhead>();
    on_vector(row.vector_of_round(round));
  }
}

template <RowIn kRowIn, typename Cap, typename T>
__device__ RowSoftmax row_softmax(const SplitRow<T>& row, const Cap& cap) {
  PartialSoftmax s;
  row.for_each_element([&](const T* x) {
    const T one[1] = {*x};
    add_logits(s, one, cap);
  });
  if constexpr (kRowIn == RowIn::kShared) {
    for_each_copied(row, [&](int v) {
      add_logits(s, simt::load16(simt::dynamic_shared<const T>() + v * row.kSize).v, cap);
    });
  } else {
    row.template for_each_vector<Walk::kForward>(
        [&](int v) { add_logits(s, simt::load16(row.vector(v)).v, cap); });
  }
  const float maximum = simt::block_max(s.maximum);
  // A sum that is NaN stays it, a row of nothing but -inf becomes it.
  const float sum = s.sum * exponential<T>(s.maximum - maximum);
  return {maximum, simt::block_sum(static_cast<double>(sum))};
}

/// Every element = value(logit), with the vectors' logits where row_softmax<kRowIn> left them.
template <RowIn kRowIn, typename T, typename Value>
__device__ void overwrite(const SplitRow<T>& row, const Value& value) {
  row.for_each_element([&](T* x) { *x = simt::from_float<T>(value(simt::to_float(*x))); });
  row.template for_each_vector<Walk::kBackward>([&](int vector) {
    Vec16<T> v = kRowIn == RowIn::kShared
                     ? simt::load16(simt::dynamic_shared<const T>() + vector * row.kSize)
                     : simt::load16_streaming(row.vector(vector));
#pragma unroll
    for (int j = 0; j < row.kSize; ++j) {
      v.v[j] = simt::from_float<T>(value(simt::to_float(v.v[j])));
    }
    simt::store16(row.vector(vector), v);
  });
}

template <typename T>
__device__ void zero(T* elements, int n) {
  const SplitRow<T> row(elements, n);
  row.for_each_element([](T* x) { *x = simt::from_float<T>(0.0F); });
  row.template for_each_vector<Walk::kForward>(
      [&](int v) { simt::store16(row.vector(v), Vec16<T>{}); });
}

enum class Count { kNothing, kHits, kClasses };

/// Counts a row whose target is not ignored. All threads take part.
template <typename Cap, typename T>
__device__ void count_hit(const T* row, std::int32_t target, float at_target, float maximum,
                          const Cap& cap, unsigned long long* hits) {
  float before = 0.0F;  // 1: another logit is as large and comes first
  if (at_target == maximum) {
    for (int j = static_cast<int>(threadIdx.x); j < target; j += kCrossEntropyThreads) {
      if (cap(simt::to_float(row[j])) == maximum) before = 1.0F;
    }
  }
  const bool is_first = simt::block_max(before) == 0.0F;
  if (threadIdx.x != 0) return;
  if (at_target == maximum && is_first) atomicAdd(hits, 1ULL);
  atomicAdd(hits + 1, 1ULL);
}

/// Counts it for its class, and for the one with the largest logit. All threads take part.
template <typename Cap, typename T>
__device__ void count_classes(const T* row, int classes, std::int32_t target, float maximum,
                              const Cap& cap, unsigned long long* hits) {
  float first = -INFINITY;  // minus the number of the first largest logit
  for (int j = static_cast<int>(threadIdx.x); j < classes; j += kCrossEntropyThreads) {
    if (cap(simt::to_float(row[j])) == maximum) first = fmaxf(first, -static_cast<float>(j));
  }
  first = simt::block_max(first);
  if (threadIdx.x != 0) return;
  const auto word = [&](int c, int w) { return hits + kHitWords + kClassHitWords * c + w; };
  atomicAdd(word(target, 2), 1ULL);
  if (first == -INFINITY) return;  // of logits that are not numbers none is the largest
  const auto predicted = static_cast<int>(-first);
  atomicAdd(word(predicted, 1), 1ULL);
  if (predicted == target) atomicAdd(word(target, 0), 1ULL);
}

/// On a multiprocessor: all its threads, with 32 registers each. In shared memory long rows are
/// two, and copies need more registers.
template <RowIn kRowIn>
constexpr int kBlocks = kRowIn == RowIn::kGlobal ? 4 : 3;

template <RowIn kRowIn, Count kCount, template <typename> typename Cap, typename T>
__global__ void __launch_bounds__(kCrossEntropyThreads, kBlocks<kRowIn>)
    softmax_cross_entropy(const CrossEntropyProblem<T> p) {
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
  const SplitRow<T> logits(row, p.vocab);
  const Cap<T> cap(p.soft_cap);
  const RowSoftmax softmax = row_softmax<kRowIn>(logits, cap);
  const auto shifted = static_cast<double>(cap(at_target) - softmax.maximum);
  if (threadIdx.x == 0) p.losses[i] = static_cast<float>(log(softmax.sum) - shifted);
  if constexpr (kCount != Count::kNothing) {
    count_hit(row, target, cap(at_target), softmax.maximum, cap, p.hits);
  }
  if constexpr (kCount == Count::kClasses) {
    count_classes(row, p.vocab, target, softmax.maximum, cap, p.hits);
  }
  if (kCount != Count::kNothing || !p.gradient) return;

  const double scale = p.scale == nullptr ? 1.0 : static_cast<double>(*p.scale);
  const auto factor = static_cast<float>(scale / softmax.sum);
  overwrite<kRowIn>(logits, [&](float x) {
    const float p_of_x = factor * exponential<T>(cap(x) - softmax.maximum);
    if constexpr (std::is_same_v<Cap<T>, NoCap<T>>) return p_of_x;
    return p_of_x * cap.slope(x);
  });
  zero(row + p.vocab, p.columns - p.vocab);
  __syncthreads();  // the target's element is overwritten by now
  // 1 is subtracted before anything is rounded: the target's gradient is small when p is near 1.
  if (threadIdx.x == 0) {
    const double gradient = (exp(shifted) / softmax.sum - 1.0) * scale;
    row[target] = simt::from_float<T>(
        static_cast<float>(gradient * static_cast<double>(cap.slope(at_target))));
  }
}

/// Two blocks must fit, or a multiprocessor would compute nothing while it fills its memory.
bool fits_shared_memory(std::size_t row_bytes) {
  int device = 0, bytes = 0;
  simt::check_launch(cudaGetDevice(&device), "cudaGetDevice");
  simt::check_launch(
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
      "cudaDeviceGetAttribute");
  // The largest block has all of a multiprocessor but the 1 KiB that CUDA takes for each block; the
  // second block needs it as well, and block_reduce's results have less than another.
  constexpr std::size_t kOthers = 2048;
  return 2 * (row_bytes + kOthers) <= static_cast<std::size_t>(bytes) + 1024;
}

template <Count kCount, template <typename> typename Cap, typename T>
void launch_rows(const CrossEntropyProblem<T>& problem, std::int64_t rows, cudaStream_t stream) {
  const auto vectors = static_cast<std::size_t>(std::max(1, problem.vocab / Vec16<T>::kSize));
  const std::size_t row_bytes = vectors * sizeof(Vec16<T>);
  if (fits_shared_memory(row_bytes)) {
    simt::allow_dynamic_shared(softmax_cross_entropy<RowIn::kShared, kCount, Cap, T>, row_bytes);
    simt::launch(softmax_cross_entropy<RowIn::kShared, kCount, Cap, T>, blocks_for(rows, 1),
                 kCrossEntropyThreads, row_bytes, stream, problem);
  } else {
    simt::launch(softmax_cross_entropy<RowIn::kGlobal, kCount, Cap, T>, blocks_for(rows, 1),
                 kCrossEntropyThreads, 0, stream, problem);
  }
}

template <Count kCount, typename T>
void launch_capped(const CrossEntropyProblem<T>& problem, std::int64_t rows, cudaStream_t stream) {
  if (problem.soft_cap == 0.0F) {
    launch_rows<kCount, NoCap>(problem, rows, stream);
  } else {
    launch_rows<kCount, SoftCap>(problem, rows, stream);
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
    const CrossEntropyProblem<T> problem{.logits = device_data<T>(args.logits),
                                         .targets = args.targets.as<std::int32_t>(),
                                         .losses = args.losses.as<float>(),
                                         .scale = args.scale ? args.scale.as<float>() : nullptr,
                                         .hits = device_data<unsigned long long>(args.hits),
                                         .stride = args.logits.strides[0],
                                         .vocab = static_cast<int>(args.vocab_size),
                                         .columns = static_cast<int>(shape[1]),
                                         .ignore_index = args.ignore_index,
                                         .gradient = args.gradient,
                                         .soft_cap = args.soft_cap};
    if (args.hits && args.hits.numel() > kHitWords) {
      // Numbers of classes are kept in fp32 while their largest is looked for.
      require(problem.vocab <= 1 << 24, ErrorCode::kInvalidArgument,
              "cross_entropy: ", problem.vocab, " classes are too many to count each");
      launch_capped<Count::kClasses>(problem, shape[0], handle(stream));
    } else if (args.hits) {
      launch_capped<Count::kHits>(problem, shape[0], handle(stream));
    } else {
      launch_capped<Count::kNothing>(problem, shape[0], handle(stream));
    }
  });
}

}  // namespace tessera::cuda

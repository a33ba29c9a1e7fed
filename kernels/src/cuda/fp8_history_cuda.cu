#include "cuda/cuda_kernels.h"
#include "cuda/elementwise_cuda.h"
#include "fp8_arguments.h"

// roll_fp8_history, with the CPU's bits: a block for each tensor. Bytes: a history is read and
// written once.

namespace tessera::cuda {
namespace {

constexpr int kRollThreads = 256;  // four words a thread of the usual 1024

struct LargerMagnitude {
  __device__ std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const {
    return a > b ? a : b;
  }
};

__global__ void __launch_bounds__(kRollThreads)
    roll_history(std::uint32_t* newest, std::uint32_t* histories, std::int64_t length,
                 std::uint32_t* scale_words, Fp8HistoryRule rule, int margin) {
  std::uint32_t* const history = histories + blockIdx.x * length;
  const std::uint32_t last = newest[blockIdx.x];
  std::uint32_t largest = last > 0x7f800000U ? 0 : last;
  for (std::int64_t begin = 0; begin < length; begin += kRollThreads) {
    const std::int64_t i = begin + threadIdx.x;
    const std::uint32_t own = i < length ? history[i] : 0;
    const std::uint32_t next = i + 1 < length ? history[i + 1] : last;
    if (own <= 0x7f800000U) largest = LargerMagnitude{}(largest, own);
    __syncthreads();  // all have read, before any writes
    if (i < length && last != 0) history[i] = next;
    __syncthreads();
  }
  largest = simt::block_reduce(largest, std::uint32_t{0}, LargerMagnitude{});
  if (threadIdx.x != 0) return;
  const std::uint32_t amax = rule == Fp8HistoryRule::kMax ? largest : last;
  scale_words[blockIdx.x] = fp8_scale_word(amax, scale_words[blockIdx.x], margin);
  newest[blockIdx.x] = 0;
}

}  // namespace

void roll_fp8_history(const RollFp8HistoryArgs& args, Stream& stream) {
  check_arguments(args);
  const std::int64_t tensors = args.history.shape[0];
  if (tensors == 0) return;
  simt::launch(roll_history, static_cast<unsigned>(tensors), kRollThreads, 0, handle(stream),
               device_data<std::uint32_t>(args.newest), device_data<std::uint32_t>(args.history),
               args.history.shape[1], device_data<std::uint32_t>(args.scale_words), args.rule,
               args.margin);
}

}  // namespace tessera::cuda

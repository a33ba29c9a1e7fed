#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/exact_squares_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/block_square.h"
#include "cpu/simd.h"
#include "cpu/stream_store.h"

#include "cpu/cpu_kernels.h"
#include "cpu/exact_accumulator.h"
#include "cpu/parallel.h"
#include "exact_sum_arguments.h"

// Sums of squares of blocks of 64 elements, in fp64 (block_square.h). The blocks are added exactly
// (exact_sum.h): each thread adds its own, and then its words to the result. Traffic: x once.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

template <typename T>
void add_blocks(const T* x, std::int64_t begin, std::int64_t end, ExactAccumulator& sum) {
  constexpr std::int64_t kLineElements = 64 / sizeof(T);
  for (std::int64_t i = begin; i < end; ++i) {
    const T* const block = x + i * kNormBlock;
    for (std::int64_t k = 0; k < kNormBlock; k += kLineElements) prefetch_ahead(block + k, 2048);
    sum.add(block_square(block));
  }
}

void exact_squares_range(const ExactSquaresArgs& args, std::int64_t begin, std::int64_t end) {
  ExactAccumulator sum;
  with_float_type(args.x.dtype,
                  [&]<typename T>(T) HWY_ATTR { add_blocks(args.x.as<T>(), begin, end, sum); });
  sum.add_to(args.words.as<std::int64_t>());
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(exact_squares_range);

}  // namespace

void exact_squares(const ExactSquaresArgs& args, Stream&) {
  check_arguments(args);
  // 256 blocks are 64 KiB of fp32: some microseconds.
  parallel_for(args.x.numel() / kNormBlock, 256, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(exact_squares_range)(args, begin, end);
  });
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE

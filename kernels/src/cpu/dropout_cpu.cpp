#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/dropout_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/philox_simd.h"
#include "cpu/simd.h"

#include "cpu/cpu_kernels.h"
#include "cpu/parallel.h"
#include "elementwise_arguments.h"

// y = x / (1 - p) where the element's random word is at least p 2^32, else 0. The mask is never
// stored: backward draws it again. Traffic: x and y once.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

/// y from x for up to four vectors; words[i] belongs to element i.
template <typename T>
HWY_INLINE void apply_mask(const std::uint32_t* words, const T* x, T* y, std::int64_t n,
                           std::uint32_t threshold, float scale) {
  const WordTag d;
  const auto limit = hn::Set(d, threshold);
  for_each_vector(n, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    // Reads past n: `words` always holds four vectors and one more.
    const auto word = hn::LoadU(d, words + i);
    const auto keep = hn::RebindMask(FloatTag(), hn::Eq(hn::Max(word, limit), word));
    const auto kept = hn::IfThenElseZero(keep, hn::Mul(load_n(x + i, count), splat(scale)));
    store_n(kept, y + i, count);
  });
}

template <typename T>
void dropout_typed(const DropoutArgs& args, const T* x, T* y, std::int64_t first, std::int64_t n) {
  const WordTag d;
  const std::uint32_t threshold = probability_threshold(args.probability);
  const float scale = 1.0F / (1.0F - args.probability);
  const RandomKey key = key_of_call(load_random_key(args.key.as<std::int64_t>()), args.call);
  HWY_ALIGN std::uint32_t elements[HWY_MAX_BYTES / 4 * 5] = {};
  for_each_philox_words(key, first, n, [&](const PhiloxWords& words, std::int64_t offset) HWY_ATTR {
    hn::StoreInterleaved4(words.w0, words.w1, words.w2, words.w3, d, elements);
    const std::int64_t from = HWY_MAX(std::int64_t{0}, -offset);
    const std::int64_t to = HWY_MIN(4 * float_lanes(), n - offset);
    apply_mask(elements + from, x + offset + from, y + offset + from, to - from, threshold, scale);
  });
}

void dropout_range(const DropoutArgs& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t first_sample =
      args.first_sample ? *args.first_sample.as<std::int64_t>() : std::int64_t{0};
  const std::int64_t first = first_sample * args.sample_numel + args.first_index + begin;
  const std::int64_t n = end - begin;
  with_float_type(args.x.dtype, [&]<typename T>(T) HWY_ATTR {
    dropout_typed(args, args.x.as<T>() + begin, args.y.as<T>() + begin, first, n);
  });
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(dropout_range);

}  // namespace

void dropout(const DropoutArgs& args, Stream&) {
  check_arguments(args);
  // Some 10 us of arithmetic per chunk.
  parallel_for(args.y.numel(), 8192, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(dropout_range)(args, begin, end);
  });
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE

// Stochastic rounding of an optimizer's step, compiled once per instruction set; see simd.h for how
// to include it.
#if defined(TESSERA_KERNELS_RANDOM_ROUNDING_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_RANDOM_ROUNDING_H_
#undef TESSERA_KERNELS_RANDOM_ROUNDING_H_
#else
#define TESSERA_KERNELS_RANDOM_ROUNDING_H_
#endif

#include "cpu/philox_simd.h"
#include "cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

using IntTag = hn::RebindToSigned<FloatTag>;

/// Elements of the master (16 KiB) that are still in the first-level cache when they are rounded.
constexpr std::int64_t kRoundingChunk = 4096;

/// bf16_rounded_at_random of up to a vector. Reads a full vector of words.
HWY_INLINE void store_rounded_at_random(const std::uint32_t* words, const float* from, bfloat16* to,
                                        std::int64_t count) {
  const WordTag d;
  const auto value = load_n(from, count);
  const auto bits = hn::BitCast(d, value);
  const auto carried = hn::Add(bits, hn::ShiftRight<16>(hn::LoadU(d, words)));
  const auto quiet = hn::Or(bits, hn::Set(d, std::uint32_t{0x400000}));
  const auto is_number = hn::RebindMask(d, hn::Eq(value, value));
  const auto upper = hn::ShiftRight<16>(hn::IfThenElse(is_number, carried, quiet));
  HWY_ALIGN std::uint16_t lanes[kMaxLanes];
  hn::Store(hn::DemoteTo(HalfTag(), hn::BitCast(IntTag(), upper)), HalfTag(), lanes);
  std::memcpy(to, lanes, static_cast<std::size_t>(std::min(count, kMaxLanes)) * sizeof(bfloat16));
}

/// Rounds n elements of a master to a bf16 parameter; the first draws word first_index of the key.
HWY_INLINE void write_rounded_at_random(const float* master, bfloat16* parameter, RandomKey key,
                                        std::int64_t first_index, std::int64_t n) {
  const WordTag d;
  // Room for four vectors, and for loading one that begins at the last element.
  HWY_ALIGN std::uint32_t elements[HWY_MAX_BYTES / 4 * 5] = {};
  for_each_philox_words(
      key, first_index, n, [&](const PhiloxWords& words, std::int64_t offset) HWY_ATTR {
        hn::StoreInterleaved4(words.w0, words.w1, words.w2, words.w3, d, elements);
        const std::int64_t from = HWY_MAX(std::int64_t{0}, -offset);
        const std::int64_t to = HWY_MIN(4 * float_lanes(), n - offset);
        for_each_vector(to - from, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
          const std::int64_t element = offset + from + i;
          store_rounded_at_random(elements + from + i, master + element, parameter + element,
                                  count);
        });
      });
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_KERNELS_RANDOM_ROUNDING_H_

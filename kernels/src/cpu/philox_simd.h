// Philox4x32-10 on vectors, compiled once per instruction set; see simd.h for how to include it and
// philox.h for the definition, which it matches bit for bit.
#if defined(TESSERA_KERNELS_PHILOX_SIMD_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_PHILOX_SIMD_H_
#undef TESSERA_KERNELS_PHILOX_SIMD_H_
#else
#define TESSERA_KERNELS_PHILOX_SIMD_H_
#endif

#include "cpu/simd.h"
#include "tessera/kernels/philox.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

using WordTag = hn::RebindToUnsigned<FloatTag>;
using WordVec = hn::Vec<WordTag>;

/// The four words of as many consecutive blocks as a vector has lanes: lane l holds block b + l.
struct PhiloxWords {
  WordVec w0, w1, w2, w3;
};

/// The high and the low half of each 64-bit product.
HWY_INLINE void multiply_wide(WordVec a, WordVec b, WordVec& high, WordVec& low) {
  const WordTag d;
#if HWY_TARGET == HWY_SCALAR
  const std::uint64_t product = std::uint64_t{hn::GetLane(a)} * hn::GetLane(b);
  high = hn::Set(d, static_cast<std::uint32_t>(product >> 32));
  low = hn::Set(d, static_cast<std::uint32_t>(product));
#else
  const hn::RepartitionToWide<WordTag> wide;
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, a))), b);
  high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
  low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
#endif
}

HWY_INLINE PhiloxWords philox_words(RandomKey key, std::uint64_t block) {
  const WordTag d;
  const auto lanes = static_cast<std::size_t>(float_lanes());
  HWY_ALIGN std::uint32_t block_low[HWY_MAX_BYTES / 4];
  HWY_ALIGN std::uint32_t block_high[HWY_MAX_BYTES / 4];
  for (std::size_t l = 0; l < lanes; ++l) {
    block_low[l] = static_cast<std::uint32_t>(block + l);
    block_high[l] = static_cast<std::uint32_t>((block + l) >> 32);
  }
  PhiloxWords c{hn::Load(d, block_low), hn::Load(d, block_high),
                hn::Set(d, static_cast<std::uint32_t>(key.stream)),
                hn::Set(d, static_cast<std::uint32_t>(key.stream >> 32))};
  PhiloxKey k = philox_key(key);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    WordVec high0, low0, high1, low1;
    multiply_wide(c.w0, hn::Set(d, kPhiloxMultiplier0), high0, low0);
    multiply_wide(c.w2, hn::Set(d, kPhiloxMultiplier1), high1, low1);
    c = {hn::Xor(hn::Xor(high1, c.w1), hn::Set(d, k[0])), low1,
         hn::Xor(hn::Xor(high0, c.w3), hn::Set(d, k[1])), low0};
    k = {k[0] + kPhiloxWeyl0, k[1] + kPhiloxWeyl1};
  }
  return c;
}

/// Calls body(words, offset) for the vectors of blocks that cover the elements [first, first + n):
/// element w + 4 l of the vector's words is element offset + w + 4 l of the caller's range, if that
/// is in [0, n). `offset` is negative where a range begins inside of a block.
template <typename Body>
HWY_INLINE void for_each_philox_words(RandomKey key, std::int64_t first, std::int64_t n,
                                      const Body& body) {
  for (std::int64_t element = first / 4 * 4; element < first + n; element += 4 * float_lanes()) {
    body(philox_words(key, static_cast<std::uint64_t>(element) / 4), element - first);
  }
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_KERNELS_PHILOX_SIMD_H_

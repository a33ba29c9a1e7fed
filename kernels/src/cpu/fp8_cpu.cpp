#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/fp8_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"
#include "cpu/stream_store.h"

#include <algorithm>
#include <atomic>
#include <type_traits>
#include <vector>

#include "cpu/cpu_kernels.h"
#include "cpu/parallel.h"
#include "fp8_arguments.h"

// amax, max_words, fp8_encode, fp8_decode, fp8_transpose: one pass, each element by itself, with
// the bits of fp8.h. Traffic: amax reads a tensor; encode reads it and writes a byte per element;
// decode is the reverse; transpose reads and writes a byte per element.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

/// The fp32 word of the number that has the word `magnitude` in T.
template <typename T>
std::uint32_t widened_word(std::uint32_t magnitude) {
  if constexpr (std::is_same_v<T, float>) {
    return magnitude;
  } else {
    T number;
    number.bits = static_cast<std::uint16_t>(magnitude);
    return std::bit_cast<std::uint32_t>(static_cast<float>(number));
  }
}

template <typename T>
std::uint32_t largest_word(const T* x, std::int64_t n) {
  using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;
  constexpr Word kMagnitude = static_cast<Word>(~Word{0}) >> 1;
  const hn::ScalableTag<Word> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto* const words = reinterpret_cast<const Word*>(x);
  const auto mask = hn::Set(d, kMagnitude);
  auto a = hn::Zero(d), b = a;
  std::int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    a = hn::Max(a, hn::And(hn::LoadU(d, words + i), mask));
    b = hn::Max(b, hn::And(hn::LoadU(d, words + i + lanes), mask));
  }
  Word largest = hn::GetLane(hn::MaxOfLanes(d, hn::Max(a, b)));
  for (; i < n; ++i) {
    Word word;
    std::memcpy(&word, x + i, sizeof word);
    largest = std::max(largest, static_cast<Word>(word & kMagnitude));
  }
  return widened_word<T>(largest);
}

using CodeTag = hn::Rebind<std::uint8_t, FloatTag>;

/// fp8_code() of a vector.
HWY_INLINE auto codes_of(FloatVec v, const Fp8Layout& layout) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> d32;
  const auto set = [d32](std::uint32_t word) HWY_ATTR { return hn::Set(d32, word); };
  const auto word = hn::BitCast(d32, v);
  const auto any = hn::And(word, set(0x7fffffffU));
  const auto magnitude = hn::Min(any, set(layout.largest));
  const auto even = hn::And(hn::ShiftRightSame(magnitude, layout.shift), set(1));
  const auto half_way = set((1U << (layout.shift - 1)) - 1U);
  const auto normal =
      hn::Sub(hn::ShiftRightSame(hn::Add(hn::Add(magnitude, half_way), even), layout.shift),
              set(layout.rebias));
  const auto rounder = hn::Set(d, layout.rounder);
  const auto subnormal = hn::Sub(hn::BitCast(d32, hn::Add(hn::BitCast(d, magnitude), rounder)),
                                 hn::BitCast(d32, rounder));
  const auto code = hn::IfThenElse(hn::Lt(magnitude, set(layout.normal)), subnormal, normal);
  const auto sign = hn::And(hn::ShiftRight<24>(word), set(0x80U));
  const auto is_nan = hn::Gt(any, set(0x7f800000U));
  return hn::TruncateTo(CodeTag(), hn::IfThenElse(is_nan, set(0x7fU), hn::Or(code, sign)));
}

/// fp8_value() of a vector.
HWY_INLINE FloatVec values_of(hn::Vec<CodeTag> codes, const Fp8Layout& layout) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> d32;
  const hn::RebindToSigned<FloatTag> di;
  const auto set = [d32](std::uint32_t word) HWY_ATTR { return hn::Set(d32, word); };
  const auto code = hn::PromoteTo(d32, codes);
  const auto magnitude = hn::And(code, set(0x7fU));
  const auto shifted = hn::Add(magnitude, set(layout.rebias));
  const auto normal = hn::ShiftLeftSame(shifted, layout.shift);
  const auto subnormal = hn::BitCast(
      d32, hn::Mul(hn::ConvertTo(d, hn::BitCast(di, magnitude)), hn::Set(d, layout.smallest)));
  auto word =
      hn::IfThenElse(hn::Lt(shifted, set(layout.normal >> layout.shift)), subnormal, normal);
  const bool has_infinity = layout.infinity == 0x7cU;
  const auto infinite = set(has_infinity ? 0x7f800000U : 0x7fc00000U);
  word = hn::IfThenElse(hn::Eq(magnitude, set(layout.infinity)), infinite, word);
  word = hn::IfThenElse(hn::Gt(magnitude, set(layout.infinity)), set(0x7fc00000U), word);
  const auto sign = hn::ShiftLeft<24>(hn::And(code, set(0x80U)));
  return hn::BitCast(d, hn::Or(word, sign));
}

// Where a scale is a power of two, the upper halves of fp32 words do: twice as many of them fit a
// vector, and a scale is added to their exponents. A lower half that is not zero sets the lowest
// bit of the upper one, which is four bits or more below the last one of a code, so that sums are
// rounded as if it were there. Of subnormal numbers and of sums below zero only zeros are made.
#if HWY_TARGET != HWY_SCALAR

using WordTag = hn::ScalableTag<std::uint16_t>;
using Words = hn::Vec<WordTag>;
using WordCodeTag = hn::Rebind<std::uint8_t, WordTag>;

constexpr std::int64_t kWordBits = 7;  ///< of a fraction

/// A power of two by which words are multiplied: what it adds to them.
struct PowerOfTwo {
  bool is = false;
  std::int16_t added = 0;
};
PowerOfTwo power_of_two(float scale) {
  const auto word = std::bit_cast<std::uint32_t>(scale);
  const std::uint32_t exponent = word >> 23;
  if ((word & 0x7fffffU) != 0 || exponent == 0 || exponent >= 0xffU) return {};
  return {true, static_cast<std::int16_t>((static_cast<int>(exponent) - 127) * (1 << kWordBits))};
}

/// The upper halves of the fp32 words of a vector of elements; in the order of store_codes().
HWY_INLINE Words words_at(const bfloat16* x) {
  return hn::LoadU(WordTag(), reinterpret_cast<const std::uint16_t*>(x));
}
template <typename T>
HWY_INLINE Words words_at(const T* x) {
  const hn::RebindToUnsigned<FloatTag> d32;
  const auto first = hn::BitCast(d32, load(x)), last = hn::BitCast(d32, load(x + float_lanes()));
  const auto halves = hn::Set(d32, 0xffffU);
  const auto together = [](auto low, auto high) HWY_ATTR {
#if HWY_TARGET == HWY_AVX2
    return Words{_mm256_packus_epi32(low.raw, high.raw)};  // each 128 bits by themselves
#else
    return hn::Combine(WordTag(), hn::TruncateTo(HalfTag(), high), hn::TruncateTo(HalfTag(), low));
#endif
  };
  const Words upper = together(hn::ShiftRight<16>(first), hn::ShiftRight<16>(last));
  const Words lower = together(hn::And(first, halves), hn::And(last, halves));
  return hn::Or(upper, hn::Min(lower, hn::Set(WordTag(), std::uint16_t{1})));
}

/// A format as words have it.
struct WordLayout {
  constexpr explicit WordLayout(Fp8Format format)
      : of_fp32(layout_of(format)),
        shift(of_fp32.shift - 16),
        rebias(static_cast<int>(of_fp32.rebias)),
        normal(static_cast<int>(of_fp32.normal >> 16)),
        largest(static_cast<int>(of_fp32.largest >> 16)),
        smallest(static_cast<int>(std::bit_cast<std::uint32_t>(of_fp32.smallest) >> 16)),
        zeros((smallest >> kWordBits) - 2),
        infinity(static_cast<int>(of_fp32.infinity)) {}

  Fp8Layout of_fp32;
  int shift, rebias, normal, largest, smallest;
  int zeros;  ///< the exponent of half of the smallest number, which is rounded to zero as all
              ///< below
  int infinity;
};

HWY_INLINE Words set_words(int value) {
  return hn::Set(WordTag(), static_cast<std::uint16_t>(value));
}
/// Compares words that are no larger than 0x7fff.
HWY_INLINE auto is_less(Words a, Words b) {
  const hn::RebindToSigned<WordTag> di;
  return hn::RebindMask(WordTag(), hn::Lt(hn::BitCast(di, a), hn::BitCast(di, b)));
}

/// table[index], which has the entries' bytes, index below 16.
HWY_INLINE Words looked_up(const std::uint8_t (&table)[16], Words index) {
  const hn::Repartition<std::uint8_t, WordTag> d8;
  return hn::BitCast(WordTag(),
                     hn::TableLookupBytes(hn::LoadDup128(d8, table), hn::BitCast(d8, index)));
}

/// |words| multiplied, at most the largest number.
template <Fp8Format kFormat>
HWY_INLINE Words scaled_magnitudes(Words any, PowerOfTwo scale) {
  constexpr WordLayout kLayout(kFormat);
  const WordTag d;
  const hn::RebindToSigned<WordTag> di;
  const auto scaled = hn::SaturatedAdd(hn::BitCast(di, any), hn::Set(di, scale.added));
  return hn::Min(hn::BitCast(d, hn::Max(scaled, hn::Zero(di))), set_words(kLayout.largest));
}

/// The codes of magnitudes that are normal or zero, without signs.
template <Fp8Format kFormat>
HWY_INLINE Words normal_codes(Words magnitude) {
  constexpr WordLayout kLayout(kFormat);
  const auto even = hn::And(hn::ShiftRight<kLayout.shift>(magnitude), set_words(1));
  const auto half_way = set_words((1 << (kLayout.shift - 1)) - 1);
  const auto rounded = hn::ShiftRight<kLayout.shift>(hn::Add(hn::Add(magnitude, half_way), even));
  return hn::SaturatedSub(rounded, set_words(kLayout.rebias));
}

HWY_INLINE Words with_signs(Words code, Words word) {
  return hn::Or(code, hn::And(hn::ShiftRight<8>(word), set_words(0x80)));
}

/// fp8_code() of a vector of words that are multiplied first, without signs.
template <Fp8Format kFormat>
Words codes_of_any_words(Words word, PowerOfTwo scale) {
  constexpr WordLayout kLayout(kFormat);
  const auto any = hn::And(word, set_words(0x7fff));
  const auto magnitude = hn::IfThenElse(hn::Eq(any, set_words(0x7f80)), set_words(kLayout.largest),
                                        scaled_magnitudes<kFormat>(any, scale));
  // Multiples of the smallest number, with eight bits behind the point.
  alignas(16) static constexpr std::uint8_t kPowers[16] = {0, 1, 2, 4, 8};
  const auto exponent = hn::ShiftRight<kWordBits>(magnitude);
  const auto power = hn::Min(hn::SaturatedSub(exponent, set_words(kLayout.zeros)), set_words(15));
  const auto fraction = hn::Or(hn::And(magnitude, set_words(0x7f)), set_words(0x80));
  const auto multiple = hn::Mul(fraction, looked_up(kPowers, power));
  const auto odd = hn::And(hn::ShiftRight<8>(multiple), set_words(1));
  const auto subnormal = hn::ShiftRight<8>(hn::Add(hn::Add(multiple, set_words(127)), odd));
  const auto code = hn::IfThenElse(is_less(magnitude, set_words(kLayout.normal)), subnormal,
                                   normal_codes<kFormat>(magnitude));
  return hn::IfThenElse(is_less(set_words(0x7f80), any), set_words(0x7f), code);
}

/// Stores the codes, without signs, of two vectors of words of T, with the words' signs.
template <typename T>
HWY_INLINE void store_codes(Words low, Words high, Words low_signs, Words high_signs,
                            std::uint8_t* codes) {
#if HWY_TARGET == HWY_AVX2
  const auto signs =
      _mm256_and_si256(_mm256_packs_epi16(low_signs.raw, high_signs.raw), _mm256_set1_epi8(-128));
  const auto packed = _mm256_or_si256(_mm256_packus_epi16(low.raw, high.raw), signs);
  // Packing has put the halves of vectors beside each other, of wider elements twice.
  const auto in_order =
      std::is_same_v<T, bfloat16>
          ? _mm256_permute4x64_epi64(packed, 0xd8)
          : _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), in_order);
#else
  const WordCodeTag d;
  hn::StoreU(hn::TruncateTo(d, with_signs(low, low_signs)), d, codes);
  hn::StoreU(hn::TruncateTo(d, with_signs(high, high_signs)), d, codes + hn::Lanes(d));
#endif
}

/// The codes of two vectors; faster where all are finite, and their codes normal or zero.
template <Fp8Format kFormat, typename T>
HWY_INLINE void encode_two(Words low, Words high, PowerOfTwo scale, std::uint8_t* codes) {
  constexpr WordLayout kLayout(kFormat);
  constexpr int kFirst = (kLayout.zeros + 1) << kWordBits;  // all below have the code of zero
  const auto any_low = hn::And(low, set_words(0x7fff)), any_high = hn::And(high, set_words(0x7fff));
  const auto of_low = scaled_magnitudes<kFormat>(any_low, scale);
  const auto of_high = scaled_magnitudes<kFormat>(any_high, scale);
  const auto is_subnormal = [](Words magnitude) HWY_ATTR {
    const auto beyond = hn::Sub(magnitude, set_words(kFirst));
    return hn::Eq(beyond, hn::Min(beyond, set_words(kLayout.normal - kFirst - 1)));
  };
  const auto is_infinite = is_less(set_words(0x7f7f), hn::Max(any_low, any_high));
  const auto is_special = hn::Or(hn::Or(is_subnormal(of_low), is_subnormal(of_high)), is_infinite);
  if (HWY_UNLIKELY(!hn::AllFalse(WordTag(), is_special))) {
    const auto numbers = [](Words any) HWY_ATTR {  // NaN has the code without a sign
      return hn::IfThenZeroElse(is_less(set_words(0x7f80), hn::And(any, set_words(0x7fff))), any);
    };
    store_codes<T>(codes_of_any_words<kFormat>(low, scale),
                   codes_of_any_words<kFormat>(high, scale), numbers(low), numbers(high), codes);
  } else {
    store_codes<T>(normal_codes<kFormat>(of_low), normal_codes<kFormat>(of_high), low, high, codes);
  }
}

/// fp8_value() of a vector, multiplied, as bf16.
template <Fp8Format kFormat>
HWY_INLINE Words words_of_codes(hn::Vec<WordCodeTag> codes, PowerOfTwo reciprocal) {
  constexpr WordLayout kLayout(kFormat);
  const auto code = hn::PromoteTo(WordTag(), codes);
  const auto magnitude = hn::And(code, set_words(0x7f));
  const auto normal =
      hn::Min(hn::Add(hn::ShiftLeft<kLayout.shift>(magnitude),
                      set_words((kLayout.rebias << kLayout.shift) + reciprocal.added)),
              set_words(0x7f80));
  // 1 to 7 times the smallest number: how far their words are behind the smallest one's, / 32.
  alignas(16) static constexpr std::uint8_t kBehind[16] = {0, 0, 4, 6, 8, 9, 10, 11};
  const auto behind = looked_up(kBehind, hn::Min(magnitude, set_words(15)));
  const auto subnormal = hn::IfThenZeroElse(
      hn::Eq(magnitude, set_words(0)),
      hn::Add(hn::ShiftLeft<5>(behind), set_words(kLayout.smallest + reciprocal.added)));
  constexpr int kFirstNormal = 1 << (kWordBits - kLayout.shift);
  auto word = hn::IfThenElse(is_less(magnitude, set_words(kFirstNormal)), subnormal, normal);
  constexpr int kInfinite = kFormat == Fp8Format::kE5M2 ? 0x7f80 : 0x7fc0;
  const auto infinity = set_words(kLayout.infinity);
  word = hn::IfThenElse(hn::Eq(magnitude, infinity), set_words(kInfinite), word);
  word = hn::IfThenElse(is_less(infinity, magnitude), set_words(0x7fc0), word);
  return hn::Or(word, hn::ShiftLeft<8>(hn::And(code, set_words(0x80))));
}

template <Fp8Format kFormat, typename T>
std::int64_t encode_words_of(const T* x, std::uint8_t* codes, std::int64_t n, PowerOfTwo power) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(WordTag()));
  std::int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    encode_two<kFormat, T>(words_at(x + i), words_at(x + i + lanes), power, codes + i);
  }
  return i;
}

/// Encodes whole vectors; gives how many elements.
template <typename T>
std::int64_t encode_words(const T* x, std::uint8_t* codes, std::int64_t n, Fp8Format format,
                          float scale) {
  const PowerOfTwo power = power_of_two(scale);
  if (!power.is) return 0;
  return format == Fp8Format::kE4M3 ? encode_words_of<Fp8Format::kE4M3>(x, codes, n, power)
                                    : encode_words_of<Fp8Format::kE5M2>(x, codes, n, power);
}

template <Fp8Format kFormat>
std::int64_t decode_words_of(const std::uint8_t* codes, bfloat16* y, std::int64_t n,
                             PowerOfTwo power) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(WordTag()));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const Words made = words_of_codes<kFormat>(hn::LoadU(WordCodeTag(), codes + i), power);
    hn::StoreU(made, WordTag(), reinterpret_cast<std::uint16_t*>(y + i));
  }
  return i;
}

/// Decodes whole vectors to bf16; gives how many elements.
std::int64_t decode_words(const std::uint8_t* codes, bfloat16* y, std::int64_t n, Fp8Format format,
                          float reciprocal) {
  const PowerOfTwo power = power_of_two(reciprocal);
  if (!power.is) return 0;
  return format == Fp8Format::kE4M3 ? decode_words_of<Fp8Format::kE4M3>(codes, y, n, power)
                                    : decode_words_of<Fp8Format::kE5M2>(codes, y, n, power);
}

#else

template <typename T>
std::int64_t encode_words(const T*, std::uint8_t*, std::int64_t, Fp8Format, float) {
  return 0;
}
std::int64_t decode_words(const std::uint8_t*, bfloat16*, std::int64_t, Fp8Format, float) {
  return 0;
}

#endif  // HWY_TARGET != HWY_SCALAR

template <typename T>
HWY_NOINLINE void encode_typed(const T* x, std::uint8_t* codes, std::int64_t n, Fp8Format format,
                               float scale) {
  const Fp8Layout layout = layout_of(format);
  const auto factor = splat(scale);
  std::int64_t i = encode_words(x, codes, n, format, scale);
  for (; i + float_lanes() <= n; i += float_lanes()) {
    hn::StoreU(codes_of(hn::Mul(load(x + i), factor), layout), CodeTag(), codes + i);
  }
  for (; i < n; ++i) codes[i] = fp8_code(static_cast<float>(x[i]) * scale, format);
}

template <typename T>
HWY_NOINLINE void decode_typed(const std::uint8_t* codes, T* y, std::int64_t n, Fp8Format format,
                               float reciprocal) {
  const Fp8Layout layout = layout_of(format);
  const auto factor = splat(reciprocal);
  std::int64_t i = 0;
  if constexpr (std::is_same_v<T, bfloat16>) i = decode_words(codes, y, n, format, reciprocal);
  for (; i + float_lanes() <= n; i += float_lanes()) {
    store(hn::Mul(values_of(hn::LoadU(CodeTag(), codes + i), layout), factor), y + i);
  }
  for (; i < n; ++i) y[i] = T(fp8_value(codes[i], format) * reciprocal);
}

std::uint32_t amax_range(const AmaxArgs& args, std::int64_t begin, std::int64_t end) {
  std::uint32_t largest = 0;
  with_float_type(args.x.dtype, [&]<typename T>(T) HWY_ATTR {
    largest = largest_word(args.x.as<T>() + begin, end - begin);
  });
  return largest;
}

void encode_range(const Fp8EncodeArgs& args, float scale, std::int64_t begin, std::int64_t end) {
  with_float_type(args.x.dtype, [&]<typename T>(T) HWY_ATTR {
    const T* const x = args.x.as<T>() + begin;
    write_streaming(args.codes.as<std::uint8_t>() + begin, end - begin, args.codes.bytes(),
                    [&](std::uint8_t* out, std::int64_t i, std::int64_t count)
                        HWY_ATTR { encode_typed(x + i, out, count, args.format, scale); });
  });
}

void decode_range(const Fp8DecodeArgs& args, float reciprocal, std::int64_t begin,
                  std::int64_t end) {
  with_float_type(args.y.dtype, [&]<typename T>(T) HWY_ATTR {
    const std::uint8_t* const codes = args.codes.as<std::uint8_t>() + begin;
    write_streaming(args.y.as<T>() + begin, end - begin, args.y.bytes(),
                    [&](T* out, std::int64_t i, std::int64_t count)
                        HWY_ATTR { decode_typed(codes + i, out, count, args.format, reciprocal); });
  });
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(amax_range);
HWY_EXPORT(encode_range);
HWY_EXPORT(decode_range);

constexpr std::int64_t kFp8Grain = 16384;  // elements: some microseconds

constexpr std::int64_t kFp8Tile = 64;  // rows and columns that a cache holds both ways

/// to (columns, rows) = from (rows, columns).
void transpose_codes(const std::uint8_t* from, std::uint8_t* to, std::int64_t rows,
                     std::int64_t columns) {
  const std::int64_t tiles = (rows + kFp8Tile - 1) / kFp8Tile;
  parallel_for(tiles, 1, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t last = std::min(rows, end * kFp8Tile);
    for (std::int64_t top = begin * kFp8Tile; top < last; top += kFp8Tile) {
      const std::int64_t bottom = std::min(last, top + kFp8Tile);
      for (std::int64_t column = 0; column < columns; ++column) {
        for (std::int64_t row = top; row < bottom; ++row) {
          to[column * rows + row] = from[row * columns + column];
        }
      }
    }
  });
}

std::uint32_t word_of(const TensorView& amax) {
  return static_cast<std::uint32_t>(*amax.as<std::int32_t>());
}

}  // namespace

void amax(const AmaxArgs& args, Stream&) {
  check_arguments(args);
  std::atomic<std::uint32_t> largest{args.accumulate ? word_of(args.amax) : 0};
  parallel_for(args.x.numel(), kFp8Grain, [&](std::int64_t begin, std::int64_t end) {
    const std::uint32_t word = HWY_DYNAMIC_DISPATCH(amax_range)(args, begin, end);
    std::uint32_t before = largest.load();
    while (before < word && !largest.compare_exchange_weak(before, word)) {
    }
  });
  *args.amax.as<std::int32_t>() = static_cast<std::int32_t>(largest.load());
}

void max_words(const MaxWordsArgs& args, Stream&) {
  check_arguments(args);
  const std::int64_t rows = args.rows.shape[0], columns = args.rows.shape[1];
  const auto* const from = args.rows.as<std::int32_t>();
  auto* const to = args.words.as<std::int32_t>();
  std::fill_n(to, columns, 0);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < columns; ++i) {
      const auto word = static_cast<std::uint32_t>(from[row * columns + i]);
      to[i] = static_cast<std::int32_t>(std::max(static_cast<std::uint32_t>(to[i]), word));
    }
  }
}

void fp8_encode(const Fp8EncodeArgs& args, Stream&) {
  check_arguments(args);
  const float scale = fp8_scale(word_of(args.amax), args.format, args.scales);
  Fp8EncodeArgs in_rows = args;
  std::vector<std::byte> apart;
  if (!args.codes) {
    apart.resize(static_cast<std::size_t>(args.x.numel()));
    in_rows.codes = TensorView(apart.data(), DType::kUInt8, args.x.shape);
  }
  parallel_for(args.x.numel(), kFp8Grain, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(encode_range)(in_rows, scale, begin, end);
  });
  if (!args.transposed) return;
  transpose_codes(in_rows.codes.as<std::uint8_t>(), args.transposed.as<std::uint8_t>(),
                  args.x.shape[0], args.x.shape[1]);
}

void fp8_transpose(const Fp8TransposeArgs& args, Stream&) {
  check_arguments(args);
  transpose_codes(args.codes.as<std::uint8_t>(), args.transposed.as<std::uint8_t>(),
                  args.codes.shape[0], args.codes.shape[1]);
}

void fp8_decode(const Fp8DecodeArgs& args, Stream&) {
  check_arguments(args);
  const float scale = fp8_scale(word_of(args.amax), args.format, args.scales);
  parallel_for(args.y.numel(), kFp8Grain, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(decode_range)(args, 1.0F / scale, begin, end);
  });
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE

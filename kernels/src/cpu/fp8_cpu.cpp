#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/fp8_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"

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

template <typename T>
void encode_typed(const T* x, std::uint8_t* codes, std::int64_t n, Fp8Format format, float scale) {
  const Fp8Layout layout = layout_of(format);
  const auto factor = splat(scale);
  std::int64_t i = 0;
  for (; i + float_lanes() <= n; i += float_lanes()) {
    hn::StoreU(codes_of(hn::Mul(load(x + i), factor), layout), CodeTag(), codes + i);
  }
  for (; i < n; ++i) codes[i] = fp8_code(static_cast<float>(x[i]) * scale, format);
}

template <typename T>
void decode_typed(const std::uint8_t* codes, T* y, std::int64_t n, Fp8Format format,
                  float reciprocal) {
  const Fp8Layout layout = layout_of(format);
  const auto factor = splat(reciprocal);
  std::int64_t i = 0;
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
    encode_typed(args.x.as<T>() + begin, args.codes.as<std::uint8_t>() + begin, end - begin,
                 args.format, scale);
  });
}

void decode_range(const Fp8DecodeArgs& args, float reciprocal, std::int64_t begin,
                  std::int64_t end) {
  with_float_type(args.y.dtype, [&]<typename T>(T) HWY_ATTR {
    decode_typed(args.codes.as<std::uint8_t>() + begin, args.y.as<T>() + begin, end - begin,
                 args.format, reciprocal);
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

#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/quantized_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"

#include <array>
#include <cmath>

#include "cpu/cpu_kernels.h"
#include "cpu/float_types.h"
#include "cpu/parallel.h"
#include "cpu/stream_store.h"
#include "quantized_arguments.h"
#include "tessera/kernels/dynamic_map.h"

// Weights of their codes and scales (weight_format.h): one multiplication in fp32 for 4 bits, two
// for int8, and a rounding to bf16 or fp16; for scales that are coded, one more and an addition per
// block. Reads 0.5625 bytes per weight (coded scales: 0.516, int8: 1), writes 4 or 2.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

/// Writes the 16 numbers that the codes of a block stand for. Each is rounded to T once, not each
/// weight.
template <typename T>
HWY_INLINE void scale_table(const float* table, float scale, T* numbers) {
  for (std::int64_t i = 0; i < 16; i += float_lanes()) {
    store(hn::Mul(load(table + i), splat(scale)), numbers + i);
  }
}

#if HWY_TARGET == HWY_SCALAR
template <bool kStreams, typename T>
void decode_block(const float* table, float scale, const std::uint8_t* pairs, T* to) {
  T numbers[16];
  scale_table(table, scale, numbers);
  for (std::int64_t i = 0; i < kQuantizedBlock; i += 2) {
    to[i] = numbers[pairs[i / 2] >> 4];
    to[i + 1] = numbers[pairs[i / 2] & 15];
  }
}
#else
// Numbers are looked up byte by byte, by the one look-up of 16 entries that all targets have: a
// plane holds the same byte of all 16 numbers. Interleaving joins what planes gave, but within
// blocks of 16 bytes only, so the codes are first put where that leaves the weights in order.
constexpr std::int64_t kPlane = 16;          // bytes of a plane, and of the pairs read at once
constexpr std::int64_t kGroup = 2 * kPlane;  // weights decoded at once
static_assert(kQuantizedBlock % kGroup == 0);
using ByteTag = hn::CappedTag<std::uint8_t, kGroup>;
using ByteVec = hn::Vec<ByteTag>;
constexpr std::int64_t kBytes = HWY_MIN(HWY_MAX_BYTES, kGroup);  // of a ByteVec

/// For each byte of the vectors of codes of a group, the pair that its code is in.
template <std::int64_t kSize>
constexpr std::array<std::uint8_t, kGroup> places_of_pairs() {
  constexpr std::int64_t kRun = kPlane / kSize;  // weights of a block of 16 bytes
  std::array<std::uint8_t, kGroup> places{};
  for (std::int64_t at = 0; at < kGroup; ++at) {
    const std::int64_t vector = at / kBytes, block = at % kBytes / kPlane, byte = at % kPlane;
    const std::int64_t weight =
        vector * kBytes + byte / kRun * (kBytes / kSize) + block * kRun + byte % kRun;
    places[static_cast<std::size_t>(at)] = static_cast<std::uint8_t>(weight / 2);
  }
  return places;
}

/// The planes of 16 numbers of `kSize` bytes, each in every block of 16 bytes.
template <std::int64_t kSize>
struct Planes {
  explicit Planes(const std::uint8_t* numbers) {
    const ByteTag u8;
    const hn::Repartition<std::uint32_t, ByteTag> u32;
    const hn::Repartition<std::uint64_t, ByteTag> u64;
    // The bytes of 8 or 4 numbers, by their place in the number.
    HWY_ALIGN static constexpr std::uint8_t kOf2[kPlane] = {0, 2, 4, 6, 8, 10, 12, 14,
                                                            1, 3, 5, 7, 9, 11, 13, 15};
    HWY_ALIGN static constexpr std::uint8_t kOf4[kPlane] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                            2, 6, 10, 14, 3, 7, 11, 15};
    const auto order = hn::LoadDup128(u8, kSize == 2 ? kOf2 : kOf4);
    const auto sorted = [&](std::int64_t i) HWY_ATTR {
      return hn::BitCast(u32,
                         hn::TableLookupBytes(hn::LoadDup128(u8, numbers + i * kPlane), order));
    };
    const auto join = [&](auto first, auto second, ByteVec* planes) HWY_ATTR {
      const auto a = hn::BitCast(u64, first), b = hn::BitCast(u64, second);
      planes[0] = hn::BitCast(u8, hn::InterleaveLower(u64, a, b));
      planes[1] = hn::BitCast(u8, hn::InterleaveUpper(u64, a, b));
    };
    const auto a = sorted(0), b = sorted(1);
    if constexpr (kSize == 2) {
      join(a, b, of);
    } else {
      const auto c = sorted(2), d = sorted(3);
      join(hn::InterleaveLower(u32, a, b), hn::InterleaveLower(u32, c, d), of);
      join(hn::InterleaveUpper(u32, a, b), hn::InterleaveUpper(u32, c, d), of + 2);
    }
  }
  ByteVec of[kSize];
};

/// Writes the weights of a vector of codes.
template <bool kStreams>
HWY_INLINE void write_weights(const Planes<2>& planes, ByteVec codes, std::uint8_t* to) {
  const ByteTag u8;
  const auto low = hn::TableLookupBytes(planes.of[0], codes);
  const auto high = hn::TableLookupBytes(planes.of[1], codes);
  put<kStreams>(hn::InterleaveLower(u8, low, high), u8, to);
  put<kStreams>(hn::InterleaveUpper(u8, low, high), u8, to + kBytes);
}

template <bool kStreams>
HWY_INLINE void write_weights(const Planes<4>& planes, ByteVec codes, std::uint8_t* to) {
  const ByteTag u8;
  const hn::Repartition<std::uint16_t, ByteTag> u16;
  const auto a = hn::TableLookupBytes(planes.of[0], codes);
  const auto b = hn::TableLookupBytes(planes.of[1], codes);
  const auto c = hn::TableLookupBytes(planes.of[2], codes);
  const auto d = hn::TableLookupBytes(planes.of[3], codes);
  const auto join = [&](auto first, auto second, std::uint8_t* at) HWY_ATTR {
    const auto low = hn::BitCast(u16, first), high = hn::BitCast(u16, second);
    put<kStreams>(hn::BitCast(u8, hn::InterleaveLower(u16, low, high)), u8, at);
    put<kStreams>(hn::BitCast(u8, hn::InterleaveUpper(u16, low, high)), u8, at + kBytes);
  };
  join(hn::InterleaveLower(u8, a, b), hn::InterleaveLower(u8, c, d), to);
  join(hn::InterleaveUpper(u8, a, b), hn::InterleaveUpper(u8, c, d), to + 2 * kBytes);
}

template <bool kStreams, typename T>
HWY_INLINE void decode_block(const float* table, float scale, const std::uint8_t* pairs, T* to) {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
  HWY_ALIGN static constexpr std::array<std::uint8_t, kGroup> kPlaces = places_of_pairs<kSize>();
  const ByteTag d;
  HWY_ALIGN T numbers[16];
  scale_table(table, scale, numbers);
  const Planes<kSize> planes(reinterpret_cast<const std::uint8_t*>(numbers));
  auto* const bytes = reinterpret_cast<std::uint8_t*>(to);
  for (std::int64_t i = 0; i < kQuantizedBlock; i += kGroup) {
    const auto group = hn::LoadDup128(d, pairs + i / 2);
    for (std::int64_t k = 0; k < kGroup; k += kBytes) {
      // The first weight of a pair is its upper half; it stands in an even byte.
      const auto pair = hn::TableLookupBytes(group, hn::Load(d, kPlaces.data() + k));
      const auto codes = hn::And(hn::OddEven(pair, hn::ShiftRight<4>(pair)), hn::Set(d, 15));
      write_weights<kStreams>(planes, codes, bytes + (i + k) * kSize);
    }
  }
}
#endif

/// Whether stores around the cache are possible and pay, for whole lines of a tensor.
bool streaming_pays(const TensorView& to) {
  return to.bytes() >= kStreamBytes && reinterpret_cast<std::uintptr_t>(to.data) % kLine == 0;
}

/// The scale of each block.
class BlockScales {
 public:
  explicit BlockScales(const DequantizeArgs& args) {
    const QuantizedSizes sizes = quantized_sizes(args.format, args.dst.shape, args.joined);
    numbers_ = reinterpret_cast<const float*>(args.src.data + sizes.scales_begin);
    if (!has_coded_scales(args.format)) return;
    codes_ = args.src.as<std::uint8_t>() + sizes.scale_codes_begin;
    map_ = dynamic_map(true).data();
    joined_ = joined_layout(args.dst.shape, args.joined);
  }
  float of(std::int64_t block) const {
    if (codes_ == nullptr) return numbers_[block];
    std::size_t p = 0;
    while (block >= joined_.parts[p].first_block + joined_.parts[p].blocks) ++p;
    const JoinedScales& part = joined_.parts[p];
    const std::int64_t group = (block - part.first_block) / kScaleGroup;
    return map_[codes_[block]] * numbers_[part.mean + 1 + group] + numbers_[part.mean];
  }

 private:
  const float* numbers_ = nullptr;
  const std::uint8_t* codes_ = nullptr;
  const float* map_ = nullptr;
  JoinedLayout joined_{};
};

template <bool kStreams, typename T>
void decode_whole_blocks(const DequantizeArgs& args, std::int64_t begin, std::int64_t end) {
  const float* const table = code_table(args.format).data();
  const auto* const codes = args.src.as<std::uint8_t>();
  const BlockScales scales(args);
  T* const to = args.dst.as<T>();
  for (std::int64_t block = begin; block < end; ++block) {
    const std::int64_t first = block * kQuantizedBlock;
    decode_block<kStreams>(table, scales.of(block), codes + first / 2, to + first);
  }
  if constexpr (kStreams) hwy::FlushStream();
}

template <typename T>
void decode_blocks(const DequantizeArgs& args, std::int64_t begin, std::int64_t end) {
  static_assert(kQuantizedBlock * sizeof(T) % kLine == 0);
  T* const to = args.dst.as<T>();
  const bool streams = streaming_pays(args.dst);
  const std::int64_t whole = args.dst.numel() / kQuantizedBlock;
  (streams ? decode_whole_blocks<true, T> : decode_whole_blocks<false, T>)(args, begin,
                                                                           HWY_MIN(end, whole));
  const std::int64_t first = whole * kQuantizedBlock, count = args.dst.numel() - first;
  if (end <= whole || count == 0) return;
  HWY_ALIGN std::uint8_t last_codes[kQuantizedBlock / 2] = {};
  HWY_ALIGN T last[kQuantizedBlock];
  std::memcpy(last_codes, args.src.as<std::uint8_t>() + first / 2,
              static_cast<std::size_t>((count + 1) / 2));
  decode_block<false>(code_table(args.format).data(), BlockScales(args).of(whole), last_codes,
                      last);
  std::memcpy(to + first, last, static_cast<std::size_t>(count) * sizeof(T));
}

/// Weights of a row whose codes are `codes`, as fp32.
HWY_INLINE FloatVec int8_weights(hn::Vec<hn::RebindToSigned<FloatTag>> codes, FloatVec scale) {
  return hn::Mul(hn::Mul(hn::ConvertTo(FloatTag(), codes), scale), splat(kInt8Step));
}

/// Writes a row's weights in whole vectors; returns how many. The scale is no NaN.
template <bool kStreams, typename T>
HWY_INLINE std::int64_t decode_vectors(const std::int8_t* codes, float scale, std::int64_t columns,
                                       T* to) {
  const hn::RebindToSigned<FloatTag> d32;
  const hn::Rebind<std::int8_t, FloatTag> d8;
  std::int64_t i = 0;
  for (; i + float_lanes() <= columns; i += float_lanes()) {
    const auto code = hn::PromoteTo(d32, hn::LoadU(d8, codes + i));
    put<kStreams>(int8_weights(code, splat(scale)), to + i);
  }
  return i;
}

#if HWY_TARGET != HWY_SCALAR
/// Two vectors at once, one of the weights in even places and one of those in odd places: their
/// rounded halves are then joined by a blend, without moving any between lanes.
template <bool kStreams>
HWY_INLINE std::int64_t decode_vectors(const std::int8_t* codes, float scale, std::int64_t columns,
                                       bfloat16* to) {
  const hn::RebindToSigned<FloatTag> d32;
  const hn::RepartitionToNarrow<decltype(d32)> d16;
  const hn::Rebind<std::int8_t, decltype(d16)> d8;
  const hn::RebindToUnsigned<decltype(d16)> bits;
  std::int64_t i = 0;
  for (; i + 2 * float_lanes() <= columns; i += 2 * float_lanes()) {
    const auto both = hn::BitCast(d32, hn::PromoteTo(d16, hn::LoadU(d8, codes + i)));
    const auto even = hn::ShiftRight<16>(hn::ShiftLeft<16>(both));
    const auto odd = hn::ShiftRight<16>(both);
    const auto low = rounded_above_bfloat16(int8_weights(even, splat(scale)));
    const auto high = rounded_above_bfloat16(int8_weights(odd, splat(scale)));
    put<kStreams>(hn::OddEven(hn::BitCast(bits, high), hn::BitCast(bits, hn::ShiftRight<16>(low))),
                  bits, reinterpret_cast<std::uint16_t*>(to) + i);
  }
  return i;
}
#endif

template <bool kStreams, typename T>
void decode_row(const std::int8_t* codes, float scale, std::int64_t columns, T* to) {
  const hn::RebindToSigned<FloatTag> d32;
  const hn::Rebind<std::int8_t, FloatTag> d8;
  std::int64_t i = std::isnan(scale) ? 0 : decode_vectors<kStreams>(codes, scale, columns, to);
  for (; i < columns; i += float_lanes()) {
    HWY_ALIGN std::int8_t last[kMaxLanes] = {};
    const std::int64_t count = HWY_MIN(columns - i, float_lanes());
    std::memcpy(last, codes + i, static_cast<std::size_t>(count));
    const auto code = hn::PromoteTo(d32, hn::Load(d8, last));
    store_n(int8_weights(code, splat(scale)), to + i, count);
  }
}

template <typename T>
void decode_rows(const DequantizeArgs& args, std::int64_t begin, std::int64_t end) {
  const QuantizedSizes sizes = quantized_sizes(args.format, args.dst.shape);
  const std::int64_t columns = args.dst.numel() / sizes.scales;
  const auto* const codes = reinterpret_cast<const std::int8_t*>(args.src.data);
  const auto* const scales = reinterpret_cast<const float*>(args.src.data + sizes.scales_begin);
  T* const to = args.dst.as<T>();
  const bool streams = streaming_pays(args.dst) && columns * sizeof(T) % kLine == 0;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t first = row * columns;
    (streams ? decode_row<true, T> : decode_row<false, T>)(codes + first, scales[row], columns,
                                                           to + first);
  }
  if (streams) hwy::FlushStream();
}

void dequantize_range(const DequantizeArgs& args, std::int64_t begin, std::int64_t end) {
  with_float_type(args.dst.dtype, [&]<typename T>(T) {
    (has_short_codes(args.format) ? decode_blocks<T> : decode_rows<T>)(args, begin, end);
  });
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(dequantize_range);

}  // namespace

void dequantize(const DequantizeArgs& args, Stream& stream) {
  check_arguments(args);
  const std::int64_t numel = args.dst.numel();
  if (numel == 0) return;
  if (const auto apart = arguments_apart(args); !apart.empty()) {
    for (const DequantizeArgs& own : apart) dequantize(own, stream);
    return;
  }
  const std::int64_t pieces = has_short_codes(args.format)
                                  ? (numel + kQuantizedBlock - 1) / kQuantizedBlock
                                  : quantized_sizes(args.format, args.dst.shape).scales;
  // About 16 Ki elements are worth a thread.
  const std::int64_t least =
      std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(numel / pieces, 1));
  parallel_for(pieces, least, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(dequantize_range)(args, begin, end);
  });
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE

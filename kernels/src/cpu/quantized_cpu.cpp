#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/quantized_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"

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

/// A full vector of the table's entries for codes of 0 to 15, one in a byte.
HWY_INLINE FloatVec look_up(const float* table, const std::uint8_t* codes) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> d32;
  const hn::Rebind<std::uint8_t, FloatTag> d8;
  const auto indices = hn::PromoteTo(d32, hn::LoadU(d8, codes));
#if HWY_TARGET == HWY_AVX3
  return hn::TableLookupLanes(hn::LoadU(d, table), hn::IndicesFromVec(d, indices));
#elif HWY_TARGET == HWY_AVX2
  const auto place = hn::IndicesFromVec(d, hn::And(indices, hn::Set(d32, 7)));
  const auto is_upper = hn::RebindMask(d, hn::Gt(indices, hn::Set(d32, 7)));
  return hn::IfThenElse(is_upper, hn::TableLookupLanes(hn::LoadU(d, table + 8), place),
                        hn::TableLookupLanes(hn::LoadU(d, table), place));
#else
  return hn::GatherIndex(d, table, indices);
#endif
}

/// Writes the 16 numbers that the codes of a block stand for.
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
using ByteTag = hn::FixedTag<std::uint8_t, 16>;
using ByteVec = hn::Vec<ByteTag>;
constexpr std::int64_t kPairs = 16;  // bytes of a ByteVec
static_assert(kQuantizedBlock % (2 * kPairs) == 0);

/// Codes of 2 * kPairs weights, one in a byte, of as many halves of bytes.
struct SplitCodes {
  explicit SplitCodes(const std::uint8_t* pairs) {
    const ByteTag d;
    const auto both = hn::LoadU(d, pairs);
    const auto first = hn::And(hn::ShiftRight<4>(both), hn::Set(d, 15));
    const auto second = hn::And(both, hn::Set(d, 15));
    lower = hn::InterleaveLower(d, first, second);
    upper = hn::InterleaveUpper(d, first, second);
  }
  ByteVec lower, upper;
};

/// Stores a vector, around the cache if kStreams; then `to` is aligned to it.
template <bool kStreams, typename D, typename V, typename T>
HWY_INLINE void put(V v, D d, T* to) {
  if constexpr (kStreams) {
    hn::Stream(v, d, to);
  } else {
    hn::StoreU(v, d, to);
  }
}

template <bool kStreams>
HWY_INLINE void decode_block(const float* table, float scale, const std::uint8_t* pairs,
                             float* to) {
  const ByteTag d;
  HWY_ALIGN float numbers[16];
  HWY_ALIGN std::uint8_t codes[kQuantizedBlock];
  scale_table(table, scale, numbers);
  for (std::int64_t i = 0; i < kQuantizedBlock; i += 2 * kPairs) {
    const SplitCodes split(pairs + i / 2);
    hn::Store(split.lower, d, codes + i);
    hn::Store(split.upper, d, codes + i + kPairs);
  }
  for (std::int64_t i = 0; i < kQuantizedBlock; i += float_lanes()) {
    put<kStreams>(look_up(numbers, codes + i), FloatTag(), to + i);
  }
}

/// Looks the bytes of the rounded numbers up: each number is rounded once, not each weight. T is
/// bfloat16 or float16.
template <bool kStreams, typename T>
HWY_INLINE void decode_block(const float* table, float scale, const std::uint8_t* pairs, T* to) {
  const ByteTag d;
  HWY_ALIGN T numbers[16];
  scale_table(table, scale, numbers);
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(numbers);
  const auto first = hn::Load(d, bytes), second = hn::Load(d, bytes + kPairs);
  const auto low = hn::ConcatEven(d, second, first), high = hn::ConcatOdd(d, second, first);
  auto* const out = reinterpret_cast<std::uint8_t*>(to);
  for (std::int64_t i = 0; i < kQuantizedBlock; i += 2 * kPairs) {
    const SplitCodes split(pairs + i / 2);
    std::uint8_t* at = out + 2 * i;
    for (const ByteVec codes : {split.lower, split.upper}) {
      const auto low_bytes = hn::TableLookupBytes(low, codes);
      const auto high_bytes = hn::TableLookupBytes(high, codes);
      put<kStreams>(hn::InterleaveLower(d, low_bytes, high_bytes), d, at);
      put<kStreams>(hn::InterleaveUpper(d, low_bytes, high_bytes), d, at + kPairs);
      at += 2 * kPairs;
    }
  }
}
#endif

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
  static_assert(kQuantizedBlock * sizeof(T) % 64 == 0);
  T* const to = args.dst.as<T>();
  const bool streams =
      args.dst.bytes() >= kStreamBytes && reinterpret_cast<std::uintptr_t>(to) % 64 == 0;
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

template <typename T>
void decode_rows(const DequantizeArgs& args, std::int64_t begin, std::int64_t end) {
  const QuantizedSizes sizes = quantized_sizes(args.format, args.dst.shape);
  const std::int64_t columns = args.dst.numel() / sizes.scales;
  const auto* const codes = reinterpret_cast<const std::int8_t*>(args.src.data);
  const auto* const scales = reinterpret_cast<const float*>(args.src.data + sizes.scales_begin);
  const hn::RebindToSigned<FloatTag> d32;
  const hn::Rebind<std::int8_t, FloatTag> d8;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int8_t* const from = codes + row * columns;
    T* const to = args.dst.as<T>() + row * columns;
    const auto scale = splat(scales[row]);
    for_each_vector(columns, [&](std::int64_t i, std::int64_t lanes) HWY_ATTR {
      HWY_ALIGN std::int8_t last[kMaxLanes] = {};
      const std::int8_t* at = from + i;
      if (lanes < float_lanes()) {
        std::memcpy(last, at, static_cast<std::size_t>(HWY_MIN(lanes, kMaxLanes)));
        at = last;
      }
      const auto code = hn::ConvertTo(FloatTag(), hn::PromoteTo(d32, hn::LoadU(d8, at)));
      store_n(hn::Mul(hn::Mul(code, scale), splat(kInt8Step)), to + i, lanes);
    });
  }
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

void dequantize(const DequantizeArgs& args, Stream&) {
  check_arguments(args);
  const std::int64_t numel = args.dst.numel();
  if (numel == 0) return;
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

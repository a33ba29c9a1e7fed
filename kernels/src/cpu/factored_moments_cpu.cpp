#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/factored_moments_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/block_square.h"
#include "cpu/random_rounding.h"
#include "cpu/simd.h"
#include "cpu/stream_store.h"

#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "cpu/cpu_kernels.h"
#include "cpu/exact_accumulator.h"
#include "cpu/parallel.h"
#include "factored_arguments.h"
#include "tessera/kernels/exact_sum.h"

// Steps of an optimizer whose second moments are factored (factored_moments.h). Each thread takes a
// stretch of the shard, whatever matrices lie there. All sums over elements are of integers, and
// the mean of row moments is that of 256 lanes: lane l adds rows l, l + 256, ... in order; then in
// each 32 lanes those 16, 8, 4, 2 and 1 apart are added, and so are the eight sums, 4, 2 and 1
// apart.
//
// Bytes per element: squares 4, update squares 4, step 12, and 2 more with a parameter.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

// ---- Sums of squares of rows and columns --------------------------------------------------------

using SquareTag = hn::CappedTag<double, 8>;
using SquareWordTag = hn::RebindToSigned<SquareTag>;
using SquareWordVec = hn::Vec<SquareWordTag>;
constexpr std::int64_t kMostSquares = 8;  // in a vector

HWY_INLINE std::int64_t square_lanes() { return static_cast<std::int64_t>(hn::Lanes(SquareTag())); }

/// Factors of gradients and of their squares.
struct SquareScales {
  float gradient;
  double words;
};

struct SquareWords {
  SquareWordVec high, low;
};

/// The words of a vector of squares; `count` is its number of lanes, or less: the rest is zero.
HWY_INLINE SquareWords square_words(const float* gradient, std::int64_t count,
                                    const SquareScales& scales) {
  const SquareTag d;
  const SquareWordTag di;
  const hn::Rebind<float, SquareTag> d32;
  HWY_ALIGN float last[kMostSquares] = {};
  if (count < square_lanes()) {
    std::memcpy(last, gradient,
                static_cast<std::size_t>(std::min(count, kMostSquares)) * sizeof(float));
    gradient = last;
  }
  const auto g = hn::Mul(hn::LoadU(d32, gradient), hn::Set(d32, scales.gradient));
  const auto wide = hn::PromoteTo(d, g);
  const auto scaled = hn::Mul(hn::Mul(wide, wide), hn::Set(d, scales.words));
  const auto whole = hn::Trunc(scaled);
  // Added to 2^52, a number is rounded to a whole one, which the lower bits are.
  const auto shift = hn::Set(d, 0x1p52);
  const auto rest = hn::MulAdd(hn::Sub(scaled, whole), hn::Set(d, 0x1p44), shift);
  return {hn::ConvertTo(di, whole), hn::Sub(hn::BitCast(di, rest), hn::BitCast(di, shift))};
}

/// Threads add to the same sums.
HWY_INLINE void add_shared(std::int64_t& sum, std::int64_t value) {
  if (value == 0) return;
  std::atomic_ref<std::int64_t>(sum).fetch_add(value, std::memory_order_relaxed);
}

HWY_INLINE void add_lanes(std::int64_t& sum, SquareWordVec words) {
  HWY_ALIGN std::int64_t lanes[kMostSquares];
  hn::Store(words, SquareWordTag(), lanes);
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < square_lanes(); ++i) total += lanes[i];
  add_shared(sum, total);
}

/// Adds a row's vector of words to the row's and the columns' sums.
HWY_INLINE void add_square_words(const SquareWords& words, SquareWords& of_row,
                                 SquareWords& of_columns) {
  of_row.high = hn::Add(of_row.high, words.high);
  of_row.low = hn::Add(of_row.low, words.low);
  of_columns.high = hn::Add(of_columns.high, words.high);
  of_columns.low = hn::Add(of_columns.low, words.low);
}

/// A thread's sums of columns, with room for a vector after the last.
struct ColumnSums {
  std::vector<std::int64_t> high, low;

  explicit ColumnSums(std::int64_t columns)
      : high(static_cast<std::size_t>(columns + kMostSquares)), low(high.size()) {}
};

/// Adds `count` columns, from `column` on, of as many rows as there are numbers kRow: of the first
/// they begin at `gradient`. Rows' sums stay in registers, columns' are read and written once for
/// all these rows.
template <std::size_t... kRow>
HWY_INLINE void add_rows(std::index_sequence<kRow...>, const float* gradient, std::int64_t stride,
                         std::int64_t column, std::int64_t count, const SquareScales& scales,
                         ColumnSums& columns, std::int64_t* row_sums) {
  const SquareWordTag d;
  const auto zero = hn::Zero(d);
  SquareWords rows[] = {(static_cast<void>(kRow), SquareWords{zero, zero})...};
  std::int64_t* const high = columns.high.data() + column;
  std::int64_t* const low = columns.low.data() + column;
  for (std::int64_t c = 0; c < count; c += square_lanes()) {
    const std::int64_t n = HWY_MIN(square_lanes(), count - c);
    SquareWords sums{hn::LoadU(d, high + c), hn::LoadU(d, low + c)};
    (add_square_words(
         square_words(gradient + static_cast<std::int64_t>(kRow) * stride + c, n, scales),
         rows[kRow], sums),
     ...);
    hn::StoreU(sums.high, d, high + c);
    hn::StoreU(sums.low, d, low + c);
  }
  ((add_lanes(row_sums[kRow * kFactoredWords], rows[kRow].high),
    add_lanes(row_sums[kRow * kFactoredWords + 1], rows[kRow].low)),
   ...);
}

/// So many rows at a time: with two words each, their sums fill half of AVX2's registers.
constexpr std::int64_t kStripRows = 4;

/// Adds elements [begin, end) of a matrix, which are at `gradient`.
void add_matrix_squares(const FactoredMatrix& matrix, const float* gradient, std::int64_t begin,
                        std::int64_t end, const SquareScales& scales, std::int64_t* sums) {
  ColumnSums columns(matrix.columns);
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t row = i / matrix.columns, column = i % matrix.columns;
    const float* const from = gradient + (i - begin);
    std::int64_t* const row_sums = sums + (matrix.place + row) * kFactoredWords;
    if (column == 0 && end - i >= kStripRows * matrix.columns) {
      add_rows(std::make_index_sequence<kStripRows>(), from, matrix.columns, 0, matrix.columns,
               scales, columns, row_sums);
      i += kStripRows * matrix.columns;
    } else {
      const std::int64_t count = HWY_MIN(matrix.columns - column, end - i);
      add_rows(std::make_index_sequence<1>(), from, 0, column, count, scales, columns, row_sums);
      i += count;
    }
  }
  std::int64_t* const column_sums = sums + (matrix.place + matrix.rows) * kFactoredWords;
  for (std::int64_t c = 0; c < matrix.columns; ++c) {
    add_shared(column_sums[c * kFactoredWords], columns.high[static_cast<std::size_t>(c)]);
    add_shared(column_sums[c * kFactoredWords + 1], columns.low[static_cast<std::size_t>(c)]);
  }
}

/// Adds `count` elements of a vector; no other thread has them.
void add_vector_squares(const float* gradient, std::int64_t count, const SquareScales& scales,
                        std::int64_t* sums) {
  const SquareWordTag d;
  HWY_ALIGN std::int64_t high[kMostSquares], low[kMostSquares];
  for (std::int64_t i = 0; i < count; i += square_lanes()) {
    const std::int64_t n = HWY_MIN(square_lanes(), count - i);
    const SquareWords words = square_words(gradient + i, n, scales);
    hn::Store(words.high, d, high);
    hn::Store(words.low, d, low);
    for (std::int64_t k = 0; k < n; ++k) {
      sums[(i + k) * kFactoredWords] += high[k];
      sums[(i + k) * kFactoredWords + 1] += low[k];
    }
  }
}

/// Elements [begin, end) of the shard, which are of the part.
void factored_squares_range(const FactoredSquaresArgs& args, double scale, const FactoredPart& part,
                            std::int64_t begin, std::int64_t end) {
  const float* const gradient = args.gradient.as<float>() + begin;
  const SquareScales scales{*args.gradient_scale.as<float>(), scale};
  std::int64_t* const sums = args.sums.as<std::int64_t>();
  const std::int64_t first = part.first + (begin - part.begin);
  if (part.matrix.is_vector()) {
    add_vector_squares(gradient, end - begin, scales,
                       sums + (part.matrix.place + first) * kFactoredWords);
  } else {
    add_matrix_squares(part.matrix, gradient, first, first + (end - begin), scales, sums);
  }
}

// ---- Updates ------------------------------------------------------------------------------------

/// Calls body(i, count, row_factor, column_factors) for the stretches of rows that elements
/// [begin, end) of the shard are; of a vector, all are one, in a row whose factor is 1.
template <typename Body>
HWY_INLINE void for_each_row(const FactoredPart& part, const float* factors, std::int64_t begin,
                             std::int64_t end, const Body& body) {
  const FactoredMatrix& matrix = part.matrix;
  factors += matrix.place;
  const std::int64_t first = part.first + (begin - part.begin);
  if (matrix.is_vector()) return body(begin, end - begin, 1.0F, factors + first);
  std::int64_t row = first / matrix.columns, column = first % matrix.columns;
  for (std::int64_t i = begin; i < end; ++row, column = 0) {
    const std::int64_t count = HWY_MIN(matrix.columns - column, end - i);
    body(i, count, factors[row], factors + matrix.rows + column);
    i += count;
  }
}

/// u of a vector of elements.
HWY_INLINE FloatVec update_of(FloatVec gradient, FloatVec gradient_scale, FloatVec row_factor,
                              FloatVec column_factor) {
  return hn::Mul(hn::Mul(gradient_scale, gradient), hn::Mul(row_factor, column_factor));
}

/// Blocks whose updates are in the first-level cache together: 4 KiB.
constexpr std::int64_t kUpdateBlocks = 16;

/// Writes u of elements [begin, end) of the shard to `updates`.
HWY_INLINE void write_updates(const FactoredUpdateSquaresArgs& args, const FactoredPart& part,
                              std::int64_t begin, std::int64_t end, float* updates) {
  const float* const gradient = args.gradient.as<float>();
  const auto scale = splat(args.gradient_scale ? *args.gradient_scale.as<float>() : 1.0F);
  if (!args.factors) {
    for_each_vector(end - begin, [&](std::int64_t k, std::int64_t n) HWY_ATTR {
      store_n(hn::Mul(scale, load_n(gradient + begin + k, n)), updates + k, n);
    });
    return;
  }
  for_each_row(
      part, args.factors.as<float>(), begin, end,
      [&](std::int64_t i, std::int64_t count, float row, const float* columns) HWY_ATTR {
        float* const to = updates + (i - begin);
        for_each_vector(count, [&](std::int64_t k, std::int64_t n) HWY_ATTR {
          store_n(update_of(load_n(gradient + i + k, n), scale, splat(row), load_n(columns + k, n)),
                  to + k, n);
        });
      });
}

/// Elements [begin, end) of the shard, which are of the part; no block has others of these.
void factored_update_squares_range(const FactoredUpdateSquaresArgs& args, const FactoredPart& part,
                                   std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kElements = kUpdateBlocks * kNormBlock;
  ExactAccumulator sum;
  for (std::int64_t from = begin / kNormBlock * kNormBlock; from < end; from += kElements) {
    HWY_ALIGN float updates[kElements] = {};
    const std::int64_t first = HWY_MAX(begin, from), last = HWY_MIN(end, from + kElements);
    write_updates(args, part, first, last, updates + (first - from));
    for (std::int64_t k = 0; k < last - from; k += kNormBlock) sum.add(block_square(updates + k));
  }
  sum.add_to(args.words.as<std::int64_t>() + part.matrix.index * kExactSumWords);
}

#define TESSERA_FACTORED_FUNCTION HWY_INLINE
#include "factored_numbers.inc.h"
#undef TESSERA_FACTORED_FUNCTION

/// fp64 as the compiler has it: of this library it fuses no operations.
struct WideMath {
  static HWY_INLINE double mul(double a, double b) { return a * b; }
  static HWY_INLINE double add(double a, double b) { return a + b; }
  static HWY_INLINE double div(double a, double b) { return a / b; }
  static HWY_INLINE double sqrt(double a) { return std::sqrt(a); }
};

/// `parameter` is null if it is absent or written later.
template <typename P>
void step_elements(const FactoredStepArgs& args, const FactoredPart& part,
                   const FactoredRates& rates, P* parameter, std::int64_t begin, std::int64_t end) {
  float* const master = args.master.as<float>();
  const float* const gradient = args.gradient.as<float>();
  const auto gradient_scale = splat(*args.gradient_scale.as<float>());
  const auto keep = splat(rates.keep), scale = splat(-rates.scale);
  for_each_row(
      part, args.factors.as<float>(), begin, end,
      [&](std::int64_t first, std::int64_t count, float row, const float* columns) HWY_ATTR
      __attribute__((always_inline)) {
        const auto body = [&](std::int64_t k, std::int64_t n) HWY_ATTR
            __attribute__((always_inline)) {
          const std::int64_t i = first + k;
          prefetch_ahead(gradient + i, 1024);
          prefetch_ahead(master + i, 1024);
          const auto u = update_of(load_n(gradient + i, n), gradient_scale, splat(row),
                                   load_n(columns + k, n));
          const auto p = hn::MulAdd(scale, u, hn::Mul(keep, load_n(master + i, n)));
          store_n(p, master + i, n);
          if (parameter != nullptr) store_n(p, parameter + i, n);
        };
        for_each_vector(count, body);
      });
}

/// Elements [begin, end) of the shard, which are of the part.
void factored_step_range(const FactoredStepArgs& args, const FactoredPart& part, std::int64_t begin,
                         std::int64_t end) {
  const auto sum_of = [&](const TensorView& squares) {
    return std::bit_cast<double>(
        exact_sum_bits(squares.as<std::int64_t>() + part.matrix.index * kExactSumWords));
  };
  const double size = args.parameter_squares ? sum_of(args.parameter_squares) : 0.0;
  const FactoredRates rates =
      factored_rates<WideMath>(part.matrix, args.scalars.as<float>(), sum_of(args.update_squares),
                               args.parameter_squares ? &size : nullptr);
  if (!args.parameter || !args.stochastic_rounding) {
    if (args.parameter.dtype == DType::kFloat16) {
      return step_elements(args, part, rates, args.parameter.as<float16>(), begin, end);
    }
    bfloat16* const parameter = args.parameter ? args.parameter.as<bfloat16>() : nullptr;
    return step_elements(args, part, rates, parameter, begin, end);
  }
  const RandomKey key = load_random_key(args.rounding_key.as<std::int64_t>());
  for (std::int64_t i = begin; i < end; i += kRoundingChunk) {
    const std::int64_t chunk_end = HWY_MIN(end, i + kRoundingChunk);
    constexpr bfloat16* kLater = nullptr;
    step_elements(args, part, rates, kLater, i, chunk_end);
    write_rounded_at_random(args.master.as<float>() + i, args.parameter.as<bfloat16>() + i, key,
                            args.first_index + i, chunk_end - i);
  }
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(factored_squares_range);
HWY_EXPORT(factored_update_squares_range);
HWY_EXPORT(factored_step_range);

#define TESSERA_FACTORED_FUNCTION inline
#include "factored_numbers.inc.h"
#undef TESSERA_FACTORED_FUNCTION

struct NumberMath {
  static double mul(double a, double b) { return a * b; }
  static double add(double a, double b) { return a + b; }
  static double div(double a, double b) { return a / b; }
  static double sqrt(double a) { return std::sqrt(a); }
};

/// Elements per chunk: a hundred KB of traffic or more, tens of microseconds.
constexpr std::int64_t kFactoredGrain = 16384;
static_assert(kFactoredGrain % kNormBlock == 0);

/// Calls body(part, begin, end) on the team for stretches [begin, end) of the shard's n elements
/// that are of one part. Where stretches of a part meet a block of kNormBlock elements begins.
template <typename Body>
void for_each_stretch(std::span<const FactoredPart> parts, std::int64_t n, const Body& body) {
  // One parallel region for all parts: there may be hundreds of small ones.
  parallel_for(n, kFactoredGrain, [&](std::int64_t begin, std::int64_t end) {
    for (const FactoredPart& part : parts) {
      const std::int64_t from = std::max(begin, part.begin);
      const std::int64_t to = std::min(end, part.begin + part.numel);
      if (from < to) body(part, from, to);
    }
  });
}

/// In the order that the head of this file says.
double row_mean(const float* moments, std::int64_t rows) {
  double lane[256] = {};
  for (std::int64_t row = 0; row < rows; ++row)
    lane[row % 256] += static_cast<double>(moments[row]);
  for (int apart = 16; apart > 0; apart /= 2) {
    for (int i = 0; i < 256; ++i) {
      if (i % 32 < apart) lane[i] += lane[i + apart];
    }
  }
  for (int apart = 4; apart > 0; apart /= 2) {
    for (int i = 0; i < apart; ++i) lane[32 * i] += lane[32 * (i + apart)];
  }
  return lane[0] / static_cast<double>(rows);
}

/// The moments and factors of a matrix.
void update_matrix(const FactoredMomentsArgs& args, const FactoredMatrix& matrix, bool skips) {
  float* const moments = args.moments.as<float>() + matrix.place;
  float* const factors = args.factors.as<float>() + matrix.place;
  const std::int64_t numbers = matrix.numbers();
  const std::int64_t rows =
      matrix.is_vector() ? 0 : matrix.rows;  // that have a factor of their own
  if (!skips) {
    const double norm = *args.gradient_norm.as<double>();
    const double scale = factored_scale(norm);
    const std::int64_t* const sums = args.sums.as<std::int64_t>() + matrix.place * kFactoredWords;
    for (std::int64_t i = 0; i < numbers; ++i) {
      const double sum = factored_sum<NumberMath>(sums + i * kFactoredWords, scale);
      const std::int64_t terms = matrix.is_vector() ? 1 : i < rows ? matrix.columns : matrix.rows;
      moments[i] =
          factored_moment<NumberMath>(moments[i], sum, terms, norm, args.scalars.as<float>());
    }
  }
  const double mean = rows > 0 ? row_mean(moments, rows) : 1.0;
  for (std::int64_t i = 0; i < numbers; ++i) {
    factors[i] = factored_factor<NumberMath>(moments[i], i < rows ? mean : 1.0);
  }
}

}  // namespace

void factored_squares(const FactoredSquaresArgs& args, Stream&) {
  check_arguments(args);
  const double scale = factored_scale(*args.gradient_norm.as<double>());
  if (scale == 0.0) return;
  for_each_stretch(args.parts, args.gradient.numel(),
                   [&](const FactoredPart& part, std::int64_t begin, std::int64_t end) {
                     HWY_DYNAMIC_DISPATCH(factored_squares_range)(args, scale, part, begin, end);
                   });
}

void factored_moments(const FactoredMomentsArgs& args, Stream&) {
  check_arguments(args);
  const bool skips = args.skip && *args.skip.as<std::int64_t>() != 0;
  parallel_for(static_cast<std::int64_t>(args.matrices.size()), 1,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   update_matrix(args, args.matrices[static_cast<std::size_t>(i)], skips);
                 }
               });
}

void factored_update_squares(const FactoredUpdateSquaresArgs& args, Stream&) {
  check_arguments(args);
  for_each_stretch(args.parts, args.gradient.numel(),
                   [&](const FactoredPart& part, std::int64_t begin, std::int64_t end) {
                     HWY_DYNAMIC_DISPATCH(factored_update_squares_range)(args, part, begin, end);
                   });
}

void factored_step(const FactoredStepArgs& args, Stream&) {
  check_arguments(args);
  if (args.skip && *args.skip.as<std::int64_t>() != 0) return;
  for_each_stretch(args.parts, args.master.numel(),
                   [&](const FactoredPart& part, std::int64_t begin, std::int64_t end) {
                     HWY_DYNAMIC_DISPATCH(factored_step_range)(args, part, begin, end);
                   });
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE

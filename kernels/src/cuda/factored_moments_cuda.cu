#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

#include "cuda/cuda_kernels.h"
#include "cuda/cuda_launch.h"
#include "cuda/exact_accumulator_cuda.h"
#include "cuda/optimizer_cuda.h"
#include "factored_arguments.h"
#include "simt.h"
#include "tessera/kernels/cuda_options.h"
#include "tessera/kernels/exact_sum.h"

// Steps of an optimizer whose second moments are factored (factored_moments.h), with the CPU's
// bits: sums over elements are of integers, and all other operations are rounded as written.
// gradient and master (n) fp32, parameter (n) bf16, fp16 or absent, moments and factors (numbers)
// fp32, sums (numbers, 2) int64. Bytes per element: squares 4, update squares 4, step 12, and 2
// more with a parameter.
//
// Parts of matrices go to the kernels by value, as many as fit; a block finds its own by bisection,
// and takes a tile of it.

namespace tessera::cuda {
namespace {

constexpr int kFactoredWarps = 8;
constexpr int kFactoredThreads = 32 * kFactoredWarps;
/// A launch takes so many: with up to 72 bytes each, they and the rest fit the 4 KiB that
/// parameters may take everywhere.
constexpr int kFactoredItems = 48;

/// Parts or matrices of a launch, and where their blocks begin among all.
template <typename Item>
struct FactoredItems {
  int count = 0;
  std::int64_t blocks = 0;
  Item item[kFactoredItems] = {};
  std::int64_t first_block[kFactoredItems] = {};

  /// The last whose first block is not behind `block`.
  __device__ int item_of(std::int64_t block) const {
    int low = 0, high = count;  // it is in [low, high)
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first_block[middle] <= block ? low : high) = middle;
    }
    return low;
  }
};
using PartItems = FactoredItems<FactoredPart>;
using MatrixItems = FactoredItems<FactoredMatrix>;

/// Calls launch(items) for as many items as one launch takes at a time; blocks_of(item) says how
/// many blocks each has. Those without any are left out.
template <typename Item, typename BlocksOf, typename Launch>
void for_each_items(std::span<const Item> all, const BlocksOf& blocks_of, const Launch& launch) {
  FactoredItems<Item> items;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::int64_t blocks = blocks_of(all[i]);
    if (blocks > 0) {
      items.item[items.count] = all[i];
      items.first_block[items.count++] = items.blocks;
      items.blocks += blocks;
    }
    if (items.blocks > 0 && (items.count == kFactoredItems || i + 1 == all.size())) {
      launch(items);
      items = {};
    }
  }
}

/// fp64 that the compiler does not fuse.
struct DeviceMath {
  static __device__ double mul(double a, double b) { return __dmul_rn(a, b); }
  static __device__ double add(double a, double b) { return __dadd_rn(a, b); }
  static __device__ double div(double a, double b) { return __ddiv_rn(a, b); }
  static __device__ double sqrt(double a) { return __dsqrt_rn(a); }
};

#define TESSERA_FACTORED_FUNCTION __device__ inline
#include "factored_numbers.inc.h"
#undef TESSERA_FACTORED_FUNCTION

/// The place of an element in its matrix.
struct FactoredPlace {
  std::int64_t row;
  std::uint32_t column;
};

/// Places of the elements of a tile: one division of 64 bits, and then of 32 bits each, which are a
/// fraction of its instructions.
class TilePlaces {
 public:
  /// The tile begins at element `begin` of the shard, or where the part does.
  __device__ TilePlaces(const FactoredPart& part, std::int64_t begin)
      : begin_(begin > part.begin ? begin : part.begin),
        columns_(static_cast<std::uint32_t>(part.matrix.columns)) {
    const std::int64_t element = part.first + (begin_ - part.begin);
    row_ = element / part.matrix.columns;
    column_ = static_cast<std::uint32_t>(element - row_ * part.matrix.columns);
  }

  /// The place of element i of the shard: a row has at most kFactoredTerms.
  __device__ FactoredPlace of(std::int64_t i) const {
    const std::uint32_t column = column_ + static_cast<std::uint32_t>(i - begin_);
    const std::uint32_t rows = column / columns_;
    return {row_ + rows, column - rows * columns_};
  }

 private:
  std::int64_t begin_, row_;
  std::uint32_t column_, columns_;
};

// ---- Sums of squares of rows and columns --------------------------------------------------------

struct SquareWords {
  std::int64_t high = 0, low = 0;

  /// Adds the words of g^2.
  __device__ void add(float g, double scale) {
    const auto wide = static_cast<double>(g);
    const double scaled = __dmul_rn(__dmul_rn(wide, wide), scale);
    const auto whole = static_cast<std::int64_t>(scaled);
    // Added to 2^52, a number is rounded to a whole one, which the lower bits are.
    const double rest = __fma_rn(__dadd_rn(scaled, -static_cast<double>(whole)), 0x1p44, 0x1p52);
    high += whole;
    low += static_cast<std::int64_t>(bits_of(rest) - bits_of(0x1p52));
  }
};

__device__ inline void add_word(std::int64_t* sum, std::int64_t word) {
  if (word != 0) atomicAdd(reinterpret_cast<ExactWord*>(sum), static_cast<ExactWord>(word));
}

/// A block's tile of a matrix: its warps take rows in turn, a lane kColumnsPerLane columns of each,
/// 32 apart, so that a warp reads whole lines wherever rows begin. The columns' words stay in
/// registers; the row's are summed over the warp.
constexpr int kColumnsPerLane = 4;
constexpr int kTileColumns = 32 * kColumnsPerLane;
constexpr int kTileRows = 16 * kFactoredWarps;
/// Rows that a warp has on their way at once: 64 bytes for each thread.
constexpr int kSquareRowsAtOnce = 4;
constexpr std::int64_t kVectorTile = 8 * kFactoredThreads;  // elements

/// The rows that a part has elements of.
struct PartRows {
  std::int64_t begin, end;
};
__host__ __device__ inline PartRows part_rows(const FactoredPart& part) {
  const std::int64_t columns = part.matrix.columns;
  return {part.first / columns, (part.first + part.numel + columns - 1) / columns};
}

std::int64_t square_tiles(const FactoredPart& part) {
  if (part.numel == 0) return 0;
  if (part.matrix.is_vector()) return ceil_div(part.numel, kVectorTile);
  const PartRows rows = part_rows(part);
  return ceil_div(rows.end - rows.begin, kTileRows) * ceil_div(part.matrix.columns, kTileColumns);
}

struct SquareSums {
  const float* gradient;
  const float* gradient_scale;  // (1)
  const double* gradient_norm;  // (1)
  std::int64_t* sums;           // (numbers, kFactoredWords)
};

/// No other thread has these elements.
__device__ inline void add_vector_tile(const SquareSums& a, const FactoredPart& part,
                                       std::int64_t tile, float gradient_scale, double scale) {
  const std::int64_t begin = tile * kVectorTile;
  const std::int64_t end = begin + kVectorTile < part.numel ? begin + kVectorTile : part.numel;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kFactoredThreads) {
    SquareWords words;
    words.add(__fmul_rn(gradient_scale, a.gradient[part.begin + i]), scale);
    std::int64_t* const sum = a.sums + (part.matrix.place + part.first + i) * kFactoredWords;
    sum[0] += words.high;
    sum[1] += words.low;
  }
}

/// Adds the columns' words of all warps of a block to the sums.
__device__ inline void add_columns(const SquareWords (&of_lane)[kColumnsPerLane],
                                   std::int64_t* sums, int columns) {
  using SquareColumns = std::int64_t[kFactoredWarps * kTileColumns * kFactoredWords];
  SIMT_SHARED(SquareColumns, of_warps);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  std::int64_t* const of_warp = of_warps + warp * kTileColumns * kFactoredWords;
#pragma unroll
  for (int j = 0; j < kColumnsPerLane; ++j) {
    of_warp[(j * 32 + lane) * kFactoredWords] = of_lane[j].high;
    of_warp[(j * 32 + lane) * kFactoredWords + 1] = of_lane[j].low;
  }
  __syncthreads();
  static_assert(kTileColumns * kFactoredWords == kFactoredThreads);
  const int word = static_cast<int>(threadIdx.x);
  if (word >= columns * kFactoredWords) return;
  std::int64_t sum = 0;
#pragma unroll
  for (int w = 0; w < kFactoredWarps; ++w) sum += of_warps[w * kFactoredThreads + word];
  add_word(sums + word, sum);
}

__device__ inline void add_matrix_tile(const SquareSums& a, const FactoredPart& part,
                                       std::int64_t tile, float gradient_scale, double scale) {
  const FactoredMatrix& matrix = part.matrix;
  const PartRows rows = part_rows(part);
  const std::int64_t across = (matrix.columns + kTileColumns - 1) / kTileColumns;
  const std::int64_t first_row = rows.begin + tile / across * kTileRows;
  const std::int64_t last_row = first_row + kTileRows < rows.end ? first_row + kTileRows : rows.end;
  const std::int64_t first_column = tile % across * kTileColumns;
  const std::int64_t left = matrix.columns - first_column;
  const int columns = static_cast<int>(left < kTileColumns ? left : kTileColumns);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  SquareWords of_columns[kColumnsPerLane];
  for (std::int64_t row = first_row + warp * kSquareRowsAtOnce; row < last_row;
       row += kFactoredWarps * kSquareRowsAtOnce) {  // by whole warps
    float loaded[kSquareRowsAtOnce][kColumnsPerLane];
#pragma unroll
    for (int r = 0; r < kSquareRowsAtOnce; ++r) {
      // A part may begin and end inside of a row, where others have elements.
      const std::int64_t begin = (row + r) * matrix.columns + first_column - part.first;
#pragma unroll
      for (int j = 0; j < kColumnsPerLane; ++j) {
        const std::int64_t i = begin + j * 32 + lane;
        const bool is_mine =
            row + r < last_row && j * 32 + lane < columns && i >= 0 && i < part.numel;
        loaded[r][j] = is_mine ? a.gradient[part.begin + i] : 0.0F;
      }
    }
#pragma unroll
    for (int r = 0; r < kSquareRowsAtOnce; ++r) {
      SquareWords of_row;
#pragma unroll
      for (int j = 0; j < kColumnsPerLane; ++j) {
        SquareWords words;
        words.add(__fmul_rn(gradient_scale, loaded[r][j]), scale);
        of_row.high += words.high;
        of_row.low += words.low;
        of_columns[j].high += words.high;
        of_columns[j].low += words.low;
      }
      of_row.high = simt::warp_reduce(of_row.high, simt::Plus{});
      of_row.low = simt::warp_reduce(of_row.low, simt::Plus{});
      if (lane < kFactoredWords && row + r < last_row) {
        add_word(a.sums + (matrix.place + row + r) * kFactoredWords + lane,
                 lane == 0 ? of_row.high : of_row.low);
      }
    }
  }
  add_columns(of_columns, a.sums + (matrix.place + matrix.rows + first_column) * kFactoredWords,
              columns);
}

__global__ void __launch_bounds__(kFactoredThreads, 3)
    add_row_and_column_squares(const SquareSums a, const __grid_constant__ PartItems parts) {
  const double scale = factored_scale(*a.gradient_norm);
  if (scale == 0.0) return;
  const float gradient_scale = *a.gradient_scale;
  const int p = parts.item_of(blockIdx.x);
  const FactoredPart& part = parts.item[p];
  const std::int64_t tile = blockIdx.x - parts.first_block[p];
  if (part.matrix.columns == 1) {
    add_vector_tile(a, part, tile, gradient_scale, scale);
  } else {
    add_matrix_tile(a, part, tile, gradient_scale, scale);
  }
}

// ---- Moments and factors ------------------------------------------------------------------------

struct Moments {
  const double* gradient_norm;  // (1)
  const float* scalars;         // (kOptimizerScalars)
  const std::int64_t* skip;     // (1); null: never
  const std::int64_t* sums;     // (numbers, kFactoredWords)
  float* moments;               // (numbers)
  float* factors;               // (numbers)
};

/// A thread takes one number: all moments, and factors but those of rows.
__global__ void __launch_bounds__(kFactoredThreads)
    update_moments(const Moments a, const __grid_constant__ MatrixItems matrices) {
  const int m = matrices.item_of(blockIdx.x);
  const FactoredMatrix& matrix = matrices.item[m];
  const bool is_vector = matrix.columns == 1;
  const std::int64_t i =
      (blockIdx.x - matrices.first_block[m]) * std::int64_t{kFactoredThreads} + threadIdx.x;
  if (i >= (is_vector ? matrix.rows : matrix.rows + matrix.columns)) return;
  const std::int64_t number = matrix.place + i;
  const bool is_row = !is_vector && i < matrix.rows;
  float moment = a.moments[number];
  if (a.skip == nullptr || *a.skip == 0) {
    const double norm = *a.gradient_norm;
    const double sum =
        factored_sum<DeviceMath>(a.sums + number * kFactoredWords, factored_scale(norm));
    const std::int64_t terms = is_vector ? 1 : is_row ? matrix.columns : matrix.rows;
    moment = factored_moment<DeviceMath>(moment, sum, terms, norm, a.scalars);
    a.moments[number] = moment;
  }
  if (!is_row) a.factors[number] = factored_factor<DeviceMath>(moment, 1.0);
}

/// A block makes the factors of a matrix's rows. The mean of their moments is that of 256 lanes:
/// lane l adds rows l, l + 256, ... in order; then in each 32 lanes those 16, 8, 4, 2 and 1 apart
/// are added, and so are the eight sums, 4, 2 and 1 apart.
__global__ void __launch_bounds__(kFactoredThreads)
    write_row_factors(const Moments a, const __grid_constant__ MatrixItems matrices) {
  static_assert(kFactoredThreads == 256);
  const FactoredMatrix& matrix = matrices.item[blockIdx.x];
  const float* const moments = a.moments + matrix.place;
  double sum = 0.0;
  for (std::int64_t row = threadIdx.x; row < matrix.rows; row += kFactoredThreads) {
    sum = __dadd_rn(sum, static_cast<double>(moments[row]));
  }
  const double mean = __ddiv_rn(simt::block_sum(sum), static_cast<double>(matrix.rows));
  for (std::int64_t row = threadIdx.x; row < matrix.rows; row += kFactoredThreads) {
    a.factors[matrix.place + row] = factored_factor<DeviceMath>(moments[row], mean);
  }
}

// ---- Sums of squares of updates -----------------------------------------------------------------

/// Eight threads take a block of kNormBlock elements of the shard, thread j elements j, j + 8, ...:
/// so they add in the order of exact_squares. A block of threads takes a tile of 16384 elements and
/// ends with some ten atomic additions.
constexpr int kSquareLanes = 8;
constexpr int kBlocksAtOnce = kFactoredThreads / kSquareLanes;
constexpr int kTileBlocks = 8 * kBlocksAtOnce;

struct UpdateSquares {
  const float* gradient;
  const float* gradient_scale;  // (1); null: 1
  const float* factors;         // (numbers); null: all 1
  std::int64_t* words;          // (matrices, kExactSumWords)
};

/// Numbers that make updates of the gradients of a part.
struct Updates {
  const float* factors;  // of the matrix; null: all 1
  float gradient_scale;

  /// u of the element at `place` in a matrix of these sizes.
  __device__ float of(float gradient, const FactoredMatrix& matrix, FactoredPlace place) const {
    const float g = __fmul_rn(gradient_scale, gradient);
    if (factors == nullptr) return g;
    const float row = factors[place.row];
    if (matrix.columns == 1) return __fmul_rn(g, row);
    return __fmul_rn(g, __fmul_rn(row, factors[matrix.rows + place.column]));
  }
};

/// The thread's share of the squares of a block, of those elements that are of the part.
__device__ inline double lane_square(const UpdateSquares& a, const Updates& updates,
                                     const FactoredPart& part, const TilePlaces& places,
                                     std::int64_t block, int lane) {
  constexpr int kElements = static_cast<int>(kNormBlock) / kSquareLanes;
  const std::int64_t first = block * kNormBlock + lane, end = part.begin + part.numel;
  float gradient[kElements];
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    const std::int64_t i = first + k * kSquareLanes;
    gradient[k] = i >= part.begin && i < end ? a.gradient[i] : 0.0F;
  }
  double sum = 0.0;
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    const std::int64_t i = first + k * kSquareLanes;
    if (i < part.begin || i >= end) continue;
    const auto u = static_cast<double>(updates.of(gradient[k], part.matrix, places.of(i)));
    sum = __fma_rn(u, u, sum);  // the square is exact: rounded once either way
  }
  return sum;
}

__global__ void __launch_bounds__(kFactoredThreads)
    add_update_squares(const UpdateSquares a, const __grid_constant__ PartItems parts) {
  SIMT_SHARED(ExactWords, sum);
  clear_words<kFactoredThreads>(sum);
  const int p = parts.item_of(blockIdx.x);
  const FactoredPart& part = parts.item[p];
  const Updates updates{a.factors == nullptr ? nullptr : a.factors + part.matrix.place,
                        a.gradient_scale == nullptr ? 1.0F : *a.gradient_scale};
  const std::int64_t begin =
      part.begin / kNormBlock + (blockIdx.x - parts.first_block[p]) * std::int64_t{kTileBlocks};
  const int lane = static_cast<int>(threadIdx.x) % kSquareLanes;
  const TilePlaces places(part, begin * kNormBlock);
  ExactWindow window;
  for (int i = 0; i < kTileBlocks; i += kBlocksAtOnce) {
    // Blocks behind the part have squares of 0.
    const std::int64_t block = begin + i + threadIdx.x / kSquareLanes;
    double square = lane_square(a, updates, part, places, block, lane);
    square = __dadd_rn(square, __shfl_xor_sync(~0U, square, 4));
    square = __dadd_rn(square, __shfl_xor_sync(~0U, square, 2));
    square = __dadd_rn(square, __shfl_xor_sync(~0U, square, 1));
    window.add(sum, lane == 0 ? square : 0.0);
  }
  window.flush(sum);
  add_words<kFactoredThreads>(sum, a.words + part.matrix.index * kExactSumWords);
}

// ---- The step -----------------------------------------------------------------------------------

/// The sums of squares of matrices, of which their rates are made.
struct StepSquares {
  const std::int64_t* update_squares;     // (matrices, kExactSumWords)
  const std::int64_t* parameter_squares;  // (matrices, kExactSumWords); null: none
  const float* scalars;                   // (kOptimizerScalars)
};

/// A thread makes the rates of a part's matrix: (kFactoredItems), in scratch, for the launch that
/// follows.
__global__ void __launch_bounds__(64)
    write_rates(const StepSquares a, const __grid_constant__ PartItems parts,
                FactoredRates* rates) {
  static_assert(kFactoredItems <= 64);
  const int p = static_cast<int>(threadIdx.x);
  if (p >= parts.count) return;
  const FactoredMatrix& matrix = parts.item[p].matrix;
  const std::int64_t words = matrix.index * kExactSumWords;
  const double size = a.parameter_squares == nullptr ? 0.0 : rounded(a.parameter_squares + words);
  rates[p] = factored_rates<DeviceMath>(matrix, a.scalars, rounded(a.update_squares + words),
                                        a.parameter_squares == nullptr ? nullptr : &size);
}

/// FactoredStepArgs as the device takes them; P is the parameter's type.
template <typename P>
struct FactoredShard {
  using Parameter = P;
  float* master;
  const float* gradient;
  P* parameter;                      // null: none
  const float* gradient_scale;       // (1)
  const float* factors;              // (numbers)
  const FactoredRates* rates;        // (kFactoredItems)
  const std::int64_t* skip;          // (1); null: never
  const std::int64_t* rounding_key;  // (kRandomKeyWords)
  std::int64_t first_index;
  bool aligned;  // groups of four of every tensor
};

/// A block takes a tile of so many elements, at multiples of it in the shard.
constexpr std::int64_t kStepTile = 4 * kGroup * kFactoredThreads;

/// The master of an element after the step.
__device__ inline float stepped(float master, float u, const FactoredRates& rates) {
  return __fmaf_rn(-rates.scale, u, __fmul_rn(rates.keep, master));
}

/// Elements [i, i + kGroup) of the shard, all of the part.
template <WriteOut kWriteOut, typename P>
__device__ void step_group(const FactoredShard<P>& a, const FactoredMatrix& matrix,
                           const TilePlaces& places, const Updates& updates,
                           const FactoredRates& rates, std::int64_t i) {
  const RandomKey key = rounding_key<kWriteOut>(a);
  const Group<float> gradient = load_group(a.gradient + i);
  Group<float> master = load_group(a.master + i);
  FactoredPlace place = places.of(i);
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    master.v[j] = stepped(master.v[j], updates.of(gradient.v[j], matrix, place), rates);
    if (++place.column == matrix.columns) place = {place.row + 1, 0};
  }
  store_group(a.master + i, master);
  if constexpr (kWriteOut != WriteOut::kNone) {
    store_group(a.parameter + i, rounded<kWriteOut>(a, key, master, i));
  }
}

template <WriteOut kWriteOut, typename P>
__device__ void step_element(const FactoredShard<P>& a, const FactoredMatrix& matrix,
                             const TilePlaces& places, const Updates& updates,
                             const FactoredRates& rates, std::int64_t i) {
  const RandomKey key = rounding_key<kWriteOut>(a);
  const float u = updates.of(a.gradient[i], matrix, places.of(i));
  const float master = stepped(a.master[i], u, rates);
  a.master[i] = master;
  if constexpr (kWriteOut == WriteOut::kAtRandom) {
    std::uint32_t words[kGroup];
    draw(key, a.first_index + i, words);
    a.parameter[i] = rounded_at_random(master, words[0]);
  } else if constexpr (kWriteOut == WriteOut::kNearest) {
    a.parameter[i] = simt::from_float<P>(master);
  }
}

template <WriteOut kWriteOut, typename P>
__global__ void __launch_bounds__(kFactoredThreads)
    step_parts(const FactoredShard<P> a, const __grid_constant__ PartItems parts) {
  if (a.skip != nullptr && *a.skip != 0) return;
  const float gradient_scale = *a.gradient_scale;
  for (std::int64_t block = blockIdx.x; block < parts.blocks; block += gridDim.x) {
    const int p = parts.item_of(block);
    const FactoredPart& part = parts.item[p];
    const FactoredRates rates = a.rates[p];
    const Updates updates{a.factors + part.matrix.place, gradient_scale};
    const std::int64_t tile = part.begin / kStepTile + (block - parts.first_block[p]);
    const std::int64_t part_end = part.begin + part.numel;
    const TilePlaces places(part, tile * kStepTile);
    for (std::int64_t k = kGroup * std::int64_t{threadIdx.x}; k < kStepTile;
         k += kGroup * kFactoredThreads) {
      const std::int64_t group = tile * kStepTile + k;
      const std::int64_t begin = part.begin > group ? part.begin : group;
      const std::int64_t end = part_end < group + kGroup ? part_end : group + kGroup;
      if (a.aligned && end - begin == kGroup) {
        step_group<kWriteOut>(a, part.matrix, places, updates, rates, group);
      } else {
        for (std::int64_t i = begin; i < end; ++i) {
          step_element<kWriteOut>(a, part.matrix, places, updates, rates, i);
        }
      }
    }
  }
}

template <typename P>
FactoredShard<P> factored_shard(const FactoredStepArgs& args, const FactoredRates* rates) {
  FactoredShard<P> a{.master = args.master.as<float>(),
                     .gradient = device_data<const float>(args.gradient),
                     .parameter = device_data<P>(args.parameter),
                     .gradient_scale = args.gradient_scale.as<float>(),
                     .factors = args.factors.as<float>(),
                     .rates = rates,
                     .skip = device_data<const std::int64_t>(args.skip),
                     .rounding_key = device_data<const std::int64_t>(args.rounding_key),
                     .first_index = args.first_index,
                     .aligned = false};
  a.aligned = is_aligned(a.master, alignof(Group<float>)) &&
              is_aligned(a.gradient, alignof(Group<float>)) &&
              is_aligned(a.parameter, alignof(Group<P>));
  return a;
}

}  // namespace

void factored_squares(const FactoredSquaresArgs& args, Stream& stream) {
  check_arguments(args);
  const SquareSums a{.gradient = args.gradient.as<float>(),
                     .gradient_scale = args.gradient_scale.as<float>(),
                     .gradient_norm = args.gradient_norm.as<double>(),
                     .sums = args.sums.as<std::int64_t>()};
  for_each_items(args.parts, square_tiles, [&](const PartItems& parts) {
    simt::launch(add_row_and_column_squares, blocks_for(parts.blocks, 1), kFactoredThreads, 0,
                 handle(stream), a, parts);
  });
}

void factored_moments(const FactoredMomentsArgs& args, Stream& stream) {
  check_arguments(args);
  const Moments a{.gradient_norm = args.gradient_norm.as<double>(),
                  .scalars = args.scalars.as<float>(),
                  .skip = device_data<const std::int64_t>(args.skip),
                  .sums = args.sums.as<std::int64_t>(),
                  .moments = args.moments.as<float>(),
                  .factors = args.factors.as<float>()};
  const auto blocks_of = [](const FactoredMatrix& matrix) {
    return ceil_div(matrix.numbers(), kFactoredThreads);
  };
  for_each_items(args.matrices, blocks_of, [&](const MatrixItems& matrices) {
    simt::launch(update_moments, blocks_for(matrices.blocks, 1), kFactoredThreads, 0,
                 handle(stream), a, matrices);
  });
  const auto has_rows = [](const FactoredMatrix& matrix) {
    return std::int64_t{matrix.is_vector() ? 0 : 1};
  };
  for_each_items(args.matrices, has_rows, [&](const MatrixItems& matrices) {
    simt::launch(write_row_factors, blocks_for(matrices.blocks, 1), kFactoredThreads, 0,
                 handle(stream), a, matrices);
  });
}

void factored_update_squares(const FactoredUpdateSquaresArgs& args, Stream& stream) {
  check_arguments(args);
  const UpdateSquares a{.gradient = args.gradient.as<float>(),
                        .gradient_scale = device_data<const float>(args.gradient_scale),
                        .factors = device_data<const float>(args.factors),
                        .words = args.words.as<std::int64_t>()};
  const auto blocks_of = [](const FactoredPart& part) {
    if (part.numel == 0) return std::int64_t{0};
    return ceil_div(ceil_div(part.begin + part.numel, kNormBlock) - part.begin / kNormBlock,
                    kTileBlocks);
  };
  for_each_items(args.parts, blocks_of, [&](const PartItems& parts) {
    simt::launch(add_update_squares, blocks_for(parts.blocks, 1), kFactoredThreads, 0,
                 handle(stream), a, parts);
  });
}

void factored_step(const FactoredStepArgs& args, Stream& stream) {
  check_arguments(args);
  const UpdateStream on{
      .stream = handle(stream),
      .most_blocks = cuda_attention(cuda_stream(stream)).options.optimizer_blocks};
  const auto blocks_of = [](const FactoredPart& part) {
    if (part.numel == 0) return std::int64_t{0};
    return ceil_div(part.begin + part.numel, kStepTile) - part.begin / kStepTile;
  };
  const StepSquares squares{
      .update_squares = device_data<const std::int64_t>(args.update_squares),
      .parameter_squares = device_data<const std::int64_t>(args.parameter_squares),
      .scalars = args.scalars.as<float>()};
  auto* const rates = static_cast<FactoredRates*>(
      cuda_stream(stream).scratch(kFactoredItems * sizeof(FactoredRates)));
  with_write_out<float>(args, [&]<WriteOut kWriteOut, typename P>() {
    const auto shard = factored_shard<P>(args, rates);
    for_each_items(args.parts, blocks_of, [&](const PartItems& parts) {
      simt::launch(write_rates, 1, 64, 0, on.stream, squares, parts, rates);
      simt::launch(step_parts<kWriteOut, P>, on.grid(parts.blocks), kFactoredThreads, 0, on.stream,
                   shard, parts);
    });
  });
}

}  // namespace tessera::cuda

#pragma once

#include <cstdint>
#include <span>

#include "tessera/core/tensor.h"
#include "tessera/kernels/exact_sum.h"
#include "tessera/kernels/step_arguments.h"

// Second moments that are kept as one number for each row and column of a matrix (Shazeer and
// Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", 2018), of flat parameters
// that ranks hold shards of. A step has two sums over ranks; both are exact, so neither depends on
// where shards end:
//
//   1. factored_squares:  of g^2 in each row and column, with g = gradient_scale * gradient
//   2. ranks add these words; factored_moments makes moments and factors of them
//   3. factored_update_squares:  of u^2 in each matrix, with u = g * (row factor * column factor)
//   4. ranks add these words; factored_step subtracts u, as far as its root mean square allows
//
// Matrices have their numbers one after the other: a matrix of r rows and c columns r + c of them,
// rows first; a vector of n elements, and a matrix of one row or one column, n: one for each.
namespace tessera {

/// OptimizerState::block of a tensor with one element for each row and column of a matrix: it is
/// the only one that its optimizer keeps.
inline constexpr std::int64_t kFactoredBlock = 0;

/// A matrix of which moments are kept, or a vector.
struct FactoredMatrix {
  std::int64_t rows = 1;     ///< of a vector: its elements
  std::int64_t columns = 1;  ///< of a vector: 1
  std::int64_t place = 0;    ///< its first number among those of all
  std::int64_t index = 0;    ///< of its exact sums, among those of all
  SegmentRates rates{};

  bool is_vector() const { return columns == 1; }
  std::int64_t numel() const { return rows * columns; }
  std::int64_t numbers() const { return is_vector() ? rows : rows + columns; }
  bool operator==(const FactoredMatrix&) const = default;
};

/// A matrix of n elements as above: those of one row or one column are vectors.
constexpr FactoredMatrix factored_matrix(std::int64_t rows, std::int64_t columns,
                                         std::int64_t place, std::int64_t index,
                                         const SegmentRates& rates = {}) {
  if (rows == 1) return {columns, 1, place, index, rates};
  return {rows, columns, place, index, rates};
}

/// The part of a matrix that lies in a shard: elements [first, first + numel) of it, in row-major
/// order, are elements [begin, begin + numel) of the shard's views. Parts are disjoint.
struct FactoredPart {
  FactoredMatrix matrix{};
  std::int64_t begin = 0;
  std::int64_t first = 0;
  std::int64_t numel = 0;
};

// A sum of squares is two int64 words, in fixed point: with 2^e the smallest power of two above
// (1 + 2^-20) * gradient_norm^2, which bounds all of them, a square s is (exactly, in fp64)
//   s = (high * 2^-60 + low * 2^-104 + rest) * 2^e,  high and low integers, |rest| <= 2^-105
// high cut off and low rounded to nearest, ties to even. Words are added as integers, so that
// ranks exchange them with an ordinary all-reduce. Squares below 2^-105 of the squared norm count
// as zero. If the norm is zero, infinite or NaN, all words are zero.
inline constexpr int kFactoredWords = 2;
inline constexpr int kFactoredHighBits = 60, kFactoredLowBits = 44;
/// Most elements of a row, and of a column: their low words fit an int64.
inline constexpr std::int64_t kFactoredTerms = (std::int64_t{1} << 19) - 1;

/// By place in Optimizer::make_scalars of an optimizer that is_factored(); see adafactor.h.
enum class FactoredScalar : std::uint8_t {
  kLearningRate,      ///< before scales of parameters
  kDecay,             ///< of moments, in this step
  kEpsilon,           ///< added to squared gradients
  kParameterEpsilon,  ///< least root mean square of a parameter that counts
  kClipThreshold,     ///< largest root mean square of an update
};

/// sums[number] += the words of g^2, for each row and column of the parts.
struct FactoredSquaresArgs {
  TensorView gradient{};        // (n); fp32
  TensorView gradient_scale{};  // (1); fp32: the clip factor
  TensorView gradient_norm{};   // (1); fp64: no smaller than the norm of all g of all ranks
  std::span<const FactoredPart> parts{};
  TensorView sums{};  // (numbers, kFactoredWords); int64; updated
};

/// For each row and column with n elements, with s the fp64 value of its words, in fp64 rounded to
/// fp32 once:
///   moment = decay * moment + (1 - decay) * (s / n + epsilon)
/// and the factors of an update: of columns and vectors 1 / sqrt(moment), of rows
/// 1 / sqrt(moment / mean), where the mean is that of the matrix's row moments, added up in fp64 in
/// an order that depends on their number alone. If the norm is infinite or NaN, moments become NaN.
/// With `skip` not 0 moments are left as they are, and factors are of these.
struct FactoredMomentsArgs {
  TensorView gradient_norm{};  // (1); fp64: that of the sums
  TensorView scalars{};        // (kOptimizerScalars); fp32
  TensorView skip{};           // (1); int64; optional
  std::span<const FactoredMatrix> matrices{};
  TensorView sums{};     // (numbers, kFactoredWords); int64; of all ranks
  TensorView moments{};  // (numbers); fp32; updated
  TensorView factors{};  // (numbers); fp32; out
};

/// words[index of the matrix] += the squares of u, exactly, for each part. Squares of each block of
/// kNormBlock elements of the shard (which are of one matrix: others count as zeros) are first
/// added in fp64, in the order of exact_squares. Without factors u is g, and without a gradient
/// scale g is the gradient: so the squares of parameters are added.
struct FactoredUpdateSquaresArgs {
  TensorView gradient{};        // (n); fp32
  TensorView gradient_scale{};  // (1); fp32; optional
  std::span<const FactoredPart> parts{};
  TensorView factors{};  // (numbers); fp32; optional
  TensorView words{};    // (matrices, kExactSumWords); int64; updated
};

/// The update of each part, with rates and numel those of its matrix:
///   lr = rates.learning_rate_scale * learning rate
///        [* max(parameter epsilon, sqrt(parameter_squares / numel))]
///   p -= lr * rates.weight_decay * p + lr / max(1, sqrt(update_squares / numel) / threshold) * u
/// The numbers of a part are made in fp64 and rounded to fp32 once; the elements are
///   p = mul_add(-scale, u, mul(1 - lr * weight_decay, p))
/// in fp32, each operation rounded once.
struct FactoredStepArgs {
  TensorView master{};          // (n); fp32; updated
  TensorView gradient{};        // (n); fp32
  TensorView parameter{};       // (n); bf16 or fp16; optional: receives the rounded master
  TensorView gradient_scale{};  // (1); fp32
  std::span<const FactoredPart> parts{};
  TensorView factors{};            // (numbers); fp32
  TensorView update_squares{};     // (matrices, kExactSumWords); int64; of all ranks
  TensorView parameter_squares{};  // (matrices, kExactSumWords); int64; of all ranks; optional
  TensorView scalars{};            // (kOptimizerScalars); fp32
  TensorView skip{};               // (1); int64; optional: not 0: everything is left as it is
  /// See OptimizerStepArgs.
  bool stochastic_rounding = false;
  TensorView rounding_key{};
  std::int64_t first_index = 0;
};

}  // namespace tessera

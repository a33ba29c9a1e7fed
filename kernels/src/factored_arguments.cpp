#include "factored_arguments.h"

#include "random_key_argument.h"
#include "tessera/core/error.h"
#include "tessera/kernels/exact_sum.h"

namespace tessera {
namespace {

/// Checks of the views of one kernel.
struct FactoredViews {
  const char* kernel;

  void check(const char* name, const TensorView& view, std::int64_t numel, DType dtype) const {
    require((view || numel == 0) && view.numel() == numel && view.is_contiguous(),
            ErrorCode::kInvalidArgument, kernel, ": ", name, " has shape ", view.shape,
            ", expected ", numel, " contiguous elements");
    require(view.dtype == dtype, ErrorCode::kInvalidArgument, kernel, ": ", name, " is ",
            to_string(view.dtype), ", expected ", to_string(dtype));
  }

  /// Rows of `width` words; returns how many.
  std::int64_t check_rows(const char* name, const TensorView& view, std::int64_t width) const {
    require(view.dtype == DType::kInt64 && view.numel() % width == 0 && view.is_contiguous(),
            ErrorCode::kInvalidArgument, kernel, ": ", name, " has shape ", view.shape, " and is ",
            to_string(view.dtype), ", expected contiguous rows of ", width, " int64");
    return view.numel() / width;
  }

  void check_flat(const char* name, const TensorView& view) const {
    check(name, view, view.numel(), DType::kFloat32);
  }

  /// `numbers`: how many all matrices have together.
  void check_matrix(const FactoredMatrix& matrix, std::int64_t numbers) const {
    const bool has_shape =
        matrix.columns >= 1 && (matrix.is_vector() ? matrix.rows >= 0 : matrix.rows > 1);
    require(has_shape, ErrorCode::kInvalidArgument, kernel, ": a matrix of ", matrix.rows,
            " rows and ", matrix.columns, " columns; one of one row is a vector of one column");
    require(
        matrix.is_vector() || (matrix.rows <= kFactoredTerms && matrix.columns <= kFactoredTerms),
        ErrorCode::kInvalidArgument, kernel, ": a matrix of ", matrix.rows, " rows and ",
        matrix.columns, " columns; sums are exact for up to ", kFactoredTerms,
        " of each: split it");
    require(matrix.place >= 0 && matrix.place + matrix.numbers() <= numbers,
            ErrorCode::kInvalidArgument, kernel, ": a matrix has numbers [", matrix.place, ", ",
            matrix.place + matrix.numbers(), ") of ", numbers);
  }

  /// The part must lie in a shard of n elements.
  void check_part(const FactoredPart& part, std::int64_t n) const {
    require(part.begin >= 0 && part.numel >= 0 && part.begin + part.numel <= n,
            ErrorCode::kInvalidArgument, kernel, ": a part is [", part.begin, ", ",
            part.begin + part.numel, ") of a shard of ", n);
    require(part.first >= 0 && part.first + part.numel <= part.matrix.numel(),
            ErrorCode::kInvalidArgument, kernel, ": a part is elements [", part.first, ", ",
            part.first + part.numel, ") of a matrix of ", part.matrix.numel());
  }

  void check_index(const FactoredMatrix& matrix, std::int64_t matrices) const {
    require(matrix.index >= 0 && matrix.index < matrices, ErrorCode::kInvalidArgument, kernel,
            ": a matrix has exact sum ", matrix.index, " of ", matrices);
  }

  void check_skip(const TensorView& skip) const {
    if (skip) check("skip", skip, 1, DType::kInt64);
  }
};

}  // namespace

void check_arguments(const FactoredSquaresArgs& args) {
  constexpr FactoredViews kViews{"factored_squares"};
  kViews.check_flat("gradient", args.gradient);
  kViews.check("gradient_scale", args.gradient_scale, 1, DType::kFloat32);
  kViews.check("gradient_norm", args.gradient_norm, 1, DType::kFloat64);
  const std::int64_t numbers = kViews.check_rows("sums", args.sums, kFactoredWords);
  for (const FactoredPart& part : args.parts) {
    kViews.check_matrix(part.matrix, numbers);
    kViews.check_part(part, args.gradient.numel());
  }
}

void check_arguments(const FactoredMomentsArgs& args) {
  constexpr FactoredViews kViews{"factored_moments"};
  kViews.check("gradient_norm", args.gradient_norm, 1, DType::kFloat64);
  kViews.check("scalars", args.scalars, kOptimizerScalars, DType::kFloat32);
  kViews.check_skip(args.skip);
  const std::int64_t numbers = kViews.check_rows("sums", args.sums, kFactoredWords);
  kViews.check("moments", args.moments, numbers, DType::kFloat32);
  kViews.check("factors", args.factors, numbers, DType::kFloat32);
  for (const FactoredMatrix& matrix : args.matrices) kViews.check_matrix(matrix, numbers);
}

void check_arguments(const FactoredUpdateSquaresArgs& args) {
  constexpr FactoredViews kViews{"factored_update_squares"};
  kViews.check_flat("gradient", args.gradient);
  if (args.gradient_scale) {
    kViews.check("gradient_scale", args.gradient_scale, 1, DType::kFloat32);
  }
  if (args.factors) kViews.check_flat("factors", args.factors);
  const std::int64_t matrices = kViews.check_rows("words", args.words, kExactSumWords);
  for (const FactoredPart& part : args.parts) {
    // Without factors nobody reads numbers.
    kViews.check_matrix(part.matrix, args.factors ? args.factors.numel()
                                                  : part.matrix.place + part.matrix.numbers());
    kViews.check_part(part, args.gradient.numel());
    kViews.check_index(part.matrix, matrices);
  }
}

void check_arguments(const FactoredStepArgs& args) {
  constexpr FactoredViews kViews{"factored_step"};
  const std::int64_t n = args.master.numel();
  kViews.check_flat("master", args.master);
  kViews.check("gradient", args.gradient, n, DType::kFloat32);
  if (args.parameter) {
    const bool is_half = args.parameter.dtype == DType::kBFloat16 ||
                         (args.parameter.dtype == DType::kFloat16 && !args.stochastic_rounding);
    kViews.check("parameter", args.parameter, n, is_half ? args.parameter.dtype : DType::kBFloat16);
  }
  kViews.check("gradient_scale", args.gradient_scale, 1, DType::kFloat32);
  kViews.check_flat("factors", args.factors);
  kViews.check("scalars", args.scalars, kOptimizerScalars, DType::kFloat32);
  kViews.check_skip(args.skip);
  if (args.stochastic_rounding) {
    check_random_key("factored_step: rounding_key", args.rounding_key);
  }
  require(args.first_index >= 0, ErrorCode::kInvalidArgument, "factored_step: the first index is ",
          args.first_index);
  const std::int64_t matrices =
      kViews.check_rows("update_squares", args.update_squares, kExactSumWords);
  if (args.parameter_squares) {
    kViews.check("parameter_squares", args.parameter_squares, args.update_squares.numel(),
                 DType::kInt64);
  }
  for (const FactoredPart& part : args.parts) {
    kViews.check_matrix(part.matrix, args.factors.numel());
    kViews.check_part(part, n);
    kViews.check_index(part.matrix, matrices);
  }
}

}  // namespace tessera

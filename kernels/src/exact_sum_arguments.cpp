#include "exact_sum_arguments.h"

#include "tessera/core/error.h"
#include "tessera/kernels/exact_sum.h"

namespace tessera {
namespace {

void check_words(const char* kernel, const char* name, const TensorView& words) {
  require(words.dtype == DType::kInt64 && words.numel() == kExactSumWords && words.is_contiguous(),
          ErrorCode::kInvalidArgument, kernel, ": ", name, " has shape ", words.shape, " and is ",
          to_string(words.dtype), ", expected the ", kExactSumWords,
          " contiguous int64 of an exact sum");
}

void check_scaler(const char* kernel, const TensorView& words) {
  require(
      words.dtype == DType::kInt64 && words.numel() == kLossScalerWords && words.is_contiguous(),
      ErrorCode::kInvalidArgument, kernel, ": scaler has shape ", words.shape, " and is ",
      to_string(words.dtype), ", expected the ", static_cast<int>(kLossScalerWords),
      " contiguous int64 of a loss scaler");
}

}  // namespace

void check_arguments(const ExactSquaresArgs& args) {
  constexpr const char* kKernel = "exact_squares";
  require(args.x.numel() % kNormBlock == 0 && args.x.is_contiguous(), ErrorCode::kInvalidArgument,
          kKernel, ": x has shape ", args.x.shape, ", expected contiguous blocks of ", kNormBlock);
  require(is_compute_dtype(args.x.dtype), ErrorCode::kInvalidArgument, kKernel, ": x is ",
          to_string(args.x.dtype), ", expected fp32, bf16 or fp16");
  check_words(kKernel, "words", args.words);
}

void check_arguments(const ExactSumArgs& args) {
  constexpr const char* kKernel = "exact_sum";
  require(args.x.dtype == DType::kFloat32 && args.x.is_contiguous(), ErrorCode::kInvalidArgument,
          kKernel, ": x has shape ", args.x.shape, " and is ", to_string(args.x.dtype),
          ", expected contiguous fp32");
  check_words(kKernel, "words", args.words);
}

void check_arguments(const StepResultsArgs& args) {
  check_words("step_results", "losses", args.losses);
  check_words("step_results", "squares", args.squares);
  if (args.scaler) check_scaler("step_results", args.scaler);
}

void check_arguments(const LossScaleArgs& args) {
  if (args.scaler) check_scaler("loss_scale", args.scaler);
}

void check_arguments(const FindNonFiniteArgs& args) {
  constexpr const char* kKernel = "find_non_finite";
  require(args.x.is_contiguous() && is_compute_dtype(args.x.dtype), ErrorCode::kInvalidArgument,
          kKernel, ": x has shape ", args.x.shape, " and is ", to_string(args.x.dtype),
          ", expected contiguous fp32, bf16 or fp16");
  check_words(kKernel, "squares", args.squares);
  check_scaler(kKernel, args.scaler);
}

void check_arguments(const UpdateLossScalerArgs& args) {
  constexpr const char* kKernel = "update_loss_scaler";
  check_words(kKernel, "squares", args.squares);
  check_scaler(kKernel, args.scaler);
  require(args.candidates.dtype == DType::kFloat32 && args.candidates.numel() > 0 &&
              args.candidates.numel() % kOptimizerScalars == 0 &&
              args.scalars.numel() == kOptimizerScalars,
          ErrorCode::kInvalidArgument, kKernel, ": candidates of shape ", args.candidates.shape,
          " and scalars of shape ", args.scalars.shape, ", expected fp32 rows of ",
          kOptimizerScalars);
}

}  // namespace tessera

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

}  // namespace

void check_arguments(const ExactSquaresArgs& args) {
  constexpr const char* kKernel = "exact_squares";
  require(args.x.numel() % kNormBlock == 0 && args.x.is_contiguous(), ErrorCode::kInvalidArgument,
          kKernel, ": x has shape ", args.x.shape, ", expected contiguous blocks of ", kNormBlock);
  require(args.x.dtype == DType::kFloat32 || args.x.dtype == DType::kBFloat16,
          ErrorCode::kInvalidArgument, kKernel, ": x is ", to_string(args.x.dtype),
          ", expected fp32 or bf16");
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
}

}  // namespace tessera

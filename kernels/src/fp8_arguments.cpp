#include "fp8_arguments.h"

#include "tessera/core/error.h"

namespace tessera {
namespace {

void check_numbers(const char* kernel, const char* name, const TensorView& view) {
  require(view.is_contiguous() && is_compute_dtype(view.dtype), ErrorCode::kInvalidArgument, kernel,
          ": ", name, " is ", view.shape, " of ", to_string(view.dtype),
          ", expected contiguous elements of fp32, bf16 or fp16");
}

void check_codes(const char* kernel, const TensorView& codes, std::int64_t n) {
  require(codes.numel() == n && codes.is_contiguous() && codes.dtype == DType::kUInt8,
          ErrorCode::kInvalidArgument, kernel, ": codes is ", codes.shape, " of ",
          to_string(codes.dtype), ", expected ", n, " contiguous elements of uint8");
}

void check_transposed(const char* kernel, const char* name, const Shape& of,
                      const TensorView& transposed) {
  require(of.rank() == 2 && transposed.shape == Shape({of[1], of[0]}) &&
              transposed.is_contiguous() && transposed.dtype == DType::kUInt8,
          ErrorCode::kInvalidArgument, kernel, ": transposed is ", transposed.shape, " of ",
          to_string(transposed.dtype), " and ", name, " is ", of,
          ", expected matrices, their rows and columns in turns, transposed contiguous and of "
          "uint8");
}

bool is_of_words(const TensorView& view) {
  return view.is_contiguous() && view.dtype == DType::kInt32;
}

}  // namespace

void check_amax(const char* kernel, const TensorView& amax) {
  require(amax.numel() == 1 && amax.dtype == DType::kInt32, ErrorCode::kInvalidArgument, kernel,
          ": amax is ", amax.shape, " of ", to_string(amax.dtype), ", expected one int32");
}

void check_arguments(const AmaxArgs& args) {
  check_numbers("amax", "x", args.x);
  check_amax("amax", args.amax);
}

void check_arguments(const MaxWordsArgs& args) {
  require(is_of_words(args.rows) && args.rows.shape.rank() == 2, ErrorCode::kInvalidArgument,
          "max_words: rows is ", args.rows.shape, " of ", to_string(args.rows.dtype),
          ", expected contiguous rows of int32");
  require(is_of_words(args.words) && args.words.numel() == args.rows.shape[1],
          ErrorCode::kInvalidArgument, "max_words: words is ", args.words.shape, " of ",
          to_string(args.words.dtype), ", expected ", args.rows.shape[1],
          " contiguous elements of int32");
}

void check_arguments(const Fp8EncodeArgs& args) {
  check_numbers("fp8_encode", "x", args.x);
  check_amax("fp8_encode", args.amax);
  const bool has_rows = args.codes || (!args.transposed && args.x.numel() > 0);
  if (has_rows) check_codes("fp8_encode", args.codes, args.x.numel());
  if (args.transposed) check_transposed("fp8_encode", "x", args.x.shape, args.transposed);
}

void check_arguments(const Fp8DecodeArgs& args) {
  check_numbers("fp8_decode", "y", args.y);
  check_amax("fp8_decode", args.amax);
  check_codes("fp8_decode", args.codes, args.y.numel());
}

void check_arguments(const Fp8TransposeArgs& args) {
  check_codes("fp8_transpose", args.codes, args.codes.numel());
  check_transposed("fp8_transpose", "codes", args.codes.shape, args.transposed);
}

void check_arguments(const RollFp8HistoryArgs& args) {
  require(is_of_words(args.history) && args.history.shape.rank() == 2, ErrorCode::kInvalidArgument,
          "roll_fp8_history: history is ", args.history.shape, " of ",
          to_string(args.history.dtype), ", expected contiguous rows of int32");
  const std::int64_t tensors = args.history.shape[0];
  for (const TensorView* const words : {&args.newest, &args.scale_words}) {
    require(is_of_words(*words) && words->numel() == tensors, ErrorCode::kInvalidArgument,
            "roll_fp8_history: ", words == &args.newest ? "newest" : "scale_words", " is ",
            words->shape, " of ", to_string(words->dtype), ", expected ", tensors,
            " contiguous elements of int32");
  }
  require(args.margin >= 0, ErrorCode::kInvalidArgument, "roll_fp8_history: margin is ",
          args.margin, ", expected 0 or more");
}

}  // namespace tessera

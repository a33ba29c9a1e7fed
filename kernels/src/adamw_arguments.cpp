#include "adamw_arguments.h"

#include "tessera/core/error.h"

namespace tessera {
namespace {

void check(const TensorView& view, std::int64_t n, const char* name, bool dtype_matches) {
  require(view.numel() == n && view.is_contiguous(), ErrorCode::kInvalidArgument, "adamw: ", name,
          " has shape ", view.shape, ", expected ", n, " contiguous elements");
  require(dtype_matches, ErrorCode::kInvalidArgument, "adamw: ", name, " cannot be ",
          to_string(view.dtype));
}

}  // namespace

void check_adamw(const AdamWArgs& args) {
  const std::int64_t n = args.master.numel();
  check(args.master, n, "master", args.master.dtype == DType::kFloat32);
  check(args.m, n, "m", args.m.dtype == DType::kFloat32);
  check(args.v, n, "v", args.v.dtype == DType::kFloat32);
  check(args.gradient, n, "gradient",
        args.gradient.dtype == DType::kFloat32 || args.gradient.dtype == DType::kBFloat16);
  if (args.parameter) {
    check(args.parameter, n, "parameter", args.parameter.dtype == DType::kBFloat16);
  }
  check(args.scalars, kAdamWScalars, "scalars", args.scalars.dtype == DType::kFloat32);
  require(args.first_index >= 0, ErrorCode::kInvalidArgument, "adamw: the first index is ",
          args.first_index);
  for (const AdamWSegment& segment : args.segments) {
    require(segment.begin >= 0 && segment.begin <= segment.end && segment.end <= n,
            ErrorCode::kInvalidArgument, "adamw: segment [", segment.begin, ", ", segment.end,
            ") of a shard of ", n);
  }
}

}  // namespace tessera

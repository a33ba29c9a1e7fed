#include "quantized_arguments.h"

#include "tessera/core/error.h"

namespace tessera {

void check_arguments(const DequantizeArgs& args) {
  require(args.dst.is_contiguous() && is_compute_dtype(args.dst.dtype), ErrorCode::kInvalidArgument,
          "dequantize: dst is ", args.dst.shape, " in ", to_string(args.dst.dtype),
          ", expected contiguous fp32, bf16 or fp16");
  const std::int64_t bytes = quantized_sizes(args.format, args.dst.shape, args.joined).bytes;
  require(args.src.dtype == DType::kUInt8 && args.src.is_contiguous() && args.src.numel() == bytes,
          ErrorCode::kInvalidArgument, "dequantize: src is ", args.src.shape, " in ",
          to_string(args.src.dtype), ", expected ", bytes, " bytes for ", args.dst.shape, " in ",
          to_string(args.format));
  require(reinterpret_cast<std::uintptr_t>(args.src.data) % 4 == 0, ErrorCode::kInvalidArgument,
          "dequantize: src does not begin at a multiple of 4 bytes");
}

}  // namespace tessera

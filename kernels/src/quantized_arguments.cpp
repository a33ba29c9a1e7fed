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

std::vector<DequantizeArgs> arguments_apart(const DequantizeArgs& args) {
  std::vector<DequantizeArgs> all;
  for (const QuantizedRows& own : matrices_apart(args.format, args.dst.shape, args.joined)) {
    all.push_back({.format = args.format,
                   .src = args.src.narrow(0, own.begin, own.bytes),
                   .dst = args.dst.narrow(0, own.first_row, own.rows)});
  }
  return all;
}

}  // namespace tessera

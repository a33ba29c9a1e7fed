#include "tessera/core/dtype.h"

#include "tessera/core/error.h"

namespace tessera {

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kUInt8:
      return 1;
  }
  fail(ErrorCode::kInternal, "unknown dtype ", static_cast<int>(dtype));
}

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "fp32";
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat16:
      return "fp16";
    case DType::kFloat64:
      return "fp64";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kUInt8:
      return "uint8";
  }
  return "unknown";
}

DType parse_dtype(std::string_view name) {
  if (name == "float32") return DType::kFloat32;
  if (name == "bfloat16") return DType::kBFloat16;
  if (name == "float16") return DType::kFloat16;
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64,
                      DType::kInt32, DType::kInt64, DType::kUInt8}) {
    if (name == to_string(dtype)) return dtype;
  }
  fail(ErrorCode::kConfig, "unknown dtype '", name,
       "'; choose fp32 (float32), bf16 (bfloat16), fp16 (float16), fp64, int32, int64 or uint8");
}

}  // namespace tessera

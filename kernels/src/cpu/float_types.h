#pragma once

#include "tessera/core/dtype.h"

namespace tessera::cpu {

/// Calls body(T()) for the C++ type T of elements of `dtype`, which arguments have been checked to
/// be one of computation: float, bfloat16 or float16.
template <typename Body>
decltype(auto) with_float_type(DType dtype, const Body& body) {
  if (dtype == DType::kBFloat16) return body(bfloat16());
  if (dtype == DType::kFloat16) return body(float16());
  return body(float());
}

}  // namespace tessera::cpu

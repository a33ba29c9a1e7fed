#pragma once

#include "cuda/attention_cuda.h"
#include "cuda/soft_cap_cuda.h"

namespace tessera::cuda {

/// A soft cap on products q k^T as they come: the scaled ones are those times the scale.
template <typename T>
struct ScoreCap {
  __device__ explicit ScoreCap(const AttentionLayout& layout)
      : inner(layout.scale / layout.soft_cap), outer(layout.soft_cap / layout.scale) {}
  float inner, outer;

  /// The product becomes what, scaled, is cap * tanh(scaled / cap). Returns the derivative.
  __device__ float apply(float& product) const {
    const float t = SoftCap<T>::tanh_of(product * inner);
    product = t * outer;
    return fmaf(-t, t, 1.0F);
  }
};

}  // namespace tessera::cuda

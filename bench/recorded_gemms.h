#pragma once

#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/kernels/kernel_table.h"

namespace tessera::bench {

/// The GEMMs of a step of one micro-batch, in its order: what forward and backward of `model` ask
/// of the kernel table on a CPU, with parameters and activations of `dtype` and gradients in fp32.
/// No kernel runs. The views point to memory that is gone; where two overlap, the step had used it
/// again.
std::vector<GemmArgs> record_gemms(const Model& model, const BatchSource& source,
                                   std::int64_t micro_batch, DType dtype);

}  // namespace tessera::bench

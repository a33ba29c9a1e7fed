#pragma once

#include "tessera/autograd/layer.h"
#include "tessera/core/dtype.h"

namespace tessera {

/// Floating-point operations per second of a large matrix multiplication on all of `ranks` CPU
/// ranks at once, each with `threads_per_rank` threads, measured now in about 0.3 s: the limit that
/// model FLOPs utilisation is told against.
double measure_matmul_flops(int ranks, int threads_per_rank, DType dtype);

/// MFU as the PaLM paper defines it (Chowdhery et al. 2022, appendix B): the FLOPs that the model
/// asks for, recomputation not counted, over those that the machine could have done in that time.
/// 0 if the model does not tell its FLOPs.
double model_flops_utilisation(const Model& model, double items_per_second,
                               double peak_flops_per_second);

}  // namespace tessera

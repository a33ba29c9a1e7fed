#pragma once

#include "tessera/autograd/layer.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera {

/// Floating-point operations per second of matrix multiplication on the devices of all ranks at
/// once, with their threads and precision, measured now in about 0.3 s: the limit that model FLOPs
/// utilisation is told against. It is the best of a few windows of square products, large ones
/// (grown until one takes milliseconds) and half as large ones, with and without a transposed
/// operand, of random numbers, by the kernels that training uses, with nothing packed beforehand.
/// So it bounds the products of a model, and lies below the peak of the arithmetic units.
/// `options` are resolved.
double measure_matmul_flops(const TrainerOptions& options);

/// MFU as the PaLM paper defines it (Chowdhery et al. 2022, appendix B): the FLOPs that the model
/// asks for, recomputation not counted, over those that the machine could have done in that time.
/// 0 if the model does not tell its FLOPs.
double model_flops_utilisation(const Model& model, double items_per_second,
                               double peak_flops_per_second);

}  // namespace tessera

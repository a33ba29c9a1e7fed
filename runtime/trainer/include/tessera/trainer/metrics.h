#pragma once

#include "tessera/autograd/layer.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera {

/// Floating-point operations per second of a large matrix multiplication on the devices of all
/// ranks at once, with their threads and precision, measured now in about 0.3 s: the limit that
/// model FLOPs utilisation is told against. `options` are resolved.
double measure_matmul_flops(const TrainerOptions& options);

/// MFU as the PaLM paper defines it (Chowdhery et al. 2022, appendix B): the FLOPs that the model
/// asks for, recomputation not counted, over those that the machine could have done in that time.
/// 0 if the model does not tell its FLOPs.
double model_flops_utilisation(const Model& model, double items_per_second,
                               double peak_flops_per_second);

}  // namespace tessera

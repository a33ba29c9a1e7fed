#pragma once

#include <functional>
#include <optional>
#include <string>

#include "tessera/autograd/layer.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera {

/// Floating-point operations per second of matrix multiplication on the devices of all ranks at
/// once, with their threads and precision, measured now in about 0.3 s: the limit that model FLOPs
/// utilisation is told against. It is the best of a few windows of square GEMMs, large ones
/// (grown until one takes milliseconds) and half as large ones, with and without a transposed
/// operand, of random numbers, by the kernels that training uses, with nothing packed beforehand.
/// So it bounds the GEMMs of a model, and lies below the peak of the arithmetic units.
/// `options` are resolved.
double measure_matmul_flops(const TrainerOptions& options);

/// MFU as the PaLM paper defines it (Chowdhery et al. 2022, appendix B): the FLOPs that the model
/// asks for, recomputation not counted, over those that the machine could have done in that time.
/// Nothing if the model does not tell its FLOPs, if there is no peak, or if the model has done
/// more: a peak below what is achieved is none, but was measured while others used the machine.
std::optional<double> model_flops_utilisation(const Model& model, double items_per_second,
                                              double peak_flops_per_second);

/// The reference of a finished run's rates.
struct RunUtilisation {
  double peak_flops_per_second = 0.0;  ///< 0: not measured
  std::optional<double> mfu{};
  std::string note{};  ///< that the first peak was none, in a sentence; else empty
};

/// Against `peak`, measured before the run; and if that is below what the run has achieved, against
/// the higher of it and what `measure_again` finds.
RunUtilisation utilisation_of_run(const Model& model, double items_per_second, double peak,
                                  const std::function<double()>& measure_again);

}  // namespace tessera

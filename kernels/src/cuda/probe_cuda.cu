#include "simt.h"

// Whether a GPU runs what this build holds: machine code for it, or PTX that its driver translates.
namespace tessera::cuda {
namespace {

__global__ void nothing() {}

}  // namespace
}  // namespace tessera::cuda

/// Launches an empty kernel on the current GPU; throws as every launch does.
extern "C" void tessera_cuda_probe() {
  tessera::simt::launch(tessera::cuda::nothing, 1, 1, 0, nullptr);
}

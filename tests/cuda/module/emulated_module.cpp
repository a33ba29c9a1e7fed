#include <cstdlib>

#include "fake_cuda.h"

// The emulated GPUs as a backend that the program loads (TESSERA_CUDA_MODULE), for tests that run
// it in several processes. FAKE_GPUS: how many the machine has.
namespace {

const bool configured = [] {
  const char* const gpus = std::getenv("FAKE_GPUS");
  fake_cuda::configure({.devices = gpus != nullptr ? std::atoi(gpus) : 1});
  return true;
}();

}  // namespace

#include <cstdlib>

#include "fake_cuda.h"

// The emulated GPUs as a backend that the program loads (TESSERA_CUDA_MODULE), for tests that run
// it in several processes. FAKE_GPUS: how many the machine has. FAKE_ILLEGAL_ACCESS: the how
// many-th kernel of the process accesses memory that it must not.
namespace {

const bool configured = [] {
  const char* const gpus = std::getenv("FAKE_GPUS");
  fake_cuda::configure({.devices = gpus != nullptr ? std::atoi(gpus) : 1});
  if (const char* const nth = std::getenv("FAKE_ILLEGAL_ACCESS"); nth != nullptr) {
    fake_cuda::plant_illegal_access(std::atoi(nth));
  }
  return true;
}();

}  // namespace

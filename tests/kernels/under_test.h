#pragma once

#include "tessera/core/device.h"
#include "tessera/kernels/kernel_table.h"

// The implementation that a test program checks: the CPU's kernels (kernels_on_cpu.cpp) or the CUDA
// kernels (kernels_on_cuda.cpp), emulated or on a GPU. Tests hand host memory to either, and every
// call has run to its end when it returns.
namespace tessera {

const KernelTable& kernels_under_test();

/// Whether these are the CUDA kernels, whose tests take smaller sizes: the emulator is slow.
bool testing_cuda();

/// The stream that kernels_under_test() is called with: one for all calls, so that scratch holds
/// what other kernels left there.
class StreamUnderTest {
 public:
  StreamUnderTest();
  operator Stream&() const { return stream_; }  // NOLINT: a kernel's argument

 private:
  Stream& stream_;
};

}  // namespace tessera

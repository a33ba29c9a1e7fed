#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "collectives/under_test.h"
#include "tessera/collectives/nccl_group.h"
#include "tessera/core/cuda_device.h"

// What the programs on GPUs share, emulated or real; included once by each.
namespace tessera::test {

Device& device_under_test() {
  static const std::unique_ptr<CudaDevice> device = make_cuda_device(
      {.nvtx = false, .segments = testing_nccl() ? nccl_segments(0) : CudaSegments{}});
  return *device;
}

bool testing_cuda() { return true; }

void enqueue(Stream& stream, std::function<void()> task) {
  auto* const owned = new std::function<void()>(std::move(task));
  const auto run = [](void* data) {
    const std::unique_ptr<std::function<void()>> mine(static_cast<std::function<void()>*>(data));
    (*mine)();
  };
  static_cast<void>(stream.record());  // what was put off comes first
  cudaLaunchHostFunc(dynamic_cast<CudaStream&>(stream).handle(), run, owned);
}

}  // namespace tessera::test

#pragma once

#include "collectives/cuda_under_test.h"
#include "fake_cuda.h"

// What the programs on emulated GPUs share; included once by each.
namespace tessera::test {

void* allocate(std::size_t bytes) { return device_under_test().allocate(bytes); }
void deallocate(void* address, std::size_t bytes) {
  device_under_test().deallocate(address, bytes);
}

void delay_device(std::chrono::microseconds at_most) {
  fake_cuda::configure({.max_delay_us = static_cast<unsigned>(at_most.count())});
}

}  // namespace tessera::test

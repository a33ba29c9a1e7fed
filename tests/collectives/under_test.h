#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "tessera/collectives/process_group.h"
#include "tessera/core/device.h"

// The kind of group that a test program checks, and the device that its streams are of: threads on
// the CPU (groups_on_cpu.cpp), threads that share an emulated GPU (groups_on_cuda.cpp) or a real
// one (groups_on_gpu.cpp), or NCCL with a fake library on emulated GPUs (groups_on_nccl.cpp).
namespace tessera::test {

using Groups = std::vector<std::unique_ptr<ProcessGroup>>;

Groups make_groups(int size, std::chrono::milliseconds timeout = std::chrono::seconds(60));
Device& device_under_test();
/// Memory that both the device and the host read and write, the host while nothing runs.
void* allocate(std::size_t bytes);
void deallocate(void* address, std::size_t bytes);
/// Work of streams begins up to so much later than it could, at random. While nothing runs.
void delay_device(std::chrono::microseconds at_most);
bool testing_cuda();
bool testing_nccl();
/// Runs `task` in stream order, on a thread of the device.
void enqueue(Stream& stream, std::function<void()> task);

}  // namespace tessera::test

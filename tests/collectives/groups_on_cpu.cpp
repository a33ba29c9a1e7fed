#include "collectives/under_test.h"
#include "tessera/collectives/thread_group.h"
#include "tessera/core/cpu_device.h"

namespace tessera::test {

Groups make_groups(int size, std::chrono::milliseconds timeout) {
  return make_thread_group(size, {.timeout = timeout});
}

Device& device_under_test() {
  static const std::unique_ptr<Device> device = make_cpu_device();
  return *device;
}

void* allocate(std::size_t bytes) { return device_under_test().allocate(bytes); }
void deallocate(void* address, std::size_t bytes) {
  device_under_test().deallocate(address, bytes);
}

void delay_device(std::chrono::microseconds) {}  // run_ranks delays the lanes themselves

bool testing_cuda() { return false; }
bool testing_nccl() { return false; }

void enqueue(Stream& stream, std::function<void()> task) {
  stream.submit({.name = "task"}, std::move(task));
}

}  // namespace tessera::test

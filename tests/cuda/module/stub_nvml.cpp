#include <cstdlib>
#include <string>

// An NVML that answers while STUB_NVML is set: each GPU has as many GiB free as the last digit of
// its UUID says.
extern "C" {

int nvmlInit_v2() { return std::getenv("STUB_NVML") != nullptr ? 0 : 999; }

int nvmlShutdown() { return 0; }

int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  const std::string text(uuid);
  *device = reinterpret_cast<void*>(static_cast<std::size_t>(text.back() - '0'));
  return text.rfind("GPU-", 0) == 0 ? 0 : 2;
}

int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* total_free_used) {
  total_free_used[1] = static_cast<unsigned long long>(reinterpret_cast<std::size_t>(device)) << 30;
  return 0;
}
}

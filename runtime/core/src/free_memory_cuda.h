#pragma once

#include <cstdint>
#include <string>

namespace tessera::cuda {

/// Free memory of the GPUs. NVML is asked, which needs no context: CUDA's own question makes one on
/// the GPU it is about, of some hundred MiB, and a process must not take those from ranks of
/// others. Where NVML does not answer (not installed, MIG), CUDA is, and the thread's device stays
/// what it was.
class FreeMemory {
 public:
  FreeMemory();
  ~FreeMemory();
  FreeMemory(const FreeMemory&) = delete;
  FreeMemory& operator=(const FreeMemory&) = delete;

  /// Bytes; 0 if nobody knows. `uuid`: "GPU-…".
  std::int64_t of(int ordinal, const std::string& uuid) const;

 private:
  bool ask_nvml(const std::string& uuid, std::int64_t& bytes) const;

  // NVML's types and functions, as its header declares them; the last three are null where it
  // cannot be used.
  struct Memory {
    unsigned long long total, free, used;
  };
  using Shutdown = int (*)();
  using FindDevice = int (*)(const char* uuid, void** device);
  using GetMemory = int (*)(void* device, Memory* memory);

  void* library_ = nullptr;
  Shutdown shutdown_ = nullptr;
  FindDevice find_device_ = nullptr;
  GetMemory get_memory_ = nullptr;
};

}  // namespace tessera::cuda

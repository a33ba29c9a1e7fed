#include "launch/launch_gpus.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/trainer/rank_device.h"

namespace tessera::cli {
namespace {

/// The numbers that the list may have: CUDA numbers the GPUs of the machine, but if this process
/// may use only some, its children cannot use others.
std::vector<std::string> numbers_of(const CudaStatus& cuda) {
  std::vector<std::string> numbers;
  for (const CudaGpu& gpu : cuda.gpus) numbers.push_back(std::to_string(gpu.ordinal));
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? numbers : gpu_ids_of(visible);
}

/// CUDA takes the beginning of a name for the whole, if it is the only one that begins so.
bool is_there(const std::string& id, const CudaStatus& cuda,
              const std::vector<std::string>& numbers) {
  if (id.starts_with("MIG-")) return true;  // the CUDA runtime lists no parts of GPUs
  return std::ranges::find(numbers, id) != numbers.end() ||
         std::ranges::any_of(cuda.gpus, [&](const CudaGpu& gpu) {
           return id.starts_with("GPU-") && gpu.uuid.starts_with(id);
         });
}

}  // namespace

void check_gpus(const Stated<std::string>& list, const std::string& device) {
  if (list.value.empty() || list.value == "all") return;
  if (resolved_device(parse_device(device)) == DeviceChoice::kCpu) {
    std::cerr << "note: " << list.name << " " << list.value
              << " has no effect: the ranks compute on the CPU"
              << (device == "cpu" ? "" : ", since no GPU can be used ('tessera env' says why)")
              << "\n";
    return;
  }
  const CudaStatus cuda = cuda_status();
  const std::vector<std::string> numbers = numbers_of(cuda);
  for (const std::string& id : gpu_ids_of(list.value)) {
    if (is_there(id, cuda, numbers)) continue;
    std::string there;
    for (const std::string& number : numbers) there += (there.empty() ? "" : ", ") + number;
    fail(ErrorCode::kConfig, list.name, ": there is no GPU ", id, " here; there ",
         numbers.size() == 1 ? "is " : "are ", there,
         std::getenv("CUDA_VISIBLE_DEVICES") == nullptr ? "" : ", as CUDA_VISIBLE_DEVICES says",
         "; 'tessera gpu-info' lists them");
  }
}

}  // namespace tessera::cli

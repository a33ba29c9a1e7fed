#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "commands.h"
#include "env/reports.h"
#include "output/text_output.h"
#include "tessera/core/cuda_device.h"
#include "tessera/trainer/byte_size.h"

namespace tessera::cli {
namespace {

void print_json(const CudaStatus& status) {
  auto gpus = nlohmann::ordered_json::array();
  for (const CudaGpu& gpu : status.gpus) gpus.push_back(gpu_fields(gpu));
  write_json(std::cout,
             {{"kind", "gpu-info"}, {"problem", or_null(status.problem)}, {"gpus", gpus}});
}

int run_gpu_info(bool json) {
  const CudaStatus status = cuda_status();
  if (json) {
    print_json(status);
    return kExitGood;
  }
  if (!status.usable()) {
    std::cout << "No GPU can be used: " << status.problem << ".\nTraining works on the CPU.\n";
    return kExitGood;
  }
  TextTable table({"GPU", "name", "sm", "processors", "memory", "free", "PCI", "UUID"});
  for (const CudaGpu& gpu : status.gpus) {
    table.add({std::to_string(gpu.ordinal), gpu.name,
               std::to_string(gpu.major) + std::to_string(gpu.minor),
               std::to_string(gpu.multiprocessors), format_bytes(gpu.total_bytes),
               format_bytes(gpu.free_bytes), gpu.pci, gpu.uuid});
  }
  table.print(std::cout);
  if (status.gpus.size() > 1) {
    std::cout << "\n";
    peer_matrix(status.gpus).print(std::cout);
  }
  return kExitGood;
}

}  // namespace

std::function<int()> add_gpu_info(CLI::App& app) {
  const auto json = std::make_shared<bool>(false);
  app.add_flag("--json", *json, "print one JSON object");
  return [json] { return run_gpu_info(*json); };
}

}  // namespace tessera::cli

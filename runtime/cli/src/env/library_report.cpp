#include "env/reports.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "tessera/collectives/mpi_group.h"
#include "tessera/kernels/cpu_libraries.h"
#include "tessera/trainer/byte_size.h"

namespace tessera::cli {
namespace {

std::string or_absent(const std::string& version) {
  return version.empty() ? "not found" : version;
}

/// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06 ..."; empty if it is not loaded.
std::string kernel_module() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  return line;
}

std::string describe(const CudaGpu& gpu) {
  return gpu.name + ", sm_" + std::to_string(gpu.major) + std::to_string(gpu.minor) + ", " +
         format_bytes(gpu.total_bytes) + " (" + format_bytes(gpu.free_bytes) + " free)";
}

bool reaches(const CudaGpu& gpu, int peer) {
  return std::find(gpu.peers.begin(), gpu.peers.end(), peer) != gpu.peers.end();
}

}  // namespace

nlohmann::ordered_json gpu_fields(const CudaGpu& gpu) {
  return {{"ordinal", gpu.ordinal},
          {"name", gpu.name},
          {"uuid", gpu.uuid},
          {"pci", gpu.pci},
          {"compute_capability", std::to_string(gpu.major) + "." + std::to_string(gpu.minor)},
          {"multiprocessors", gpu.multiprocessors},
          {"total_bytes", gpu.total_bytes},
          {"free_bytes", gpu.free_bytes},
          {"peers", gpu.peers}};
}

ReportPart library_report(const CudaStatus& cuda) {
  const auto module = find_mpi_module();
  const std::string mpi = module ? module->string() : "";
  const std::string driver = kernel_module();
  ReportPart part;
  part.rows = {{"oneDNN", onednn_version()}, {"CUDA", cuda.usable() ? "usable" : cuda.problem}};
  if (!cuda.module.empty()) {
    part.rows.insert(part.rows.end(),
                     {{"CUDA backend", cuda.module + ", built with CUDA " + cuda.runtime_version},
                      {"NVIDIA driver", driver.empty() ? "not loaded" : driver},
                      {"CUDA of the driver", "up to " + or_absent(cuda.driver_version)},
                      {"cuBLASLt", or_absent(cuda.blas_version)},
                      {"cuDNN", or_absent(cuda.dnn_version)},
                      {"NCCL", or_absent(cuda.nccl_version)}});
  }
  auto gpus = nlohmann::ordered_json::array();
  for (const CudaGpu& gpu : cuda.gpus) {
    part.rows.emplace_back("GPU " + std::to_string(gpu.ordinal), describe(gpu));
    gpus.push_back(gpu_fields(gpu));
  }
  part.rows.emplace_back("MPI", mpi.empty() ? "not found: mpirun cannot start this build" : mpi);
  part.fields = {{"onednn", onednn_version()},
                 {"mpi", or_null(mpi)},
                 {"cuda",
                  {{"usable", cuda.usable()},
                   {"problem", or_null(cuda.problem)},
                   {"backend", or_null(cuda.module)},
                   {"built_with", or_null(cuda.runtime_version)},
                   {"kernel_module", or_null(driver)},
                   {"driver_up_to", or_null(cuda.driver_version)},
                   {"cublaslt", or_null(cuda.blas_version)},
                   {"cudnn", or_null(cuda.dnn_version)},
                   {"nccl", or_null(cuda.nccl_version)},
                   {"gpus", gpus}}}};
  return part;
}

TextTable peer_matrix(const std::vector<CudaGpu>& gpus) {
  std::vector<std::string> heading{"reaches"};
  for (const CudaGpu& gpu : gpus) heading.push_back("GPU " + std::to_string(gpu.ordinal));
  TextTable table(heading);
  for (const CudaGpu& from : gpus) {
    std::vector<std::string> row{"GPU " + std::to_string(from.ordinal)};
    for (const CudaGpu& to : gpus) {
      const bool same = from.ordinal == to.ordinal;
      row.emplace_back(same ? "-" : reaches(from, to.ordinal) ? "yes" : "no");
    }
    table.add(row);
  }
  return table;
}

}  // namespace tessera::cli

#include "bench/machine_context.h"

#include <cstdlib>

#include "env/reports.h"
#include "tessera/core/cuda_device.h"
#include "tessera/kernels/cpu_libraries.h"
#include "tessera/trainer/setting.h"

namespace tessera::bench {
namespace {

std::string gpus_of(const CudaStatus& cuda) {
  std::vector<std::string> names;
  for (const CudaGpu& gpu : cuda.gpus) names.push_back(gpu.name);
  return joined(names, " ");
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

using Context = std::vector<std::pair<std::string, std::string>>;

Context without_gaps(Context context) {
  for (auto& [key, value] : context) {
    if (value.empty()) value = "none";
  }
  return context;
}

}  // namespace

Context machine_context() {
  const cli::Machine machine = cli::probe_machine();
  const CudaStatus cuda = cuda_status();
  const std::string prefix = kMachineKey;
  return without_gaps({{prefix + "processor", machine.processor},
                       {prefix + "cores", std::to_string(machine.logical_cores)},
                       {prefix + "physical_cores", std::to_string(machine.physical_cores)},
                       {prefix + "numa_nodes", joined(machine.numa_nodes, " ")},
                       {prefix + "vector_units", joined(machine.vector_units, " ")},
                       {prefix + "kernels_use", vector_target()},
                       {prefix + "memory_bytes", std::to_string(machine.memory_bytes)},
                       {prefix + "kernel", machine.kernel},
                       {prefix + "gpus", gpus_of(cuda)},
                       {prefix + "cuda_driver", cuda.driver_version},
                       {prefix + "omp_num_threads", variable("OMP_NUM_THREADS")}});
}

Context build_context() {
  const cli::Machine machine = cli::probe_machine();
  return without_gaps({{"host", machine.host},
                       {"tessera", TESSERA_VERSION},
                       {"built_by", TESSERA_BUILT_BY},
                       {"onednn", onednn_version()},
                       {"nccl", cuda_status().nccl_version}});
}

}  // namespace tessera::bench

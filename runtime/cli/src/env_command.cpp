#include <CLI/CLI.hpp>
#include <array>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "config_in_force.h"
#include "launch/launch_environment.h"
#include "machine.h"
#include "peer_matrix.h"
#include "terminal.h"
#include "tessera/collectives/mpi_group.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/kernels/cpu_libraries.h"
#include "tessera/trainer/byte_size.h"

extern "C" char** environ;

namespace tessera::cli {
namespace {

using Rows = std::vector<std::pair<std::string, std::string>>;

std::string or_absent(const std::string& version) {
  return version.empty() ? "not found" : version;
}

std::string list(const std::vector<std::string>& items, const char* separator = ", ") {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : separator) + item;
  return text.empty() ? "none" : text;
}

void add_machine(Rows& rows) {
  const Machine machine = probe_machine();
  rows.emplace_back("system", machine.system + ", " + machine.kernel);
  rows.emplace_back("host", machine.host);
  rows.emplace_back("processor", machine.processor);
  rows.emplace_back("cores", std::to_string(machine.logical_cores) + " usable here, " +
                                 std::to_string(machine.physical_cores) + " physical");
  rows.emplace_back("vector units",
                    list(machine.vector_units) + " (kernels use " + vector_target() + ")");
  rows.emplace_back("NUMA nodes", std::to_string(machine.numa_nodes.size()) + ": " +
                                      list(machine.numa_nodes, " | "));
  rows.emplace_back("memory", format_bytes(machine.memory_bytes) + ", " +
                                  format_bytes(machine.available_bytes) + " available");
}

std::string describe(const CudaGpu& gpu) {
  return gpu.name + ", sm_" + std::to_string(gpu.major) + std::to_string(gpu.minor) + ", " +
         format_bytes(gpu.total_bytes) + " (" + format_bytes(gpu.free_bytes) + " free)";
}

/// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06 ..."
std::string kernel_module() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  return std::getline(file, line) ? line : "not loaded";
}

void add_cuda(Rows& rows, const CudaStatus& cuda) {
  rows.emplace_back("CUDA", cuda.usable() ? "usable" : cuda.problem);
  if (!cuda.module.empty()) {
    rows.emplace_back("CUDA backend", cuda.module + ", built with CUDA " + cuda.runtime_version);
    rows.emplace_back("NVIDIA driver", kernel_module());
    rows.emplace_back("CUDA of the driver", "up to " + or_absent(cuda.driver_version));
    rows.emplace_back("cuBLASLt", or_absent(cuda.blas_version));
    rows.emplace_back("cuDNN", or_absent(cuda.dnn_version));
    rows.emplace_back("NCCL", or_absent(cuda.nccl_version));
  }
  for (const CudaGpu& gpu : cuda.gpus) {
    rows.emplace_back("GPU " + std::to_string(gpu.ordinal), describe(gpu));
  }
}

void add_mpi(Rows& rows) {
  const auto module = find_mpi_module();
  rows.emplace_back("MPI", module ? module->string() : "not found: mpirun cannot start this build");
}

void add_launcher(Rows& rows) {
  std::string text;
  try {
    const Launcher launcher = find_launcher(std::getenv);
    text = launcher.name.empty() ? "none, this is the only process"
                                 : concat(launcher.name, ", this is process ", launcher.process,
                                          " of ", launcher.processes);
    if (!launcher.address.empty()) {
      text += concat(", meeting at ", launcher.address, " port ", launcher.port);
    }
  } catch (const Error& error) {
    text = concat("no run can start: ", error.what());
  }
  rows.emplace_back("launcher", text);
}

/// Variables of launchers and libraries that change what a run does.
void add_environment(Rows& rows) {
  constexpr std::array kPrefixes{"ACCELERATE_",
                                 "FSDP_",
                                 "PARALLELISM_CONFIG_",
                                 "TESSERA_",
                                 "NCCL_",
                                 "CUDA_VISIBLE_DEVICES=",
                                 "OMP_",
                                 "DNNL_",
                                 "RANK=",
                                 "WORLD_SIZE=",
                                 "LOCAL_RANK=",
                                 "LOCAL_WORLD_SIZE=",
                                 "MASTER_",
                                 "SLURM_PROCID=",
                                 "SLURM_NTASKS=",
                                 "OMPI_COMM_WORLD_",
                                 "MV2_COMM_WORLD_",
                                 "TORCHELASTIC_",
                                 "PMI_",
                                 "HF_HOME="};
  std::vector<std::string> found;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    for (const char* prefix : kPrefixes) {
      if (text.rfind(prefix, 0) == 0) found.push_back(text);
    }
  }
  rows.emplace_back("environment", list(found, " "));
}

int run_env(const std::string& given, bool json) {
  const CudaStatus cuda = cuda_status();
  const ConfigInForce config = config_in_force(given);
  Rows rows{{"tessera", TESSERA_VERSION},
            {"oneDNN", onednn_version()},
            {"compiler", "GCC-compatible " __VERSION__}};
  add_machine(rows);
  add_cuda(rows, cuda);
  add_mpi(rows);
  add_launcher(rows);
  add_environment(rows);
  rows.emplace_back("config", config.description);
  // The report is whole in any case; a file that was named and is of no use is a usage error.
  const int exit_code = given.empty() || config.readable ? kExitGood : kExitUsage;
  if (json) {
    nlohmann::ordered_json object{{"kind", "env"}};
    for (const auto& [name, value] : rows) object[name] = value;
    std::cout << object.dump(2) << "\n";
    return exit_code;
  }
  std::cout << "Copy this into a report:\n\n";
  for (const auto& [name, value] : rows) {
    std::cout << "- " << name << ": " << value << "\n";
  }
  if (cuda.gpus.size() > 1) {
    std::cout << "\n";
    peer_matrix(cuda.gpus).print(std::cout);
  }
  return exit_code;
}

}  // namespace

Command add_env(CLI::App& program) {
  struct Request {
    std::string config;
    bool json = false;
  };
  const auto request = std::make_shared<Request>();
  CLI::App* app =
      program.add_subcommand("env", "Describe this machine and this build, to paste into a report");
  app->add_option("--config", request->config, "the config file that the report is about");
  app->add_flag("--json", request->json, "print one JSON object");
  return {app, [request] { return run_env(request->config, request->json); }};
}

}  // namespace tessera::cli

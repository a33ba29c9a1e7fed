#include "env/launch_report.h"

#include <array>
#include <cstdlib>
#include <string_view>

#include "launch/launch_environment.h"
#include "tessera/core/error.h"

extern "C" char** environ;

namespace tessera::cli {
namespace {

/// Of launchers and libraries; a whole name ends in "=".
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

std::string in_words(const Launcher& launcher) {
  if (launcher.name.empty()) return "none, this is the only process";
  return concat(launcher.name, ", this is process ", launcher.process, " of ", launcher.processes,
                launcher.address.empty()
                    ? ""
                    : concat(", meeting at ", launcher.address, " port ", launcher.port));
}

void add_launcher(ReportPart& part) {
  Launcher launcher;
  std::string problem;
  try {
    launcher = find_launcher(std::getenv);
  } catch (const Error& error) {
    problem = error.what();
  }
  part.rows.emplace_back("launcher",
                         problem.empty() ? in_words(launcher) : "no run can start: " + problem);
  nlohmann::ordered_json& fields = part.fields["launcher"];
  fields = {{"name", or_null(launcher.name)},
            {"process", launcher.process},
            {"processes", launcher.processes},
            {"machines", known_or_null(launcher.machines)},
            {"ranks_per_process", known_or_null(launcher.ranks_per_process)},
            {"threads_per_rank", known_or_null(launcher.threads)},
            {"address", or_null(launcher.address)},
            {"port", known_or_null(launcher.port)},
            {"problem", or_null(problem)}};
  if (!problem.empty()) fields["process"] = fields["processes"] = nullptr;
}

void add_variables(ReportPart& part) {
  std::vector<std::string> found;
  auto& fields = part.fields["environment"] = nlohmann::ordered_json::object();
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    for (const char* prefix : kPrefixes) {
      if (!text.starts_with(prefix)) continue;
      found.emplace_back(text);
      const std::size_t equals = text.find('=');
      fields[std::string(text.substr(0, equals))] = text.substr(equals + 1);
    }
  }
  part.rows.emplace_back("environment", listed(found, " "));
}

}  // namespace

ReportPart launch_report() {
  ReportPart part;
  add_launcher(part);
  add_variables(part);
  return part;
}

}  // namespace tessera::cli

#include "env/reports.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <map>
#include <string_view>

#include "tessera/compat/launcher.h"
#include "tessera/core/error.h"

extern "C" char** environ;

namespace tessera::cli {
namespace {

/// Prefixes of the variables of launchers, config files and libraries; a whole name ends in "=".
/// Variables that might hold a secret, as PMI_SHARED_SECRET does, are not among them.
constexpr std::array kPrefixes{
    // launchers
    "RANK=", "WORLD_SIZE=", "LOCAL_RANK=", "LOCAL_WORLD_SIZE=", "MASTER_", "TORCHELASTIC_",
    "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_", "MPI_LOCALNRANKS=", "PMI_RANK=", "PMI_SIZE=",
    "PMIX_RANK=", "SLURM_JOB_ID=", "SLURM_JOB_NODELIST=", "SLURM_NNODES=", "SLURM_NTASKS=",
    "SLURM_PROCID=", "SLURM_STEP_ID=", "SLURM_STEP_NODELIST=",
    // configs
    "ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "HF_HOME=", "XDG_CACHE_HOME=",
    // ourselves and libraries
    "TESSERA_", "LD_LIBRARY_PATH=", "LD_PRELOAD=", "OMP_", "GOMP_", "KMP_", "DNNL_", "ONEDNN_",
    "CUDA_VISIBLE_DEVICES=", "CUDA_DEVICE_ORDER=", "CUDA_DEVICE_MAX_CONNECTIONS=",
    "CUDA_LAUNCH_BLOCKING=", "CUDA_MODULE_LOADING=", "CUDA_MPS_", "CUBLAS", "CUDNN_",
    "NVIDIA_TF32_OVERRIDE=", "NCCL_"};

/// A value that stands between others: in quotes, with escapes, unless it is one plain word.
std::string shown(const std::string& value) {
  const bool plain = !value.empty() && std::ranges::all_of(value, [](unsigned char c) {
    return std::isgraph(c) != 0 && c != '"' && c != '\\';
  });
  if (plain) return value;
  return nlohmann::json(value).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

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
  std::map<std::string, std::string> found;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const auto begins = [&](const char* prefix) { return text.starts_with(prefix); };
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || std::ranges::none_of(kPrefixes, begins)) continue;
    const std::string_view name = text.substr(0, equals);
    found.emplace(name, name == kJobToken ? "(set)" : text.substr(equals + 1));
  }
  std::vector<std::string> words;
  auto& fields = part.fields["environment"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : found) {
    words.push_back(name + "=" + shown(value));
    fields[name] = value;
  }
  part.rows.emplace_back("environment", listed(words, " "));
}

}  // namespace

ReportPart launch_report() {
  ReportPart part;
  add_launcher(part);
  add_variables(part);
  return part;
}

}  // namespace tessera::cli

#include "launch/launch_command.h"

#include <strings.h>
#include <algorithm>
#include <cstdlib>
#include <random>
#include <sstream>

#include "commands.h"
#include "output/terminal.h"
#include "settings/command_line.h"
#include "tessera/compat/config_sources.h"
#include "tessera/compat/launcher.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/trainer/rank_device.h"
#include "tessera/trainer/trainer_options.h"
#include "tessera/trainer/trainer_settings.h"

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

/// Checks the GPUs that processes of this machine may use: a list as CUDA_VISIBLE_DEVICES takes it,
/// "all" or empty. `device`: of the run, "auto", "cpu" or "cuda". If no GPU will be used, says on
/// stderr that the list has no effect. Throws Error{kUnavailable} if the run asks for CUDA and none
/// can be used, and Error{kConfig} that names the GPUs there are if one of the list is not there.
void check_gpus(const Stated<std::string>& list, const std::string& device) {
  if (list.value.empty() || list.value == "all") return;
  if (resolved_device(parse_device(device)) == DeviceChoice::kCpu) {
    print_note(
        concat(list.name, " ", list.value, " has no effect: the ranks compute on the CPU",
               device == "cpu" ? "" : ", since no GPU can be used ('tessera env' says why)"));
    return;
  }
  const CudaStatus cuda = cuda_status();
  const std::vector<std::string> numbers = numbers_of(cuda);
  for (const std::string& id : gpu_ids_of(list.value)) {
    if (is_there(id, cuda, numbers)) continue;
    fail(ErrorCode::kConfig, list.name, ": there is no GPU ", id, " here; there ",
         numbers.size() == 1 ? "is " : "are ", tessera::joined(numbers),
         std::getenv("CUDA_VISIBLE_DEVICES") == nullptr ? "" : ", as CUDA_VISIBLE_DEVICES says",
         "; 'tessera gpu-info' lists them");
  }
}

constexpr int kUsualPort = 29500;

template <typename T>
Stated<T> stated(const std::optional<T>& flag, const char* name,
                 const std::optional<Stated<T>>& file, T fallback) {
  if (flag) return {*flag, name};
  return file.value_or(Stated<T>{fallback, name});
}

// ---- The file -----------------------------------------------------------------------------------

/// `ranks`: 0 for as many as the file says.
ConfigTranslation translate(const ConfigFile& file, const std::vector<Setting>& table,
                            const LaunchedCommand& command, int machines, std::int64_t ranks) {
  nlohmann::ordered_json overrides = command.given();
  if (ranks > 0) overrides["ranks"] = ranks;
  return file.translate({.table = table,
                         .overrides = std::move(overrides),
                         .launch = {.launcher = kOwnLauncher, .machines = machines}});
}

/// Processes of one machine, from the ranks of all that the file asks for.
Stated<int> processes_of(const ConfigTranslation& file, const LaunchLayout& layout) {
  Stated<int> processes{1, "--processes"};
  for (const ConfigEntry& entry : file.entries) {
    if (!entry.settings.contains("ranks")) continue;
    const int ranks = entry.settings["ranks"].get<int>();
    const std::int64_t parts = std::int64_t{layout.nodes.value} * layout.ranks_per_process;
    processes.name = concat(entry.where(), ": ", entry.key);
    require(ranks % parts == 0, ErrorCode::kConfig, processes.name, ": ", ranks,
            " ranks cannot be divided evenly over ", layout.nodes.value, " machines (",
            layout.nodes.name, ") of processes with ", layout.ranks_per_process,
            " ranks (--ranks-per-process); change one of them, or give --processes");
    processes.value = static_cast<int>(ranks / parts);
  }
  return processes;
}

// ---- The token ----------------------------------------------------------------------------------

/// On one machine nobody has to know the token.
std::string job_token_of(const LaunchRequest& request, bool several) {
  require(request.job_token != "", ErrorCode::kConfig,
          "--job-token is empty; give a secret, the same on every node");
  if (request.job_token) return *request.job_token;
  const char* const inherited = std::getenv(kJobToken);
  if (several || (inherited != nullptr && *inherited != '\0')) return "";
  std::random_device random;  // the system's
  std::ostringstream token;
  token << std::hex << random() << random() << random() << random();
  return token.str();
}

/// Processes of one machine, if a flag says them.
std::optional<int> processes_asked(const LaunchRequest& request, const Stated<int>& nodes) {
  if (!request.all_processes) return request.processes;
  const int all = *request.all_processes;
  require(!request.processes, ErrorCode::kConfig, "--num-processes ", all,
          " (of all machines) and --processes ", request.processes.value_or(0),
          " (of this one) are both given; give one of them");
  require(all % nodes.value == 0, ErrorCode::kConfig, "--num-processes is ", all,
          ", of all machines together, and cannot be divided evenly over ", nodes.value, " (",
          nodes.name, "); change one of them, or give --processes, of one machine");
  return all / nodes.value;
}

// ---- Checks -------------------------------------------------------------------------------------

void check_node_rank(const LaunchLayout& r) {
  require(r.node_rank.value < r.nodes.value, ErrorCode::kConfig, r.node_rank.name, " is ",
          r.node_rank.value, "; with ", r.nodes.name, " ", r.nodes.value, " it may be 0 to ",
          r.nodes.value - 1);
}

void check_meeting(const LaunchLayout& r) {
  const int port = r.main_port.value;
  const bool several = r.nodes.value > 1;
  require(!several || port != 0, ErrorCode::kConfig, r.main_port.name,
          " 0 takes a free port, which the other nodes cannot know; name one");
  const std::string& address = r.main_address.value;
  require(!several || (address != "127.0.0.1" && address != "localhost"), ErrorCode::kConfig,
          r.main_address.name, " is ", address,
          ", which every node takes for itself; give the address of node 0");
}

void check_ranks(const LaunchLayout& r, const LaunchedCommand& command) {
  require(r.ranks() <= kMaxRanks, ErrorCode::kConfig, r.nodes.name, " ", r.nodes.value, " x ",
          r.processes.name, " ", r.processes.value, " x --ranks-per-process ", r.ranks_per_process,
          " is more than ", kMaxRanks, " ranks; start fewer");
  const std::string problem = problem_of_gpu_ids(r.gpu_ids.value);
  require(problem.empty(), ErrorCode::kConfig, r.gpu_ids.name, ": ", problem);
  const bool any = r.gpu_ids.value.empty() || r.gpu_ids.value == "all";
  const std::size_t gpus = gpu_ids_of(r.gpu_ids.value).size();
  require(any || gpus >= static_cast<std::size_t>(r.processes.value), ErrorCode::kConfig,
          r.gpu_ids.name, " names ", counted(static_cast<long long>(gpus), "GPU"), " for ",
          r.processes.value, " processes; name one for each, or start fewer (--processes)");
  const std::int64_t total = r.ranks();
  const std::string sum =
      concat("--nodes ", r.nodes.value, " x --processes ", r.processes.value,
             " x --ranks-per-process ", r.ranks_per_process, " is ", total, " ranks");
  const int ranks = command.number("ranks");
  require(ranks == 0 || ranks == total, ErrorCode::kConfig, sum, ", but the command has --ranks ",
          ranks, "; leave it out");
  const int replicas = command.number("replicas");
  require(replicas == 0 || total % replicas == 0, ErrorCode::kConfig, sum, ", which --replicas ",
          replicas, " does not divide");
}

/// The file that holds; empty: none.
std::string config_of(const LaunchRequest& request, const LaunchedCommand& command) {
  const std::string& own = command.config_path();
  if (!request.config.empty() || !own.empty()) {
    require(request.config.empty() || own.empty(), ErrorCode::kConfig, "--config is there twice, ",
            "for launch and for ", command.name(), "; give it once, to launch");
    return request.config.empty() ? own : request.config;
  }
  if (!command.takes_default_config()) return "";
  const auto file = default_accelerate_config([](const char* name) { return std::getenv(name); });
  if (file) {
    print_note(concat("settings of ", *file, ", Accelerate's default file, are used; ",
                      "--no-default-config behind ", command.name(), " turns that off"));
  }
  return file.value_or("");
}

}  // namespace

LaunchLayout make_layout(const LaunchRequest& request, const LaunchedCommand& command) {
  const std::string path = config_of(request, command);
  const std::vector<Setting> table = all_settings();
  const auto read = [by_default = request.config.empty() && command.config_path().empty(),
                     remedy = "--no-default-config behind " + command.name()](const auto& what) {
    return read_maybe_default(by_default, remedy, what);
  };
  std::optional<ConfigFile> config;
  if (!path.empty()) read([&] { config.emplace(path); });
  LauncherKeys file = config ? read([&] { return config->launcher_keys(table); }) : LauncherKeys{};
  LaunchLayout layout{.ranks_per_process = request.ranks_per_process, .command = command.words()};
  layout.nodes = stated(request.nodes, "--nodes", file.machines, 1);
  layout.node_rank = stated(request.node_rank, "--node-rank", file.machine_rank, 0);
  layout.gpu_ids = stated<std::string>(request.gpu_ids, "--gpu-ids", file.gpu_ids, "");
  if (strcasecmp(layout.gpu_ids.value.c_str(), "all") == 0) layout.gpu_ids.value = "all";
  const bool several = layout.nodes.value > 1;
  layout.main_port = stated(request.main_port, "--main-port", file.port, several ? kUsualPort : 0);
  // On one machine Accelerate's launcher takes no address from the file either.
  if (!several) file.address.reset();
  layout.main_address =
      stated<std::string>(request.main_address, "--main-address", file.address, "127.0.0.1");
  layout.job_token = job_token_of(request, several);
  const std::optional<int> processes = processes_asked(request, layout.nodes);
  layout.processes = {processes.value_or(1), "--processes"};
  const std::int64_t ranks = processes ? layout.ranks() : 0;
  if (file.refused) {
    read([&] { translate(*config, table, command, request.nodes.value_or(0), ranks); });
  }
  check_node_rank(layout);
  check_meeting(layout);
  if (config) {
    if (processes) check_ranks(layout, command);
    const ConfigTranslation translation =
        read([&] { return translate(*config, table, command, layout.nodes.value, ranks); });
    if (!processes) layout.processes = processes_of(translation, layout);
    for (const ConfigEntry& entry : translation.entries) {
      layout.device = entry.settings.value("device", layout.device);
    }
    layout.exported = exported_variables(translation);
    if (command.config_path().empty()) {
      layout.command.insert(layout.command.end(), {"--config", path});
    }
  }
  layout.device = command.given().value("device", layout.device);
  check_ranks(layout, command);
  check_gpus(layout.gpu_ids, layout.device);
  return layout;
}

}  // namespace tessera::cli

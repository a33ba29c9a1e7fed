#include "launch/launch_environment.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include "tessera/collectives/mpi_group.h"
#include "tessera/core/error.h"

namespace tessera::cli {
namespace {

std::optional<int> number(const Environment& environment, const char* name) {
  const char* const text = environment(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  int value = 0;
  const char* const end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  require(error == std::errc() && stop == end && value >= 0, ErrorCode::kConfig,
          "environment: ", name, " is '", text, "'; it must be a number, at least 0");
  return value;
}

int needed(const Environment& environment, const char* name, const std::string& launcher) {
  const std::optional<int> value = number(environment, name);
  require(value.has_value(), ErrorCode::kConfig, "environment: ", launcher, " has set no ", name);
  return *value;
}

/// The number of machines that have `here` of `processes` each; 0 if that is not known.
int machines_with(int processes, std::optional<int> here) {
  return here && *here > 0 && processes % *here == 0 ? processes / *here : 0;
}

Launcher by_mpi(const Environment& environment, const char* name, const char* process,
                const char* processes) {
  Launcher launcher{.kind = Launcher::Kind::kMpi,
                    .name = name,
                    .process = needed(environment, process, name),
                    .processes = needed(environment, processes, name)};
  launcher.machines =
      machines_with(launcher.processes, number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE"));
  if (launcher.machines == 0) launcher.machines = number(environment, "SLURM_NNODES").value_or(0);
  return launcher;
}

/// torchrun's own store listens at MASTER_PORT while the processes run.
int free_port_of(const Environment& environment, int port) {
  const char* const taken = environment("TORCHELASTIC_USE_AGENT_STORE");
  return taken != nullptr && std::string_view(taken) == "True" ? port + 1 : port;
}

Launcher by_sockets(const Environment& environment) {
  const bool ours = environment(kRanksPerProcess) != nullptr;
  const bool torch = environment("TORCHELASTIC_RUN_ID") != nullptr;
  const std::string name = ours ? kOwnLauncher : torch ? "torchrun" : "a launcher";
  const char* const address = environment("MASTER_ADDR");
  require(address != nullptr, ErrorCode::kConfig, "environment: WORLD_SIZE is set but MASTER_ADDR ",
          "is not; set the address of the machine of RANK 0, or unset WORLD_SIZE");
  const int processes = needed(environment, "WORLD_SIZE", name);
  return {.kind = Launcher::Kind::kSockets,
          .name = name,
          .process = needed(environment, "RANK", name),
          .processes = processes,
          .machines = machines_with(processes, number(environment, "LOCAL_WORLD_SIZE")),
          .address = address,
          .port = free_port_of(environment, needed(environment, "MASTER_PORT", name)),
          .listener = number(environment, kListener).value_or(-1)};
}

/// srun without an MPI plug-in: processes meet on the machine that srun was called on, or where
/// MASTER_ADDR says, at a port that two jobs do not share.
Launcher by_slurm(const Environment& environment) {
  const char* const master = environment("MASTER_ADDR");
  const char* const first = environment("SLURM_LAUNCH_NODE_IPADDR");
  const char* const address = master != nullptr ? master : first;
  require(address != nullptr, ErrorCode::kConfig,
          "environment: srun has set no SLURM_LAUNCH_NODE_IPADDR; export MASTER_ADDR, the first "
          "machine of the job, or use srun --mpi=pmix");
  constexpr int kFirstPort = 20000;
  constexpr int kPorts = 10000;
  const int job = number(environment, "SLURM_JOB_ID").value_or(0);
  return {.kind = Launcher::Kind::kSockets,
          .name = "srun",
          .process = needed(environment, "SLURM_PROCID", "srun"),
          .processes = needed(environment, "SLURM_NTASKS", "srun"),
          .machines = number(environment, "SLURM_NNODES").value_or(0),
          .address = address,
          .port = number(environment, "MASTER_PORT").value_or(kFirstPort + job % kPorts)};
}

Launcher find(const Environment& environment) {
  const auto has = [&](const char* name) { return environment(name) != nullptr; };
  if (has("OMPI_COMM_WORLD_SIZE")) {
    return by_mpi(environment, "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  }
  if (has("PMI_SIZE")) return by_mpi(environment, "mpirun", "PMI_RANK", "PMI_SIZE");
  if (has("PMIX_RANK") && has("SLURM_NTASKS")) {
    return by_mpi(environment, "srun", "SLURM_PROCID", "SLURM_NTASKS");
  }
  if (has("RANK") && has("WORLD_SIZE")) return by_sockets(environment);
  const int processes = number(environment, "WORLD_SIZE").value_or(1);
  require(processes == 1, ErrorCode::kConfig, "environment: WORLD_SIZE is ", processes,
          ", but there is no RANK; set both in every process, or unset WORLD_SIZE");
  // In a shell of a job (sbatch, salloc) there is a SLURM_NTASKS, but no step has been started.
  if (has("SLURM_STEP_ID") && number(environment, "SLURM_NTASKS").value_or(1) > 1) {
    return by_slurm(environment);
  }
  return {};
}

}  // namespace

Launcher find_launcher(const Environment& environment) {
  Launcher launcher = find(environment);
  launcher.ranks_per_process = number(environment, kRanksPerProcess).value_or(0);
  require(launcher.processes >= 1 && launcher.process < launcher.processes, ErrorCode::kConfig,
          "environment: ", launcher.name, " says that this is process ", launcher.process, " of ",
          launcher.processes);
  if (launcher.processes == 1) launcher.kind = Launcher::Kind::kNone;
  return launcher;
}

LaunchFacts facts_of(const Launcher& launcher) {
  if (launcher.name.empty()) return {};
  return {.launcher = launcher.name,
          .machines = launcher.machines,
          .ranks = launcher.processes * std::max(launcher.ranks_per_process, 1)};
}

void adopt_launcher(const Launcher& launcher, Config& config) {
  const int each = launcher.ranks_per_process;
  if (launcher.kind == Launcher::Kind::kNone && each == 0) return;
  const int processes = launcher.processes;
  if (!config.given("ranks")) {
    config.set_text("ranks", std::to_string(processes * std::max(each, 1)));
  }
  const int ranks = config.get<int>("ranks");
  require(ranks % processes == 0 && (each == 0 || ranks == each * processes), ErrorCode::kConfig,
          "ranks is ", ranks, ", but ", launcher.name, " has started ", processes, " processes",
          each == 0 ? "" : concat(" of ", each, " ranks"),
          "; leave --ranks out, or make it a multiple of the processes");
  if (launcher.process == 0) return;
  for (const Setting& setting : config.table()) {
    const std::string& name = setting.name;
    if (name == "quiet") config.set_effective(name, true);
    if (name == "verbose") config.set_effective(name, false);
    if (setting.group == "Output" && setting.type == SettingType::kText) {
      config.set_effective(name, nullptr);
    }
  }
}

std::shared_ptr<World> join_world(const Launcher& launcher, const TrainerOptions& options) {
  if (launcher.kind == Launcher::Kind::kNone) return nullptr;
  const char* const apart = std::getenv(kApart);
  const WorldOptions world{.local_ranks = options.ranks / launcher.processes,
                           .timeout = options.timeout,
                           .check = options.check_collectives,
                           .apart = apart != nullptr && std::string_view(apart) == "1"};
  if (launcher.kind == Launcher::Kind::kMpi) return make_mpi_world(world);
  return make_socket_world({.process = launcher.process,
                            .processes = launcher.processes,
                            .address = launcher.address,
                            .port = launcher.port,
                            .listener = launcher.listener},
                           world);
}

}  // namespace tessera::cli

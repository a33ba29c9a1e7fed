#include "tessera/compat/launcher.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "tessera/collectives/listening_socket.h"
#include "tessera/collectives/mpi_group.h"
#include "tessera/core/error.h"
#include "tessera/core/host_name.h"
#include "tessera/sharding/sample_division.h"
#include "tessera/sharding/strategies.h"

namespace tessera {
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

/// A port that leaves room for `offset` more.
int needed_port(const Environment& environment, const std::string& launcher, int offset = 0) {
  constexpr int kHighestPort = 65535;
  const int port = needed(environment, "MASTER_PORT", launcher);
  require(port >= 1 && port <= kHighestPort - offset, ErrorCode::kConfig,
          "environment: MASTER_PORT is ", port, "; it must be 1 to ", kHighestPort - offset);
  return port;
}

/// `process` and `processes`: the variables that said which process this is, and of how many.
Launcher checked(Launcher launcher, const char* process, const char* processes) {
  require(launcher.processes >= 1, ErrorCode::kConfig, "environment: ", processes,
          " is 0; it must be at least 1");
  require(launcher.process < launcher.processes, ErrorCode::kConfig, "environment: ", launcher.name,
          " says that this is process ", launcher.process, " of ", launcher.processes, "; with ",
          processes, " ", launcher.processes, ", ", process, " must be ",
          launcher.processes == 1 ? "" : "0 to ", launcher.processes - 1);
  return launcher;
}

/// The number of machines that have `here` of `processes` each; 0 if that is not known.
int machines_with(int processes, std::optional<int> here) {
  return here && *here > 0 && processes % *here == 0 ? processes / *here : 0;
}

/// An MPI launcher's names for the rank of a process, their number, and that on this machine.
struct MpiNames {
  const char* launcher;
  const char* process;
  const char* processes;
  const char* here;
};

Launcher by_mpi(const Environment& environment, const MpiNames& names) {
  Launcher launcher{.kind = Launcher::Kind::kMpi,
                    .name = names.launcher,
                    .process = needed(environment, names.process, names.launcher),
                    .processes = needed(environment, names.processes, names.launcher)};
  launcher.machines = machines_with(launcher.processes, number(environment, names.here));
  if (launcher.machines == 0) launcher.machines = number(environment, "SLURM_NNODES").value_or(0);
  return checked(std::move(launcher), names.process, names.processes);
}

/// `offset`: from MASTER_PORT to the port where the processes meet.
Launcher by_sockets(const Environment& environment, const char* name, int offset = 0) {
  const char* const address = environment("MASTER_ADDR");
  require(address != nullptr, ErrorCode::kConfig, "environment: WORLD_SIZE is set but MASTER_ADDR ",
          "is not; set the address of the machine of RANK 0, or unset WORLD_SIZE");
  const int processes = needed(environment, "WORLD_SIZE", name);
  return checked({.kind = Launcher::Kind::kSockets,
                  .name = name,
                  .process = needed(environment, "RANK", name),
                  .processes = processes,
                  .machines = machines_with(processes, number(environment, "LOCAL_WORLD_SIZE")),
                  .address = address,
                  .port = needed_port(environment, name, offset) + offset},
                 "RANK", "WORLD_SIZE");
}

Launcher by_ours(const Environment& environment) {
  Launcher launcher = by_sockets(environment, kOwnLauncher);
  launcher.ranks_per_process = needed(environment, kRanksPerProcess, kOwnLauncher);
  launcher.listener = number(environment, kListener).value_or(-1);
  launcher.meeting = number(environment, kMeeting).value_or(-1);
  launcher.first_ranks = number(environment, kFirstRanks).value_or(0);
  return launcher;
}

Launcher by_torchrun(const Environment& environment) {
  // torchrun's own store listens at MASTER_PORT while the processes run.
  const char* const taken = environment("TORCHELASTIC_USE_AGENT_STORE");
  const bool is_taken = taken != nullptr && std::string_view(taken) == "True";
  return by_sockets(environment, "torchrun", is_taken ? 1 : 0);
}

Launcher by_hand(const Environment& environment) { return by_sockets(environment, "a launcher"); }

/// Where process 0 of a step runs. srun gives it the first machine of the step, which need not be
/// the one that srun was called on.
std::string first_machine(const Environment& environment) {
  if (const char* const master = environment("MASTER_ADDR")) return master;
  for (const char* const name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
    const char* const list = environment(name);
    const std::string host = list == nullptr ? "" : first_host(list);
    if (!host.empty()) return host;
  }
  fail(ErrorCode::kConfig,
       "environment: srun has set no SLURM_STEP_NODELIST; export MASTER_ADDR, the first machine of "
       "the job, or use srun --mpi=pmix");
}

/// srun without an MPI plug-in: processes meet on the machine of the first, at a port that two jobs
/// do not share.
Launcher by_slurm(const Environment& environment) {
  // In a shell of a job (sbatch, salloc) there is a SLURM_NTASKS, but no step has been started.
  if (number(environment, "SLURM_NTASKS").value_or(1) == 1) return {};
  constexpr int kFirstPort = 20000;
  constexpr int kPorts = 10000;
  const int job = number(environment, "SLURM_JOB_ID").value_or(0);
  const bool has_port = number(environment, "MASTER_PORT").has_value();
  return checked({.kind = Launcher::Kind::kSockets,
                  .name = "srun",
                  .process = needed(environment, "SLURM_PROCID", "srun"),
                  .processes = needed(environment, "SLURM_NTASKS", "srun"),
                  .machines = number(environment, "SLURM_NNODES").value_or(0),
                  .address = first_machine(environment),
                  .port = has_port ? needed_port(environment, "srun") : kFirstPort + job % kPorts},
                 "SLURM_PROCID", "SLURM_NTASKS");
}

/// Adds the token that tells jobs apart that meet at one port; a launcher's name for one is no
/// secret.
void add_token(const Environment& environment, Launcher& launcher) {
  for (const char* const name : {kJobToken, "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"}) {
    const char* const value = environment(name);
    if (value == nullptr || *value == '\0') continue;
    launcher.secret = std::string_view(name) == kJobToken;
    launcher.token = launcher.secret ? value : concat(name, "=", value);
    return;
  }
}

/// Where process 0 listens; -1 if make_socket_world is to try it, and to say what is wrong.
int listener_of(const Launcher& launcher, bool quiet) {
  if (launcher.process != 0) return -1;
  const auto note = [quiet](const std::string& text) {
    if (!quiet) std::cerr << "note: " << text << "\n";
  };
  if (!launcher.secret) {
    note(concat("the processes have no secret of their own, so ",
                launcher.machines == 1 ? "any user of this machine" : "whoever reaches port ",
                launcher.machines == 1 ? "" : std::to_string(launcher.port),
                " could pass for one of them; give all the same ", kJobToken));
  }
  if (launcher.listener >= 0) return launcher.listener;
  const Listening listening = listen_at(launcher.address, launcher.port);
  if (listening.socket >= 0 && !listening.everywhere.empty()) {
    note(concat("process 0 listens at all addresses of this machine: ", listening.everywhere));
  }
  return listening.socket;
}

/// Ends this process with an error if it lives `patience` longer. MPI_Init waits for the other
/// processes without a limit and cannot be cancelled.
std::jthread limit_start(std::chrono::milliseconds patience, std::string error) {
  return std::jthread([=](const std::stop_token& over) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any never;
    if (never.wait_for(lock, over, patience, [&] { return over.stop_requested(); })) return;
    std::cerr << "tessera: error: " << error << std::endl;
    _exit(EXIT_FAILURE);  // the thread that is stuck cannot unwind
  });
}

/// An MPI that does not know the launcher's variables takes the process for the only one.
std::shared_ptr<World> join_mpi(const Launcher& launcher, const WorldOptions& options) {
  const std::jthread watch = limit_start(
      options.timeout, concat("process ", launcher.process, " of ", launcher.processes, " on ",
                              host_name(), " waited ", options.timeout.count() / 1000,
                              " s for MPI to bring the processes together; one of them did not "
                              "start, or is stopped; look at them, or raise --timeout"));
  std::shared_ptr<World> world = make_mpi_world(options);
  require(world->processes() == launcher.processes, ErrorCode::kConfig, launcher.name,
          " has started ", launcher.processes, " processes, but the MPI of this build knows of ",
          world->processes(), "; use the ", launcher.name,
          " of the MPI that it was built with, or 'tessera launch'");
  return world;
}

/// A launcher, and the variables that all its processes have.
struct KnownLauncher {
  std::array<const char*, 2> recognised_by;  ///< null: one is enough
  Launcher (*read)(const Environment& environment);
  MpiNames mpi{};  ///< where `read` is null
};

/// The first that is recognised has started this process. Launchers are nested: srun or mpirun
/// starts one torchrun or `tessera launch` on each machine, which starts the processes, and a
/// process has the variables of both. The inner one knows the processes, so it stands first. Ours
/// and torchrun start programs of one machine, so they are inside of the others; an MPI is inside
/// of the Slurm job whose machines it uses.
constexpr std::array kKnownLaunchers{
    KnownLauncher{{kRanksPerProcess, "RANK"}, by_ours},
    KnownLauncher{{"TORCHELASTIC_RUN_ID", "RANK"}, by_torchrun},
    KnownLauncher{{"RANK", "WORLD_SIZE"}, by_hand},
    KnownLauncher{
        {"OMPI_COMM_WORLD_SIZE", nullptr},
        nullptr,
        {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"}},
    KnownLauncher{
        {"MV2_COMM_WORLD_SIZE", nullptr},
        nullptr,
        {"mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"}},
    KnownLauncher{
        {"PMI_SIZE", nullptr}, nullptr, {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"}},
    KnownLauncher{{"PMIX_RANK", "SLURM_NTASKS"},
                  nullptr,
                  {"srun", "SLURM_PROCID", "SLURM_NTASKS", "OMPI_COMM_WORLD_LOCAL_SIZE"}},
    KnownLauncher{{"SLURM_STEP_ID", "SLURM_NTASKS"}, by_slurm},
};

/// The beginnings of variables by which some launcher is recognised, or says more.
constexpr std::array kLaunchersPrefixes{"OMPI_", "PMI_",          "PMIX_",       "PRTE_",
                                        "MV2_",  "TORCHELASTIC_", "SLURM_PROCID"};

Launcher find(const Environment& environment) {
  const auto has = [&](const char* name) {
    return name == nullptr || environment(name) != nullptr;
  };
  for (const KnownLauncher& known : kKnownLaunchers) {
    if (!std::ranges::all_of(known.recognised_by, has)) continue;
    return known.read != nullptr ? known.read(environment) : by_mpi(environment, known.mpi);
  }
  const int processes = number(environment, "WORLD_SIZE").value_or(1);
  require(processes == 1, ErrorCode::kConfig, "environment: WORLD_SIZE is ", processes,
          ", but there is no RANK; set both in every process, or unset WORLD_SIZE");
  return {};
}

}  // namespace

Launcher find_launcher(const Environment& environment) {
  Launcher launcher = find(environment);
  launcher.threads = threads_of_environment(environment);
  if (launcher.processes == 1) launcher.kind = Launcher::Kind::kNone;
  if (launcher.kind == Launcher::Kind::kSockets) {
    if (launcher.machines == 1) launcher.address = kLoopback;
    add_token(environment, launcher);
  }
  return launcher;
}

bool is_of_other_launcher(std::string_view variable) {
  return std::ranges::any_of(kLaunchersPrefixes,
                             [&](const char* prefix) { return variable.starts_with(prefix); });
}

std::string first_host(std::string_view list) {
  const std::size_t bracket = list.find('[');
  const std::size_t comma = list.find(',');
  if (bracket == std::string_view::npos || comma < bracket) {
    return std::string(list.substr(0, comma));
  }
  const std::size_t close = list.find(']', bracket);
  if (close == std::string_view::npos) return "";
  const std::string_view inside = list.substr(bracket + 1, close - bracket - 1);
  std::string host(list.substr(0, bracket));
  host += inside.substr(0, inside.find_first_of(",-"));
  const std::string_view rest = list.substr(close + 1);
  return host + first_host(rest.substr(0, rest.find(',')));
}

int threads_of_environment(const Environment& environment) {
  constexpr const char* kName = "OMP_NUM_THREADS";
  const char* const text = environment(kName);
  if (text == nullptr || *text == '\0') return 0;
  const std::string first = std::string(text).substr(0, std::string_view(text).find(','));
  const std::optional<int> threads = number([&](const char*) { return first.c_str(); }, kName);
  constexpr int kMost = 4096;  // as of --threads-per-rank
  require(threads && *threads > 0 && *threads <= kMost, ErrorCode::kConfig, "environment: ", kName,
          " is '", text, "'; it must be a number from 1 to ", kMost);
  return *threads;
}

LaunchFacts facts_of(const Launcher& launcher) {
  if (launcher.name.empty()) return {};
  return {.launcher = launcher.name,
          .machines = launcher.machines,
          .ranks = launcher.processes * std::max(launcher.ranks_per_process, 1)};
}

namespace {

/// A run that is started again has the ranks that are left, the samples per step of before, and
/// outputs that it adds to.
void adopt_restart(const Launcher& launcher, Config& config) {
  const int now = launcher.processes * std::max(launcher.ranks_per_process, 1);
  const int first = launcher.first_ranks;
  const int given = config.given("ranks") ? config.get<int>("ranks") : now;
  require(given == now || given == first, ErrorCode::kConfig, "ranks is ", given,
          ", but the first attempt had ", first, " ranks");
  config.set_text("ranks", std::to_string(now));
  const SampleDivision before =
      divide_samples(make_mesh(first, 1), config.get<int>("accumulate"), 1);
  const std::optional<std::int64_t> micro_steps = before.micro_steps_among(now);
  require(micro_steps.has_value(), ErrorCode::kConfig, now, " ranks cannot share the ",
          before.micro_batches_per_step(), " micro-batches that a step of ", first, " ranks had");
  config.set_effective("accumulate", *micro_steps);
  if (find_setting(config.table(), "append") == nullptr) return;
  config.set_effective("append", true);
  config.set_effective("overwrite", false);
}

}  // namespace

void adopt_launcher(const Launcher& launcher, Config& config) {
  if (launcher.first_ranks > 0) adopt_restart(launcher, config);
  if (launcher.threads > 0 && !config.given("threads_per_rank")) {
    config.set_effective("threads_per_rank", launcher.threads);
  }
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
  if (launcher.machines > 0 && ranks % launcher.machines == 0 && !config.given("ranks_per_node")) {
    config.set_effective("ranks_per_node", ranks / launcher.machines);
  }
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

void join_world(const Launcher& launcher, TrainerOptions& options, bool quiet) {
  if (launcher.kind == Launcher::Kind::kNone) return;
  const char* const apart = std::getenv(kApart);
  const WorldOptions world{.local_ranks = options.ranks / launcher.processes,
                           .timeout = options.timeout,
                           .apart = apart != nullptr && std::string_view(apart) == "1"};
  options.world = launcher.kind == Launcher::Kind::kMpi
                      ? join_mpi(launcher, world)
                      : make_socket_world({.process = launcher.process,
                                           .processes = launcher.processes,
                                           .address = launcher.address,
                                           .port = launcher.port,
                                           .listener = listener_of(launcher, quiet),
                                           .token = launcher.token,
                                           .patience = options.timeout},
                                          world);
  if (launcher.meeting >= 0) eventfd_write(launcher.meeting, 1);
}

void join_world(const Launcher& launcher, const Config& config, TrainerOptions& options) {
  if (launcher.kind == Launcher::Kind::kNone) return;
  join_world(launcher, options, config.get<bool>("quiet"));
  // Until now all ranks were taken for this machine's.
  options.threads_per_rank = config.get<int>("threads_per_rank");
  options = resolved(std::move(options));
}

Launcher join_launched(TrainerOptions& options) {
  const Launcher launcher = find_launcher(std::getenv);
  if (options.threads_per_rank == 0) options.threads_per_rank = launcher.threads;
  const int each = launcher.ranks_per_process;
  if (launcher.kind == Launcher::Kind::kNone && each == 0) return launcher;
  options.ranks = launcher.processes * std::max(each, 1);
  const bool known = launcher.machines > 0 && options.ranks % launcher.machines == 0;
  if (options.ranks_per_node == 0 && known)
    options.ranks_per_node = options.ranks / launcher.machines;
  join_world(launcher, options, false);
  return launcher;
}

}  // namespace tessera

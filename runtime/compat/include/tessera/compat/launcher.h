#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tessera/collectives/world.h"
#include "tessera/compat/config.h"
#include "tessera/compat/config_sources.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera {

/// Set by `tessera launch` beside what every launcher sets.
inline constexpr const char* kRanksPerProcess = "TESSERA_RANKS_PER_PROCESS";
/// Set for a restart, to the ranks of the first attempt, whose samples per step stay.
inline constexpr const char* kFirstRanks = "TESSERA_FIRST_RANKS";
/// A file descriptor of process 0 that listens at MASTER_PORT already.
inline constexpr const char* kListener = "TESSERA_LISTENER";
/// An eventfd: a process that has met the others adds one.
inline constexpr const char* kMeeting = "TESSERA_MEETING";
/// A secret of the job; see SocketRendezvous::token. Launchers pass it on.
inline constexpr const char* kJobToken = "TESSERA_JOB_TOKEN";
/// A file descriptor of process 0: the terminal, where its progress bar goes. Its output goes
/// through the launcher, as with all processes, which puts its ranks in front.
inline constexpr const char* kBarTerminal = "TESSERA_BAR_TERMINAL";
/// For tests on one machine: "1" lets processes exchange messages as if each had its own.
inline constexpr const char* kApart = "TESSERA_APART";

/// The launcher that has started this process as one of several, and the way to the others.
struct Launcher {
  enum class Kind { kNone, kMpi, kSockets };
  Kind kind = Kind::kNone;  ///< kNone: it is the only one
  std::string name{};       ///< "mpirun", "torchrun", ...
  int process = 0;
  int processes = 1;
  int machines = 0;  ///< 0: not said, as the next
  int ranks_per_process = 0;
  int first_ranks = 0;    ///< the value of kFirstRanks; 0: the run was not started before
  int threads = 0;        ///< of each rank's kernels, as OMP_NUM_THREADS says
  std::string address{};  ///< kSockets only, as the next two
  int port = 0;
  int listener = -1;    ///< the value of kListener
  int meeting = -1;     ///< the value of kMeeting
  std::string token{};  ///< kSockets only: of kJobToken, else what the launcher calls the job
  bool secret = false;  ///< whether `token` is of kJobToken
};

/// Recognises `tessera launch`, torchrun, `accelerate launch` and scripts like them (RANK,
/// WORLD_SIZE, MASTER_ADDR, MASTER_PORT), mpirun (OMPI_COMM_WORLD_*, MV2_COMM_WORLD_*, PMI_*) and
/// srun (SLURM_*): of several, in this order, the first.
/// Throws Error{kConfig} that names the variable that is missing or makes no sense.
Launcher find_launcher(const Environment& environment);

/// True if another launcher than ours sets the variable for its own processes. Processes that
/// `tessera launch` starts do not get it.
bool is_of_other_launcher(std::string_view variable);

/// "node01" of Slurm's "node[01-03,7],other"; empty if there is none.
std::string first_host(std::string_view list);

/// OMP_NUM_THREADS, which OpenMP lets be a list, "4,2", by depth; 0 if it is not set. Throws
/// Error{kConfig} if it is no number above 0.
int threads_of_environment(const Environment& environment);

/// How the launcher changes the meaning of a config file.
LaunchFacts facts_of(const Launcher& launcher);

/// Gives `config` the number of ranks and their threads if they were not given, and keeps every
/// process but the first from printing and logging. Throws Error{kConfig} if the ranks cannot be
/// split evenly.
void adopt_launcher(const Launcher& launcher, Config& config);

/// Joins the other processes, if there are any: options.world, of options.ranks ranks. Notes go to
/// stderr, unless `quiet`. An MPI whose processes do not come together within options.timeout ends
/// this process: MPI_Init cannot be cancelled. Throws Error{kUnavailable} or Error{kTimeout} if
/// they cannot be reached.
void join_world(const Launcher& launcher, TrainerOptions& options, bool quiet);
/// Joins the world with a config's options; the machine's threads are then divided by its own
/// ranks, unless `config` says how many a rank has.
void join_world(const Launcher& launcher, const Config& config, TrainerOptions& options);

/// For a program of one's own: recognises the launcher of this process and joins the others, with
/// as many ranks as it has started. Without a launcher, options stay as they are: the ranks are
/// threads of this process. Process 0 of the result is the one that should print.
Launcher join_launched(TrainerOptions& options);

}  // namespace tessera

#include "launch/launch_command.h"

#include <netdb.h>
#include <sys/socket.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <string_view>
#include <utility>

#include "commands.h"
#include "output/terminal.h"
#include "settings/command_line.h"
#include "tessera/collectives/listening_socket.h"
#include "tessera/compat/config.h"
#include "tessera/compat/launcher.h"
#include "tessera/core/error.h"
#include "tessera/sharding/sample_division.h"
#include "tessera/sharding/strategies.h"
#include "tessera/trainer/trainer_options.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

constexpr int kLastPort = 65535;

// ---- Where the processes meet -------------------------------------------------------------------

void check_address(const Stated<std::string>& stated) {
  const std::string& address = stated.value;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int failed = getaddrinfo(address.c_str(), nullptr, &hints, &list);
  require(failed == 0, ErrorCode::kConfig, stated.name, " ", address, " cannot be resolved (",
          gai_strerror(failed), "); give node 0's IP address, or a name that this machine knows");
  freeaddrinfo(list);
}

/// A socket that listens at the port. Process 0 takes it over, so nobody can come in between.
int listener_of(const LaunchLayout& layout) {
  const Stated<int>& port = layout.main_port;
  const Listening listening =
      listen_at(layout.nodes.value == 1 ? kLoopback : layout.main_address.value, port.value);
  require(listening.socket >= 0, ErrorCode::kConfig, port.name, " ", port.value,
          " cannot be used (", std::strerror(listening.error),
          "); another job may meet there; choose another, or 0 for a free one");
  if (!listening.everywhere.empty()) {
    print_note("node 0 listens at all addresses of this machine: " + listening.everywhere);
  }
  return listening.socket;
}

std::string threads_of(const LaunchLayout& layout) {
  if (threads_of_environment(std::getenv) > 0) return std::getenv("OMP_NUM_THREADS");
  return std::to_string(
      default_threads_per_rank(layout.processes.value * layout.ranks_per_process));
}

ProcessOptions process_options(const LaunchLayout& layout, int local, int port, int listener) {
  const int here = layout.processes.value;
  const int process = layout.node_rank.value * here + local;
  ProcessOptions options;
  options.process = process;
  options.first_rank = process * layout.ranks_per_process;
  options.last_rank = options.first_rank + layout.ranks_per_process - 1;
  options.arguments = layout.command;
  options.listener = process == 0 ? listener : -1;
  Variables& v = options.variables = layout.exported;
  v["RANK"] = std::to_string(process);
  v["LOCAL_RANK"] = std::to_string(local);
  v["WORLD_SIZE"] = std::to_string(here * layout.nodes.value);
  v["LOCAL_WORLD_SIZE"] = std::to_string(here);
  v["GROUP_RANK"] = std::to_string(layout.node_rank.value);
  v["MASTER_ADDR"] = layout.main_address.value;
  v["MASTER_PORT"] = std::to_string(port);
  v["OMP_NUM_THREADS"] = threads_of(layout);
  if (!layout.job_token.empty()) v[kJobToken] = layout.job_token;
  v[kRanksPerProcess] = std::to_string(layout.ranks_per_process);
  const std::string& gpus = layout.gpu_ids.value;
  if (!gpus.empty() && gpus != "all") v["CUDA_VISIBLE_DEVICES"] = gpus;
  return options;
}

std::vector<std::string> flags_of_train() {
  std::vector<std::string> names = names_of(train_settings());
  std::ranges::transform(names, names.begin(), flag_name);
  return names;
}

}  // namespace

LaunchCommand::LaunchCommand(CLI::App& app) : command_(&app) {
  LaunchRequest& r = request_;
  command_->allow_extras();  // so that an unknown flag gets a suggestion
  const auto add = [&](const char* flag, auto& value, const char* type, const char* help) {
    command_->add_option(flag, value, help)->type_name(type);
  };
  const auto number = [&](const char* flag, auto& value, double minimum, double maximum,
                          const char* type, const char* help) {
    const Setting setting{.name = setting_name(flag),
                          .type = SettingType::kInteger,
                          .minimum = minimum,
                          .maximum = maximum};
    const auto take = [setting, &value](const std::string& text) {
      value = value_of<int>({setting}, setting.name, text);
    };
    return command_->add_option_function<std::string>(flag, take, help)->type_name(type);
  };
  add("--config", r.config, "FILE", "settings of the run, and of the launch if it is Accelerate's");
  number("--processes", r.processes, 1, kMaxRanks, "N",
         "processes on this machine (default: as the file, else 1)");
  number("--ranks-per-process", r.ranks_per_process, 1, kMaxRanks, "N",
         "ranks of each, as threads (default: 1)");
  number("--nodes", r.nodes, 1, kMaxRanks, "N",
         "machines; launch on each of them (default: as the file, else 1)");
  number("--node-rank", r.node_rank, 0, kMaxRanks - 1, "N",
         "which of them this is, from 0 (default: as the file, else 0)");
  add("--main-address", r.main_address, "HOST", "a name or IP address of node 0");
  number("--main-port", r.main_port, 0, kLastPort, "PORT",
         "where node 0 listens (default: 29500 with several nodes, else 0, a free one)");
  add("--job-token", r.job_token, "TEXT",
      "a secret, the same on every node, that keeps others out (better: TESSERA_JOB_TOKEN)");
  // Accelerate counts the processes of all machines together; --processes is of this one.
  number("--num-processes", r.all_processes, 1, kMaxRanks, "N", "processes of all machines")
      ->group("");
  add("--gpu-ids", r.gpu_ids, "LIST", "GPUs that the processes may use: 0,1 or all");
  number("--grace", r.grace_seconds, 0, std::numeric_limits<int>::max(), "SECONDS",
         "after a failure or Ctrl-C, how long processes may end by themselves (default: 10)");
  number(
      "--max-restarts", r.max_restarts, 0, 1e6, "N",
      "after a failure start the run again, up to N times; with --save and --resume auto it goes "
      "on from the newest checkpoint (default: 0)");
  number("--min-ranks", r.min_ranks, 1, kMaxRanks, "N",
         "a restart leaves out processes that were killed, down to N ranks; samples per step stay, "
         "by more --accumulate (default: as many as before)");
  accept_aliases(*command_);
}

LaunchRequest LaunchCommand::request(std::vector<std::string> command) const {
  const std::vector<std::string> extras = command_->remaining();
  if (!extras.empty()) {
    require(extras.front().rfind('-', 0) == 0, ErrorCode::kConfig, "'", extras.front(),
            kCannotBeLaunched);
    refuse_flag(extras.front(), shown_flags(*command_),
                {.name = "train", .flags = flags_of_train()});
  }
  require(command_->count("--config") == 0 || !request_.config.empty(), ErrorCode::kConfig,
          "--config is empty; give the path of a file");
  LaunchRequest request = request_;
  request.command = std::move(command);
  return request;
}

std::vector<std::string> take_launched(int& argc, const char* const* argv) {
  if (argc < 2 || std::string_view(argv[1]) != kLaunch) return {};
  // With "--" nobody has to guess whether "test" is the command or a file of that name.
  const std::vector<std::string> words(argv + 2, argv + argc);
  auto command = std::ranges::find(words, "--");
  const bool marked = command != words.end();
  if (!marked) {
    command = std::ranges::find_if(words, can_be_launched);
  }
  argc = 2 + static_cast<int>(command - words.begin());
  return {command + (marked ? 1 : 0), words.end()};
}

namespace {

/// One attempt to run it. `first`: the processes of the first one.
LaunchResult run_attempt(const LaunchLayout& layout, const LaunchRequest& request, int first,
                         int attempt) {
  int port = layout.main_port.value;
  const int listener = layout.node_rank.value == 0 ? listener_of(layout) : -1;
  if (listener >= 0) port = port_of_listener(listener);
  std::vector<ProcessOptions> processes;
  for (int local = 0; local < layout.processes.value; ++local) {
    ProcessOptions options = process_options(layout, local, port, listener);
    if (attempt > 0) {
      // Processes left of an earlier attempt, on this machine or another one, must not take part.
      std::string& token = options.variables[kJobToken];
      if (const char* const secret = std::getenv(kJobToken); token.empty() && secret != nullptr) {
        token = secret;
      }
      if (layout.nodes.value > 1) token += concat(" attempt ", attempt);
      if (token.empty()) options.variables.erase(kJobToken);
      options.variables[kFirstRanks] = std::to_string(first * layout.ranks_per_process);
    }
    processes.push_back(std::move(options));
  }
  return run_processes(std::move(processes), std::chrono::seconds(request.grace_seconds));
}

void check_restarts(const LaunchRequest& request, const LaunchLayout& layout,
                    const LaunchedCommand& command) {
  require(
      !request.min_ranks || layout.nodes.value == 1, ErrorCode::kConfig,
      "--min-ranks is for one machine: launchers of several would have to agree on who is left");
  require(!request.min_ranks || *request.min_ranks <= layout.ranks(), ErrorCode::kConfig,
          "--min-ranks ", *request.min_ranks, " is more than the ", layout.ranks(),
          " ranks of the run");
  require(!request.min_ranks || request.max_restarts > 0, ErrorCode::kConfig,
          "--min-ranks says how many ranks a restart needs; give --max-restarts, too");
  if (request.max_restarts > 0 && command.given().value("resume", "") != "auto") {
    print_note("a restart begins at step 0, unless the run has --save and --resume auto");
  }
}

/// The processes of the next attempt, after `result`: as many as there were, or, where fewer are
/// allowed, those that are left and share the samples of a step evenly. 0: there are too few.
int processes_of_restart(const LaunchLayout& layout, const LaunchRequest& request,
                         const LaunchedCommand& command, int first, const LaunchResult& result) {
  if (!request.min_ranks || result.killed == 0) return layout.processes.value;
  // Processes stand for their ranks, of which each has as many.
  const SampleDivision before =
      divide_samples(make_mesh(first, 1), std::max(1, command.number("accumulate")), 1);
  for (int n = layout.processes.value - result.killed; n > 0; --n) {
    if (n * layout.ranks_per_process < *request.min_ranks) return 0;
    if (before.micro_steps_among(n)) return n;
  }
  return 0;
}

}  // namespace

int run_launch(const LaunchRequest& request) {
  const LaunchedCommand command(request.command);
  if (!command.help().empty()) {
    std::cout << command.help();
    return kExitGood;
  }
  LaunchLayout layout = make_layout(request, command);
  check_address(layout.main_address);
  check_restarts(request, layout, command);
  const int first = layout.processes.value;
  for (int attempt = 0;; ++attempt) {
    const LaunchResult result = run_attempt(layout, request, first, attempt);
    // A run that settings or data forbid is forbidden again.
    const bool again = result.exit_code != kExitGood && result.exit_code != kExitUsage &&
                       !result.was_asked && attempt < request.max_restarts;
    if (!again) return result.exit_code;
    const int next = processes_of_restart(layout, request, command, first, result);
    if (next == 0) {
      std::cerr << "tessera: no restart: " << result.killed << " of " << layout.processes.value
                << " processes were killed, and fewer than --min-ranks " << *request.min_ranks
                << " ranks are left that share a step's samples evenly\n";
      return result.exit_code;
    }
    layout.processes.value = next;
    std::cerr << "tessera: restart " << attempt + 1 << " of " << request.max_restarts << ", with "
              << next * layout.ranks_per_process * layout.nodes.value << " ranks\n";
  }
}

LaunchedCommand::LaunchedCommand(std::vector<std::string> words)
    : words_(std::move(words)), program_(std::make_unique<CLI::App>("", "tessera")) {
  require(!words_.empty(), ErrorCode::kConfig, "nothing to launch; try 'tessera launch ",
          "--processes 2 -- train --data FOLDER'");
  require(can_be_launched(name()), ErrorCode::kConfig, "'", name(), kCannotBeLaunched);
  const auto* const row = std::ranges::find(kCommands, name(), &CommandRow::name);
  CLI::App& app = *program_->add_subcommand(name(), row->summary);
  std::function<int()> bench;  // what its flags are parsed into
  if (name() == "bench") {
    require(words_.size() > 1 && words_[1] == "collectives", ErrorCode::kConfig,
            "of 'bench' only 'bench collectives' can be launched; run the others by themselves");
    bench = add_bench(app);
  }
  settings_ = name() == "bench"      ? nullptr
              : name() == "train"    ? add_train_flags(app)
              : name() == "evaluate" ? add_evaluate_flags(app)
              : name() == "generate" ? add_generate_flags(app)
                                     : add_self_test_flags(app);
  try {
    program_->parse(std::vector<std::string>(words_.rbegin(), words_.rend()));
  } catch (const CLI::CallForHelp&) {
    help_ = program_->help();
    return;
  } catch (const CLI::ParseError& error) {
    fail(ErrorCode::kConfig, error.what(), "; see tessera ", name(), " --help");
  }
  if (settings_ == nullptr) return;
  config_path_ = settings_->config_path();
  const Config flags = settings_->flags();
  for (const Setting& setting : flags.table()) {
    if (flags.given(setting.name)) given_[setting.name] = flags.values()[setting.name];
  }
}

}  // namespace tessera::cli

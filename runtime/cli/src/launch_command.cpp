#include "launch_command.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "launch_environment.h"
#include "launch_processes.h"
#include "tessera/core/error.h"
#include "tessera/trainer/config_sources.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

constexpr int kUsualPort = 29500;

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

/// The number that `flag` has in the launched command, or 0.
int number_in(const std::vector<std::string>& command, const std::string& flag) {
  for (std::size_t i = 0; i < command.size(); ++i) {
    if (command[i] == flag && i + 1 < command.size()) return std::atoi(command[i + 1].c_str());
    if (command[i].rfind(flag + "=", 0) == 0)
      return std::atoi(command[i].c_str() + flag.size() + 1);
  }
  return 0;
}

void check_mesh(const LaunchRequest& request) {
  const int total = request.processes * request.ranks_per_process * request.nodes;
  const std::string sum =
      concat("--nodes ", request.nodes, " x --processes ", request.processes,
             " x --ranks-per-process ", request.ranks_per_process, " is ", total, " ranks");
  const int ranks = number_in(request.command, "--ranks");
  require(ranks == 0 || ranks == total, ErrorCode::kConfig, sum, ", but the command has --ranks ",
          ranks, "; leave it out");
  const int replicas = number_in(request.command, "--replicas");
  require(replicas == 0 || total % replicas == 0, ErrorCode::kConfig, sum, ", which --replicas ",
          replicas, " does not divide");
}

void check(const LaunchRequest& r) {
  const auto at_least = [](const char* flag, int value, int minimum) {
    require(value >= minimum, ErrorCode::kConfig, flag, " is ", value, "; it must be at least ",
            minimum);
  };
  require(!r.command.empty(), ErrorCode::kConfig,
          "nothing to launch; try 'tessera launch --processes 2 -- train --data FOLDER'");
  require(r.command.front() == "train", ErrorCode::kConfig, "'", r.command.front(),
          "' cannot be launched; 'train' can, after the launcher's own flags and --");
  at_least("--processes", r.processes, 1);
  at_least("--ranks-per-process", r.ranks_per_process, 1);
  at_least("--nodes", r.nodes, 1);
  require(r.node_rank >= 0 && r.node_rank < r.nodes, ErrorCode::kConfig, "--node-rank is ",
          r.node_rank, "; with --nodes ", r.nodes, " it may be 0 to ", r.nodes - 1);
  require(r.main_port >= -1 && r.main_port <= 65535, ErrorCode::kConfig, "--main-port is ",
          r.main_port, "; it may be 1 to 65535, or 0 for a free one");
  require(r.nodes == 1 || r.main_port != 0, ErrorCode::kConfig,
          "--main-port 0 takes a free port, which the other nodes cannot know; name one");
  require(r.nodes == 1 || (r.main_address != "127.0.0.1" && r.main_address != "localhost"),
          ErrorCode::kConfig, "--main-address is ", r.main_address,
          ", which every node takes for itself; give the address of node 0");
  const auto gpus = static_cast<int>(split(r.gpu_ids, ',').size());
  require(r.gpu_ids.empty() || r.gpu_ids == "all" || gpus >= r.processes, ErrorCode::kConfig,
          "--gpu-ids names ", gpus, gpus == 1 ? " GPU" : " GPUs", " for ", r.processes,
          " processes; name one for each, or start fewer (--processes)");
  check_mesh(r);
}

// ---- What an Accelerate file says to its launcher
// ------------------------------------------------

std::string as_text(const nlohmann::ordered_json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// "fsdp_config.fsdp_sharding_strategy" -> "FSDP_SHARDING_STRATEGY".
std::string variable_of(const std::string& key) {
  std::string name = key.substr(key.find('.') + 1);
  if (name == "fsdp_transformer_layer_cls_to_wrap") name = "fsdp_transformer_cls_to_wrap";
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return name.rfind("FSDP_", 0) == 0 ? name : "FSDP_" + name;
}

/// Fills what the command line left out; returns what the file exports.
Variables read_config(LaunchRequest& request) {
  Variables exported;
  if (request.config.empty()) return exported;
  const std::vector<Setting> table = trainer_settings();
  const ConfigTranslation file = translate_file(
      request.config, {.table = table, .overrides = nlohmann::ordered_json::object()});
  request.command.push_back("--config");
  request.command.push_back(request.config);
  if (file.dialect != ConfigDialect::kAccelerate) return exported;
  int processes = 0;
  int nodes = 1;
  for (const ConfigEntry& entry : file.entries) {
    if (entry.value.is_null() || entry.value.is_structured()) continue;
    const std::string text = as_text(entry.value);
    if (entry.key == "num_processes") processes = std::atoi(text.c_str());
    if (entry.key == "num_machines") nodes = std::atoi(text.c_str());
    if (entry.key == "gpu_ids" && request.gpu_ids.empty()) request.gpu_ids = text;
    if (entry.key == "mixed_precision") exported["ACCELERATE_MIXED_PRECISION"] = text;
    if (entry.key.rfind("fsdp_config.", 0) == 0) {
      exported["ACCELERATE_USE_FSDP"] = "true";
      exported[variable_of(entry.key)] = text;
    }
  }
  // Accelerate's processes are ranks, of all machines together.
  if (request.processes == 0 && processes > 0) {
    request.processes = processes / std::max(nodes, 1) / std::max(request.ranks_per_process, 1);
  }
  return exported;
}

// ---- Where the processes meet -------------------------------------------------------------------

void check_address(const std::string& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int failed = getaddrinfo(address.c_str(), nullptr, &hints, &list);
  require(failed == 0, ErrorCode::kConfig, "--main-address ", address, " cannot be resolved (",
          gai_strerror(failed), "); give node 0's IP address, or a name that this machine knows");
  freeaddrinfo(list);
}

/// A socket that listens at the port. Process 0 takes it over, so nobody can come in between.
int listen_at(int& port) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof(address);
  const bool good = bind(listener, any, length) == 0 && listen(listener, SOMAXCONN) == 0 &&
                    getsockname(listener, any, &length) == 0;
  require(good, ErrorCode::kConfig, "--main-port ", port, " cannot be used (", std::strerror(errno),
          "); choose another, or 0 for a free one");
  port = ntohs(address.sin_port);
  return listener;
}

std::string threads_of(const LaunchRequest& request) {
  const char* const given = std::getenv("OMP_NUM_THREADS");
  if (given != nullptr) return given;
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::to_string(std::max(1, cores / (request.processes * request.ranks_per_process)));
}

ProcessOptions process_options(const LaunchRequest& request, const Variables& exported, int local,
                               int port, int listener) {
  const int process = request.node_rank * request.processes + local;
  ProcessOptions options;
  options.process = process;
  options.first_rank = process * request.ranks_per_process;
  options.last_rank = options.first_rank + request.ranks_per_process - 1;
  options.arguments = request.command;
  options.listener = process == 0 ? listener : -1;
  Variables& v = options.variables = exported;
  v["RANK"] = std::to_string(process);
  v["LOCAL_RANK"] = std::to_string(local);
  v["WORLD_SIZE"] = std::to_string(request.processes * request.nodes);
  v["LOCAL_WORLD_SIZE"] = std::to_string(request.processes);
  v["GROUP_RANK"] = std::to_string(request.node_rank);
  v["MASTER_ADDR"] = request.main_address;
  v["MASTER_PORT"] = std::to_string(port);
  v["OMP_NUM_THREADS"] = threads_of(request);
  v[kRanksPerProcess] = std::to_string(request.ranks_per_process);
  if (!request.gpu_ids.empty() && request.gpu_ids != "all") {
    v["CUDA_VISIBLE_DEVICES"] = request.gpu_ids;
  }
  return options;
}

}  // namespace

LaunchCommand::LaunchCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "launch", "Start the processes of a run on this machine: launch FLAGS -- train FLAGS")) {
  LaunchRequest& r = request_;
  command_->allow_extras();  // so that an unknown flag gets a suggestion
  const auto add = [&](const char* name, auto& value, const char* type, const char* help) {
    command_->add_option(name, value, help)->type_name(type);
  };
  add("--config", r.config, "FILE", "settings of the run, and of the launch if it is Accelerate's");
  add("--processes", r.processes, "N", "processes on this machine (default: 1)");
  add("--ranks-per-process", r.ranks_per_process, "N", "ranks of each, as threads (default: 1)");
  add("--nodes", r.nodes, "N", "machines; launch on each of them (default: 1)");
  add("--node-rank", r.node_rank, "N", "which of them this is, from 0");
  add("--main-address", r.main_address, "HOST", "a name or IP address of node 0");
  add("--main-port", r.main_port, "PORT",
      "where node 0 listens (default: 29500 with several nodes, else 0, a free one)");
  add("--gpu-ids", r.gpu_ids, "LIST", "GPUs that the processes may use: 0,1 or all");
  add("--grace", r.grace_seconds, "SECONDS",
      "after a failure or Ctrl-C, how long processes may end by themselves (default: 10)");
}

LaunchRequest LaunchCommand::request(std::vector<std::string> command) const {
  const std::vector<std::string> extras = command_->remaining();
  if (!extras.empty()) {
    std::vector<std::string> names;
    for (const CLI::Option* option : command_->get_options()) names.push_back(option->get_name());
    require(extras.front().rfind('-', 0) == 0, ErrorCode::kConfig, "'", extras.front(),
            "' cannot be launched; 'train' can, after the launcher's own flags and --");
    fail(ErrorCode::kConfig, unknown_name("flag", extras.front(), names));
  }
  LaunchRequest request = request_;
  request.command = std::move(command);
  return request;
}

std::vector<std::string> take_launched(int& argc, const char* const* argv) {
  if (argc < 2 || std::string_view(argv[1]) != "launch") return {};
  for (int i = 2; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word != "--" && word != "train") continue;
    std::vector<std::string> command(argv + i + (word == "--" ? 1 : 0), argv + argc);
    argc = i;
    return command;
  }
  return {};
}

int run_launch(const LaunchRequest& asked) {
  LaunchRequest request = asked;
  require(!request.command.empty() || request.config.empty(), ErrorCode::kConfig,
          "nothing to launch; try 'tessera launch --config ", request.config,
          " -- train --data FOLDER'");
  const Variables exported = read_config(request);
  if (request.processes == 0) request.processes = 1;
  check(request);
  check_address(request.main_address);
  int port = request.main_port >= 0 ? request.main_port : request.nodes > 1 ? kUsualPort : 0;
  const int listener = request.node_rank == 0 ? listen_at(port) : -1;
  std::vector<ProcessOptions> processes;
  for (int local = 0; local < request.processes; ++local) {
    processes.push_back(process_options(request, exported, local, port, listener));
  }
  return run_processes(std::move(processes), std::chrono::seconds(request.grace_seconds));
}

}  // namespace tessera::cli

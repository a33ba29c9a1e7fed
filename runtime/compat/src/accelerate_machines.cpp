#include "accelerate.h"

#include <algorithm>

#include "keys.h"
#include "tessera/core/text.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera::compat {
namespace {

constexpr const char* kMachines = "num_machines";
constexpr const char* kRank = "machine_rank";
constexpr const char* kAddress = "main_process_ip";
constexpr const char* kPort = "main_process_port";
constexpr const char* kGpus = "gpu_ids";
constexpr std::int64_t kLastPort = 65535;

std::int64_t machines_in(const Section& top) { return top.integer(kMachines).value_or(1); }

/// Flags of a launcher may say how many machines there are, if the file does not.
std::int64_t machine_rank_in(Section& top, bool launched) {
  const std::int64_t rank = top.integer(kRank).value_or(0);
  const std::int64_t machines = machines_in(top);
  const bool told = top.has(kMachines) || !(launched || top.is_refused(kMachines));
  if (rank < 0 || rank >= (told ? machines : kMaxRanks)) {
    top.refuse(kRank, "is ", rank, "; it must be ",
               told ? concat("below num_machines, which is ", machines)
                    : concat("from 0 to ", kMaxRanks - 1));
  }
  return rank;
}

std::optional<std::int64_t> port_in(Section& top) {
  const auto port = top.integer(kPort);
  if (port && (*port < 0 || *port > kLastPort)) {
    top.refuse(kPort, "is ", *port, "; it may be 1 to ", kLastPort, ", or 0 for a free one");
  }
  return port;
}

bool is_index(const std::string& id) {
  constexpr std::size_t kDigits = 4;
  return !id.empty() && id.size() <= kDigits && (id == "0" || id.front() != '0') &&
         std::ranges::all_of(id, [](char c) { return c >= '0' && c <= '9'; });
}

void check_gpu_ids(Section& top) {
  const auto text = top.text(kGpus);
  const std::string problem = text ? problem_of_gpu_ids(*text) : "";
  if (!problem.empty()) top.refuse(kGpus, problem);
}

/// Each by itself: one that is wrong hides no other.
void check_launcher_keys(Section& top, bool launched) {
  attempt([&] { machine_rank_in(top, launched); });
  attempt([&] { port_in(top); });
  attempt([&] { check_gpu_ids(top); });
}

/// Refuses a division that `tessera launch` would refuse, too, unless its flags say otherwise.
void check_division(Section& top, std::int64_t ranks, const LaunchFacts& launch) {
  const std::int64_t machines = machines_in(top);
  if (launch.machines > 0 || ranks == kUnknownRanks || ranks % machines == 0) return;
  top.refuse(kMachines, "is ", machines, ", but ", ranks, ranks == 1 ? " rank" : " ranks",
             " cannot be divided evenly over ", machines,
             " machines; change num_processes or num_machines");
}

/// A rank without a number of machines is only half an answer.
void tell_half(Section& top, const LaunchFacts& launch) {
  if (launch.machines > 0 || top.has(kMachines) || top.integer(kRank).value_or(0) == 0) return;
  top.differ(kRank,
             "Accelerate ignores the key without num_machines; give that, or --nodes to "
             "'tessera launch'");
}

bool asks_for_gpus(const Section& top) {
  const auto gpus = top.text(kGpus);
  return gpus && lowercase(*gpus) != "all";
}

/// Under a launcher, or for one.
void tell_launched(Section& top, const LaunchFacts& launch) {
  const bool ours = launch.launcher == kOwnLauncher;
  const auto tell = [&](const char* key, const char* flag) {
    if (!top.has(key)) return;
    top.agree(key, ours ? concat("used by 'tessera launch', as ", flag)
                        : concat("left to ", launch.launcher));
  };
  tell(kMachines, "--nodes");
  tell(kRank, "--node-rank");
  tell(kAddress, "--main-address");
  tell(kPort, "--main-port");
  if (ours || !asks_for_gpus(top)) {
    tell(kGpus, "--gpu-ids");
  } else {
    top.no_effect(kGpus, concat(launch.launcher, " decides; set CUDA_VISIBLE_DEVICES"),
                  Told::kByRun);
  }
}

/// One process has all ranks.
void tell_alone(Section& top, const std::string& path, std::int64_t ranks) {
  attempt([&] {
    if (machine_rank_in(top, false) == 0) return;
    top.refuse_for(
        {top.with(kRank, 0)}, kRank, "is ", *top.integer(kRank),
        ", but this process is alone and would run all ranks; start it on every machine ",
        "with 'tessera launch --config ", path, " -- train'");
  });
  if (top.has(kRank)) top.no_effect(kRank, "used by 'tessera launch'");
  if (machines_in(top) > 1) {
    top.no_effect(kMachines,
                  concat("all ", ranks, " ranks run in this process; 'tessera launch' starts them ",
                         "on several machines"),
                  Told::kByRun);
  } else if (top.has(kMachines)) {
    top.agree(kMachines, "all ranks run in this process");
  }
  constexpr const char* kMeeting = "used by 'tessera launch'; one process has nobody to find";
  if (top.has(kAddress)) top.no_effect(kAddress, kMeeting, Told::kByRun);
  if (const auto port = port_in(top)) {
    constexpr std::int64_t kUsual = 29500;
    top.no_effect(kPort, kMeeting, told_if(*port != 0 && *port != kUsual));
  }
  if (asks_for_gpus(top)) {
    top.no_effect(kGpus, "used by 'tessera launch'; for one process set CUDA_VISIBLE_DEVICES",
                  Told::kByRun);
  } else if (top.has(kGpus)) {
    top.agree(kGpus, "every GPU may be used");
  }
}

}  // namespace

std::int64_t translate_machines(Section& top, const std::string& path, std::int64_t ranks,
                                const LaunchFacts& launch) {
  const bool launched = !launch.launcher.empty();
  check_launcher_keys(top, launched);
  attempt([&] { check_division(top, ranks, launch); });
  if (launched) {
    tell_launched(top, launch);
    tell_half(top, launch);
  } else {
    tell_alone(top, path, ranks);
  }
  if (top.is_null(kMachines)) {
    top.differ(kMachines, "Accelerate stops at a null here; leave the key out");
  }
  return launch.machines > 0 ? launch.machines : machines_in(top);
}

LauncherKeys read_launcher_keys(const Document& document) {
  ConfigTranslation unused;
  Section top(unused, document.path, document.root, table_of("accelerate"));
  const auto named = [&](const char* key) {
    return concat(at_line(document.path, top.line(key)), key);
  };
  const auto number = [&](const char* key, std::optional<std::int64_t> value,
                          std::optional<Stated<int>>& to) {
    if (value) to = {static_cast<int>(*value), named(key)};
  };
  const auto text = [&](const char* key, std::optional<Stated<std::string>>& to) {
    if (const auto value = top.text(key)) to = {*value, named(key)};
  };
  check_launcher_keys(top, true);
  LauncherKeys keys;
  number(kMachines, top.integer(kMachines), keys.machines);
  number(kRank, top.integer(kRank), keys.machine_rank);
  number(kPort, top.integer(kPort), keys.port);
  text(kAddress, keys.address);
  text(kGpus, keys.gpu_ids);
  for (const char* key : {kMachines, kRank, kPort, kAddress, kGpus}) {
    keys.refused = keys.refused || top.is_refused(key);
  }
  return keys;
}

}  // namespace tessera::compat

namespace tessera {

std::vector<std::string> gpu_ids_of(const std::string& list) {
  std::vector<std::string> ids = split_text(list, ',');
  for (std::string& id : ids) id = trimmed(id);
  return ids;
}

std::string problem_of_gpu_ids(const std::string& list) {
  if (list.empty() || lowercase(list) == "all") return "";
  std::vector<std::string> seen;
  for (const std::string& id : gpu_ids_of(list)) {
    if (!compat::is_index(id) && id.rfind("GPU-", 0) != 0 && id.rfind("MIG-", 0) != 0) {
      return concat(compat::quoted(id),
                    " is no GPU; give numbers with commas between them, or all");
    }
    if (std::ranges::find(seen, id) != seen.end()) {
      return concat("names GPU ", shortened(id), " twice; name each GPU once");
    }
    seen.push_back(id);
  }
  return "";
}

}  // namespace tessera

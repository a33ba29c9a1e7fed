#include "env/reports.h"

#include <utility>
#include <vector>

#include "tessera/core/core_binding.h"
#include "tessera/core/error.h"
#include "tessera/trainer/rank_binding.h"
#include "tessera/trainer/rank_device.h"
#include "tessera/trainer/settings.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

/// With the checks of a run.
TrainerOptions options_of(const BindingQuestion& question, const CudaStatus& cuda) {
  Settings settings(trainer_settings());
  settings.set_text("ranks", std::to_string(question.ranks));
  settings.set_text("bind", question.bind);
  if (!question.bind_core_list.empty()) {
    settings.set_text("bind_core_list", question.bind_core_list);
  }
  TrainerOptions options = trainer_options(settings);
  options.device = cuda.usable() ? DeviceChoice::kCuda : DeviceChoice::kCpu;
  return options;
}

std::string words(const std::vector<int>& numbers) {
  std::vector<std::string> texts;
  for (const int number : numbers) texts.push_back(std::to_string(number));
  return listed(texts, ",");
}

}  // namespace

BindingReport binding_report(const BindingQuestion& question, const CudaStatus& cuda) {
  BindingReport report;
  report.part.fields["binding"] = nullptr;
  if (question.ranks == 0) return report;
  const TrainerOptions options = options_of(question, cuda);
  std::vector<CudaGpu> gpus;
  std::vector<std::string> bus_ids;
  for (int r = 0; cuda.usable() && r < options.ranks; ++r) {
    const int gpu = gpu_of_rank(options, r, static_cast<int>(cuda.gpus.size()));
    gpus.push_back(cuda.gpus[static_cast<std::size_t>(gpu)]);
    bus_ids.push_back(gpus.back().pci);
  }
  const CpuTopology machine = read_topology({.devices = cuda.usable()});
  const CoreBinding binding =
      divide_cores(machine.of_this_machine ? within(machine, usable_cpus()) : machine,
                   bind_request(options, options.ranks, std::move(bus_ids)));
  report.part.rows.emplace_back(
      "binding", concat("--bind ", question.bind, " for ", question.ranks,
                        question.ranks == 1 ? " rank: " : " ranks: ", describe(binding)));
  auto ranks = nlohmann::ordered_json::array();
  TextTable& map = report.map.emplace(std::vector<std::string>{"rank", "cores", "node", "CPUs"});
  if (!gpus.empty()) map = TextTable({"rank", "cores", "node", "GPU", "CPUs"});
  for (std::size_t r = 0; r < binding.ranks.size(); ++r) {
    const RankCores& own = binding.ranks[r];
    std::vector<std::string> row{std::to_string(r), std::to_string(own.cores), words(own.nodes)};
    if (!gpus.empty()) row.push_back(concat(gpus[r].ordinal, " at ", gpus[r].pci));
    row.push_back(to_string(own.cpus));
    map.add(std::move(row));
    ranks.push_back({{"rank", r},
                     {"cores", own.cores},
                     {"cpus", own.cpus},
                     {"nodes", own.nodes},
                     {"gpu", gpus.empty() ? nlohmann::ordered_json()
                                          : nlohmann::ordered_json(gpus[r].ordinal)}});
  }
  report.part.fields["binding"] = {{"asked", question.bind},
                                   {"policy", to_string(binding.policy)},
                                   {"why", or_null(binding.why)},
                                   {"of_this_machine", machine.of_this_machine},
                                   {"ranks", ranks}};
  return report;
}

}  // namespace tessera::cli

#include "simulate/simulated_sweep.h"

#include "tessera/lab/pareto.h"
#include "tessera/trainer/log.h"

namespace tessera::cli {
namespace {

int ranks_per_node(const Config& config) {
  return static_cast<int>(config.get<std::int64_t>("ranks_per_node"));
}

nlohmann::ordered_json stages_to_json(const SimulatedStep& step) {
  auto stages = nlohmann::ordered_json::array();
  for (const StageTime& time : step.stages) {
    stages.push_back({{"compute_seconds", time.compute},
                      {"exposed_seconds", time.exposed},
                      {"exposed_message_seconds", time.exposed_messages},
                      {"bubble_seconds", time.bubble}});
  }
  return stages;
}

}  // namespace

SimulatedSweep simulate_sweep(const Config& config, const HardwareProfile& profile,
                              const std::vector<Swept>& sweep) {
  SimulatedSweep result;
  std::vector<SimulatedCell>& cells = result.cells;
  const auto simulate = [&](const Config& own, const std::vector<std::string>& values) {
    SimulatedCell cell{simulate_run(own, profile, ranks_per_node(own)), values};
    for (std::size_t i = 0; i < sweep.size(); ++i) {  // 0 stands for the strategy's own
      if (sweep[i].name == "replicas") cell.values[i] = concat(cell.plan().options.replicas);
    }
    cells.push_back(std::move(cell));
  };
  result.left_out = each_combination(config, sweep, simulate);
  std::vector<ParetoPoint> points;
  for (const SimulatedCell& cell : cells) {
    points.push_back({static_cast<double>(cell.memory),
                      static_cast<double>(cell.plan().options.ranks) / cell.tokens_per_second()});
  }
  const std::vector<bool> best = pareto_front(points);
  for (std::size_t i = 0; i < cells.size(); ++i) cells[i].is_best = best[i];
  return result;
}

nlohmann::ordered_json to_json(const std::vector<Swept>& sweep, const SimulatedCell& cell) {
  nlohmann::ordered_json lanes = nlohmann::ordered_json::object();
  for (const Lane lane : kAllLanes) {
    const LaneTime& time = cell.step.of(lane);
    if (time.busy <= 0.0) continue;
    lanes[std::string(to_string(lane))] = {{"busy_seconds", time.busy},
                                           {"exposed_seconds", time.exposed}};
  }
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (std::size_t i = 0; i < sweep.size(); ++i) json[sweep[i].name] = cell.values[i];
  json.update(
      {{"ranks", cell.plan().options.ranks},
       {"strategy", cell.plan().options.strategy},
       {"replicas", cell.plan().options.replicas},
       {"step_seconds", cell.step.seconds},
       {"tokens", cell.tokens},
       {"tokens_per_second", cell.tokens_per_second()},
       {"mfu", cell.mfu > 0.0 ? nlohmann::ordered_json(cell.mfu) : nlohmann::ordered_json()},
       {"exposed_seconds", cell.step.communication.exposed},
       {"exposed_message_seconds", cell.step.exposed_messages()},
       {"bubble_seconds", cell.step.bubble()},
       {"stages", stages_to_json(cell.step)},
       {"lanes", lanes},
       {"memory_bytes", cell.memory},
       {"peak_bytes", to_json(cell.plan().memory)},
       {"sent_bytes", sent_bytes_to_json(cell.plan().traffic)},
       {"best", cell.is_best}});
  if (cell.plan().host_memory.total > 0) {
    json["host_peak_bytes"] = to_json(cell.plan().host_memory);
    if (cell.plan().disk_bytes > 0) json["disk_bytes"] = cell.plan().disk_bytes;
    json["tier_copy_bytes"] = tier_copies_to_json(cell.plan().traffic);
  }
  return json;
}

}  // namespace tessera::cli

#include "simulate/simulated_sweep.h"

#include <algorithm>
#include <array>

#include "commands.h"
#include "tessera/core/error.h"
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

std::string plain_text(const nlohmann::ordered_json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// In quotes if it has a character of the format.
std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n") == text.npos) return text;
  std::string cell = "\"";
  for (const char c : text) cell += c == '"' ? std::string("\"\"") : std::string(1, c);
  return cell + "\"";
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
                      static_cast<double>(cell.plan().options.ranks) / cell.tokens_per_second(),
                      cell.step.half_width});
  }
  const std::vector<bool> best = pareto_front(points);
  const std::vector<bool> open = cannot_be_told_apart(points);
  for (std::size_t i = 0; i < cells.size(); ++i) {
    cells[i].is_best = best[i];
    cells[i].is_open = open[i];
  }
  return result;
}

std::vector<NamedText> fixed_settings(const Config& config, const std::vector<Swept>& sweep,
                                      const std::vector<SimulatedCell>& cells) {
  std::vector<NamedText> fixed;
  const auto is_swept = [&](const std::string& name) {
    return std::ranges::find(sweep, name, &Swept::name) != sweep.end();
  };
  const auto add = [&](const std::string& name, const std::string& value) {
    if (is_swept(name) || std::ranges::find(fixed, name, &NamedText::name) != fixed.end()) return;
    fixed.push_back({name, value});
  };
  for (const char* const name : {"precision", "strategy", "ranks", "micro_batch", "accumulate"}) {
    add(name, plain_text(config.value(name)));
  }
  const auto length = cells.front().run->choice.sequence_length;
  const bool has_one_length = std::ranges::all_of(
      cells, [&](const SimulatedCell& cell) { return cell.run->choice.sequence_length == length; });
  if (has_one_length) add("sequence_length", concat(length));
  for (const char* const name : {"recompute", "ranks_per_node"}) {
    add(name, plain_text(config.value(name)));
  }
  constexpr std::array kOfTheTable{"model", "profile", "show_profile", "sweep",
                                   "check", "learn",   "format",       "sequence_length"};
  for (const Setting& setting : simulate_settings()) {
    if (std::ranges::find(kOfTheTable, setting.name) != kOfTheTable.end()) continue;
    const auto& value = config.value(setting.name);
    if (value.is_null() || nlohmann::json(value) == setting.fallback) continue;
    add(setting.name, plain_text(value));
  }
  return fixed;
}

std::string to_csv(const std::vector<NamedText>& fixed, const std::vector<Swept>& sweep,
                   const std::vector<SimulatedCell>& cells) {
  std::string text;
  for (const SimulatedCell& cell : cells) {
    nlohmann::ordered_json row = nlohmann::ordered_json::object();
    for (const NamedText& setting : fixed) row[setting.name] = setting.value;
    const nlohmann::ordered_json figures = to_json(sweep, cell);
    for (const auto& [name, value] : figures.items()) {
      if (value.is_primitive() && !row.contains(name)) row[name] = value;
    }
    row["disk_bytes"] = cell.plan().disk_bytes;
    std::string heading, line;
    for (const auto& [name, value] : row.items()) {
      heading += (heading.empty() ? "" : ",") + name;
      line += concat(line.empty() ? "" : ",", value.is_null() ? "" : csv_cell(plain_text(value)));
    }
    if (text.empty()) text = heading + "\n";
    text += line + "\n";
  }
  return text;
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
       {"half_width", cell.step.half_width},
       {"half_width_assumed", cell.step.assumes_half_width},
       {"evidence", to_string(cell.step.kernels.most())},
       {"kernel_flops", cell.step.flops},
       {"kernel_bytes", cell.step.bytes},
       {"joules", cell.step.joules > 0.0 ? nlohmann::ordered_json(cell.step.joules) : nullptr},
       {"throttled", cell.step.throttled},
       {"tokens", cell.tokens},
       {"tokens_per_second", cell.tokens_per_second()},
       {"mfu", cell.mfu > 0.0 ? nlohmann::ordered_json(cell.mfu) : nlohmann::ordered_json()},
       {"full_mfu",
        cell.mfu > 0.0 ? nlohmann::ordered_json(cell.full_mfu) : nlohmann::ordered_json()},
       {"exposed_seconds", cell.step.communication.exposed},
       {"exposed_message_seconds", cell.step.exposed_messages()},
       {"bubble_seconds", cell.step.bubble()},
       {"stages", stages_to_json(cell.step)},
       {"lanes", lanes},
       {"memory_bytes", cell.memory},
       {"peak_bytes", to_json(cell.plan().memory)},
       {"sent_bytes", sent_bytes_to_json(cell.plan().traffic)},
       {"best", cell.is_best},
       {"cannot_be_told_apart", cell.is_open}});
  if (cell.plan().host_memory.total > 0) {
    json["host_peak_bytes"] = to_json(cell.plan().host_memory);
    if (cell.plan().disk_bytes > 0) json["disk_bytes"] = cell.plan().disk_bytes;
    json["tier_copy_bytes"] = tier_copies_to_json(cell.plan().traffic);
  }
  return json;
}

}  // namespace tessera::cli

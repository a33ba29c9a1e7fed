#include "simulate/simulation.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <ostream>
#include <string>

#include "commands.h"
#include "output/run_report.h"
#include "output/terminal.h"
#include "output/text_output.h"
#include "tessera/core/error.h"
#include "tessera/core/format_bytes.h"
#include "tessera/lab/pareto.h"
#include "tessera/trainer/log.h"
#include "tessera/trainer/training_plan.h"

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

/// In quotes if it has a character of the format.
std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n") == text.npos) return text;
  std::string cell = "\"";
  for (const char c : text) cell += c == '"' ? std::string("\"\"") : std::string(1, c);
  return cell + "\"";
}

/// A column with a heading of two rows.
struct SweepColumn {
  std::string upper, lower;
  std::function<std::string(const SimulatedCell&)> text;
  int leaves = 0;  ///< the higher, the sooner the column is left out for want of room; 0: never
  std::string meaning{};

  std::size_t width(const std::vector<SimulatedCell>& cells) const {
    std::size_t most = std::max(upper.size(), lower.size());
    for (const SimulatedCell& cell : cells) most = std::max(most, text(cell).size());
    return most;
  }
};

/// The columns of swept settings, in whose headings the last word stands below the others.
std::vector<SweepColumn> setting_columns(const std::vector<Swept>& sweep) {
  std::vector<SweepColumn> columns;
  for (std::size_t i = 0; i < sweep.size(); ++i) {
    const std::string& name = sweep[i].name;
    const std::size_t last = name.rfind('_') == name.npos ? name.size() : name.rfind('_') + 1;
    columns.push_back({name.substr(0, last), name.substr(last),
                       [i](const SimulatedCell& cell) { return cell.values[i]; }});
  }
  return columns;
}

SweepColumn share_column(const char* name, int leaves, double (*seconds)(const SimulatedStep&),
                         const char* meaning) {
  const auto text = [seconds](const SimulatedCell& cell) {
    return fixed(100.0 * seconds(cell.step) / cell.step.seconds, 1);
  };
  return {name, "%", text, leaves, meaning};
}

SweepColumn mfu_column(const char* name, int leaves, double SimulatedCell::*mfu,
                       const char* meaning) {
  const auto text = [mfu](const SimulatedCell& cell) -> std::string {
    return cell.*mfu > 0.0 ? fixed(100.0 * cell.*mfu, 1) : "-";
  };
  return {name, "%", text, leaves, meaning};
}

std::vector<SweepColumn> result_columns(bool has_stages, bool has_open, double memory_bytes) {
  std::vector<SweepColumn> columns{
      {"mesh", "",
       [=](const SimulatedCell& cell) {
         return describe_mesh(mesh_of(cell.plan().options), has_stages);
       },
       3,
       has_stages ? "mesh: stages x replicas x ranks that share one"
                  : "mesh: replicas x ranks that share one"},
      {"step", "ms", [](const SimulatedCell& cell) { return in_ms(cell.step.seconds); }},
      {"tokens/s", "/rank",
       [](const SimulatedCell& cell) {
         return with_prefix(cell.tokens_per_second() /
                            static_cast<double>(cell.plan().options.ranks));
       },
       1},
      mfu_column("MFU", 2, &SimulatedCell::mfu, "MFU: with attention's causal half"),
      mfu_column("full", 6, &SimulatedCell::full_mfu,
                 "full: MFU with all of attention, as PaLM and torchtitan count"),
      share_column(
          "exposed", 4, [](const SimulatedStep& step) { return step.communication.exposed; },
          has_stages ? "exposed: the share of a step in which a stage only runs collectives"
                     : "exposed: the share of a step in which only communication runs")};
  if (has_stages) {
    columns.push_back(share_column(
        "messages", 5, [](const SimulatedStep& step) { return step.exposed_messages(); },
        "messages: in which it only sends and receives"));
    columns.push_back(share_column(
        "bubble", 4, [](const SimulatedStep& step) { return step.bubble(); },
        "bubble: in which it waits for other stages"));
  }
  columns.push_back({"memory", "",
                     [](const SimulatedCell& cell) { return format_bytes(cell.memory); }, 0,
                     "memory: of one device, with what it takes beside the plan"});
  columns.push_back({"", "",
                     [=](const SimulatedCell& cell) -> std::string {
                       if (static_cast<double>(cell.memory) > memory_bytes) return "too much";
                       return concat(cell.is_best ? "best" : "", cell.is_open ? "~" : "");
                     },
                     0,
                     concat("best: the Pareto front: nothing else is both smaller and faster, by "
                            "tokens per second and rank",
                            has_open ? "; ~: its time and that of a cell which needs no more "
                                       "memory cannot be told apart by their intervals"
                                     : "")});
  return columns;
}

/// Leaves columns out until the others fit. Their names.
std::vector<std::string> fit(std::vector<SweepColumn>& columns,
                             const std::vector<SimulatedCell>& cells) {
  std::size_t width = 2 * (columns.size() - 1);
  for (const SweepColumn& column : columns) width += column.width(cells);
  std::vector<std::string> left_out;
  while (width > static_cast<std::size_t>(kColumns)) {
    const auto first = std::ranges::max_element(columns, {}, &SweepColumn::leaves);
    if (first->leaves == 0) break;
    width -= first->width(cells) + 2;
    left_out.push_back(first->upper);
    columns.erase(first);
  }
  return left_out;
}

template <typename Text>
std::vector<std::string> row_of(const std::vector<SweepColumn>& columns, const Text& text) {
  std::vector<std::string> row;
  for (const SweepColumn& column : columns) row.push_back(text(column));
  return row;
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
  const bool in_fp8 = std::ranges::any_of(
      cells, [](const SimulatedCell& cell) { return cell.run->plan.options.fp8.enabled; });
  const Fp8Options& fp8 = cells.front().run->plan.options.fp8;
  if (in_fp8) add("fp8_recipe", std::string(to_string(fp8.recipe)));
  if (in_fp8) add("gather_format", std::string(to_string(fp8.gather_format)));
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
  const double joules = cell.joules();
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
       {"joules", joules > 0.0 ? nlohmann::ordered_json(joules) : nullptr},
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
    json["host_update_seconds"] = cell.step.host_updates;
    json["tokens_to_hide_updates"] = cell.tokens_to_hide_updates();
    json["tier_copy_bytes"] = tier_copies_to_json(cell.plan().traffic);
  }
  return json;
}

void print_sweep_table(std::ostream& out, const std::vector<Swept>& sweep,
                       const std::vector<SimulatedCell>& cells, const HardwareProfile& profile) {
  const bool has_stages = std::ranges::any_of(
      cells, [](const SimulatedCell& cell) { return cell.step.stages.size() > 1; });
  const bool has_open = std::ranges::any_of(cells, &SimulatedCell::is_open);
  std::vector<SweepColumn> columns = setting_columns(sweep);
  std::ranges::move(result_columns(has_stages, has_open, profile.memory_bytes.value),
                    std::back_inserter(columns));
  const std::vector<std::string> left_out = fit(columns, cells);
  TextTable table(row_of(columns, [](const SweepColumn& column) { return column.upper; }));
  table.add(row_of(columns, [](const SweepColumn& column) { return column.lower; }));
  for (const SimulatedCell& cell : cells) {
    table.add(row_of(columns, [&](const SweepColumn& column) { return column.text(cell); }));
  }
  table.print(out);
  out << "\n";
  std::vector<std::string> meanings =
      row_of(columns, [](const SweepColumn& column) { return column.meaning; });
  std::erase(meanings, "");
  print_paragraph(out, tessera::joined(meanings, "; ") + ".");
  if (!left_out.empty()) {
    print_paragraph(out, concat("Columns without room: ", tessera::joined(left_out),
                                "; --format csv prints all."));
  }
}

}  // namespace tessera::cli

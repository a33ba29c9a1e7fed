#include "plan/planned_run.h"

#include <algorithm>
#include <ostream>
#include <sstream>

#include "output/terminal.h"
#include "output/text_output.h"
#include "settings/sweep.h"
#include "tessera/core/error.h"
#include "tessera/lab/hardware_profile.h"
#include "tessera/trainer/agreement.h"
#include "tessera/trainer/auto_batch.h"
#include "tessera/trainer/byte_size.h"
#include "tessera/trainer/log.h"
#include "tessera/trainer/rank_device.h"

namespace tessera::cli {
namespace {

constexpr const char* kAuto = "auto";
constexpr std::size_t kShown = 8;         // of those that fit
constexpr std::size_t kWidestTable = 87;  // columns

void check_budget(const nlohmann::json& value) {
  const auto text = value.get<std::string>();
  if (text == kAuto) return;
  std::int64_t bytes = 0;
  try {
    bytes = parse_bytes(text);
  } catch (const Error& error) {
    fail(ErrorCode::kConfig, error.what(), "; or auto, the memory that there is");
  }
  require(bytes > 0, ErrorCode::kConfig, "'", text,
          "' leaves no memory; give a budget like 4GiB, or auto");
}

constexpr std::string_view kOffload = "offload_";

/// The words of an axis in the column offload: "opt:0.5", "opt@disk", "" for none.
std::string short_words(const std::string& setting, const std::string& value) {
  const Offload offload = parse_offload(value);
  const double share = offload.host + offload.disk;
  if (share == 0.0) return "";
  const std::size_t letters = setting.ends_with("gradients") ? 4 : 3;
  return concat(setting.substr(kOffload.size(), letters), offload.disk > 0.0 ? "@disk" : "",
                share < 1.0 ? concat(":", share) : "");
}

/// All that a candidate offloads: "opt:0.5 act", "-" for nothing.
std::string offload_of(const FitCandidate& candidate) {
  std::string offload;
  for (std::size_t i = 0; i < candidate.values.size(); ++i) {
    const std::string& setting = fit_axes()[i].setting;
    if (!setting.starts_with(kOffload)) continue;
    const std::string words = short_words(setting, candidate.values[i]);
    if (!words.empty()) offload += (offload.empty() ? "" : " ") + words;
  }
  return offload.empty() ? "-" : offload;
}

/// Columns of a table beside memory and time.
struct FitColumns {
  bool offload = true;
  bool stages = false;  ///< some row has several pipeline ranks

  /// Whether an axis has a column of its own.
  bool has(const FitAxis& axis) const {
    return axis.setting.starts_with("pipeline") ? stages : !axis.setting.starts_with(kOffload);
  }
};

/// The cells of a row.
std::vector<std::string> row_of(const FitCandidate& candidate, bool is_chosen,
                                const FitColumns& columns) {
  std::vector<std::string> row;
  const bool one_rank = candidate.options.pipeline.ranks == 1;
  for (std::size_t i = 0; i < candidate.values.size(); ++i) {
    const FitAxis& axis = fit_axes()[i];
    const bool has_none = one_rank && axis.setting == "pipeline_schedule";
    if (columns.has(axis)) row.push_back(has_none ? "-" : candidate.values[i]);
  }
  if (columns.offload) row.push_back(offload_of(candidate));
  std::string note = is_chosen ? "chosen" : "";
  if (candidate.excess) {
    note = concat(candidate.excess->memory, " +", format_bytes(candidate.excess->bytes));
  }
  row.insert(row.end(), {format_bytes(candidate.device_bytes), format_bytes(candidate.host_bytes),
                         candidate.step_seconds ? in_ms(*candidate.step_seconds) : "-", note});
  return row;
}

/// The lines of a table of `shown`, of which `best` is chosen; the first is the heading.
std::vector<std::string> table_of(const std::vector<const FitCandidate*>& shown,
                                  const FitCandidate& best, const FitColumns& columns) {
  std::vector<std::string> heading;
  for (const FitAxis& axis : fit_axes()) {
    if (columns.has(axis)) {
      heading.push_back(axis.setting == "pipeline_schedule" ? "schedule" : axis.setting);
    }
  }
  if (columns.offload) heading.emplace_back("offload");
  for (const char* const column : {"device", "host", "step, ms", ""}) heading.emplace_back(column);
  TextTable table(heading);
  for (const FitCandidate* candidate : shown) {
    table.add(row_of(*candidate, candidate == &best, columns));
  }
  std::ostringstream text;
  table.print(text);
  std::vector<std::string> lines = split(text.str(), '\n');
  lines.resize(shown.size() + 1);
  return lines;
}

/// A line for the columns that a row has not: "  pipeline 2 zb-h1 offload opt"; "" for nothing.
std::string line_below(const FitCandidate& candidate, const FitColumns& columns, bool staged) {
  std::string line;
  const PipelineSplit& pipeline = candidate.options.pipeline;
  if (staged && !columns.stages) {
    line += concat("  pipeline ", pipeline.ranks);
    if (pipeline.ranks > 1) line += concat(" ", candidate.values.back());
  }
  const std::string offload = offload_of(candidate);
  if (!columns.offload && offload != "-") line += concat("  offload ", offload);
  return line;
}

/// A table in which offload and stages have columns, or where that is too wide, lines of their own.
void print_table(std::ostream& out, const std::vector<const FitCandidate*>& shown,
                 const FitCandidate& best) {
  const bool staged = std::ranges::any_of(
      shown, [](const FitCandidate* one) { return one->options.pipeline.ranks > 1; });
  FitColumns columns{.offload = true, .stages = staged};
  std::vector<std::string> lines = table_of(shown, best, columns);
  const auto narrow = [&](bool& column) {
    if (!column || std::ranges::max(lines, {}, &std::string::size).size() <= kWidestTable) return;
    column = false;
    lines = table_of(shown, best, columns);
  };
  narrow(columns.offload);
  narrow(columns.stages);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    out << lines[i] << '\n';
    const std::string more = i > 0 ? line_below(*shown[i - 1], columns, staged) : "";
    if (!more.empty()) out << more << '\n';
  }
}

/// The host's memory for a rank, as this machine's ranks agree.
std::int64_t host_bytes_here(const TrainerOptions& options) {
  TrainerOptions of_host = options;
  of_host.device = DeviceChoice::kCpu;
  of_host.memory_limit_bytes = 0;
  return agreed_bytes_per_rank(of_host);
}

}  // namespace

std::vector<Setting> fit_settings() {
  return in_group(
      "Sharding",
      {{.name = "fit",
        .help = "choose strategy, recomputation, offload, and the ranks and order of a pipeline: "
                "the combination with the least predicted step time whose memory per rank is "
                "within this budget, like 4GiB, or auto: within --memory-limit, or what there "
                "is; of these settings those that are given stay; with --pipeline P that it "
                "has chosen, --accumulate is P times as much, for the same samples in a step",
        .check = check_budget},
       {.name = "fit_profile",
        .fallback = "h100-sxm",
        .help =
            "by which machine --fit predicts step times: " + tessera::joined(builtin_profiles()) +
            ", or a file that tessera calibrate has written"}});
}

FitRequest fit_request(const Config& config, const TrainerOptions& options, bool runs_here) {
  FitRequest request;
  request.cluster.profile = find_profile(config.get<std::string>("fit_profile"));
  const bool is_gpu = request.cluster.profile.device == "cuda";
  const int per_node = options.ranks_per_node > 0 ? options.ranks_per_node : 8;
  const int ranks = runs_here ? ranks_on_host(options) : std::min(options.ranks, per_node);
  request.cluster.ranks_per_node = is_gpu || runs_here ? ranks : options.ranks;
  request.cluster.ranks_per_process = is_gpu ? 1 : request.cluster.ranks_per_node;
  for (const FitAxis& axis : fit_axes()) {
    if (config.given(axis.setting)) request.kept.push_back(axis.setting);
  }
  for (const char* const setting :
       {"parameter_placement", "gradient_placement", "optimizer_placement", "replicas",
        "reshard_after_forward", "virtual_stages", "tied_apart"}) {
    if (config.given(setting)) request.kept.emplace_back(setting);
  }
  const auto budget = config.get<std::string>("fit");
  if (runs_here) request.host_bytes = host_bytes_here(options);
  if (budget != kAuto) {
    request.device_bytes = parse_bytes(budget);
  } else if (options.memory_limit_bytes > 0) {
    request.device_bytes = options.memory_limit_bytes;
  } else if (!runs_here) {
    request.device_bytes = static_cast<std::int64_t>(request.cluster.profile.memory_bytes.value);
  } else {
    const double margin =
        resolved_device(options.device) == DeviceChoice::kCuda ? 0.0 : kAutoBatchMargin;
    const auto given = static_cast<double>(agreed_bytes_per_rank(options));
    request.device_bytes = static_cast<std::int64_t>(given * (1.0 - margin));
    if (margin > 0.0) request.host_bytes = std::min(request.host_bytes, request.device_bytes);
  }
  return request;
}

FitChoice apply_fit(Config& config, TrainerOptions& options, const RunInputs& inputs,
                    const FitRequest& request) {
  FitChoice choice = choose_fit(inputs, options, request);
  std::vector<std::string> values = choice.best().values;
  if (options.world != nullptr) {
    // Times are sums of rounded numbers: other processors may see another one of two equals first.
    values = split(gather_texts(*options.world, tessera::joined(values, " ")).front(), ' ');
    const auto same = std::ranges::find(choice.candidates, values, &FitCandidate::values);
    if (same != choice.candidates.end()) {
      std::rotate(choice.candidates.begin(), same, same + 1);
    }
  }
  const int micro_steps = options.accumulate;
  options = with_fit(options, values, request.kept);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::string& setting = fit_axes()[i].setting;
    if (std::ranges::find(request.kept, setting) != request.kept.end()) continue;
    if (setting == "pipeline") {
      config.set_effective(setting, options.pipeline.ranks);
    } else {
      config.set_effective(setting, values[i]);
    }
  }
  if (options.accumulate != micro_steps) config.set_effective("accumulate", options.accumulate);
  options.pipeline.layers = choice.best().options.pipeline.layers;
  return choice;
}

void print_fit(std::ostream& out, const FitChoice& choice, const FitRequest& request) {
  std::vector<const FitCandidate*> shown;
  std::size_t fitting = 0, misses = 0;
  for (const FitCandidate& candidate : choice.candidates) {
    const bool fits = !candidate.excess;
    if (++(fits ? fitting : misses) > (fits ? kShown : kTimedMisses)) continue;
    shown.push_back(&candidate);
  }
  out << "fit: " << format_bytes(request.device_bytes)
      << " per rank; step times are predicted by the profile " << request.cluster.profile.name
      << "\n";
  print_table(out, shown, choice.best());
  out << fitting << " of " << counted(static_cast<long long>(fitting + misses), "schedule")
      << " fit";
  if (choice.refused > 0) {
    out << "; " << counted(choice.refused, "combination") << " cannot be planned";
  }
  const TrainerOptions& best = choice.best().options;
  const bool has_chosen = std::ranges::find(request.kept, "pipeline") == request.kept.end();
  if (has_chosen && best.pipeline.ranks > 1) {
    out << "\npipeline: of " << best.pipeline.ranks << " ranks, with accumulate " << best.accumulate
        << ", for the same samples in a step";
  }
  out << "\noffload: optimizer state, parameters, gradients, activations in the host's memory\n"
         "or @disk; opt:0.5: that of half of the units\n";
}

nlohmann::ordered_json to_json(const FitChoice& choice, const FitRequest& request) {
  auto candidates = nlohmann::ordered_json::array();
  for (const FitCandidate& candidate : choice.candidates) {
    nlohmann::ordered_json json = nlohmann::ordered_json::object();
    for (std::size_t i = 0; i < candidate.values.size(); ++i) {
      json[fit_axes()[i].setting] = candidate.values[i];
    }
    json["pipeline"] = candidate.options.pipeline.ranks;
    json["accumulate"] = candidate.options.accumulate;
    json["device_bytes"] = candidate.device_bytes;
    json["host_bytes"] = candidate.host_bytes;
    json["step_seconds"] = or_null(candidate.step_seconds);
    json["fits"] = !candidate.excess;
    if (candidate.excess) json["objection"] = to_string(*candidate.excess);
    candidates.push_back(std::move(json));
  }
  return {{"device_bytes", request.device_bytes},
          {"profile", request.cluster.profile.name},
          {"refused", choice.refused},
          {"candidates", candidates}};  // the first one is chosen
}

}  // namespace tessera::cli

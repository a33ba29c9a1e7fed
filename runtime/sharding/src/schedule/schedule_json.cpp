#include "tessera/sharding/schedule_json.h"

#include <sstream>

#include "schedule/schedule_policy.h"
#include "schedule/schedule_words.h"
#include "tessera/core/error.h"
#include "tessera/sharding/operation.h"

// JSON goes through the text form on its way back, so that there is one reader of names, operands
// and numbers.
namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kPipelineRanks = "pipeline_ranks";  // key of a list of schedules

template <typename Item>
Json names_of(const std::vector<Item>& items, const std::vector<int>& indices) {
  Json names = Json::array();
  for (const int index : indices) names.push_back(items[static_cast<std::size_t>(index)].name);
  return names;
}

/// Gradients as the text names them: "h.1", "h.1+parameter-fp32".
Json gradients_of(const Schedule& schedule, const ScheduleLayer& layer) {
  Json words = Json::array();
  for (const FlatId& id : layer.gradients) {
    const std::string unit = quote_name(schedule.units[static_cast<std::size_t>(id.unit)].name);
    words.push_back(id.flat == 0 ? unit : concat(unit, '+', quote_name(schedule.flat(id).name)));
  }
  return words;
}

Json operands_of(const Schedule& schedule, const std::vector<Operand>& operands) {
  Json words = Json::array();
  for (const Operand& operand : operands) words.push_back(describe(schedule, operand));
  return words;
}

Json action_of(const Schedule& schedule, const Action& action) {
  Json json{{"lane", to_string(action.lane)}, {"operation", action.operation->name}};
  if (action.operation->is_pass) {
    json["layer"] = schedule.layers[static_cast<std::size_t>(action.layer)].name;
    json["micro_step"] = action.micro_step;
  }
  if (action.operation->is_message) {
    if (action.layer >= 0) {
      json["layer"] = schedule.layers[static_cast<std::size_t>(action.layer)].name;
      json["micro_step"] = action.micro_step;
    }
    json[action.writes.empty() ? "to" : "from"] = action.peer;
  }
  if (!action.axes.empty()) json["over"] = to_string(action.axes);
  json["reads"] = operands_of(schedule, action.reads);
  json["writes"] = operands_of(schedule, action.writes);
  json["after"] = action.waits;
  json["previous"] = action.previous_waits;
  return json;
}

/// One word as it is; several as a list.
Json words_of(const std::string& text) {
  std::istringstream in(text);
  Json words = Json::array();
  for (std::string word; in >> word;) words.push_back(word);
  return words.size() == 1 ? words.front() : words;
}

/// A string, quoted as a name; a number; a list of either, separated by blanks.
std::string word(const Json& json, bool quoted = true) {
  if (json.is_number_integer()) return std::to_string(json.get<std::int64_t>());
  if (json.is_string()) {
    const auto& text = json.get_ref<const std::string&>();
    require(quoted || text.find_first_of(" \n\t") == text.npos, ErrorCode::kConfig, "'", text,
            "' is not one word");
    return quoted ? quote_name(text) : text;
  }
  require(json.is_array(), ErrorCode::kConfig, json.dump(), " is no name, number or list");
  std::string words;
  for (const Json& item : json) words += (words.empty() ? "" : " ") + word(item, quoted);
  return words;
}

std::string name_list(const Json& json) { return json.empty() ? "-" : word(json); }

/// Adds a line for each element of the list `key`, written by `line`.
template <typename Line>
void add_lines(std::string& text, const Json& json, const char* key, const Line& line) {
  for (const Json& item : json.at(key)) text += concat(line(item), '\n');
}

std::string to_text(const Json& json) {
  std::string text = concat(kScheduleTitle, '\n');
  const Json& placement = json.at("placement");
  const auto plain = [](const Json& item) { return word(item, false); };
  const std::string frozen = placement.contains("frozen")
                                 ? concat("\nfrozen over ", plain(placement.at("frozen")))
                                 : std::string();
  std::string mesh;
  for (const AxisRow& row : kAxisTable) {
    const std::string name(row.name);
    if (!is_always_written(row) && !json.at("mesh").contains(name)) continue;
    mesh += concat(' ', name, ' ', plain(json.at("mesh").at(name)));
  }
  text += concat("purpose ", plain(json.at("purpose")), "\nmesh", mesh, "\nparameter over ",
                 plain(placement.at("parameter")), " in ", plain(json.at("parameter_dtype")),
                 frozen, "\ngradient over ", plain(placement.at("gradient")), " in ",
                 plain(json.at("reduce_dtype")), "\noptimizer over ",
                 plain(placement.at("optimizer")), '\n');
  for (const char* const key : {"micro_steps", "recompute", "first_backward_layer"}) {
    text += concat(key, ' ', plain(json.at(key)), '\n');
  }
  for (const auto& [name, words] : json.at("policy").items()) {
    text += concat("policy ", plain(Json(name)), ' ', plain(words), '\n');
  }
  add_lines(text, json, "units", [&](const Json& unit) {
    std::string line = concat("unit ", word(unit.at("name")));
    if (unit.contains("rank")) line += concat(" rank ", plain(unit.at("rank")));
    if (unit.contains("mirrors")) line += concat(" mirrors ", word(unit.at("mirrors")));
    return line;
  });
  for (const Json& unit : json.at("units")) {
    add_lines(text, unit, "flats", [&](const Json& flat) {
      const std::string decoded = flat.contains("decoded_numel")
                                      ? concat(' ', plain(flat.at("decoded_numel")))
                                      : std::string();
      const std::string matrices = flat.contains("e4m3_matrices")
                                       ? concat(" e4m3 ", plain(flat.at("e4m3_matrices")))
                                       : std::string();
      const std::string factored = flat.contains("factored")
                                       ? concat(" factored ", plain(flat.at("factored")))
                                       : std::string();
      return concat("flat ", word(unit.at("name")), ' ', word(flat.at("name")), ' ',
                    plain(flat.at("format")), ' ', plain(flat.at("numel")), ' ',
                    flat.at("trained").get<bool>() ? "trained" : "frozen", matrices, factored,
                    decoded);
    });
  }
  add_lines(text, json, "layers", [&](const Json& layer) {
    const bool reads = layer.at("reads_batch").get<bool>();
    const bool splits = layer.at("splits_backward").get<bool>();
    const bool counts = layer.contains("counted_classes");
    const bool histories = layer.contains("fp8_histories");
    return concat("layer ", word(layer.at("name")), " | ", name_list(layer.at("forward_reads")),
                  " | ", name_list(layer.at("backward_reads")), " | ",
                  layer.at("gradients").empty() ? "-" : plain(layer.at("gradients")), " | ",
                  reads && splits       ? "batch split"
                  : reads               ? "batch"
                  : splits              ? "split"
                  : counts || histories ? ""
                                        : "-",
                  counts ? concat(" classes ", plain(layer.at("counted_classes"))) : "",
                  histories ? concat(" histories ", plain(layer.at("fp8_histories"))) : "");
  });
  for (const Json& unit : json.at("units")) {
    for (const Json& flat : unit.at("flats")) {
      if (!flat.contains("parts")) continue;
      add_lines(text, flat, "parts", [&](const Json& part) {
        return concat("part ", word(unit.at("name")), '+', word(flat.at("name")), ' ',
                      word(part.at("first_tensor")), ' ', plain(part.at("tensors")), " | ",
                      word(part.at("layers")));
      });
    }
  }
  add_lines(text, json, "buffers", [&](const Json& buffer) {
    const Json& unit = buffer.at("unit");
    const std::string tensor =
        buffer.contains("tensor") ? concat(':', word(buffer.at("tensor"))) : std::string();
    const std::string owner = buffer.contains("layer") ? word(buffer.at("layer"))
                              : unit.is_null()         ? "-"
                              : buffer.contains("flat")
                                  ? concat(word(unit), '+', word(buffer.at("flat")))
                                  : word(unit);
    const std::string at =
        buffer.contains("micro_step") ? concat('m', plain(buffer.at("micro_step"))) : "-";
    return concat("buffer ", word(buffer.at("name")), ' ', plain(buffer.at("kind")), ' ',
                  plain(buffer.at("role")), tensor, ' ', owner, ' ', at, ' ',
                  plain(buffer.at("format")), ' ', plain(buffer.at("sharded")), ' ',
                  plain(buffer.at("numel")), ' ', plain(buffer.at("tier")), ' ',
                  buffer.at("persistent").get<bool>() ? "persistent" : "step");
  });
  std::size_t number = 0;
  add_lines(text, json, "actions", [&](const Json& action) {
    std::string line =
        concat(number++, ' ', plain(action.at("lane")), ' ', plain(action.at("operation")));
    if (action.contains("layer")) {
      line += concat(' ', word(action.at("layer")), " m", plain(action.at("micro_step")));
    }
    for (const char* const peer : {"to", "from"}) {
      if (!action.contains(peer)) continue;
      line += concat(action.contains("layer") ? " " : " - ", peer, ' ', plain(action.at(peer)));
    }
    if (action.contains("over")) line += concat(" over ", plain(action.at("over")));
    line += concat(' ', plain(action.at("reads")), " -> ", plain(action.at("writes")));
    for (const char* const waits : {"after", "previous"}) {
      if (!action.at(waits).empty()) line += concat(' ', waits, ' ', plain(action.at(waits)));
    }
    return line;
  });
  return text;
}

}  // namespace

Json to_json(const Schedule& schedule) {
  Json units = Json::array();
  for (const ScheduleUnit& unit : schedule.units) {
    Json flats = Json::array();
    for (const ScheduleFlat& flat : unit.flats) {
      flats.push_back({{"name", flat.name},
                       {"format", to_string(flat.format)},
                       {"numel", flat.numel},
                       {"trained", flat.trainable}});
      if (flat.has_codes()) flats.back()["e4m3_matrices"] = flat.matrices;
      if (flat.factored_matrices > 0) {
        flats.back()["factored"] = {flat.factored_numbers, flat.factored_matrices};
      }
      if (flat.is_quantized()) flats.back()["decoded_numel"] = flat.decoded_numel;
      for (const GradientPart& part : flat.parts) {
        flats.back()["parts"].push_back({{"first_tensor", part.name},
                                         {"tensors", part.tensors},
                                         {"layers", names_of(schedule.layers, part.layers)}});
      }
    }
    units.push_back({{"name", unit.name}, {"flats", flats}});
    if (schedule.pipeline_ranks() > 1) units.back()["rank"] = unit.rank;
    if (unit.mirrors >= 0) {
      units.back()["mirrors"] = schedule.units[static_cast<std::size_t>(unit.mirrors)].name;
    }
  }
  Json layers = Json::array();
  for (const ScheduleLayer& layer : schedule.layers) {
    layers.push_back({{"name", layer.name},
                      {"forward_reads", names_of(schedule.units, layer.forward_reads)},
                      {"backward_reads", names_of(schedule.units, layer.backward_reads)},
                      {"gradients", gradients_of(schedule, layer)},
                      {"reads_batch", layer.reads_batch},
                      {"splits_backward", layer.splits_backward}});
    if (layer.counted_classes > 0) layers.back()["counted_classes"] = layer.counted_classes;
    if (layer.fp8_histories > 0) layers.back()["fp8_histories"] = layer.fp8_histories;
  }
  Json buffers = Json::array();
  for (const ScheduleBuffer& buffer : schedule.buffers) {
    buffers.push_back(
        {{"name", buffer.name},
         {"kind", to_string(buffer.kind)},
         {"role", to_string(buffer.role)},
         {"unit", buffer.unit < 0
                      ? Json()
                      : Json(schedule.units[static_cast<std::size_t>(buffer.unit)].name)},
         {"format", format_of(buffer)},
         {"sharded", to_string(buffer.sharded)},
         {"numel", buffer.numel},
         {"tier", to_string(buffer.tier)},
         {"persistent", buffer.persistent}});
    if (!buffer.tensor.empty()) buffers.back()["tensor"] = buffer.tensor;
    if (buffer.flat > 0) buffers.back()["flat"] = schedule.flat(buffer.unit, buffer.flat).name;
    if (buffer.layer >= 0) {
      buffers.back()["layer"] = schedule.layers[static_cast<std::size_t>(buffer.layer)].name;
    }
    if (buffer.micro_step >= 0) buffers.back()["micro_step"] = buffer.micro_step;
  }
  Json actions = Json::array();
  for (const Action& action : schedule.actions) actions.push_back(action_of(schedule, action));
  Json mesh = Json::object();
  for (const AxisRow& row : kAxisTable) {
    const int size = schedule.mesh.size(row.axis);
    if (is_always_written(row) || size > 1) mesh[std::string(row.name)] = size;
  }
  Json placement{{"parameter", to_string(schedule.placement.parameter)},
                 {"gradient", to_string(schedule.placement.gradient)},
                 {"optimizer", to_string(schedule.placement.optimizer)}};
  if (schedule.placement.frozen) placement["frozen"] = to_string(*schedule.placement.frozen);
  Json policy = Json::object();
  for (const PolicyRow& row : policy_rows()) {
    if (is_written(row, schedule)) policy[row.name] = words_of(row.write(schedule));
  }
  return {{"purpose", to_string(schedule.purpose)},
          {"mesh", mesh},
          {"placement", placement},
          {"parameter_dtype", to_string(schedule.parameter_dtype)},
          {"reduce_dtype", to_string(schedule.reduce_dtype)},
          {"micro_steps", schedule.micro_steps},
          {"recompute", to_string(schedule.policy.recompute)},
          {"first_backward_layer", schedule.first_backward_layer},
          {"policy", policy},
          {"units", units},
          {"layers", layers},
          {"buffers", buffers},
          {"actions", actions}};
}

Schedule schedule_from_json(const Json& json) {
  std::string text;
  try {
    text = to_text(json);
  } catch (const Json::exception& error) {
    fail(ErrorCode::kConfig, "the JSON is no schedule: ", error.what());
  }
  return parse_schedule(text);
}

Json to_json(const StepPlan& step) {
  if (step.ranks.size() == 1) return to_json(step.ranks.front());
  Json ranks = Json::array();
  for (const Schedule& schedule : step.ranks) ranks.push_back(to_json(schedule));
  return {{kPipelineRanks, ranks}};
}

StepPlan step_plan_from_json(const Json& json) {
  StepPlan step;
  if (!json.is_object() || !json.contains(kPipelineRanks)) {
    step.ranks.push_back(schedule_from_json(json));
    return step;
  }
  const Json& ranks = json.at(kPipelineRanks);
  require(ranks.is_array() && !ranks.empty(), ErrorCode::kConfig, "the JSON is no step plan: '",
          kPipelineRanks, "' must be a list of schedules");
  for (const Json& schedule : ranks) {
    try {
      step.ranks.push_back(schedule_from_json(schedule));
    } catch (const Error& error) {
      fail(ErrorCode::kConfig, "pipeline rank ", step.ranks.size(), ": ", error.what());
    }
  }
  return step;
}

}  // namespace tessera

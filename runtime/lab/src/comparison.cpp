#include "tessera/lab/comparison.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "object_reader.h"
#include "tessera/core/error.h"
#include "tessera/sharding/account_json.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kKind = "comparison";
constexpr int kComparisonFormat = 1;
constexpr std::array kStates{CellState::kMissing, CellState::kDone, CellState::kPredicted,
                             CellState::kFailed, CellState::kImpossible};

Json texts_to_json(const std::vector<NamedText>& texts) {
  Json json = Json::object();
  for (const NamedText& text : texts) json[text.name] = text.value;
  return json;
}

/// A pipeline rank, stage or micro-step that an item has, and others have not.
void add_if_there(Json& json, const char* key, int number, int none) {
  if (number != none) json[key] = number;
}

int number_if_there(ObjectReader& object, const char* key, int none) {
  return object.has(key) ? static_cast<int>(object.count(key)) : none;
}

Json span_to_json(const LaneSpan& span) {
  Json json{{"lane", span.lane}, {"name", span.name}, {"begin", span.begin}, {"end", span.end}};
  add_if_there(json, "pipeline_rank", span.pipeline_rank, 0);
  add_if_there(json, "stage", span.stage, -1);
  add_if_there(json, "micro_step", span.micro_step, -1);
  return json;
}

/// A list as JSON, each item by `convert`.
template <typename Item, typename Convert>
Json list_to_json(const std::vector<Item>& items, const Convert& convert) {
  Json json = Json::array();
  for (const Item& item : items) json.push_back(convert(item));
  return json;
}

void add_traffic(Json& json, const Traffic& traffic) {
  json["sent_bytes"] = sent_bytes_to_json(traffic);
  json["collectives"] = calls_to_json(traffic);
  json["copied_bytes"] = traffic.copied_bytes;
  if (moves_between_tiers(traffic)) json["tier_copy_bytes"] = tier_copies_to_json(traffic);
  if (moves_to_or_from_disk(traffic)) json["disk_copy_bytes"] = disk_copies_to_json(traffic);
}

Json run_to_json(const CellRun& run) {
  Json json{{"step_seconds", run.step_seconds},
            {"losses", run.losses},
            {"peak_bytes", to_json(run.peak)}};
  add_traffic(json, run.traffic);
  if (run.exposed_seconds) json["exposed_seconds"] = *run.exposed_seconds;
  if (run.communication_seconds) json["communication_seconds"] = *run.communication_seconds;
  json["parameters_sha256"] = run.parameters_sha256;
  return json;
}

Json prediction_to_json(const CellPrediction& predicted) {
  Json json{{"peak_bytes", to_json(predicted.peak)}, {"device_bytes", predicted.device_bytes}};
  add_traffic(json, predicted.traffic);
  if (predicted.time) {
    json["step_seconds"] = predicted.time->step_seconds;
    json["exposed_seconds"] = predicted.time->exposed_seconds;
    json["communication_seconds"] = predicted.time->communication_seconds;
    json["exposed_message_seconds"] = predicted.time->exposed_message_seconds;
    json["bubble_seconds"] = predicted.time->bubble_seconds;
    json["half_width"] = predicted.time->half_width;
    json["timeline"] = list_to_json(predicted.time->spans, span_to_json);
  }
  return json;
}

Json cell_to_json(const ComparedCell& cell) {
  Json json{{"settings", texts_to_json(cell.settings)}, {"state", to_string(cell.state)}};
  if (!cell.why.empty()) json["why"] = cell.why;
  json["ranks"] = cell.ranks;
  json["tokens_per_step"] = cell.tokens_per_step;
  json["repeats"] = list_to_json(cell.runs, run_to_json);
  if (cell.predicted) json["predicted"] = prediction_to_json(*cell.predicted);
  json["timeline"] = list_to_json(cell.timeline, span_to_json);
  return json;
}

/// Each item of a list by `read`, which gets it with its place.
template <typename Read>
auto list_of(const Json& json, const std::string& place, const Read& read) {
  require(json.is_array(), ErrorCode::kConfig, place, " must be a list");
  std::vector<decltype(read(json, place))> items;
  for (const Json& item : json) {
    items.push_back(read(item, concat(place, ", item ", items.size() + 1)));
  }
  return items;
}

std::string text_of(const Json& json, const std::string& place) {
  require(json.is_string(), ErrorCode::kConfig, place, " must be a text, not ", json.dump());
  return json.get<std::string>();
}

double seconds_from(const Json& json, const std::string& place) {
  const double seconds = json.is_number() ? json.get<double>() : -1.0;
  require(seconds >= 0.0, ErrorCode::kConfig, place, " must be seconds, a number of at least 0, ",
          "not ", json.dump());
  return seconds;
}

double loss_of(const Json& json, const std::string& place) {
  require(json.is_number() || json.is_null(), ErrorCode::kConfig, place,
          " must be a number or null, not ", json.dump());
  return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

std::vector<NamedText> texts_of(const Json& json, const std::string& place) {
  require(json.is_object(), ErrorCode::kConfig, place, " must be an object");
  std::vector<NamedText> texts;
  for (const auto& [name, value] : json.items()) {
    texts.push_back({name, text_of(value, concat(place, ", '", name, "'"))});
  }
  return texts;
}

MemoryPeak peak_of(const Json& json, const std::string& place) {
  ObjectReader object(json, place);
  MemoryPeak peak;
  peak.total = object.count("total");
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    peak.by_category[category] = object.count(std::string(to_string(category)).c_str());
  }
  object.finish();
  return peak;
}

std::array<std::int64_t, kCollectiveKinds> by_collective(const Json& json,
                                                         const std::string& place) {
  ObjectReader object(json, place);
  std::array<std::int64_t, kCollectiveKinds> numbers{};
  for (int i = 0; i < kCollectiveKinds; ++i) {
    numbers[static_cast<std::size_t>(i)] =
        object.count(std::string(to_string(static_cast<CollectiveKind>(i))).c_str());
  }
  object.finish();
  return numbers;
}

Traffic traffic_of(ObjectReader& object) {
  Traffic traffic;
  traffic.sent_bytes = by_collective(object.take("sent_bytes"), object.place_of("sent_bytes"));
  traffic.calls = by_collective(object.take("collectives"), object.place_of("collectives"));
  traffic.copied_bytes = object.count("copied_bytes");
  if (object.has("tier_copy_bytes")) {
    ObjectReader copies(object.take("tier_copy_bytes"), object.place_of("tier_copy_bytes"));
    traffic.to_host_bytes = copies.count("device_to_host");
    traffic.to_device_bytes = copies.count("host_to_device");
    copies.finish();
  }
  if (object.has("disk_copy_bytes")) {
    ObjectReader copies(object.take("disk_copy_bytes"), object.place_of("disk_copy_bytes"));
    traffic.to_disk_bytes = copies.count("host_to_disk");
    traffic.from_disk_bytes = copies.count("disk_to_host");
    copies.finish();
  }
  return traffic;
}

LaneSpan span_of(const Json& json, const std::string& place) {
  ObjectReader object(json, place);
  LaneSpan span{object.text("lane"), object.text("name"), object.number("begin", true),
                object.number("end", true)};
  span.pipeline_rank = number_if_there(object, "pipeline_rank", 0);
  span.stage = number_if_there(object, "stage", -1);
  span.micro_step = number_if_there(object, "micro_step", -1);
  require(span.begin <= span.end, ErrorCode::kConfig, place, " ends before it begins");
  object.finish();
  return span;
}

std::optional<double> seconds_if_there(ObjectReader& object, const char* key) {
  if (!object.has(key)) return std::nullopt;
  return seconds_from(object.take(key), object.place_of(key));
}

/// Seconds that results of an earlier version do not have.
double seconds_or_none(ObjectReader& object, const char* key) {
  return seconds_if_there(object, key).value_or(0.0);
}

CellRun run_of(const Json& json, const std::string& place) {
  ObjectReader object(json, place);
  CellRun run;
  run.step_seconds =
      list_of(object.take("step_seconds"), object.place_of("step_seconds"), seconds_from);
  run.losses = list_of(object.take("losses"), object.place_of("losses"), loss_of);
  run.peak = peak_of(object.take("peak_bytes"), object.place_of("peak_bytes"));
  run.traffic = traffic_of(object);
  run.exposed_seconds = seconds_if_there(object, "exposed_seconds");
  run.communication_seconds = seconds_if_there(object, "communication_seconds");
  run.parameters_sha256 = object.text("parameters_sha256");
  object.finish();
  return run;
}

CellPrediction prediction_of(const Json& json, const std::string& place) {
  ObjectReader object(json, place);
  CellPrediction predicted;
  predicted.peak = peak_of(object.take("peak_bytes"), object.place_of("peak_bytes"));
  predicted.device_bytes = object.count("device_bytes");
  predicted.traffic = traffic_of(object);
  if (object.has("step_seconds")) {
    SimulatedTime& time = predicted.time.emplace();
    time.step_seconds = object.number("step_seconds");
    time.exposed_seconds = object.number("exposed_seconds", true);
    time.communication_seconds = object.number("communication_seconds", true);
    time.exposed_message_seconds = seconds_or_none(object, "exposed_message_seconds");
    time.bubble_seconds = seconds_or_none(object, "bubble_seconds");
    if (object.has("half_width")) time.half_width = object.number("half_width", true);
    time.spans = list_of(object.take("timeline"), object.place_of("timeline"), span_of);
  }
  object.finish();
  return predicted;
}

CellState state_of(const std::string& word, const std::string& place) {
  const auto found =
      std::ranges::find_if(kStates, [&](CellState state) { return to_string(state) == word; });
  require(found != kStates.end(), ErrorCode::kConfig, place,
          ": 'state' must be missing, done, predicted, failed or impossible, not '", word, "'");
  return *found;
}

ComparedCell cell_of(const Json& json, const std::string& place) {
  ObjectReader object(json, place);
  ComparedCell cell;
  cell.settings = texts_of(object.take("settings"), object.place_of("settings"));
  cell.state = state_of(object.text("state"), place);
  if (object.has("why")) cell.why = object.text("why");
  cell.ranks = object.count("ranks");
  cell.tokens_per_step = object.count("tokens_per_step");
  cell.runs = list_of(object.take("repeats"), object.place_of("repeats"), run_of);
  if (object.has("predicted")) {
    cell.predicted = prediction_of(object.take("predicted"), object.place_of("predicted"));
  }
  cell.timeline = list_of(object.take("timeline"), object.place_of("timeline"), span_of);
  object.finish();
  return cell;
}

Comparison comparison_of(const Json& json, const std::string& path) {
  ObjectReader object(json, concat("the results '", path, "'"));
  require(object.text("kind") == kKind, ErrorCode::kConfig, "'", path,
          "' are no results of tessera compare: their kind is not '", kKind, "'");
  const std::int64_t format = object.count("format");
  require(format == kComparisonFormat, ErrorCode::kConfig, "the results '", path,
          "' are of format ", format, ", and this program reads format ", kComparisonFormat);
  Comparison comparison;
  comparison.version = object.text("version");
  comparison.date = object.text("date");
  comparison.machine = texts_of(object.take("machine"), object.place_of("machine"));
  comparison.command = list_of(object.take("command"), object.place_of("command"), text_of);
  comparison.model = object.text("model");
  comparison.data = object.text("data");
  comparison.profile = object.text("profile");
  if (object.has("profile_source")) comparison.profile_source = object.text("profile_source");
  comparison.steps = object.count("steps");
  comparison.warmup_steps = object.count("warmup_steps");
  comparison.repeats = object.count("repeats_of_a_cell");
  comparison.axes = list_of(object.take("axes"), object.place_of("axes"), text_of);
  comparison.cells = list_of(object.take("cells"), object.place_of("cells"), cell_of);
  object.finish();
  return comparison;
}

}  // namespace

std::string_view to_string(CellState state) {
  switch (state) {
    case CellState::kMissing:
      return "missing";
    case CellState::kDone:
      return "done";
    case CellState::kPredicted:
      return "predicted";
    case CellState::kFailed:
      return "failed";
    case CellState::kImpossible:
      return "impossible";
  }
  return "missing";
}

std::string ComparedCell::setting(std::string_view name) const {
  const auto found = std::ranges::find(settings, name, &NamedText::name);
  return found == settings.end() ? "" : found->value;
}

Comparison parse_comparison(const std::string& text, const std::string& path) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    fail(ErrorCode::kConfig, "the results '", path, "' are not JSON: ", error.what());
  }
  return comparison_of(json, path);
}

std::string to_text(const Comparison& comparison) {
  Json json{{"kind", kKind},
            {"format", kComparisonFormat},
            {"version", comparison.version},
            {"date", comparison.date},
            {"machine", texts_to_json(comparison.machine)},
            {"command", comparison.command},
            {"model", comparison.model},
            {"data", comparison.data},
            {"profile", comparison.profile},
            {"profile_source", comparison.profile_source},
            {"steps", comparison.steps},
            {"warmup_steps", comparison.warmup_steps},
            {"repeats_of_a_cell", comparison.repeats},
            {"axes", comparison.axes},
            {"cells", list_to_json(comparison.cells, cell_to_json)}};
  if (comparison.profile_source.empty()) json.erase("profile_source");
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Comparison read_comparison(const std::string& path) {
  std::ifstream file(path);
  require(static_cast<bool>(file), ErrorCode::kNotFound, "the results '", path,
          "' cannot be read; give the results.json that tessera compare has written");
  std::ostringstream text;
  text << file.rdbuf();
  return parse_comparison(text.str(), path);
}

}  // namespace tessera

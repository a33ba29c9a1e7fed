#include "tessera/lab/flight_dump.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tessera/core/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kDumpFormat = "tessera dump";
constexpr int kDumpVersion = 1;
constexpr const char* kDumpPrefix = "tessera_dump_";

/// Microseconds, in few digits.
double rounded(double seconds) { return std::round(seconds * 1e6) / 1e6; }

Json json_of(const std::vector<ActionRecord>& records) {
  Json all = Json::array();
  for (const ActionRecord& r : records) {
    all.push_back(
        {r.program, r.step, r.action, rounded(r.begin), r.end ? Json(rounded(*r.end)) : Json()});
  }
  return all;
}

/// The host's are phases, by name.
Json json_of_host(const std::vector<ActionRecord>& records) {
  Json all = json_of(records);
  for (Json& record : all) record[2] = to_string(static_cast<HostPhase>(record[2].get<int>()));
  return all;
}

Json json_of(const DumpedProgram& program) {
  Json actions = Json::array();
  for (const DumpedAction& action : program.actions) {
    Json out{{"lane", action.lane}, {"text", action.text}};
    if (!action.group.empty()) {
      out["group"] = action.group;
      out["sent_bytes"] = action.sent_bytes;
    }
    if (!action.waits.empty()) out["waits"] = action.waits;
    if (!action.previous_waits.empty()) out["previous_waits"] = action.previous_waits;
    if (action.stage >= 0) out["stage"] = action.stage;
    actions.push_back(std::move(out));
  }
  Json out{{"purpose", program.purpose}};
  if (program.pipeline_rank > 0) out["pipeline_rank"] = program.pipeline_rank;
  out["actions"] = std::move(actions);
  return out;
}

HostPhase phase_of(const std::string& name) {
  for (int i = 0; i < kHostPhases; ++i) {
    if (to_string(static_cast<HostPhase>(i)) == name) return static_cast<HostPhase>(i);
  }
  fail(ErrorCode::kConfig, "no phase of a host is '", name, "'");
}

std::vector<ActionRecord> read_records(const Json& from, bool of_host) {
  std::vector<ActionRecord> records;
  for (const Json& item : from) {
    require(item.is_array() && item.size() == 5, ErrorCode::kConfig,
            "a record has not the five parts program, step, action, begin, end");
    const Json& action = item.at(2);
    records.push_back(
        {.program = item.at(0).get<int>(),
         .action =
             of_host ? static_cast<int>(phase_of(action.get<std::string>())) : action.get<int>(),
         .step = item.at(1).get<std::int64_t>(),
         .begin = item.at(3).get<double>(),
         .end = item.at(4).is_null() ? std::nullopt : std::optional(item.at(4).get<double>())});
  }
  return records;
}

DumpedProgram read_program(const Json& from) {
  DumpedProgram program{.purpose = from.at("purpose").get<std::string>(),
                        .pipeline_rank = from.value("pipeline_rank", 0),
                        .actions = {}};
  const Json none = Json::array();
  for (const Json& item : from.at("actions")) {
    program.actions.push_back(
        {.lane = item.at("lane").get<std::string>(),
         .text = item.at("text").get<std::string>(),
         .group = item.value("group", ""),
         .sent_bytes = item.value("sent_bytes", std::int64_t{0}),
         .waits = item.value("waits", none).get<std::vector<int>>(),
         .previous_waits = item.value("previous_waits", none).get<std::vector<int>>(),
         .stage = item.value("stage", -1)});
  }
  return program;
}

DumpedRank read_rank(const Json& from) {
  DumpedRank rank{.rank = from.at("rank").get<int>(),
                  .groups = from.at("groups").get<std::map<std::string, std::vector<int>>>(),
                  .lanes = {},
                  .host = read_records(from.at("host"), true)};
  for (const auto& [name, records] : from.at("lanes").items()) {
    rank.lanes.push_back({name, read_records(records, false)});
  }
  return rank;
}

/// Indices that name something.
void check(const FlightDump& dump) {
  const auto is_rank = [&](int rank) { return rank >= 0 && rank < dump.world_size; };
  for (const DumpedProgram& program : dump.programs) {
    const auto count = static_cast<int>(program.actions.size());
    for (const DumpedAction& action : program.actions) {
      for (const auto* waits : {&action.waits, &action.previous_waits}) {
        for (const int wait : *waits) {
          require(wait >= 0 && wait < count, ErrorCode::kConfig, "'", action.text,
                  "' waits for action ", wait, " of ", count);
        }
      }
    }
  }
  for (const DumpedRank& rank : dump.ranks) {
    require(is_rank(rank.rank), ErrorCode::kConfig, "it has rank ", rank.rank, " of ",
            dump.world_size);
    for (const auto& [name, ranks] : rank.groups) {
      require(std::ranges::all_of(ranks, is_rank), ErrorCode::kConfig, "group '", name,
              "' has ranks that the run has not");
    }
    for (const DumpedLane& lane : rank.lanes) {
      for (const ActionRecord& record : lane.records) {
        require(
            record.program >= 0 && static_cast<std::size_t>(record.program) < dump.programs.size(),
            ErrorCode::kConfig, "a record is of program ", record.program);
        const auto& actions = dump.programs[static_cast<std::size_t>(record.program)].actions;
        require(record.action >= 0 && static_cast<std::size_t>(record.action) < actions.size(),
                ErrorCode::kConfig, "a record is of action ", record.action);
      }
    }
  }
}

FlightDump from_json(const Json& from) {
  require(from.is_object() && from.value("format", "") == kDumpFormat, ErrorCode::kConfig,
          "it is no dump of tessera");
  require(from.at("version").get<int>() == kDumpVersion, ErrorCode::kConfig, "it is of version ",
          from.at("version").get<int>(), ", and this program reads version ", kDumpVersion);
  FlightDump dump{.path = {},
                  .run = from.at("run").get<std::string>(),
                  .number = from.at("number").get<int>(),
                  .failed = from.at("failed").get<bool>(),
                  .reason = from.at("reason").get<std::string>(),
                  .noticed = from.at("noticed").get<double>(),
                  .at = from.at("noticed").get<double>(),
                  .host = from.at("host").get<std::string>(),
                  .pid = from.at("pid").get<std::int64_t>(),
                  .strategy = from.at("strategy").get<std::string>(),
                  .mesh = from.at("mesh").get<std::string>(),
                  .world_size = from.at("world_size").get<int>(),
                  .sees_ends = from.at("sees_ends").get<bool>(),
                  .programs = {},
                  .ranks = {}};
  for (const Json& program : from.at("programs")) dump.programs.push_back(read_program(program));
  for (const Json& rank : from.at("ranks")) dump.ranks.push_back(read_rank(rank));
  require(!dump.ranks.empty(), ErrorCode::kConfig, "it has no ranks");
  check(dump);
  return dump;
}

/// The dumps in a folder, of the newest run.
std::vector<FlightDump> read_folder(const std::string& folder) {
  std::vector<FlightDump> all;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kDumpPrefix) && name.ends_with(".json")) {
      all.push_back(read_flight_dump(entry.path().string()));
    }
  }
  require(!all.empty(), ErrorCode::kNotFound, "there is no dump (", kDumpPrefix, "*.json) in '",
          folder, "'");
  const auto newest = std::ranges::max_element(all, {}, &FlightDump::noticed);
  const std::string run = newest->run;
  std::erase_if(all, [&](const FlightDump& dump) { return dump.run != run; });
  return all;
}

}  // namespace

Json to_json(const FlightDump& dump) {
  Json programs = Json::array();
  for (const DumpedProgram& program : dump.programs) programs.push_back(json_of(program));
  Json ranks = Json::array();
  for (const DumpedRank& rank : dump.ranks) {
    Json lanes = Json::object();
    for (const DumpedLane& lane : rank.lanes) lanes[lane.name] = json_of(lane.records);
    ranks.push_back({{"rank", rank.rank},
                     {"groups", rank.groups},
                     {"lanes", std::move(lanes)},
                     {"host", json_of_host(rank.host)}});
  }
  return {{"format", kDumpFormat},
          {"version", kDumpVersion},
          {"run", dump.run},
          {"number", dump.number},
          {"failed", dump.failed},
          {"reason", dump.reason},
          {"noticed", rounded(dump.noticed)},
          {"host", dump.host},
          {"pid", dump.pid},
          {"strategy", dump.strategy},
          {"mesh", dump.mesh},
          {"world_size", dump.world_size},
          {"sees_ends", dump.sees_ends},
          {"record", {"program", "step", "action", "begin", "end"}},
          {"ranks", std::move(ranks)},
          {"programs", std::move(programs)}};
}

FlightDump read_flight_dump(const std::string& path) {
  require(fs::exists(path), ErrorCode::kNotFound, "there is no file '", path, "'");
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  require(file.good() || file.eof(), ErrorCode::kIo, "'", path, "' cannot be read");
  try {
    FlightDump dump = from_json(Json::parse(text));
    dump.path = path;
    return dump;
  } catch (const Json::exception& error) {
    fail(ErrorCode::kConfig, "'", path, "' cannot be read as a dump: ", error.what());
  } catch (const Error& error) {
    fail(error.code(), "'", path, "' cannot be read as a dump: ", error.what());
  }
}

std::vector<FlightDump> read_flight_dumps(std::span<const std::string> paths) {
  std::vector<FlightDump> all;
  for (const std::string& path : paths) {
    if (fs::is_directory(path)) {
      for (FlightDump& dump : read_folder(path)) all.push_back(std::move(dump));
    } else {
      all.push_back(read_flight_dump(path));
    }
  }
  require(!all.empty(), ErrorCode::kNotFound, "no dump is given");
  for (const FlightDump& dump : all) {
    require(dump.run == all.front().run, ErrorCode::kConfig, "'", all.front().path, "' is of run ",
            all.front().run, " and '", dump.path, "' of run ", dump.run,
            "; give the dumps of one run");
  }
  std::map<int, FlightDump> last;  // by first rank; that of a failure, if there is one
  for (FlightDump& dump : all) {
    const int rank = dump.ranks.front().rank;
    const auto found = last.find(rank);
    if (found == last.end() || std::pair(found->second.failed, found->second.number) <
                                   std::pair(dump.failed, dump.number)) {
      last.insert_or_assign(rank, std::move(dump));
    }
  }
  std::vector<FlightDump> dumps;
  for (auto& [rank, dump] : last) dumps.push_back(std::move(dump));
  if (std::ranges::any_of(dumps, &FlightDump::failed)) {
    std::erase_if(dumps, [](const FlightDump& dump) { return !dump.failed; });
  }
  const double first = std::ranges::min(dumps, {}, &FlightDump::noticed).noticed;
  for (FlightDump& dump : dumps) dump.at = first;
  return dumps;
}

}  // namespace tessera

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "output/terminal.h"
#include "output/text_output.h"
#include "tessera/core/error.h"
#include "tessera/core/utc_text.h"
#include "tessera/lab/flight_dump.h"
#include "tessera/lab/trace.h"
#include "tessera/trainer/output_file.h"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

/// More than these are told only if somebody asks for all.
constexpr std::size_t kShownRanks = 8;

struct InspectDumpRequest {
  std::vector<std::string> paths{};
  bool json = false;
  bool all = false;
  std::string trace{};  ///< a file to write
};

/// "18:45:01.2 UTC".
std::string clock_of(double seconds) {
  const auto tenths = static_cast<std::int64_t>(std::floor(seconds * 10.0));
  return concat(utc_text(static_cast<std::time_t>(tenths / 10), "%H:%M:%S"), ".", tenths % 10,
                " UTC");
}

std::string lasting(double seconds) { return fixed(seconds, seconds < 1.0 ? 3 : 1) + " s"; }

/// "rank 3", "ranks 0 to 2, 5".
std::string ranks_in_words(std::vector<int> ranks) {
  std::ranges::sort(ranks);
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last == i + 1) last = i;  // "0, 1" rather than "0 to 1"
    text += concat(i > 0 ? ", " : "", ranks[i]);
    if (last > i) text += concat(" to ", ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string phase_in_words(HostPhase phase) {
  switch (phase) {
    case HostPhase::kOutside:
      return "between steps: logs, checkpoints, callbacks";
    case HostPhase::kReads:
      return "reading its samples";
    case HostPhase::kIssues:
      return "issuing its actions";
    case HostPhase::kWaits:
      return "waiting for its results";
    case HostPhase::kMeets:
      return "waiting for the other processes before it";
  }
  return "unknown";
}

void say(const std::string& line, int indent = 0) {
  print_line(stdout, std::string(static_cast<std::size_t>(indent), ' ') + line, indent + 2);
}

/// The dumps of a run, and what they say together.
class DumpReport {
 public:
  explicit DumpReport(std::vector<FlightDump> dumps)
      : dumps_(std::move(dumps)), diagnosis_(diagnose(dumps_)) {}

  void print(bool all) const;
  Json json() const;

 private:
  const DumpedAction& action(const ActionAt& at) const {
    return dumps_.front()
        .programs.at(static_cast<std::size_t>(at.program))
        .actions.at(static_cast<std::size_t>(at.action));
  }
  std::string words(const ActionAt& at) const;
  std::string words(const Absence& absence, const ActionAt& missed) const;
  const FlightDump& first_failure() const;
  void print_header() const;
  void print_wait(const CollectiveWait& wait) const;
  void print_ranks(bool all) const;
  void print_rank(const FlightDump& dump, const DumpedRank& rank) const;
  Json json_of(const ActionAt& at) const;
  Json json_of(const Absence& absence) const;
  Json json_of(const FlightDump& dump, const DumpedRank& rank) const;

  const std::vector<FlightDump> dumps_;
  const FlightDiagnosis diagnosis_;
};

/// "step 12, action 15 on lane reduce: reduce-scatter over shard g1=h.3 -> h.3.gradient".
std::string DumpReport::words(const ActionAt& at) const {
  const bool trains =
      dumps_.front().programs.at(static_cast<std::size_t>(at.program)).purpose == "train";
  return concat(trains ? "step " : "evaluation's step ", at.step, ", action ", at.action,
                " on lane ", action(at).lane, ": ", action(at).text);
}

std::string DumpReport::words(const Absence& absence, const ActionAt& missed) const {
  const std::string rank = concat("rank ", absence.rank);
  if (!absence.obstacle) {
    return rank + " has left no dump: its process was killed, or stands still";
  }
  const Obstacle& obstacle = *absence.obstacle;
  switch (obstacle.kind) {
    case Obstacle::Kind::kAction:
      return concat(rank, absence.waits_itself ? " waited itself, for " : " was, for ",
                    lasting(obstacle.seconds), ", in ", words(obstacle.at));
    case Obstacle::Kind::kReady:
      return concat(rank, " could have begun ", words(obstacle.at),
                    "; its thread stood still, or the action had only just become ready");
    case Obstacle::Kind::kHost:
      return concat(rank, " had not issued step ", missed.step, ": its host was ",
                    phase_in_words(obstacle.phase), ", for ", lasting(obstacle.seconds));
  }
  return rank;
}

/// The dump whose process was the first to know.
const FlightDump& DumpReport::first_failure() const {
  return *std::ranges::min_element(dumps_, {}, &FlightDump::noticed);
}

void DumpReport::print_header() const {
  const FlightDump& first = first_failure();
  say(concat("run ", first.run, ": ", first.strategy, ", ", first.world_size, " ranks (",
             first.mesh, ")"));
  say(concat(first.failed ? "failed at " : "asked at ", clock_of(first.at), ": ", first.reason));
  if (!diagnosis_.without_dump.empty()) {
    say(concat("no dump of ", ranks_in_words(diagnosis_.without_dump),
               diagnosis_.without_dump.size() == 1
                   ? ": its process was killed or stands still, or its file is elsewhere"
                   : ": their processes were killed or stand still, or their files are elsewhere"));
  }
  if (!first.sees_ends) {
    say("on a GPU the dumps know when actions were issued, not when they ended");
  }
}

void DumpReport::print(bool all) const {
  print_header();
  for (const CollectiveWait& wait : diagnosis_.waits) {
    std::cout << "\n";
    print_wait(wait);
  }
  print_ranks(all);
}

void DumpReport::print_wait(const CollectiveWait& wait) const {
  if (wait.all_came) {
    say(concat("all of ", ranks_in_words(wait.waiting), " had come to ", words(wait.at)));
    say(concat("it did not end, since ", clock_of(wait.since), ", for ", lasting(wait.seconds),
               wait.absent.empty() ? "; the dumps do not tell whose part is missing" : ""),
        2);
    for (const Absence& absence : wait.absent) {
      say(words(absence, wait.at) + ", which others had ended", 2);
    }
    return;
  }
  std::vector<int> absent;
  for (const Absence& absence : wait.absent) absent.push_back(absence.rank);
  say(concat(ranks_in_words(absent), absent.size() == 1 ? " was" : " were", " missing in ",
             wait.of_hosts
                 ? concat("the exchange of the processes before step ", wait.at.step, " begins")
                 : words(wait.at)));
  say(concat(ranks_in_words(wait.waiting), " waited there since ", clock_of(wait.since), ", for ",
             lasting(wait.seconds)),
      2);
  for (const Absence& absence : wait.absent) say(words(absence, wait.at), 2);
}

void DumpReport::print_ranks(bool all) const {
  if (diagnosis_.waits.empty()) std::cout << "\nno rank waited for another that had not come\n";
  std::size_t shown = 0, left_out = 0;
  for (const FlightDump& dump : dumps_) {
    for (const DumpedRank& rank : dump.ranks) {
      if (!all && shown == kShownRanks) {
        ++left_out;
        continue;
      }
      ++shown;
      std::cout << "\n";
      print_rank(dump, rank);
    }
  }
  if (left_out > 0) say(concat("\n", left_out, " more ranks: --all"));
}

void DumpReport::print_rank(const FlightDump& dump, const DumpedRank& rank) const {
  const auto host = record_at(rank.host, dump.at);
  say(concat("rank ", rank.rank, " (pid ", dump.pid, " on ", dump.host, ")",
             host ? concat(": step ", host->step, ", host ",
                           phase_in_words(static_cast<HostPhase>(host->action)), ", for ",
                           lasting(dump.at - host->begin))
                  : ""));
  for (const DumpedLane& lane : rank.lanes) {
    const auto record = record_at(lane.records, dump.at);
    if (!record) continue;
    const ActionAt at{record->program, record->step, record->action};
    std::string name = lane.name;
    name.resize(9, ' ');
    const bool runs = !record->end;
    say(concat(name, runs ? (dump.sees_ends ? "in " : "issued ") : "ended ", at.action, " of step ",
               at.step, ", ", lasting(dump.at - (runs ? record->begin : *record->end)),
               runs && dump.sees_ends ? " so far: " : " before: ", action(at).text),
        2);
  }
}

Json DumpReport::json_of(const ActionAt& at) const {
  return {{"purpose", dumps_.front().programs.at(static_cast<std::size_t>(at.program)).purpose},
          {"step", at.step},
          {"action", at.action},
          {"lane", action(at).lane},
          {"text", action(at).text}};
}

Json DumpReport::json_of(const Absence& absence) const {
  Json out{{"rank", absence.rank}};
  if (!absence.obstacle) {
    out["state"] = "no dump";
    return out;
  }
  const Obstacle& obstacle = *absence.obstacle;
  switch (obstacle.kind) {
    case Obstacle::Kind::kAction:
      out["state"] = absence.waits_itself ? "waits" : "works";
      break;
    case Obstacle::Kind::kReady:
      out["state"] = "ready";
      break;
    case Obstacle::Kind::kHost:
      out["state"] = concat("host ", to_string(obstacle.phase));
      break;
  }
  if (obstacle.kind != Obstacle::Kind::kReady) out["seconds"] = obstacle.seconds;
  out["at"] = json_of(obstacle.at);
  return out;
}

Json DumpReport::json_of(const FlightDump& dump, const DumpedRank& rank) const {
  Json out{{"rank", rank.rank}, {"host", dump.host}, {"pid", dump.pid}};
  if (const auto host = record_at(rank.host, dump.at)) {
    out["step"] = host->step;
    out["phase"] = to_string(static_cast<HostPhase>(host->action));
    out["phase_seconds"] = dump.at - host->begin;
  }
  out["lanes"] = Json::array();
  for (const DumpedLane& lane : rank.lanes) {
    const auto record = record_at(lane.records, dump.at);
    if (!record) continue;
    Json entry = json_of({record->program, record->step, record->action});
    entry["running"] = !record->end;
    entry["seconds"] = dump.at - record->end.value_or(record->begin);
    out["lanes"].push_back(std::move(entry));
  }
  return out;
}

Json DumpReport::json() const {
  const FlightDump& first = first_failure();
  Json waits = Json::array();
  for (const CollectiveWait& wait : diagnosis_.waits) {
    Json missing = Json::array();
    for (const Absence& absence : wait.absent) missing.push_back(json_of(absence));
    Json entry = wait.of_hosts
                     ? Json{{"purpose", "exchange of the processes"}, {"step", wait.at.step}}
                     : json_of(wait.at);
    entry["all_came"] = wait.all_came;
    entry["waiting"] = wait.waiting;
    entry["since"] = wait.since;
    entry["seconds"] = wait.seconds;
    entry["missing"] = std::move(missing);
    waits.push_back(std::move(entry));
  }
  Json ranks = Json::array();
  for (const FlightDump& dump : dumps_) {
    for (const DumpedRank& rank : dump.ranks) ranks.push_back(json_of(dump, rank));
  }
  return {{"kind", "dump"},
          {"run", first.run},
          {"strategy", first.strategy},
          {"world_size", first.world_size},
          {"failed", first.failed},
          {"time", first.at},
          {"reason", first.reason},
          {"without_dump", diagnosis_.without_dump},
          {"waits", std::move(waits)},
          {"ranks", std::move(ranks)}};
}

int run_inspect_dump(const InspectDumpRequest& request) {
  std::vector<FlightDump> dumps = read_flight_dumps(request.paths);
  if (!request.trace.empty()) {
    OutputFile file(request.trace, "--trace");
    file.write(to_text(to_trace(dumps)));
  }
  const DumpReport report(std::move(dumps));
  if (request.json) {
    write_json(std::cout, report.json());
  } else {
    report.print(request.all);
  }
  return kExitGood;
}

}  // namespace

std::function<int()> add_inspect_dump(CLI::App& app) {
  const auto request = std::make_shared<InspectDumpRequest>();
  app.add_option("PATHS", request->paths,
                 "dumps of a run, or the folder that has them: train and evaluate write one for "
                 "each process when a rank fails or waits too long, and on SIGQUIT (--dump-folder)")
      ->required();
  app.add_flag("--json", request->json, "print one JSON object");
  app.add_option("--trace", request->trace,
                 "write what the dumps hold, the last 1,000 actions of each lane, as a trace for "
                 "Perfetto or chrome://tracing to this file");
  app.add_flag("--all", request->all, "tell of all ranks, however many");
  return [request] { return run_inspect_dump(*request); };
}

}  // namespace tessera::cli

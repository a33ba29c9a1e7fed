#include "compare/run_log.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "tessera/core/error.h"

namespace tessera::cli {
namespace {

using LogJson = nlohmann::ordered_json;

MemoryPeak peak_in(const LogJson& json) {
  MemoryPeak peak{.total = json.at("total"), .by_category = {}};
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    peak.by_category[category] = json.at(std::string(to_string(category)));
  }
  return peak;
}

/// A step's share of the summary's, which is of all steps.
Traffic traffic_in(const LogJson& summary) {
  const std::int64_t steps = std::max<std::int64_t>(summary.at("steps").get<std::int64_t>(), 1);
  Traffic traffic{.copied_bytes = summary.at("copied_bytes").get<std::int64_t>() / steps};
  for (int i = 0; i < kCollectiveKinds; ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    const std::string name(to_string(kind));
    traffic.sent_of(kind) =
        summary.at("sent_bytes").at("counted").at(name).get<std::int64_t>() / steps;
    traffic.calls_of(kind) = summary.at("collectives").at(name).get<std::int64_t>() / steps;
  }
  const auto copied = [&](const char* tiers, const char* direction) -> std::int64_t {
    if (!summary.contains(tiers)) return 0;
    return summary.at(tiers).at("counted").at(direction).get<std::int64_t>() / steps;
  };
  traffic.to_host_bytes = copied("tier_copy_bytes", "device_to_host");
  traffic.to_device_bytes = copied("tier_copy_bytes", "host_to_device");
  traffic.to_disk_bytes = copied("disk_copy_bytes", "host_to_disk");
  traffic.from_disk_bytes = copied("disk_copy_bytes", "disk_to_host");
  return traffic;
}

void add_step(CellRun& run, const LogJson& step, std::int64_t untimed_steps) {
  const LogJson& loss = step.at("loss");
  run.losses.push_back(loss.is_null() ? std::numeric_limits<double>::quiet_NaN()
                                      : loss.get<double>());
  if (static_cast<std::int64_t>(run.losses.size()) > untimed_steps) {
    run.step_seconds.push_back(step.at("seconds"));
  }
}

void add_summary(CellRun& run, const LogJson& summary) {
  run.peak = peak_in(summary.at("peak_bytes").at("measured"));
  run.traffic = traffic_in(summary);
  const LogJson& hash = summary.at("parameters_sha256");
  if (hash.is_string()) run.parameters_sha256 = hash;
  if (summary.contains("exposed_seconds_per_step")) {
    run.exposed_seconds = summary.at("exposed_seconds_per_step").get<double>();
    run.communication_seconds = summary.at("communication_seconds_per_step").get<double>();
  }
}

/// When ranks of different stages have come to where they meet.
class MeetingTimes {
 public:
  /// A rank comes to the next meeting of a group; its span will be the one at `place`,
  /// if it has one.
  void add(std::int64_t rank, const std::string& group, double begin,
           std::optional<std::size_t> place) {
    if (group.find(" lane from ") == group.npos && group != "all") return;
    const int number = counts_[{rank, group}]++;
    Meeting& meeting = meetings_[{group, number}];
    meeting.begin = std::max(meeting.begin, begin);
    if (place) meeting.places.push_back(*place);
  }
  void begin_together(std::vector<LaneSpan>& spans) const {
    for (const auto& [name, meeting] : meetings_) {
      for (const std::size_t place : meeting.places) {
        spans[place].begin = std::min(spans[place].end, meeting.begin);
      }
    }
  }

 private:
  struct Meeting {
    double begin = 0.0;
    std::vector<std::size_t> places{};
  };
  std::map<std::pair<std::int64_t, std::string>, int> counts_;
  std::map<std::pair<std::string, int>, Meeting> meetings_;
};

}  // namespace

CellRun read_run_log(const std::string& path, std::int64_t steps, std::int64_t untimed_steps) {
  std::ifstream file(path);
  require(static_cast<bool>(file), ErrorCode::kIo, "its log ", path, " cannot be read");
  CellRun run;
  bool ended = false;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    try {
      const LogJson json = LogJson::parse(line);
      const std::string kind = json.at("kind");
      if (kind == "step") add_step(run, json, untimed_steps);
      if (kind == "summary") add_summary(run, json);
      ended = ended || kind == "summary";
    } catch (const LogJson::exception& error) {
      fail(ErrorCode::kIo, "its log ", path, " is broken in line ", number, ": ", error.what());
    }
  }
  require(ended && static_cast<std::int64_t>(run.losses.size()) == steps, ErrorCode::kIo,
          "its log ", path, " has ", run.losses.size(), " of ", steps, " steps and ",
          ended ? "a" : "no", " summary");
  return run;
}

std::vector<LaneSpan> read_timeline(const std::string& path, std::int64_t ranks_of_stage) {
  constexpr double kWithoutWork = 0.125;  // microseconds: the least that a trace gives an action
  constexpr double kMicro = 1e-6;
  std::ifstream file(path);
  require(static_cast<bool>(file), ErrorCode::kIo, "its trace ", path, " cannot be read");
  std::vector<LaneSpan> spans;
  try {
    double first = std::numeric_limits<double>::infinity();
    MeetingTimes meetings;
    const LogJson trace = LogJson::parse(file);
    for (const LogJson& event : trace.at("traceEvents")) {
      // Slices of lanes have their lane as category, those of the host have none.
      if (event.at("ph") != "X" || !event.contains("cat")) continue;
      const std::int64_t rank = event.at("pid");
      if (rank % ranks_of_stage != 0) continue;
      const double begin = event.at("ts"), micros = event.at("dur");
      const LogJson& args = event.at("args");
      first = std::min(first, begin);
      const bool works = micros > kWithoutWork;
      if (args.contains("group")) {
        meetings.add(rank, args.at("group"), begin,
                     works ? std::optional(spans.size()) : std::nullopt);
      }
      if (!works) continue;
      spans.push_back({event.at("cat"), event.at("name"), begin, begin + micros,
                       static_cast<int>(rank / ranks_of_stage), args.value("stage", -1),
                       args.value("micro_step", -1)});
    }
    meetings.begin_together(spans);
    for (LaneSpan& span : spans) {
      span.begin = (span.begin - first) * kMicro;
      span.end = (span.end - first) * kMicro;
    }
  } catch (const LogJson::exception& error) {
    fail(ErrorCode::kIo, "its trace ", path, " is broken: ", error.what());
  }
  return spans;
}

}  // namespace tessera::cli

#include "tessera/lab/flight_trace.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "tessera/core/error.h"

namespace tessera {
namespace {

using TraceJson = nlohmann::ordered_json;

constexpr int kHostRow = 0;

/// A record on the trace's clock.
struct Slice {
  ActionAt at;
  int row = 0;
  std::int64_t begin = 0, end = 0;  ///< microseconds
  bool ended = true;
  const DumpedAction* action = nullptr;
};

using Micros = std::pair<std::int64_t, std::int64_t>;

/// Sorted, without overlaps.
std::vector<Micros> union_of(std::vector<Micros> intervals) {
  std::ranges::sort(intervals);
  std::vector<Micros> joined;
  for (const Micros& next : intervals) {
    if (!joined.empty() && next.first <= joined.back().second) {
      joined.back().second = std::max(joined.back().second, next.second);
    } else {
      joined.push_back(next);
    }
  }
  return joined;
}

/// How much of a slice none of the intervals covers.
std::int64_t uncovered(const Slice& slice, const std::vector<Micros>& intervals) {
  std::int64_t left = slice.end - slice.begin;
  const auto first = std::ranges::partition_point(
      intervals, [&](const Micros& i) { return i.second <= slice.begin; });
  for (auto i = first; i != intervals.end() && i->first < slice.end; ++i) {
    left -= std::min(i->second, slice.end) - std::max(i->first, slice.begin);
  }
  return left;
}

/// One rank's part of a trace.
class RankTrace {
 public:
  RankTrace(const FlightDump& dump, const DumpedRank& rank, double origin, TraceJson& events)
      : dump_(dump), rank_(rank), origin_(origin), events_(events) {}

  void add();

 private:
  TraceJson event(const char* phase, int row, std::int64_t micros) const {
    return {{"ph", phase}, {"pid", rank_.rank}, {"tid", row}, {"ts", micros}};
  }
  /// Whole ones, which all readers add up alike: slices of a row must not overlap.
  std::int64_t micros(double seconds) const { return std::llround((seconds - origin_) * 1e6); }
  void name_row(int row, const std::string& name);
  void read_lanes();
  void add_host();
  void add_slices();
  void add_arrows();
  void add_arrow(const Slice& from, const Slice& to);
  void add_bytes_in_flight();

  const FlightDump& dump_;
  const DumpedRank& rank_;
  const double origin_;
  TraceJson& events_;
  std::vector<Slice> slices_;
  std::map<ActionAt, std::size_t> places_;  ///< in slices_
  int arrows_ = 0;
};

void RankTrace::name_row(int row, const std::string& name) {
  TraceJson named = event("M", row, 0);
  named["name"] = "thread_name";
  named["args"] = {{"name", name}};
  events_.push_back(std::move(named));
  TraceJson sorted = event("M", row, 0);
  sorted["name"] = "thread_sort_index";
  sorted["args"] = {{"sort_index", row}};
  events_.push_back(std::move(sorted));
}

void RankTrace::read_lanes() {
  int row = kHostRow;
  for (const DumpedLane& lane : rank_.lanes) {
    name_row(++row, lane.name);
    for (const ActionRecord& record : lane.records) {
      const ActionAt at{record.program, record.step, record.action};
      const DumpedAction& action = dump_.programs[static_cast<std::size_t>(at.program)]
                                       .actions[static_cast<std::size_t>(at.action)];
      const std::int64_t end = micros(record.end.value_or(std::max(record.begin, dump_.noticed)));
      places_[at] = slices_.size();
      slices_.push_back({.at = at,
                         .row = row,
                         .begin = micros(record.begin),
                         .end = end,
                         .ended = record.end.has_value(),
                         .action = &action});
    }
  }
}

void RankTrace::add_host() {
  name_row(kHostRow, "host");
  for (const ActionRecord& record : rank_.host) {
    const std::int64_t begin = micros(record.begin);
    const std::int64_t end = micros(record.end.value_or(std::max(record.begin, dump_.noticed)));
    TraceJson slice = event("X", kHostRow, begin);
    slice["dur"] = end - begin;
    slice["name"] = to_string(static_cast<HostPhase>(record.action));
    slice["args"] = {{"step", record.step}};
    events_.push_back(std::move(slice));
  }
}

void RankTrace::add_slices() {
  std::vector<Micros> busy;
  for (const Slice& slice : slices_) {
    if (slice.action->group.empty()) busy.emplace_back(slice.begin, slice.end);
  }
  const std::vector<Micros> computing = union_of(std::move(busy));
  for (const Slice& slice : slices_) {
    TraceJson out = event("X", slice.row, slice.begin);
    out["dur"] = slice.end - slice.begin;
    out["name"] = slice.action->text;
    out["cat"] = slice.action->lane;
    TraceJson args{{"step", slice.at.step}, {"action", slice.at.action}};
    if (!slice.action->group.empty()) {
      args["group"] = slice.action->group;
      args["sent_bytes"] = slice.action->sent_bytes;
      args["exposed_us"] = uncovered(slice, computing);
    }
    if (!slice.ended) args["unfinished"] = true;
    out["args"] = std::move(args);
    events_.push_back(std::move(out));
  }
}

/// From the last moment of one slice to the first of another: both must lie within.
void RankTrace::add_arrow(const Slice& from, const Slice& to) {
  constexpr std::int64_t kOfRank = 1'000'000;  // more than a rank has
  const std::int64_t id = rank_.rank * kOfRank + arrows_++;
  const auto add_end = [&](const char* phase, int row, std::int64_t micros) {
    TraceJson end = event(phase, row, micros);
    end["id"] = id;
    end["name"] = "after";
    end["cat"] = "waits";
    if (*phase == 'f') end["bp"] = "e";
    events_.push_back(std::move(end));
  };
  add_end("s", from.row, std::max(from.begin, from.end - 1));
  add_end("f", to.row, to.begin);
}

void RankTrace::add_arrows() {
  for (const Slice& slice : slices_) {
    const auto from = [&](std::int64_t step, const std::vector<int>& waits) {
      for (const int wait : waits) {
        const auto found = places_.find({slice.at.program, step, wait});
        if (found != places_.end()) add_arrow(slices_[found->second], slice);
      }
    };
    from(slice.at.step, slice.action->waits);
    from(slice.at.step - 1, slice.action->previous_waits);
  }
}

void RankTrace::add_bytes_in_flight() {
  std::map<std::int64_t, std::int64_t> changes;
  for (const Slice& slice : slices_) {
    if (slice.action->group.empty()) continue;
    changes[slice.begin] += slice.action->sent_bytes;
    changes[slice.end] -= slice.action->sent_bytes;
  }
  std::int64_t bytes = 0;
  for (const auto& [micros, change] : changes) {
    bytes += change;
    TraceJson counter = event("C", kHostRow, micros);
    counter["name"] = "bytes in flight";
    counter["args"] = {{"bytes", bytes}};
    events_.push_back(std::move(counter));
  }
}

void RankTrace::add() {
  TraceJson named = event("M", kHostRow, 0);
  named["name"] = "process_name";
  named["args"] = {
      {"name", concat("rank ", rank_.rank, " (pid ", dump_.pid, " on ", dump_.host, ")")}};
  events_.push_back(std::move(named));
  TraceJson sorted = event("M", kHostRow, 0);
  sorted["name"] = "process_sort_index";
  sorted["args"] = {{"sort_index", rank_.rank}};
  events_.push_back(std::move(sorted));
  add_host();
  read_lanes();
  add_slices();
  add_arrows();
  add_bytes_in_flight();
}

/// When the first record began.
double origin_of(std::span<const FlightDump> dumps) {
  double first = std::numeric_limits<double>::infinity();
  const auto note = [&](const std::vector<ActionRecord>& records) {
    if (!records.empty()) first = std::min(first, records.front().begin);
  };
  for (const FlightDump& dump : dumps) {
    for (const DumpedRank& rank : dump.ranks) {
      note(rank.host);
      for (const DumpedLane& lane : rank.lanes) note(lane.records);
    }
  }
  return std::isfinite(first) ? first : 0.0;
}

}  // namespace

TraceJson to_trace(std::span<const FlightDump> dumps) {
  const double origin = origin_of(dumps);
  TraceJson events = TraceJson::array();
  for (const FlightDump& dump : dumps) {
    for (const DumpedRank& rank : dump.ranks) RankTrace(dump, rank, origin, events).add();
  }
  return {{"displayTimeUnit", "ms"},
          {"otherData",
           {{"program", "tessera"},
            {"run", dumps.front().run},
            {"strategy", dumps.front().strategy},
            {"began", origin}}},
          {"traceEvents", std::move(events)}};
}

}  // namespace tessera

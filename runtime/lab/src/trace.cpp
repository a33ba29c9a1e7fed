#include "tessera/lab/trace.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "shell_word.h"
#include "tessera/core/error.h"
#include "tessera/sharding/timeline.h"

namespace tessera {

/// A record on the trace's clock.
struct TraceSlice {
  ActionAt at;
  int row = 0;
  double begin = 0.0, end = 0.0;         ///< seconds
  std::int64_t first = 0, past_end = 0;  ///< ticks, at least one
  bool ended = true;
  const DumpedAction* action = nullptr;
  double exposed = 0.0;  ///< seconds
};

namespace {

using TraceJson = nlohmann::ordered_json;

constexpr int kHostRow = 0;
constexpr double kTicksPerSecond = 8e6;  // binary fractions of a microsecond: sums are exact
constexpr double kTicksPerMicro = 8.0;
/// Clocks that disagree by no more about what came first are put right: a microsecond.
constexpr std::int64_t kNoise = 8;

double micros_of(std::int64_t ticks) { return static_cast<double>(ticks) / kTicksPerMicro; }

/// The lane of this name; none of a host, or of another program's dump.
std::optional<Lane> lane_of(const std::string& name) {
  const auto found = std::ranges::find(kAllLanes, name, [](Lane l) { return to_string(l); });
  return found == kAllLanes.end() ? std::nullopt : std::optional(*found);
}

/// The actions after which a rank has other memory than before, or needs more meanwhile.
std::vector<bool> changes_of(const StepMemory& memory) {
  std::vector<bool> changes;
  MemoryUse before = memory.before;
  for (const ActionMemory& action : memory.actions) {
    changes.push_back(action.after != before || action.highest.by_category != before);
    before = action.after;
  }
  return changes;
}

std::int64_t total_of(const MemoryUse& use) {
  std::int64_t total = 0;
  for (const std::int64_t bytes : use.bytes) total += bytes;
  return total;
}

}  // namespace

/// Adds one rank's records.
class RankTrace {
 public:
  RankTrace(const FlightDump& dump, const DumpedRank& rank, TraceEvents& events)
      : dump_(dump),
        rank_(rank),
        is_new_(!events.ranks_.contains(rank.rank)),
        state_(events.ranks_[rank.rank]),
        origin_(events.origin_),
        events_(events.events_) {}

  void add();

 private:
  TraceJson event(const char* phase, int row, std::int64_t ticks) const {
    return {{"ph", phase}, {"pid", rank_.rank}, {"tid", row}, {"ts", micros_of(ticks)}};
  }
  std::int64_t ticks(double seconds) const { return std::llround(seconds * kTicksPerSecond); }
  TraceSlice slice_of(const ActionRecord& record, int row) const;
  void name(const char* what, int row, TraceJson args);
  void name_rows();
  void read_lanes();
  void find_exposed();
  void lay_out();
  void place(TraceSlice& slice, std::int64_t not_before);
  template <typename Visit>
  void visit_waits(const TraceSlice& slice, const Visit& visit) const;
  void add_host();
  void add_slices();
  void add_arrows();
  void add_bytes_in_flight();
  void add_memory();
  void tell_memory(std::int64_t ticks, const MemoryUse& use, std::int64_t total,
                   const std::set<int>& shown);
  std::set<int> categories_of(const StepMemory& memory) const;

  const FlightDump& dump_;
  const DumpedRank& rank_;
  const bool is_new_;
  TraceEvents::Rank& state_;
  const double origin_;
  TraceJson& events_;
  std::vector<TraceSlice> slices_;
  std::map<ActionAt, std::size_t> places_;  ///< in slices_
};

TraceSlice RankTrace::slice_of(const ActionRecord& record, int row) const {
  const double end = record.end.value_or(std::max(record.begin, dump_.noticed));
  return {.at = {record.program, record.step, record.action},
          .row = row,
          .begin = record.begin - origin_,
          .end = end - origin_,
          .ended = record.end.has_value()};
}

void RankTrace::name(const char* what, int row, TraceJson args) {
  TraceJson named = event("M", row, 0);
  named["name"] = what;
  named["args"] = std::move(args);
  events_.push_back(std::move(named));
}

/// Those of all lanes that a program uses: more records may follow.
void RankTrace::name_rows() {
  const std::string process =
      dump_.pid > 0 ? concat(" (pid ", dump_.pid, " on ", dump_.host, ")") : " (simulated)";
  name("process_name", kHostRow, {{"name", concat("rank ", rank_.rank, process)}});
  name("process_sort_index", kHostRow, {{"sort_index", rank_.rank}});
  std::map<int, std::string> rows{{kHostRow, "host"}};
  for (const DumpedProgram& program : dump_.programs) {
    for (const DumpedAction& action : program.actions) {
      if (const auto lane = lane_of(action.lane)) rows[1 + static_cast<int>(*lane)] = action.lane;
    }
  }
  for (const DumpedLane& lane : rank_.lanes) {
    if (const auto known = lane_of(lane.name)) rows[1 + static_cast<int>(*known)] = lane.name;
  }
  for (const auto& [row, text] : rows) {
    name("thread_name", row, {{"name", text}});
    name("thread_sort_index", row, {{"sort_index", row}});
  }
}

void RankTrace::read_lanes() {
  for (const DumpedLane& lane : rank_.lanes) {
    const auto known = lane_of(lane.name);
    if (!known) continue;
    for (const ActionRecord& record : lane.records) {
      const int row = 1 + static_cast<int>(*known);
      if (!dump_.sees_ends && !slices_.empty() && slices_.back().row == row) {
        // A GPU's actions end together: one gives way to the next.
        slices_.back().end = std::min(slices_.back().end, record.begin - origin_);
      }
      slices_.push_back(slice_of(record, row));
      TraceSlice& slice = slices_.back();
      slice.action = &dump_.programs[static_cast<std::size_t>(record.program)]
                          .actions[static_cast<std::size_t>(record.action)];
    }
  }
  std::ranges::stable_sort(
      slices_, {}, [](const TraceSlice& s) { return std::tuple(s.begin, s.at.step, s.at.action); });
  for (std::size_t i = 0; i < slices_.size(); ++i) places_[slices_[i].at] = i;
}

void RankTrace::find_exposed() {
  std::vector<ActionSpan> spans;
  for (const TraceSlice& slice : slices_) {
    spans.push_back({.lane = kAllLanes[static_cast<std::size_t>(slice.row - 1)],
                     .begin = slice.begin,
                     .end = slice.end});
  }
  const std::vector<double> exposed = exposed_by_span(spans);
  for (std::size_t i = 0; i < slices_.size(); ++i) slices_[i].exposed = exposed[i];
}

/// Slices of a row follow one another, and take time, so that an arrow can lead from within.
void RankTrace::place(TraceSlice& slice, std::int64_t not_before) {
  constexpr std::int64_t kLongAgo = std::numeric_limits<std::int64_t>::min();
  std::int64_t& row_end = state_.row_ends.try_emplace(slice.row, kLongAgo).first->second;
  slice.first = std::max({ticks(slice.begin), row_end, not_before});
  slice.past_end = std::max(ticks(slice.end), slice.first + 1);
  row_end = slice.past_end;
}

/// Calls `visit` with each slice that one waits for, as far as it is there.
template <typename Visit>
void RankTrace::visit_waits(const TraceSlice& slice, const Visit& visit) const {
  const auto each = [&](std::int64_t step, const std::vector<int>& waits) {
    for (const int wait : waits) {
      const auto found = places_.find({slice.at.program, step, wait});
      if (found != places_.end()) visit(slices_[found->second]);
    }
  };
  each(slice.at.step, slice.action->waits);
  each(slice.at.step - 1, slice.action->previous_waits);
}

void RankTrace::lay_out() {
  for (TraceSlice& slice : slices_) {
    const std::int64_t begin = ticks(slice.begin);
    std::int64_t not_before = begin;
    visit_waits(slice, [&](const TraceSlice& from) {
      if (from.past_end <= begin + kNoise) not_before = std::max(not_before, from.past_end);
    });
    place(slice, not_before);
  }
}

void RankTrace::add_host() {
  for (const ActionRecord& record : rank_.host) {
    TraceSlice slice = slice_of(record, kHostRow);
    place(slice, ticks(slice.begin));
    TraceJson out = event("X", kHostRow, slice.first);
    out["dur"] = micros_of(slice.past_end - slice.first);
    out["name"] = to_string(static_cast<HostPhase>(record.action));
    out["args"] = {{"step", record.step}};
    events_.push_back(std::move(out));
  }
}

void RankTrace::add_slices() {
  for (const TraceSlice& slice : slices_) {
    TraceJson out = event("X", slice.row, slice.first);
    out["dur"] = micros_of(slice.past_end - slice.first);
    out["name"] = slice.action->text;
    out["cat"] = slice.action->lane;
    TraceJson args{{"step", slice.at.step}, {"action", slice.at.action}};
    if (!slice.action->group.empty()) {
      args["group"] = slice.action->group;
      args["sent_bytes"] = slice.action->sent_bytes;
    }
    if (is_communication(kAllLanes[static_cast<std::size_t>(slice.row - 1)])) {
      args["exposed_us"] = std::round(slice.exposed * 1e9) / 1e3;
    }
    if (slice.action->stage >= 0) args["stage"] = slice.action->stage;
    if (slice.action->micro_step >= 0) args["micro_step"] = slice.action->micro_step;
    if (!slice.ended) args["unfinished"] = true;
    out["args"] = std::move(args);
    events_.push_back(std::move(out));
  }
}

/// From the last moment of one slice to the first of another: both lie within.
void RankTrace::add_arrows() {
  constexpr std::int64_t kOfRank = std::int64_t{1} << 32;  // more than a rank has
  for (const TraceSlice& to : slices_) {
    visit_waits(to, [&](const TraceSlice& from) {
      if (from.first > to.first) return;  // a record that says the contrary
      const std::int64_t id = rank_.rank * kOfRank + state_.arrows++;
      const auto add_end = [&](const char* phase, int row, std::int64_t at) {
        TraceJson end = event(phase, row, at);
        end["id"] = id;
        end["name"] = "after";
        end["cat"] = "waits";
        if (*phase == 'f') end["bp"] = "e";
        events_.push_back(std::move(end));
      };
      add_end("s", from.row, std::max(from.first, std::min(from.past_end - 1, to.first)));
      add_end("f", to.row, to.first);
    });
  }
}

void RankTrace::add_bytes_in_flight() {
  std::map<std::int64_t, std::int64_t> changes;
  for (const TraceSlice& slice : slices_) {
    if (slice.action->group.empty()) continue;
    changes[slice.first] += slice.action->sent_bytes;
    changes[slice.past_end] -= slice.action->sent_bytes;
  }
  std::int64_t bytes = 0;
  for (const auto& [at, change] : changes) {
    bytes += change;
    TraceJson counter = event("C", kHostRow, at);
    counter["name"] = "bytes in flight";
    counter["args"] = {{"bytes", bytes}};
    events_.push_back(std::move(counter));
  }
}

/// Those that a step ever has.
std::set<int> RankTrace::categories_of(const StepMemory& memory) const {
  std::set<int> shown;
  const auto see = [&](const MemoryUse& use) {
    for (int c = 0; c < kMemoryCategories; ++c) {
      if (use[static_cast<MemoryCategory>(c)] > 0) shown.insert(c);
    }
  };
  see(memory.before);
  for (const ActionMemory& action : memory.actions) see(action.highest.by_category);
  return shown;
}

void RankTrace::tell_memory(std::int64_t at, const MemoryUse& use, std::int64_t total,
                            const std::set<int>& shown) {
  if (state_.memory == std::pair(use, total)) return;
  state_.memory = {use, total};
  TraceJson by_category = event("C", kHostRow, at);
  by_category["name"] = "memory";
  for (const int c : shown) {
    const auto category = static_cast<MemoryCategory>(c);
    by_category["args"][std::string(to_string(category))] = use[category];
  }
  events_.push_back(std::move(by_category));
  TraceJson all = event("C", kHostRow, at);
  all["name"] = "memory in all";
  all["args"] = {{"bytes", total}};
  events_.push_back(std::move(all));
}

/// Actions that change nothing say nothing: lanes are ahead of each other, and memory is known by
/// the order of issue. Those that do are all of one lane.
void RankTrace::add_memory() {
  std::map<int, std::pair<std::vector<bool>, std::set<int>>> known;  // by program
  for (const TraceSlice& slice : slices_) {
    const DumpedProgram& program = dump_.programs[static_cast<std::size_t>(slice.at.program)];
    if (!program.memory) continue;
    auto& [changes, shown] = known[slice.at.program];
    if (changes.empty()) {
      changes = changes_of(*program.memory);
      shown = categories_of(*program.memory);
      const MemoryUse& before = program.memory->before;
      tell_memory(slice.first, before, total_of(before), shown);
    }
    const auto action = static_cast<std::size_t>(slice.at.action);
    if (!changes[action]) continue;
    const ActionMemory& memory = program.memory->actions[action];
    tell_memory(slice.first, memory.highest.by_category, memory.highest.total, shown);
    if (slice.ended) tell_memory(slice.past_end, memory.after, total_of(memory.after), shown);
  }
}

void RankTrace::add() {
  if (is_new_) name_rows();
  add_host();
  read_lanes();
  find_exposed();
  lay_out();
  add_slices();
  add_arrows();
  add_bytes_in_flight();
  add_memory();
}

void TraceEvents::add(const FlightDump& dump) {
  for (const DumpedRank& rank : dump.ranks) RankTrace(dump, rank, *this).add();
}

TraceJson TraceEvents::take() { return std::exchange(events_, TraceJson::array()); }

namespace {

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

TraceJson trace_frame(const FlightDump& run, double began) {
  return {{"displayTimeUnit", "ms"},
          {"otherData",
           {{"program", "tessera"},
            {"run", run.run},
            {"strategy", run.strategy},
            {"mesh", run.mesh},
            {"ranks", run.world_size},
            {"began", began}}}};
}

TraceJson to_trace(std::span<const FlightDump> dumps) {
  const double origin = origin_of(dumps);
  TraceEvents events(origin);
  for (const FlightDump& dump : dumps) events.add(dump);
  TraceJson trace = trace_frame(dumps.front(), origin);
  trace["traceEvents"] = events.take();
  return trace;
}

std::string command_of_process() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string command;
  for (std::string word; std::getline(file, word, '\0');) {
    command += (command.empty() ? "" : " ") + shell_word(word);
  }
  return command;
}

std::string to_lines(const TraceJson& events) {
  std::string lines;
  for (const TraceJson& event : events) {
    if (!lines.empty()) lines += kTraceComma;
    lines += event.dump(-1, ' ', false, TraceJson::error_handler_t::replace);
  }
  return lines;
}

std::string trace_head(const TraceJson& frame) {
  std::string head = frame.dump(-1, ' ', false, TraceJson::error_handler_t::replace);
  head.pop_back();  // its brace
  return head + ",\"traceEvents\":[\n";
}

std::string to_text(const TraceJson& trace) {
  TraceJson frame = trace;
  frame.erase("traceEvents");
  return trace_head(frame) + to_lines(trace.at("traceEvents")) + std::string(kTraceTail);
}

}  // namespace tessera

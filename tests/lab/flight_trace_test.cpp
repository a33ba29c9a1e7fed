#include "tessera/lab/flight_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "support/tiny_model.h"
#include "temporary_folder.h"
#include "tessera/lab/dump_requests.h"
#include "tessera/trainer/trainer.h"

// Dumps as traces.
namespace tessera::flight_trace_test {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::ElementsAre;

std::vector<Json> of_phase(const Json& trace, const std::string& phase) {
  std::vector<Json> found;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == phase) found.push_back(event);
  }
  return found;
}

DumpedAction action(const char* lane, const char* group, std::vector<int> waits) {
  return {.lane = lane,
          .text = std::string("on ") + lane,
          .group = group,
          .sent_bytes = *group != '\0' ? 1000 : 0,
          .waits = std::move(waits),
          .previous_waits = {}};
}

/// Rank 0: a gather from 0 to 10 us, of which compute, which waits for an earlier one, covers 4 to
/// 7 and 9 to 12.
FlightDump small_dump() {
  constexpr double kStart = 1.7e9;
  const auto record = [&](int number, double begin, double end) {
    return ActionRecord{
        .action = number, .step = 1, .begin = kStart + begin * 1e-6, .end = kStart + end * 1e-6};
  };
  FlightDump dump;
  dump.run = "a run";
  dump.noticed = dump.at = kStart + 1.0;
  dump.programs.push_back({.purpose = "train",
                           .actions = {action("gather", "shard", {}), action("gather", "shard", {}),
                                       action("compute", "", {0}), action("compute", "", {})}});
  dump.ranks.push_back({.rank = 0,
                        .groups = {{"shard", {0}}},
                        .lanes = {{"compute", {record(2, 4, 7), record(3, 9, 12)}},
                                  {"gather", {record(0, 0, 3), record(1, 3, 10)}}},
                        .host = {}});
  return dump;
}

TEST(FlightTrace, HasSlicesArrowsAndBytesInFlight) {
  const FlightDump dump = small_dump();
  const Json trace = to_trace(std::span(&dump, 1));
  const auto slices = of_phase(trace, "X");
  ASSERT_EQ(slices.size(), 4U);
  EXPECT_EQ(slices[0].at("ts"), 4);
  EXPECT_EQ(slices[0].at("dur"), 3);
  EXPECT_EQ(slices[2].at("args").at("exposed_us"), 3);
  EXPECT_EQ(slices[3].at("args").at("exposed_us"), 3);  // 3 to 4, 7 to 9
  const auto begins = of_phase(trace, "s"), ends = of_phase(trace, "f");
  ASSERT_EQ(begins.size(), 1U);
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(begins[0].at("id"), ends[0].at("id"));
  EXPECT_NE(begins[0].at("tid"), ends[0].at("tid"));
  EXPECT_LT(begins[0].at("ts"), ends[0].at("ts"));
  std::vector<std::int64_t> bytes;
  for (const Json& counter : of_phase(trace, "C")) {
    bytes.push_back(counter.at("args").at("bytes").get<std::int64_t>());
  }
  EXPECT_THAT(bytes, ElementsAre(1000, 1000, 0));
}

/// What Perfetto asks of a trace: names of rows, times that are not negative, arrows within slices.
TEST(FlightTrace, OfARunIsWellFormed) {
  const test::TemporaryFolder folder;
  const Model model = test::tiny_model();
  const test::TinyData data;
  TrainerOptions options{.ranks = 2, .steps = 4, .threads_per_rank = 1};
  options.dump_folder = folder.path();
  options.dump_requests = std::make_shared<DumpRequests>();
  Trainer(model, data, options).train([&](const StepRecord& record) {
    return record.step < 4 || options.dump_requests->write("the trace");
  });
  const std::vector<std::string> paths{folder.path()};
  const auto dumps = read_flight_dumps(paths);
  const Json trace = to_trace(dumps);
  const auto actions = dumps[0].programs[0].actions.size();
  using Row = std::pair<int, int>;
  std::set<Row> named;
  std::map<Row, std::vector<std::pair<std::int64_t, std::int64_t>>> slices;
  std::size_t lanes = 0;
  const auto row_of = [](const Json& event) {
    return Row{event.at("pid").get<int>(), event.at("tid").get<int>()};
  };
  for (const Json& event : of_phase(trace, "M")) {
    if (event.at("name") == "thread_name") named.insert(row_of(event));
  }
  for (const Json& event : of_phase(trace, "X")) {
    EXPECT_TRUE(named.contains(row_of(event)));
    EXPECT_GE(event.at("ts").get<std::int64_t>(), 0);
    EXPECT_GE(event.at("dur").get<std::int64_t>(), 0);
    const auto begin = event.at("ts").get<std::int64_t>();
    slices[row_of(event)].emplace_back(begin, begin + event.at("dur").get<std::int64_t>());
    if (row_of(event).second != 0) ++lanes;
  }
  // Reshards take no work, and leave no records.
  EXPECT_GE(lanes, 4 * actions);
  EXPECT_LE(lanes, 2 * 4 * actions);
  for (const auto& [row, all] : slices) {
    for (std::size_t i = 1; i < all.size(); ++i) EXPECT_LE(all[i - 1].second, all[i].first);
  }
  EXPECT_FALSE(of_phase(trace, "s").empty());
  for (const char* phase : {"s", "f"}) {
    for (const Json& end : of_phase(trace, phase)) {
      const auto at = end.at("ts").get<std::int64_t>();
      EXPECT_TRUE(std::ranges::any_of(slices[row_of(end)], [&](const auto& slice) {
        return slice.first <= at && at <= slice.second;
      }));
    }
  }
}

}  // namespace
}  // namespace tessera::flight_trace_test

#include "tessera/lab/flight_dump.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/tiny_model.h"
#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/lab/dump_requests.h"
#include "tessera/trainer/trainer.h"

// What a run leaves behind when a rank fails, and what that says.
namespace tessera::flight_dump_test {
namespace {

using test::tiny_model;
using test::TinyData;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kTimeout{2500};
constexpr std::chrono::milliseconds kTooLong{6000};

/// A layer that takes too long on one rank, once.
class SlowLayer : public test::DenseLayer {
 public:
  SlowLayer() : DenseLayer("second", 13, 7, false) {}
  Value forward(Tape& tape, const Value& input, std::span<Parameter> parameters) const override {
    std::array<char, 16> name{};
    pthread_getname_np(pthread_self(), name.data(), name.size());
    if (std::string(name.data()) == "compute1" && ++passes_ == 3) {
      std::this_thread::sleep_for(kTooLong);
    }
    return DenseLayer::forward(tape, input, parameters);
  }

 private:
  mutable std::atomic<int> passes_ = 0;
};

class FlightDumps : public ::testing::Test {
 protected:
  TrainerOptions options(int ranks) const {
    TrainerOptions options;
    options.strategy = "full_shard";
    options.ranks = ranks;
    options.steps = 6;
    options.threads_per_rank = 1;
    options.timeout = kTimeout;
    options.dump_folder = folder_.path("dumps");
    return options;
  }
  std::vector<FlightDump> dumps() const {
    const std::vector<std::string> paths{folder_.path("dumps")};
    return read_flight_dumps(paths);
  }
  bool has_dumps() const { return std::filesystem::exists(folder_.path("dumps")); }

  test::TemporaryFolder folder_;
};

ErrorCode code_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::kInternal;
}

TEST_F(FlightDumps, NameTheRankThatComputedTooLong) {
  Model model = tiny_model();
  model.layers[1] = std::make_unique<SlowLayer>();
  const TinyData data;
  EXPECT_EQ(code_of([&] { Trainer(model, data, options(3)).train(); }), ErrorCode::kTimeout);
  const auto found = dumps();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_TRUE(found[0].failed);
  EXPECT_THAT(found[0].reason, HasSubstr("rank 1 did not arrive"));
  const FlightDiagnosis diagnosis = diagnose(found);
  EXPECT_TRUE(diagnosis.without_dump.empty());
  ASSERT_FALSE(diagnosis.waits.empty());
  const CollectiveWait& wait = diagnosis.waits.front();
  EXPECT_EQ(wait.at.step, 3);
  EXPECT_THAT(wait.waiting, ElementsAre(0, 2));
  EXPECT_GE(wait.seconds, 0.3);
  ASSERT_EQ(wait.absent.size(), 1U);
  EXPECT_EQ(wait.absent[0].rank, 1);
  EXPECT_FALSE(wait.absent[0].waits_itself);
  ASSERT_TRUE(wait.absent[0].obstacle);
  const Obstacle& obstacle = *wait.absent[0].obstacle;
  EXPECT_EQ(obstacle.kind, Obstacle::Kind::kAction);
  const DumpedAction& action =
      found[0].programs[0].actions[static_cast<std::size_t>(obstacle.at.action)];
  EXPECT_THAT(action.text, HasSubstr("forward second m0"));
  EXPECT_GE(obstacle.seconds, wait.seconds * 0.9);
}

TEST_F(FlightDumps, NameTheRankThatWaitedForItsData) {
  const Model model = tiny_model();
  TinyData data;
  data.before_sample = [](std::int64_t sample) {
    if (sample == 2 * 12 + 5) std::this_thread::sleep_for(kTooLong);  // rank 1's, in step 3
  };
  EXPECT_EQ(code_of([&] { Trainer(model, data, options(3)).train(); }), ErrorCode::kTimeout);
  const FlightDiagnosis diagnosis = diagnose(dumps());
  ASSERT_FALSE(diagnosis.waits.empty());
  ASSERT_EQ(diagnosis.waits[0].absent.size(), 1U);
  EXPECT_EQ(diagnosis.waits[0].absent[0].rank, 1);
  const Obstacle& obstacle = diagnosis.waits[0].absent[0].obstacle.value();
  EXPECT_EQ(obstacle.kind, Obstacle::Kind::kHost);
  EXPECT_EQ(obstacle.phase, HostPhase::kReads);
}

TEST_F(FlightDumps, AreWrittenWhenARankThrows) {
  const Model model = tiny_model();
  TinyData data;
  data.before_sample = [](std::int64_t sample) {
    if (sample == 20) throw std::runtime_error("sample 20 is lost");
  };
  EXPECT_ANY_THROW(Trainer(model, data, options(2)).train());
  EXPECT_THAT(dumps().at(0).reason, HasSubstr("sample 20 is lost"));
}

TEST_F(FlightDumps, AreNotWrittenForErrorsOfTheUser) {
  const Model model = tiny_model();
  TinyData data;
  data.poison = true;
  EXPECT_ANY_THROW(Trainer(model, data, options(2)).train());
  EXPECT_FALSE(has_dumps());
  data.poison = false;
  data.before_sample = [](std::int64_t) { throw std::runtime_error("no data"); };
  TrainerOptions nowhere = options(2);
  nowhere.dump_folder = "";
  EXPECT_ANY_THROW(Trainer(model, data, nowhere).train());
  EXPECT_FALSE(has_dumps());
}

TEST_F(FlightDumps, AreWrittenOnRequestAndTheRunGoesOn) {
  const Model model = tiny_model();
  const TinyData data;
  TrainerOptions asked = options(2);
  asked.timeout = std::chrono::seconds(60);
  const std::string expected = Trainer(model, data, asked).train().parameters_sha256;
  std::vector<std::string> notes;
  asked.dump_requests =
      std::make_shared<DumpRequests>([&](const std::string& note) { notes.push_back(note); });
  EXPECT_FALSE(asked.dump_requests->write("too early"));
  const auto summary = Trainer(model, data, asked).train([&](const StepRecord& record) {
    if (record.step <= 2) {
      EXPECT_TRUE(asked.dump_requests->write("a test asks"));
    }
    return true;
  });
  EXPECT_FALSE(asked.dump_requests->write("too late"));
  EXPECT_EQ(summary.parameters_sha256, expected);
  ASSERT_EQ(notes.size(), 2U);
  const auto found = dumps();  // the last one
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].number, 2);
  EXPECT_FALSE(found[0].failed);
  EXPECT_EQ(found[0].reason, "a test asks");
  EXPECT_THAT(notes[1], HasSubstr(found[0].path));
  EXPECT_TRUE(diagnose(found).waits.empty());
  for (const DumpedRank& rank : found[0].ranks) {
    const auto host = record_at(rank.host, found[0].at);
    EXPECT_EQ(host.value().step, 2);
    for (const DumpedLane& lane : rank.lanes) {
      EXPECT_TRUE(lane.records.back().end) << lane.name;
      EXPECT_EQ(lane.records.back().step, 2) << lane.name;
    }
  }
}

TEST_F(FlightDumps, ThatCannotBeWrittenAreNoFailure) {
  const Model model = tiny_model();
  const TinyData data;
  TrainerOptions asked = options(1);
  asked.dump_folder = folder_.write("file", "") + "/below";
  std::string note;
  asked.dump_requests = std::make_shared<DumpRequests>([&](const std::string& n) { note = n; });
  Trainer(model, data, asked).train([&](const StepRecord&) {
    asked.dump_requests->write("a test asks");
    return true;
  });
  EXPECT_THAT(note, HasSubstr("could not be written"));
}

/// Two ranks of which each has one lane, with the records given.
FlightDump two_ranks(std::vector<ActionRecord> first, std::vector<ActionRecord> second) {
  FlightDump dump;
  dump.run = "a run";
  dump.world_size = 2;
  dump.noticed = dump.at = 100.0;
  dump.programs.push_back({.purpose = "train", .actions = {}});
  for (const char* group : {"all", "", "all"}) {
    dump.programs[0].actions.push_back(
        {.lane = "compute", .text = "x", .group = group, .waits = {}, .previous_waits = {}});
  }
  int number = 0;
  for (auto* records : {&first, &second}) {
    std::vector<ActionRecord> host{
        {.action = static_cast<int>(HostPhase::kIssues), .step = 1, .begin = 1.0, .end = 2.0},
        {.action = static_cast<int>(HostPhase::kWaits), .step = 1, .begin = 2.0}};
    dump.ranks.push_back({.rank = number++,
                          .groups = {{"all", {0, 1}}},
                          .lanes = {{"compute", std::move(*records)}},
                          .host = std::move(host)});
  }
  return dump;
}
ActionRecord record(int action, double begin, std::optional<double> end = {}) {
  return {.action = action, .step = 1, .begin = begin, .end = end};
}

TEST(FlightDiagnosis, ATaskThatCouldRunAndDoesNot) {
  const FlightDump dump =
      two_ranks({record(0, 3, 4), record(1, 4, 5), record(2, 5)}, {record(0, 3, 4)});
  const auto diagnosis = diagnose(std::span(&dump, 1));
  ASSERT_EQ(diagnosis.waits.size(), 1U);
  const Absence& absence = diagnosis.waits[0].absent.at(0);
  EXPECT_EQ(absence.obstacle.value().kind, Obstacle::Kind::kReady);
  EXPECT_EQ(absence.obstacle.value().at.action, 1);
}

TEST(FlightDiagnosis, WhatCameAfterTheMomentDoesNotCount) {
  FlightDump dump = two_ranks({record(0, 3, 4), record(1, 4, 5), record(2, 5)},
                              {record(0, 3, 4), record(1, 50, 110), record(2, 110)});
  const auto diagnosis = diagnose(std::span(&dump, 1));
  ASSERT_EQ(diagnosis.waits.size(), 1U);
  const Obstacle obstacle = diagnosis.waits[0].absent.at(0).obstacle.value();
  EXPECT_EQ(obstacle.kind, Obstacle::Kind::kAction);
  EXPECT_EQ(obstacle.at.action, 1);
  EXPECT_EQ(obstacle.seconds, 50.0);
}

TEST(FlightDiagnosis, ACollectiveThatAllHaveBegun) {
  const FlightDump dump = two_ranks({record(0, 3)}, {record(0, 4)});
  const auto diagnosis = diagnose(std::span(&dump, 1));
  ASSERT_EQ(diagnosis.waits.size(), 1U);
  EXPECT_TRUE(diagnosis.waits[0].all_came);
  EXPECT_TRUE(diagnosis.waits[0].absent.empty());
}

TEST(FlightDiagnosis, ARankWithoutDump) {
  FlightDump dump = two_ranks({record(0, 3)}, {});
  dump.ranks.pop_back();
  const auto diagnosis = diagnose(std::span(&dump, 1));
  EXPECT_THAT(diagnosis.without_dump, ElementsAre(1));
  ASSERT_EQ(diagnosis.waits.size(), 1U);
  EXPECT_FALSE(diagnosis.waits[0].absent.at(0).obstacle);
}

TEST_F(FlightDumps, AreReadStrictly) {
  const FlightDump dump = two_ranks({record(0, 3, 4)}, {record(0, 3)});
  const nlohmann::ordered_json good = to_json(dump);
  EXPECT_EQ(to_json(read_flight_dump(folder_.write("good.json", good.dump()))), good);
  const auto refuses = [&](const std::string& text, const std::string& why) {
    const std::string path = folder_.write("bad.json", text);
    try {
      read_flight_dump(path);
      ADD_FAILURE() << "accepted: " << why;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      EXPECT_THAT(error.what(), HasSubstr(path));
      EXPECT_THAT(error.what(), HasSubstr(why));
    }
  };
  refuses(good.dump().substr(0, 200), "parse error");
  refuses("[]", "no dump of tessera");
  auto bad = good;
  bad["version"] = 2;
  refuses(bad.dump(), "version 2");
  bad = good;
  bad.erase("run");
  refuses(bad.dump(), "run");
  bad = good;
  bad["ranks"][0]["rank"] = 2;
  refuses(bad.dump(), "rank 2 of 2");
  bad = good;
  bad["ranks"][0]["lanes"]["compute"][0][2] = 3;
  refuses(bad.dump(), "action 3");
  bad = good;
  bad["ranks"][0]["host"][0][2] = "sleeps";
  refuses(bad.dump(), "sleeps");
  bad = good;
  bad["programs"][0]["actions"][0]["waits"] = {7};
  refuses(bad.dump(), "waits for action 7");
  EXPECT_EQ(code_of([&] { read_flight_dump(folder_.path("none.json")); }), ErrorCode::kNotFound);
  EXPECT_EQ(code_of([&] { read_flight_dumps(std::vector{folder_.path()}); }), ErrorCode::kNotFound);
}

TEST_F(FlightDumps, OfTheNewestRunAreTaken) {
  FlightDump dump = two_ranks({record(0, 3, 4)}, {record(0, 3)});
  const auto write = [&](const std::string& run, int number, double noticed, bool failed) {
    dump.run = run;
    dump.number = number;
    dump.noticed = noticed;
    dump.failed = failed;
    return folder_.write("dumps/tessera_dump_" + run + "_rank0_" + std::to_string(number) + ".json",
                         to_json(dump).dump());
  };
  const std::string old = write("old", 1, 10.0, true);
  const std::string first = write("new", 1, 20.0, true);
  write("new", 2, 30.0, false);
  const auto found = dumps();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].path, first);  // that of the failure
  EXPECT_EQ(code_of([&] { read_flight_dumps(std::vector{old, first}); }), ErrorCode::kConfig);
}

}  // namespace
}  // namespace tessera::flight_dump_test

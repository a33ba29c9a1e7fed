#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sharding/frozen_record.h"
#include "support/numerics_fingerprint.h"
#include "tessera/kernels/optimizer.h"

// What a change of the planner must not change: for each configuration of a fixed list, memory by
// category, bytes by collective and copy, and the bits of what is trained are those of
// frozen/values.json; virtual time and the number of actions of each kind are no more.
namespace tessera::test::frozen_configurations_test {
namespace {

const std::string kPath = std::string(TESSERA_SOURCE_DIR) + "/tests/sharding/frozen/values.json";
constexpr const char* kHowToUpdate =
    "TESSERA_UPDATE_GOLDEN=1 build/bin/test_sharding --gtest_filter='FrozenConfigurations*' "
    "records what there is now";

bool updates() {
  const char* const update = std::getenv("TESSERA_UPDATE_GOLDEN");
  return update != nullptr && *update == '1';
}

std::vector<std::string> names_of(const std::vector<FrozenConfiguration>& all) {
  std::vector<std::string> names;
  for (const FrozenConfiguration& c : all) names.push_back(name_of(c));
  return names;
}

std::string describe(const FrozenDifference& difference) {
  return concat("\n  ", difference.field, ": ", difference.before, " -> ", difference.after);
}

/// Fails for what is worse; the rest is said in a line.
class Comparison {
 public:
  void compare(const std::string& name, const Json& before, const Json& after) {
    std::string worse;
    for (const FrozenDifference& difference : differences(before, after)) {
      if (difference.is_worse) {
        worse += describe(difference);
      } else {
        ++better_;
        if (first_.empty()) first_ = name + describe(difference);
      }
    }
    if (!worse.empty()) ADD_FAILURE() << name << worse << "\n" << kHowToUpdate;
  }
  ~Comparison() {
    if (better_ == 0) return;
    std::cout << better_ << " values are lower than recorded, which is welcome; " << kHowToUpdate
              << ". The first: " << first_ << "\n";
  }

 private:
  int better_ = 0;
  std::string first_;
};

TEST(FrozenConfigurations, AreThoseOfTheFile) {
  if (updates()) GTEST_SKIP() << "TrainTheSameBitsInTheSameMemory writes the file";
  const std::vector<std::string> names = names_of(FrozenList::make());
  EXPECT_GE(names.size(), 96U);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  EXPECT_EQ(FrozenRecord(kPath).names(), names);
}

/// Configurations that each have a choice which the list must have, too.
std::vector<FrozenConfiguration> choices() {
  std::vector<SmallRun> runs;
  for (const Strategy& strategy : strategies()) runs.push_back({.strategy = strategy.name});
  for (const int ranks : {1, 2, 3, 4, 5, 7}) runs.push_back({.ranks = ranks});
  for (const auto& [ranks, replicas] : {std::pair{4, 2}, {6, 2}, {6, 3}}) {
    runs.push_back({.ranks = ranks, .replicas = replicas});
  }
  for (const Optimizer& optimizer : optimizers()) {
    runs.push_back({.optimizer = std::string(optimizer.name)});
  }
  for (const WeightFormat format : weight_formats()) runs.push_back({.base_format = format});
  for (const FamilyRow& family : gpt_families()) runs.push_back({.family = family.family});
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    for (const int depth : {0, 1, 2}) {
      runs.push_back({.policy = {depth, depth, recompute, depth, depth}});
    }
  }
  std::vector<FrozenConfiguration> all;
  for (SmallRun& run : runs) all.push_back({.run = std::move(run)});
  return all;
}

// A preset, optimizer, format or family that is new goes to the end of the list.
TEST(FrozenConfigurations, HaveEachChoice) {
  std::set<AxisValue> seen;
  for (const FrozenConfiguration& c : FrozenList::make()) {
    for (AxisValue& value : axes_of(c)) seen.insert(std::move(value));
  }
  for (const FrozenConfiguration& choice : choices()) {
    for (const AxisValue& value : axes_of(choice)) {
      EXPECT_TRUE(seen.contains(value)) << "no configuration has '" << value.value << "'";
    }
  }
}

TEST(FrozenConfigurations, PlanTheSameBytesInNoMoreTime) {
  if (updates()) GTEST_SKIP() << "TrainTheSameBitsInTheSameMemory writes the file";
  const FrozenRecord record(kPath);
  Comparison comparison;
  for (const FrozenConfiguration& c : FrozenList::make()) {
    const std::string name = name_of(c);
    SCOPED_TRACE(name);
    comparison.compare(name, record.planned(name), planned_values(c));
  }
}

/// What a run measured against what was planned for it, and is recorded.
void expect_measured(const FrozenPlans& plans, const FrozenResult& result, const Json& planned) {
  Comparison comparison;
  for (std::size_t rank = 0; rank < result.device.size(); ++rank) {
    SCOPED_TRACE(concat("rank ", rank));
    const Json& peak = planned.at("peak");
    comparison.compare(concat("rank ", rank), {{"device", peak.at("device")}},
                       {{"device", to_json(result.device[rank])}});
    comparison.compare(concat("rank ", rank), {{"host", peak.at("host")}},
                       {{"host", to_json(result.host[rank])}});
  }
  EXPECT_EQ(result.disk_bytes, planned.at("account").at("disk").get<std::int64_t>());
  Traffic expected;
  for (const auto& [name, schedule] : plans.schedules) {
    const auto ran = result.ran.find(name);
    ASSERT_NE(ran, result.ran.end()) << name << " did not run";
    for (std::int64_t i = 0; i < ran->second; ++i) expected += account_traffic(schedule);
  }
  EXPECT_EQ(to_json(result.traffic).dump(), to_json(expected).dump());
}

void expect_same_groups(const std::vector<std::string>& names, const FrozenHashes& recorded,
                        const FrozenHashes& hashes) {
  FrozenHashes compared;  // of those that ran
  for (const auto& [name, pair] : recorded) {
    if (hashes.contains(name)) compared[name] = pair;
  }
  for (const bool results : {false, true}) {
    const auto before = groups_of(names, compared, results);
    for (const auto& [name, group] : groups_of(names, hashes, results)) {
      const auto was = before.find(name);
      if (was == before.end()) continue;  // which AreThoseOfTheFile says
      EXPECT_EQ(group, was->second)
          << name << ": " << (results ? "losses and norms" : "parameters")
          << " have equal bits with those of another configuration than before";
    }
  }
}

TEST(FrozenConfigurations, TrainTheSameBitsInTheSameMemory) {
  const std::vector<FrozenConfiguration> all = FrozenList::make();
  const std::vector<std::string> names = names_of(all);
  const std::string machine = NumericsFingerprint().compute();
  FrozenRecord record(kPath);
  FrozenHashes hashes;
  Json planned = Json::object();
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(names[i]);
    const FrozenPlans plans(all[i]);
    const FrozenResult result = execute(plans);
    hashes[names[i]] = {result.parameters, result.results};
    planned[names[i]] = updates() ? planned_values(all[i]) : record.planned(names[i]);
    if (planned[names[i]].empty()) continue;  // which AreThoseOfTheFile says
    expect_measured(plans, result, planned[names[i]]);
  }
  if (updates()) {
    record.update(planned, machine, hashes);
    FAIL() << "wrote " << kPath << "; run again without TESSERA_UPDATE_GOLDEN";
  }
  expect_same_groups(names, record.any_hashes(), hashes);
  if (!record.knows(machine)) {
    std::cout << "Hashes are not recorded for a machine that rounds as this one does (" << machine
              << "); which configurations have equal bits was compared. " << kHowToUpdate << "\n";
    return;
  }
  const FrozenHashes recorded = record.hashes(machine);
  for (const auto& [name, pair] : hashes) {
    const auto was = recorded.find(name);
    if (was == recorded.end()) continue;
    EXPECT_EQ(pair.first, was->second.first) << name << ": parameters";
    EXPECT_EQ(pair.second, was->second.second) << name << ": losses and norms";
  }
}

}  // namespace
}  // namespace tessera::test::frozen_configurations_test

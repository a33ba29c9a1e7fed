#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sharding/frozen_mixtures.h"
#include "sharding/frozen_record.h"
#include "sharding/frozen_run.h"
#include "support/numerics_fingerprint.h"
#include "tessera/kernels/optimizer.h"

// What a change of the planner must not change: for each configuration of a fixed list, memory by
// category, bytes by collective and copy, and the bits of what is trained are those of
// frozen/values.json; virtual time and the number of actions of each kind are no more.
namespace tessera::test::frozen_configurations_test {
namespace {

const std::string kPath = std::string(TESSERA_SOURCE_DIR) + "/tests/sharding/frozen/values.json";
constexpr const char* kHowToUpdate =
    "TESSERA_UPDATE_GOLDEN=1 build/bin/test_sharding --gtest_filter='Frozen*' records all anew";
constexpr const char* kWriters = "the tests that train write the file";

bool updates() {
  const char* const update = std::getenv("TESSERA_UPDATE_GOLDEN");
  return update != nullptr && *update == '1';
}

/// A section of the file and what belongs there.
struct FrozenSection {
  const char* title;
  Detail detail;
  std::vector<FrozenConfiguration> all;
  std::vector<std::string> names{};

  static FrozenSection configurations() {
    FrozenSection section{kConfigurations, Detail::kAll, FrozenList::make()};
    for (const FrozenConfiguration& c : section.all) section.names.push_back(name_of(c));
    return section;
  }
  static FrozenSection mixtures() {
    FrozenSection section{kMixtures, Detail::kBrief, FrozenMixtures::make()};
    for (std::size_t i = 0; i < section.all.size(); ++i) {
      section.names.push_back(concat(i / FrozenMixtures::kMembers, ".",
                                     i % FrozenMixtures::kMembers, ": ", name_of(section.all[i])));
    }
    return section;
  }
};

std::string describe(const FrozenDifference& difference) {
  return concat("\n  ", difference.field, ": ", difference.before.dump(), " -> ",
                difference.after.dump());
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
    if (worse.empty()) return;
    ADD_FAILURE() << name << worse;
    fails_ = true;
  }
  ~Comparison() {
    if (better_ > 0) {
      std::cout << better_
                << " values are lower than recorded, which is welcome. The first: " << first_
                << "\n";
    }
    if (fails_ || better_ > 0) std::cout << kHowToUpdate << "\n";
  }

 private:
  bool fails_ = false;
  int better_ = 0;
  std::string first_;
};

TEST(FrozenConfigurations, AreThoseOfTheFile) {
  if (updates()) GTEST_SKIP() << kWriters;
  const FrozenRecord record(kPath);
  for (const FrozenSection& section :
       {FrozenSection::configurations(), FrozenSection::mixtures()}) {
    EXPECT_GE(section.names.size(), 96U);
    EXPECT_EQ(std::set<std::string>(section.names.begin(), section.names.end()).size(),
              section.names.size());
    EXPECT_EQ(record.names(section.title), section.names);
  }
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

/// Calls `what`; an exception of one configuration leaves the others to be tried.
void attempt(const std::string& name, const std::function<void()>& what) {
  try {
    what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << name << ": " << error.what();
  }
}

void plan_section(const FrozenSection& section) {
  const FrozenRecord record(kPath);
  Comparison comparison;
  for (std::size_t i = 0; i < section.all.size(); ++i) {
    const std::string& name = section.names[i];
    attempt(name, [&] {
      comparison.compare(name, record.planned(section.title, name),
                         planned_values(section.all[i], section.detail));
    });
  }
}

TEST(FrozenConfigurations, PlanTheSameBytesInNoMoreTime) {
  if (updates()) GTEST_SKIP() << kWriters;
  plan_section(FrozenSection::configurations());
}

TEST(FrozenMixtures, PlanTheSameBytesInNoMoreTime) {
  if (updates()) GTEST_SKIP() << kWriters;
  plan_section(FrozenSection::mixtures());
}

/// What a run measured is what was planned for it, and is recorded.
void expect_measured(const std::string& name, const FrozenPlans& plans, const FrozenResult& result,
                     const Json& planned) {
  Comparison comparison;
  const Json& peak = planned.at("peak");
  for (std::size_t rank = 0; rank < result.device.size(); ++rank) {
    comparison.compare(
        concat(name, ": measured on rank ", rank), peak,
        {{"device", to_json(result.device[rank])}, {"host", to_json(result.host[rank])}});
  }
  EXPECT_EQ(result.disk_bytes, planned.at("account").at("disk").get<std::int64_t>()) << name;
  Traffic expected;
  for (const auto& [title, schedule] : plans.schedules) {
    const auto ran = result.ran.find(title);
    ASSERT_NE(ran, result.ran.end()) << name << ": " << title << " did not run";
    for (std::int64_t i = 0; i < ran->second; ++i) expected += account_traffic(schedule);
  }
  EXPECT_EQ(to_json(result.traffic).dump(), to_json(expected).dump()) << name;
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

void expect_same_hashes(const FrozenSection& section, const FrozenRecord& record,
                        const std::string& machine, const FrozenHashes& hashes) {
  expect_same_groups(section.names, record.any_hashes(), hashes);
  if (!record.knows(machine)) {
    std::cout << "Hashes are not recorded for a machine that rounds as this one does (" << machine
              << "); which configurations have equal bits was compared. " << kHowToUpdate << "\n";
    return;
  }
  const FrozenHashes recorded = record.hashes(machine);
  for (const auto& [name, pair] : hashes) {
    const auto was = recorded.find(name);
    if (was == recorded.end()) continue;  // which AreThoseOfTheFile says
    EXPECT_EQ(pair.first, was->second.first) << name << ": parameters";
    EXPECT_EQ(pair.second, was->second.second) << name << ": losses and norms";
  }
}

void train_section(const FrozenSection& section) {
  const std::string machine = short_hash(NumericsFingerprint().compute());
  FrozenRecord record(kPath);
  FrozenHashes hashes;
  Json planned = Json::object();
  for (std::size_t i = 0; i < section.all.size(); ++i) {
    const std::string& name = section.names[i];
    attempt(name, [&] {
      const FrozenPlans plans(section.all[i]);
      const FrozenResult result = execute(plans);
      hashes[name] = {result.parameters, result.results};
      planned[name] = updates() ? planned_values(section.all[i], section.detail)
                                : record.planned(section.title, name);
      if (!planned[name].empty()) expect_measured(name, plans, result, planned[name]);
    });
  }
  if (!updates()) {
    expect_same_hashes(section, record, machine, hashes);
    return;
  }
  record.update(section.title, planned, machine, hashes);
  FAIL() << "wrote " << kPath << "; run again without TESSERA_UPDATE_GOLDEN";
}

TEST(FrozenConfigurations, TrainTheSameBitsInTheSameMemory) {
  train_section(FrozenSection::configurations());
}

TEST(FrozenMixtures, TrainTheSameBitsInTheSameMemory) { train_section(FrozenSection::mixtures()); }

}  // namespace
}  // namespace tessera::test::frozen_configurations_test

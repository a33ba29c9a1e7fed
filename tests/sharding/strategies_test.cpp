#include "tessera/sharding/strategies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/grid.h"
#include "tessera/core/error.h"

namespace tessera::placement_test {
namespace {

using test::every_axis_set;
using test::grid;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr AxisSet kNone{};
constexpr AxisSet kReplicate{Axis::kReplicate};
constexpr AxisSet kShard{Axis::kShard};
constexpr AxisSet kBoth{Axis::kReplicate, Axis::kShard};

/// The text of the Error{kConfig} that `body` throws.
std::string config_error(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

int axes_in(AxisSet axes) {
  return (axes.contains(Axis::kReplicate) ? 1 : 0) + (axes.contains(Axis::kShard) ? 1 : 0);
}

TEST(Placement, EveryPresetIsValidNamedOnceAndDescribed) {
  std::set<std::string> names;
  for (const Strategy& strategy : strategies()) {
    EXPECT_NO_THROW(check(strategy.placement)) << strategy.name;
    EXPECT_TRUE(names.insert(strategy.name).second) << strategy.name << " twice";
    EXPECT_FALSE(strategy.summary.empty()) << strategy.name;
    EXPECT_EQ(&find_strategy(strategy.name), &strategy) << strategy.name;
  }
  EXPECT_EQ(names,
            (std::set<std::string>{"no_shard", "zero1", "zero2", "shard_grad_op", "full_shard",
                                   "hybrid_shard", "hybrid_shard_zero2", "hybrid_full_optimizer"}));
}

TEST(Placement, PresetsAreThePlacementsThatTheirNamesMean) {
  const auto is = [](const char* name, const Placement& placement, bool reshard, bool hybrid) {
    const Strategy& strategy = find_strategy(name);
    EXPECT_EQ(strategy.placement, placement) << name;
    EXPECT_EQ(strategy.reshard_after_forward, reshard) << name;
    EXPECT_EQ(strategy.hybrid, hybrid) << name;
  };
  is("no_shard", {kNone, kNone, kNone}, false, false);
  is("zero1", {kNone, kNone, kShard}, false, false);
  is("zero2", {kNone, kShard, kShard}, false, false);
  is("shard_grad_op", {kShard, kShard, kShard}, false, false);
  is("full_shard", {kShard, kShard, kShard}, true, false);
  is("hybrid_shard", {kShard, kShard, kShard}, true, true);
  is("hybrid_shard_zero2", {kShard, kShard, kShard}, false, true);
  is("hybrid_full_optimizer", {kShard, kShard, kBoth}, true, true);
}

// Hybrids are a family of their own, ordered in itself.
TEST(Placement, PresetsShardMoreAndMore) {
  const auto rank_of = [](const Strategy& s) {
    return std::pair(s.hybrid, axes_in(s.placement.parameter) + axes_in(s.placement.gradient) +
                                   axes_in(s.placement.optimizer));
  };
  for (std::size_t i = 1; i < strategies().size(); ++i) {
    EXPECT_LE(rank_of(strategies()[i - 1]), rank_of(strategies()[i])) << strategies()[i].name;
  }
}

TEST(Placement, FindsPresetsByTheNamesOfOtherLibraries) {
  const std::vector<std::pair<const char*, const char*>> aliases{
      {"DDP", "no_shard"},
      {"ddp", "no_shard"},
      {"NO_SHARD", "no_shard"},
      {"ZeRO-0", "no_shard"},
      {"ZeRO-1", "zero1"},
      {"ZeRO-2", "zero2"},
      {"zero_2", "zero2"},
      {"SHARD_GRAD_OP", "shard_grad_op"},
      {"shard-grad-op", "shard_grad_op"},
      {"FULL_SHARD", "full_shard"},
      {"Full-Shard", "full_shard"},
      {"zero3", "full_shard"},
      {"ZeRO-3", "full_shard"},
      {"FSDP", "full_shard"},
      {"HYBRID_SHARD", "hybrid_shard"},
      {"HSDP", "hybrid_shard"},
      {"MiCS", "hybrid_shard"},
      {"_HYBRID_SHARD_ZERO2", "hybrid_shard_zero2"},
      {"HYBRID_SHARD_ZERO2", "hybrid_shard_zero2"},
      {"HFSDP", "hybrid_full_optimizer"},
  };
  for (const auto& [alias, name] : aliases) EXPECT_EQ(find_strategy(alias).name, name) << alias;
}

TEST(Placement, UnknownNamesGetTheNearestOneAndTheList) {
  const auto error_for = [](const char* name) {
    return config_error([&] { find_strategy(name); });
  };
  EXPECT_THAT(error_for("full_shrad"),
              AllOf(HasSubstr("'full_shrad'"), HasSubstr("did you mean 'full_shard'")));
  EXPECT_THAT(error_for("HYBRID-SHARDS"), HasSubstr("did you mean 'hybrid_shard'"));
  EXPECT_THAT(error_for("zero4"), HasSubstr("did you mean 'zero"));
  for (const char* far : {"megatron-tensor-parallel", "", "x"}) {
    const std::string text = error_for(far);
    EXPECT_THAT(text, Not(HasSubstr("did you mean"))) << far;
    EXPECT_THAT(text, HasSubstr(concat("unknown strategy '", far, "'."))) << far;
    for (const Strategy& strategy : strategies()) EXPECT_THAT(text, HasSubstr(strategy.name));
  }
}

TEST(Placement, InvalidOnesAreRefusedWithTheAxesNamed) {
  EXPECT_THAT(
      config_error([] {
        check(Placement{kShard, kNone, kShard});
      }),
      AllOf(HasSubstr("parameters are sharded over shard"), HasSubstr("gradients only over none")));
  EXPECT_THAT(config_error([] {
                check(Placement{kNone, kReplicate, kShard});
              }),
              AllOf(HasSubstr("gradients are sharded over replicate"),
                    HasSubstr("optimizer state only over shard")));
  EXPECT_THAT(config_error([] {
                check(Placement{kShard, kBoth, kReplicate});
              }),
              AllOf(HasSubstr("gradients are sharded over replicate+shard"),
                    HasSubstr("optimizer state only over replicate")));
}

// A chain parameter <= gradient <= optimizer: each axis joins at one of three states, or never.
TEST(Placement, FourForEachAxisAreValid) {
  std::size_t valid = 0;
  for (const AxisSet p : every_axis_set()) {
    for (const AxisSet g : every_axis_set()) {
      for (const AxisSet o : every_axis_set()) {
        try {
          check(Placement{p, g, o});
          ++valid;
        } catch (const Error&) {
        }
      }
    }
  }
  EXPECT_EQ(valid, kAxisSets * kAxisSets);
}

// --- Meshes ---

Mesh default_mesh(const char* strategy, int ranks) {
  return make_mesh(ranks, default_replicas(find_strategy(strategy), ranks));
}

TEST(MakeMesh, DividesRanksIntoReplicas) {
  EXPECT_EQ(make_mesh(6, 3), grid(3, 2));
  EXPECT_EQ(make_mesh(7, 7), grid(7, 1));
  EXPECT_EQ(make_mesh(8, 1), grid(1, 8));
}

TEST(MakeMesh, RefusesWhatDoesNotFit) {
  EXPECT_THAT(config_error([] { make_mesh(0, 1); }), HasSubstr("number of ranks is 0"));
  EXPECT_THAT(config_error([] { make_mesh(-3, 1); }), HasSubstr("number of ranks is -3"));
  EXPECT_THAT(config_error([] { make_mesh(4, 0); }), HasSubstr("replicas is 0"));
  EXPECT_THAT(config_error([] { make_mesh(4, -1); }), HasSubstr("replicas is -1"));
  EXPECT_THAT(config_error([] { make_mesh(3, 4); }), HasSubstr("4 replicas do not fit 3 ranks"));
  EXPECT_THAT(config_error([] { make_mesh(7, 2); }),
              HasSubstr("7 ranks cannot be divided into 2 equal replicas"));
}

TEST(DefaultReplicas, AreOneForAllButHybrids) {
  for (const Strategy& strategy : strategies()) {
    if (strategy.hybrid) continue;
    for (const int ranks : {1, 2, 6, 7, 16384}) EXPECT_EQ(default_replicas(strategy, ranks), 1);
  }
}

TEST(DefaultReplicas, OfHybridsAreOnePerNode) {
  for (const char* name : {"hybrid_shard", "hybrid_shard_zero2", "hybrid_full_optimizer"}) {
    const Strategy& hybrid = find_strategy(name);
    EXPECT_EQ(default_replicas(hybrid, 512, 8), 64);
    EXPECT_EQ(default_replicas(hybrid, 16, 8), 2);
    EXPECT_EQ(default_replicas(hybrid, 12, 8), 3);  // of 4 ranks: no node boundary cuts them
    EXPECT_EQ(default_replicas(hybrid, 8, 8), 2);   // one node
    EXPECT_EQ(default_replicas(hybrid, 4, 8), 2);
    EXPECT_EQ(default_replicas(hybrid, 16, 1), 2);  // a replica of one rank shares nothing
    EXPECT_EQ(default_replicas(hybrid, 9, 4), 3);
  }
  EXPECT_EQ(default_replicas(find_strategy("full_shard"), 512, 8), 1);
}

TEST(DefaultReplicas, AreTheFewestThatMakeARealHybrid) {
  for (const char* hybrid : {"hybrid_shard", "hybrid_shard_zero2", "hybrid_full_optimizer"}) {
    EXPECT_EQ(default_mesh(hybrid, 4), grid(2, 2));
    EXPECT_EQ(default_mesh(hybrid, 6), grid(2, 3));
    EXPECT_EQ(default_mesh(hybrid, 9), grid(3, 3));
    EXPECT_EQ(default_mesh(hybrid, 35), grid(5, 7));
    EXPECT_EQ(default_mesh(hybrid, 16384), grid(2, 8192));
    for (const int prime : {1, 2, 3, 7, 13}) {
      EXPECT_EQ(default_mesh(hybrid, prime), grid(1, prime));
    }
  }
}

std::string note(const char* strategy, const Mesh& mesh) {
  return strategy_note(find_strategy(strategy), mesh);
}

TEST(StrategyNote, IsSilentWhereAStrategyIsWhatItsNameSays) {
  for (const Strategy& strategy : strategies()) {
    for (const int ranks : {4, 6, 9}) {
      EXPECT_EQ(note(strategy.name.c_str(), default_mesh(strategy.name.c_str(), ranks)), "");
    }
    if (strategy.hybrid) continue;
    for (const int ranks : {1, 2, 7}) {
      EXPECT_EQ(note(strategy.name.c_str(), grid(1, ranks)), "");
    }
  }
  EXPECT_EQ(note("full_shard", grid(2, 2)), "");  // a hybrid by another name
}

TEST(StrategyNote, NamesWhatAHybridOfOneReplicaIs) {
  EXPECT_EQ(note("hybrid_shard", grid(1, 7)),
            "hybrid_shard with 1 replica of 7 ranks is full_shard: 7 ranks cannot be divided into "
            "several replicas of several ranks; 8 can");
  EXPECT_THAT(note("hybrid_shard", grid(1, 1)),
              AllOf(HasSubstr("1 replica of 1 rank is no_shard"), HasSubstr("4 can")));
  EXPECT_THAT(note("hybrid_shard", grid(1, 2)),
              AllOf(HasSubstr("is full_shard"), HasSubstr("4 can")));
  EXPECT_THAT(note("hybrid_shard_zero2", grid(1, 9)),
              AllOf(HasSubstr("is shard_grad_op"), HasSubstr("`replicas` 3")));
  EXPECT_THAT(note("hybrid_full_optimizer", grid(1, 3)), HasSubstr("is full_shard"));
}

TEST(StrategyNote, NamesWhatReplicasOfOneRankAre) {
  EXPECT_EQ(note("full_shard", grid(2, 1)),
            "full_shard with 2 replicas of 1 rank is no_shard: a replica has nothing to share; "
            "choose fewer replicas than ranks");
  EXPECT_THAT(note("zero1", grid(4, 1)), HasSubstr("is no_shard"));
  EXPECT_THAT(note("hybrid_shard", grid(2, 1)), HasSubstr("is no_shard"));
  EXPECT_THAT(note("hybrid_full_optimizer", grid(4, 1)),
              AllOf(HasSubstr("is zero1"), HasSubstr("`replicas` 2")));
}

TEST(ReductionOrder, ReadsItsOwnNames) {
  for (const ReductionOrder order : {ReductionOrder::kRank, ReductionOrder::kHierarchical}) {
    EXPECT_EQ(parse_reduction_order(to_string(order)), order);
  }
  EXPECT_THAT(config_error([] { parse_reduction_order("ring"); }),
              AllOf(HasSubstr("'ring'"), HasSubstr("'rank'"), HasSubstr("'hierarchical'")));
}

}  // namespace
}  // namespace tessera::placement_test

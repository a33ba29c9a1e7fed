#include "cpu_contention.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera::cpu_contention_test {
namespace {

constexpr CollectiveKind kGather = CollectiveKind::kAllGather;
constexpr CollectiveKind kReduce = CollectiveKind::kReduceScatter;

ContentionFactors factors(double of_gemms, double of_memory, double spread) {
  ContentionFactors all;
  all.add(kGather, true, 4, {.factor = of_gemms, .spread = spread});
  all.add(kGather, false, 4, {.factor = of_memory, .spread = spread});
  return all;
}

TEST(ShareOfCores, IsThatOfTheThreadsThatWantThem) {
  EXPECT_EQ(share_of_cores(2.0, 1.0), 1.0);
  EXPECT_EQ(share_of_cores(2.0, 4.0), 0.5);
  EXPECT_EQ(share_of_cores(0.5, 0.0), 0.5) << "of a thread at least";
}

TEST(ContentionFactors, OfKernelsThatDifferByMoreThanTheirSpreadAreApart) {
  HardwareProfile profile;
  factors(1.2, 1.5, 0.05).write(profile, "here");
  EXPECT_DOUBLE_EQ(profile.under_gather.value, 1.2);
  ASSERT_TRUE(profile.memory_under_gather);
  EXPECT_DOUBLE_EQ(profile.memory_under_gather->value, 1.5);
  EXPECT_EQ(profile.under_gather.source,
            "here; beyond the sharing of cores: GEMMs 1.20 on 4 ranks");
  // Nothing was measured beside the other collective.
  EXPECT_EQ(profile.under_reduce.value, 1.0);
  EXPECT_FALSE(profile.memory_under_reduce);
}

TEST(ContentionFactors, OfKernelsThatAreAlikeAreOne) {
  HardwareProfile profile;
  factors(1.2, 1.5, 0.2).write(profile, "here");
  EXPECT_NEAR(profile.under_gather.value, 1.3416, 1e-4);
  EXPECT_FALSE(profile.memory_under_gather);
}

TEST(ContentionFactors, AreMeansOverTheRanksAndNeverBelowOne) {
  ContentionFactors all;
  for (const bool multiplies : {true, false}) {
    all.add(kReduce, multiplies, 4, {.factor = 1.0, .spread = 0.01});
    all.add(kReduce, multiplies, 2, {.factor = 1.44, .spread = 0.02});
    all.add(kGather, multiplies, 4, {.factor = 0.7, .spread = 0.02});
  }
  HardwareProfile profile;
  all.write(profile, "here");
  EXPECT_NEAR(profile.under_reduce.value, 1.2, 1e-12);
  EXPECT_EQ(profile.under_gather.value, 1.0);
}

TEST(ContentionTeam, TimesKernelsBesideCollectives) {
  ContentionTeam team(2, 1, 2);
  for (const CollectiveKind kind : {kGather, kReduce}) {
    for (const bool multiplies : {true, false}) {
      const ContentionTime time = team.time(kind, multiplies, 1e-5);
      EXPECT_GT(time.factor, 0.0);
      EXPECT_GE(time.spread, 0.0);
      EXPECT_GT(time.alone.seconds, 0.0);
    }
  }
}

}  // namespace
}  // namespace tessera::cpu_contention_test

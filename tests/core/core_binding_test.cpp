#include "tessera/core/core_binding.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <set>
#include <string>

#include "tessera/core/error.h"

// Who gets which cores, on machines that need not be here.
namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kTwoSockets = "pack:2 [numa] core:8 pu:2";  // CPUs 0-15 and 16-31
constexpr const char* kOneNode = "pack:1 [numa] core:8 pu:1";
constexpr const char* kFourNodes = "pack:4 [numa] core:4 pu:1";

CpuTopology machine(const char* description) {
  CpuTopology topology = read_topology({.synthetic = description});
  topology.of_this_machine = true;
  return topology;
}

/// "0-3 | 4-7 | 8-11".
std::string cpus_of_ranks(const CoreBinding& binding) {
  std::string text;
  for (const RankCores& own : binding.ranks)
    text += (text.empty() ? "" : " | ") + to_string(own.cpus);
  return text;
}

CoreBinding divide(const char* description, const BindRequest& request) {
  return divide_cores(machine(description), request);
}

CoreBinding by_cores(const char* description, int ranks) {
  return divide(description, {.policy = BindPolicy::kCores, .ranks = ranks});
}

CoreBinding by_nodes(const char* description, int ranks) {
  return divide(description, {.policy = BindPolicy::kNuma, .ranks = ranks});
}

TEST(CoreBinding, CoresAreContiguousBlocksWithAllTheirHardwareThreads) {
  const CoreBinding four = by_cores(kTwoSockets, 4);
  EXPECT_EQ(four.policy, BindPolicy::kCores);
  EXPECT_EQ(cpus_of_ranks(four), "0-7 | 8-15 | 16-23 | 24-31");
  EXPECT_EQ(four.ranks[1].cores, 4);
  EXPECT_THAT(four.ranks[1].nodes, ElementsAre(0));
  EXPECT_THAT(four.ranks[2].nodes, ElementsAre(1));
  EXPECT_EQ(describe(four), "cores, 4 per rank");
  EXPECT_EQ(cpus_of_ranks(by_cores(kTwoSockets, 1)), "0-31");
}

TEST(CoreBinding, SharesThatDoNotDivideEvenlyDifferByOne) {
  const CoreBinding three = by_cores(kOneNode, 3);
  EXPECT_EQ(cpus_of_ranks(three), "0-1 | 2-4 | 5-7");
  EXPECT_EQ(describe(three), "cores, 2 to 3 per rank");
  const CoreBinding across = by_cores(kTwoSockets, 3);
  EXPECT_THAT(across.ranks[1].nodes, ElementsAre(0, 1));
}

TEST(CoreBinding, NoCoreHasTwoRanksHoweverManyThereAre) {
  for (const char* description : {kTwoSockets, kOneNode, kFourNodes}) {
    const std::size_t cores = machine(description).cores.size();
    for (int ranks = 1; ranks <= static_cast<int>(cores); ++ranks) {
      SCOPED_TRACE(description + std::string(" ") + std::to_string(ranks));
      std::set<int> taken;
      std::size_t sum = 0;
      for (const RankCores& own : by_cores(description, ranks).ranks) {
        EXPECT_GE(own.cores, static_cast<int>(cores) / ranks);
        EXPECT_LE(own.cores, static_cast<int>(cores) / ranks + 1);
        taken.insert(own.cpus.begin(), own.cpus.end());
        sum += own.cpus.size();
      }
      EXPECT_EQ(taken.size(), sum) << "two ranks share a CPU";
      EXPECT_EQ(sum, machine(description).cores.size() * machine(description).cores[0].cpus.size());
    }
  }
}

TEST(CoreBinding, NodesAreSharedOrDividedAsThereAreRanks) {
  EXPECT_EQ(cpus_of_ranks(by_nodes(kFourNodes, 4)), "0-3 | 4-7 | 8-11 | 12-15");
  EXPECT_EQ(cpus_of_ranks(by_nodes(kFourNodes, 2)), "0-7 | 8-15");
  EXPECT_EQ(cpus_of_ranks(by_nodes(kFourNodes, 3)), "0-3 | 4-11 | 12-15");
  EXPECT_EQ(cpus_of_ranks(by_nodes(kTwoSockets, 4)), "0-15 | 0-15 | 16-31 | 16-31");
  EXPECT_EQ(cpus_of_ranks(by_nodes(kTwoSockets, 3)), "0-15 | 16-31 | 16-31");
  EXPECT_EQ(describe(by_nodes(kTwoSockets, 2)), "NUMA nodes, 8 cores per rank");
}

TEST(CoreBinding, NothingIsBoundWhereNothingIsToBeGained) {
  for (const BindPolicy policy : {BindPolicy::kNuma, BindPolicy::kAuto}) {
    const CoreBinding one = divide(kOneNode, {.policy = policy, .ranks = 3});
    EXPECT_EQ(describe(one), "none (one NUMA node)");
    EXPECT_EQ(cpus_of_ranks(one), "0-7 | 0-7 | 0-7");
    EXPECT_EQ(describe(divide(kOneNode, {.policy = policy, .ranks = 1})), "none (one NUMA node)");
    EXPECT_EQ(describe(divide(kTwoSockets, {.policy = policy, .ranks = 1})),
              "none (each rank has all NUMA nodes)");
  }
  const CoreBinding none = divide(kTwoSockets, {.policy = BindPolicy::kNone, .ranks = 2});
  EXPECT_EQ(describe(none), "none");
  EXPECT_EQ(cpus_of_ranks(none), "0-31 | 0-31");
}

// A second run finds all cores equally busy.
TEST(CoreBinding, AutoIsCoresWhereRanksGetEquallyManyForTheirThreads) {
  const CoreBinding four = divide(kOneNode, {.ranks = 4});
  EXPECT_EQ(describe(four), "cores, 2 per rank");
  EXPECT_EQ(cpus_of_ranks(four), "0-1 | 2-3 | 4-5 | 6-7");
  EXPECT_EQ(divide(kOneNode, {.ranks = 4, .threads = 2}).policy, BindPolicy::kCores);
  EXPECT_EQ(describe(divide(kOneNode, {.ranks = 4, .threads = 3})), "none (one NUMA node)");
  EXPECT_EQ(describe(divide(kOneNode, {.ranks = 16})), "none (one NUMA node)");
  EXPECT_EQ(divide(kOneNode, {.ranks = 2, .quota = 4}).policy, BindPolicy::kNone);
  EXPECT_EQ(divide(kTwoSockets, {.ranks = 4}).policy, BindPolicy::kNuma);
}

TEST(CoreBinding, MoreRanksThanCoresAreBoundToNodesOrNotAtAll) {
  const CoreBinding nodes = by_cores(kTwoSockets, 17);
  EXPECT_EQ(describe(nodes), "NUMA nodes, 8 cores per rank (17 ranks share 16 cores)");
  EXPECT_EQ(to_string(nodes.ranks[0].cpus), "0-15");
  EXPECT_EQ(to_string(nodes.ranks[16].cpus), "16-31");
  EXPECT_EQ(describe(by_cores(kOneNode, 9)), "none (9 ranks share 8 cores, and one NUMA node)");
}

TEST(CoreBinding, AutoLeavesAloneWhatOthersHaveDecided) {
  EXPECT_EQ(divide(kTwoSockets, {.ranks = 2}).policy, BindPolicy::kNuma);
  const CpuTopology part = within(machine(kTwoSockets), parse_cpu_list("4-19"));
  EXPECT_EQ(describe(divide_cores(part, {.ranks = 2})),
            "none (this process was started on CPUs 4-19 only)");
  EXPECT_EQ(describe(divide(kTwoSockets, {.ranks = 2, .quota = 8})),
            "none (a quota of 8 of 32 CPUs: others share them)");
  EXPECT_EQ(divide(kTwoSockets, {.ranks = 2, .quota = 32}).policy, BindPolicy::kNuma);
}

TEST(CoreBinding, DividesAMaskAndNothingElse) {
  const CpuTopology part = within(machine(kTwoSockets), parse_cpu_list("4-19"));
  const auto divided = [&](BindPolicy policy, int ranks) {
    return cpus_of_ranks(divide_cores(part, {.policy = policy, .ranks = ranks}));
  };
  EXPECT_EQ(divided(BindPolicy::kCores, 2), "4-11 | 12-19");
  EXPECT_EQ(divided(BindPolicy::kNuma, 2), "4-15 | 16-19");
  EXPECT_EQ(divided(BindPolicy::kNuma, 8),
            "4-15 | 4-15 | 4-15 | 4-15 | 4-15 | 4-15 | 16-19 | 16-19");
  // Of a core whose other hardware thread is forbidden there is one.
  const CpuTopology halves = within(machine(kTwoSockets), parse_cpu_list("1,3,5,7"));
  EXPECT_EQ(cpus_of_ranks(divide_cores(halves, {.policy = BindPolicy::kCores, .ranks = 2})),
            "1,3 | 5,7");
}

TEST(CoreBinding, UnderAQuotaRanksGetTheirShareOfIt) {
  EXPECT_EQ(cpus_of_ranks(divide(kOneNode, {.policy = BindPolicy::kCores, .ranks = 2, .quota = 4})),
            "0-1 | 4-5");
  EXPECT_EQ(describe(divide(kFourNodes, {.policy = BindPolicy::kCores, .ranks = 5, .quota = 4})),
            "NUMA nodes, 4 cores per rank (5 ranks have a quota of 4 cores)");
}

TEST(CoreBinding, AListOfCpusIsDividedByRank) {
  const CpuList list = parse_cpu_list("0-3,16-19");
  for (const BindPolicy policy : {BindPolicy::kAuto, BindPolicy::kCores}) {
    EXPECT_EQ(cpus_of_ranks(divide(kTwoSockets, {.policy = policy, .ranks = 2, .cpus = list})),
              "0-3 | 16-19");
  }
  // Ranks that cannot divide it share it.
  const CoreBinding shared =
      divide(kOneNode, {.policy = BindPolicy::kCores, .ranks = 3, .cpus = parse_cpu_list("2-3")});
  EXPECT_EQ(cpus_of_ranks(shared), "2-3 | 2-3 | 2-3");
  EXPECT_EQ(shared.policy, BindPolicy::kNuma);
  EXPECT_EQ(shared.why, "3 ranks share 2 cores, and one NUMA node");
}

std::string refusal(const CpuTopology& topology, const BindRequest& request) {
  try {
    divide_cores(topology, request);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    return error.what();
  }
  return "";
}

TEST(CoreBinding, RefusesWhatCannotBe) {
  const CpuTopology part = within(machine(kOneNode), parse_cpu_list("0-3"));
  EXPECT_EQ(refusal(part, {.ranks = 2, .cpus = {3, 4}}),
            "bind_core_list names CPU 4, which this process may not use; it has 0-3");
  EXPECT_THAT(refusal(part, {.policy = BindPolicy::kNone, .ranks = 2, .cpus = {3}}),
              HasSubstr("bind is none; leave one of them out"));
}

TEST(CoreBinding, RanksWithGpusGetCoresOfTheirGpusNode) {
  CpuTopology topology = machine(kTwoSockets);
  topology.device_nodes = {{"0000:1b:00.0", 1}, {"0000:1c:00.0", 0}, {"0000:1d:00.0", 1}};
  BindRequest request{.policy = BindPolicy::kCores,
                      .ranks = 3,
                      .gpus = {"0000:1B:00.0", "0000:1C:00.0", "0000:1D:00.0"}};
  EXPECT_EQ(cpus_of_ranks(divide_cores(topology, request)), "16-23 | 0-15 | 24-31");
  request.policy = BindPolicy::kAuto;
  EXPECT_EQ(cpus_of_ranks(divide_cores(topology, request)), "16-31 | 0-15 | 16-31");
  // Ranks that share a GPU share its node; a list of CPUs is divided by rank, as DeepSpeed does.
  request.policy = BindPolicy::kCores;
  request.gpus = {"0000:1b:00.0", "0000:1b:00.0", "0000:1b:00.0"};
  EXPECT_EQ(cpus_of_ranks(divide_cores(topology, request)), "16-19 | 20-25 | 26-31");
  request.cpus = parse_cpu_list("0-5");
  EXPECT_EQ(cpus_of_ranks(divide_cores(topology, request)), "0-1 | 2-3 | 4-5");
}

TEST(CoreBinding, AGpuWhoseNodeIsNotKnownIsLeftAlone) {
  CpuTopology topology = machine(kTwoSockets);
  topology.device_nodes = {{"0000:00:05.0", -1}};
  for (const BindPolicy policy : {BindPolicy::kCores, BindPolicy::kNuma, BindPolicy::kAuto}) {
    EXPECT_EQ(describe(divide_cores(topology, {.policy = policy, .gpus = {"0000:00:05.0"}})),
              "none (the NUMA node of GPU 0000:00:05.0 is not known)");
  }
  // With one node there is no doubt.
  EXPECT_EQ(cpus_of_ranks(divide(kOneNode, {.policy = BindPolicy::kCores,
                                            .ranks = 2,
                                            .gpus = {"0000:00:05.0", "0000:00:05.0"}})),
            "0-3 | 4-7");
  topology.device_nodes = {{"0000:00:05.0", 1}};
  EXPECT_EQ(describe(divide_cores(within(topology, parse_cpu_list("0-15")),
                                  {.policy = BindPolicy::kCores, .gpus = {"0000:00:05.0"}})),
            "none (this process may use no core of node 1, where GPU 0000:00:05.0 is)");
}

TEST(CoreBinding, ProcessesThatShareAMaskDivideItTheOthersHaveTheirOwn) {
  const CpuTopology topology = machine(kTwoSockets);
  const CpuList first = parse_cpu_list("0-15");
  const CpuList second = parse_cpu_list("16-31");
  const auto divided = [&](const std::vector<CpuList>& masks) {
    return divide_masks(topology,
                        {.policy = BindPolicy::kCores, .ranks = static_cast<int>(masks.size())},
                        masks, 0);
  };
  EXPECT_EQ(cpus_of_ranks(divided({first, second})), "0-15 | 16-31");
  EXPECT_EQ(cpus_of_ranks(divided({first, second, first, second})), "0-7 | 16-23 | 8-15 | 24-31");
  const CoreBinding overlap = divided({first, parse_cpu_list("0-31")});
  EXPECT_EQ(describe(overlap), "none (processes were started on CPUs 0-15 and on 0-31)");
  EXPECT_EQ(cpus_of_ranks(overlap), "0-15 | 0-31");
  EXPECT_EQ(divide_masks(topology, {.ranks = 2}, {first, second}, 1).why,
            "this process was started on CPUs 16-31 only");
}

}  // namespace
}  // namespace tessera

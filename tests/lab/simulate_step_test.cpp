#include "tessera/lab/simulate_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <numeric>

#include "support/small_run.h"
#include "tessera/core/error.h"
#include "tessera/sharding/operation.h"

namespace tessera::simulate_step_test {
namespace {

using test::RandomTokens;

constexpr std::int64_t kLength = 64;

std::vector<int> ranks(int count, int stride = 1) {
  std::vector<int> all(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) all[static_cast<std::size_t>(i)] = i * stride;
  return all;
}

/// Bytes that a rank sends for a buffer of `size` bytes.
std::int64_t sent(CollectiveKind kind, double size, int members) {
  const double rounds = kind == CollectiveKind::kAllReduce ? 2.0 : 1.0;
  return static_cast<std::int64_t>(rounds * size * (members - 1) / members);
}

// --- Collectives ---

TEST(CollectiveSeconds, FollowTheRingOfANodeAndOfSeveral) {
  const Cluster cluster{find_profile("h100-sxm"), 8};
  const LinkProfile &node = cluster.profile.node, &network = cluster.profile.network;
  const auto gather = CollectiveKind::kAllGather;
  const std::int64_t bytes = 1 << 24;
  EXPECT_EQ(seconds_of(gather, bytes, ranks(1), cluster), 0.0);
  EXPECT_DOUBLE_EQ(seconds_of(gather, bytes, ranks(8), cluster),
                   node.latency.value + 7 * node.hop.value + bytes / node.bandwidth.value);
  // 14 hops on two nodes, and one between them; eight adapters are faster than NVLink is.
  EXPECT_DOUBLE_EQ(seconds_of(gather, bytes, ranks(16), cluster),
                   network.latency.value + 14 * node.hop.value + network.hop.value +
                       bytes / node.bandwidth.value);
  // One rank of each node: an adapter for itself.
  EXPECT_DOUBLE_EQ(seconds_of(gather, bytes, ranks(4, 8), cluster),
                   network.latency.value + 3 * network.hop.value + bytes / network.bandwidth.value);
  // Two of each: two.
  std::vector<int> pairs{0, 1, 8, 9};
  EXPECT_DOUBLE_EQ(seconds_of(gather, bytes, pairs, cluster),
                   network.latency.value + 2 * node.hop.value + network.hop.value +
                       bytes / (2 * network.bandwidth.value));
  // An all-reduce of few bytes among many nodes goes up and down a tree: 10 levels for 1,024.
  EXPECT_DOUBLE_EQ(seconds_of(CollectiveKind::kAllReduce, 0, ranks(8192), cluster),
                   network.latency.value + 2 * (7 * node.hop.value + 10 * network.hop.value));
  EXPECT_THROW(seconds_of(gather, 1, ranks(2), {cluster.profile, 0}), Error);
}

TEST(CollectiveSeconds, AreThoseMeasuredOfTheLinkBetweenTheRanks) {
  Cluster cluster{find_profile("h100-sxm"), 8, 4};
  cluster.profile.process.measured = {{"all_gather", 4, "", {{1e3, 1.0}, {1e6, 2.0}}}};
  cluster.profile.node.measured = {{"all_gather", 8, "", {{1e3, 10.0}}}};
  const auto gather = CollectiveKind::kAllGather;
  EXPECT_DOUBLE_EQ(seconds_of(gather, 1000000, ranks(4), cluster), 2.0);
  EXPECT_DOUBLE_EQ(seconds_of(gather, 1000, ranks(8), cluster), 10.0) << "two processes";
  EXPECT_LT(seconds_of(gather, 1000, ranks(16), cluster), 1.0) << "over the network: a formula";
  EXPECT_LT(seconds_of(CollectiveKind::kAllReduce, 1000, ranks(4), cluster), 1.0);
  cluster.profile.cores.value = 2.0;
  EXPECT_DOUBLE_EQ(seconds_of(gather, 1000000, ranks(4), cluster), 1.0) << "four ranks on two";
}

/// A published time, and why the model is more than 15 % off it, if it is.
struct Published {
  const char* what;
  CollectiveKind kind;
  double bytes;
  int ranks;
  double seconds;
  const char* why_off = nullptr;
};

// What others have measured on H100s and H200s, beside what the profile gives.
TEST(CollectiveSeconds, AreNearPublishedOnesOrItIsSaidWhyNot) {
  constexpr double kMiB = 1024.0 * 1024.0;
  const auto kReduce = CollectiveKind::kAllReduce, kGather = CollectiveKind::kAllGather;
  const char* const kSharp = "NVLink SHARP adds in the switch, at 1.3 times a ring's rate";
  const char* const kSmall =
      "few bytes take other protocols than Simple, and a call from Python "
      "takes 39 us";
  const Published all[] = {
      // stas00/ml-engineering, 8 x H200, all-reduce
      {"8 x H200, 1 MiB", kReduce, kMiB, 8, 46e-6, kSmall},
      {"8 x H200, 4 MiB", kReduce, 4 * kMiB, 8, 69e-6},
      {"8 x H200, 16 MiB", kReduce, 16 * kMiB, 8, 134e-6},
      {"8 x H200, 32 MiB", kReduce, 32 * kMiB, 8, 213e-6},
      {"8 x H200, 128 MiB", kReduce, 128 * kMiB, 8, 584e-6, kSharp},
      {"8 x H200, 1 GiB", kReduce, 1024 * kMiB, 8, 4053e-6, kSharp},
      {"8 x H200, 16 GiB", kReduce, 16384 * kMiB, 8, 62.3e-3, kSharp},
      // SimAI's table for H100s with eight adapters a node
      {"1024 x H100, 16 MiB", kGather, 16 * kMiB, 1024, 4.97e-3},
  };
  const Cluster cluster{find_profile("h200-sxm"), 8};
  for (const Published& p : all) {
    const double predicted =
        seconds_of(p.kind, sent(p.kind, p.bytes, p.ranks), ranks(p.ranks), cluster);
    const double off = predicted / p.seconds - 1.0;
    std::printf("  %-20s published %8.1f us, predicted %8.1f us, %+.0f %%%s%s\n", p.what,
                p.seconds * 1e6, predicted * 1e6, off * 100, p.why_off != nullptr ? ": " : "",
                p.why_off != nullptr ? p.why_off : "");
    EXPECT_EQ(std::abs(off) > 0.15, p.why_off != nullptr) << p.what << ": " << off;
  }
}

// --- Steps ---

struct Subject {
  Model model;
  RandomTokens source;
  ModelLayout layout;
  Schedule schedule;
  ExecutorOptions options;

  Program program() const { return {&schedule, &source}; }
};

Subject subject(const std::string& strategy, int count, Recompute recompute = Recompute::kNone,
                double offload_optimizer = 0.0, bool overlaps = false) {
  Subject s{
      .model = make_gpt(
          {.vocab_size = 256, .context_length = kLength, .layers = 4, .heads = 4, .width = 128}),
      .source = RandomTokens(kLength, 256, false),
      .layout = {},
      .schedule = {},
      .options = {.micro_batch = 2, .device = DeviceKind::kCuda}};
  s.layout = make_layout(s.model, {}, count);
  const Strategy& found = find_strategy(strategy);
  s.schedule = plan(s.layout, {.mesh = make_mesh(count, found.hybrid ? 2 : 1),
                               .placement = found.placement,
                               .reshard_after_forward = found.reshard_after_forward,
                               .parameter_dtype = DType::kBFloat16,
                               .policy = {.recompute = recompute},
                               .overlap_optimizer = overlaps,
                               .offload_optimizer = offload_optimizer});
  s.options.steps_in_flight = overlaps ? 2 : 1;
  return s;
}

/// Communication that takes no time and disturbs nothing.
Cluster without_communication() {
  Cluster cluster{find_profile("h100-sxm"), 8};
  for (LinkProfile* link : {&cluster.profile.node, &cluster.profile.network}) {
    // No time for the first byte either.
    *link = {.latency = {0.0, ""}, .hop = {0.0, ""}, .bandwidth = {1e30, ""}};
  }
  return cluster;
}

SimulatedStep simulate(const Subject& s, const Cluster& cluster) {
  return simulate_step(s.program(), s.layout, s.model, s.options, cluster);
}

double flops_of(const Subject& s) {
  double flops = 0.0;
  for (const auto& calls : record_kernels(s.program(), s.layout, s.model, s.options)) {
    for (const KernelCall& call : calls) flops += call.flops;
  }
  return flops;
}

TEST(RecordedKernels, HaveTheFlopsOfTheModel) {
  const Subject s = subject("full_shard", 4);
  const double expected =
      s.model.flops_per_item * static_cast<double>(s.options.micro_batch * kLength);
  EXPECT_NEAR(flops_of(s) / expected, 1.0, 0.02);
  const Subject again = subject("full_shard", 4, Recompute::kFull);
  EXPECT_GT(flops_of(again), 1.2 * flops_of(s));
  EXPECT_LT(flops_of(again), 1.34 * flops_of(s)) << "a third more if all layers were recomputed";
}

TEST(SimulatedStep, IsTheSumOfItsKernelsWhereCommunicationTakesNoTime) {
  const Cluster cluster = without_communication();
  for (const char* strategy : {"no_shard", "zero1", "full_shard", "hybrid_shard"}) {
    SCOPED_TRACE(strategy);
    const Subject s = subject(strategy, 4);
    double expected = 0.0;  // of the compute lane
    const auto kernels = record_kernels(s.program(), s.layout, s.model, s.options);
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      if (s.schedule.actions[i].lane != Lane::kCompute) continue;
      for (const KernelCall& call : kernels[i]) expected += seconds_alone(call, cluster.profile);
    }
    const SimulatedStep step = simulate(s, cluster);
    EXPECT_NEAR(step.of(Lane::kCompute).busy, expected, 1e-12);
    EXPECT_NEAR(step.seconds, expected, 0.05 * step.seconds) << "norms come between";
    EXPECT_LT(step.communication.exposed, 0.05 * step.seconds);
  }
}

TEST(SimulatedStep, IsSlowerWhereCollectivesTakeLongAndWhereTheyDisturb) {
  const Subject s = subject("full_shard", 8);
  Cluster cluster = without_communication();
  const SimulatedStep free = simulate(s, cluster);
  cluster.profile.under_gather.value = cluster.profile.under_reduce.value = 2.0;
  EXPECT_DOUBLE_EQ(simulate(s, cluster).seconds, free.seconds) << "nothing takes time";
  cluster.profile.node.latency.value = 20e-6;
  const SimulatedStep disturbed = simulate(s, cluster);
  EXPECT_GT(disturbed.of(Lane::kCompute).busy, 1.2 * free.of(Lane::kCompute).busy);
  EXPECT_LE(disturbed.of(Lane::kCompute).busy, 4.001 * free.of(Lane::kCompute).busy)
      << "twice for each lane";
  cluster.profile.under_gather.value = cluster.profile.under_reduce.value = 1.0;
  const SimulatedStep undisturbed = simulate(s, cluster);
  EXPECT_NEAR(undisturbed.of(Lane::kCompute).busy, free.of(Lane::kCompute).busy, 1e-12);
  EXPECT_LT(undisturbed.seconds, disturbed.seconds);
  cluster.profile.node.latency.value = 1.0;
  const SimulatedStep slow = simulate(s, cluster);
  EXPECT_GT(slow.communication.exposed, 0.99 * slow.seconds);
  EXPECT_NEAR(slow.seconds, std::max(slow.of(Lane::kGather).busy, slow.of(Lane::kReduce).busy),
              0.6 * slow.seconds);
}

TEST(SimulatedStep, KernelsBoundByMemoryHaveTheirOwnFactorBesideCollectives) {
  const Subject s = subject("full_shard", 8);
  Cluster cluster = without_communication();
  cluster.profile.node.latency.value = 20e-6;
  HardwareProfile& profile = cluster.profile;
  const auto busy_with = [&](double of_gemms, std::optional<double> of_memory) {
    profile.under_gather.value = profile.under_reduce.value = of_gemms;
    profile.memory_under_gather.reset();
    if (of_memory) profile.memory_under_gather = {*of_memory, "a test"};
    profile.memory_under_reduce = profile.memory_under_gather;
    return simulate(s, cluster).of(Lane::kCompute).busy;
  };
  const double free = busy_with(1.0, std::nullopt), all = busy_with(2.0, std::nullopt);
  EXPECT_DOUBLE_EQ(busy_with(1.0, 1.0), free);
  EXPECT_DOUBLE_EQ(busy_with(2.0, 2.0), all);
  for (const double one : {busy_with(2.0, 1.0), busy_with(1.0, 2.0)}) {
    EXPECT_GT(one, 1.01 * free);
    EXPECT_LT(one, 0.99 * all);
  }
}

TEST(SimulatedStep, LanesThatWantMoreThreadsThanCoresShareThem) {
  const Subject s = subject("full_shard", 8);
  Cluster cluster = without_communication();
  cluster.profile.node.latency.value = 20e-6;
  const SimulatedStep apart = simulate(s, cluster);
  // A core for each rank: whenever a lane of collectives is busy, the compute lane is slower.
  cluster.profile.cores.value = 8.0;
  const SimulatedStep shared = simulate(s, cluster);
  const double work =
      apart.of(Lane::kCompute).busy + apart.of(Lane::kGather).busy + apart.of(Lane::kReduce).busy;
  EXPECT_GE(shared.seconds, 0.999 * work) << "no more than one core's work in a second";
  EXPECT_LE(shared.seconds, 1.3 * work) << "a lane that waits leaves the core to the others";
  // Half a core: all takes twice as long.
  cluster.profile.cores.value = 4.0;
  EXPECT_NEAR(simulate(s, cluster).seconds / shared.seconds, 2.0, 1e-6);
  // Four each: as if alone.
  cluster.profile.cores.value = 32.0;
  EXPECT_DOUBLE_EQ(simulate(s, cluster).seconds, apart.seconds);
}

TEST(SimulatedStep, TakesNoMorePowerThanTheLimit) {
  const Subject s = subject("full_shard", 8);
  Cluster cluster = without_communication();
  cluster.profile.power.reset();
  const SimulatedStep free = simulate(s, cluster);
  EXPECT_EQ(free.throttled, 1.0);
  EXPECT_EQ(free.joules, 0.0) << "the profile does not know it";
  EXPECT_NEAR(free.flops / flops_of(s), 1.0, 1e-12);
  // Energy for twice as long, of FLOPs and of bytes alike, at 100 W beside idling.
  cluster.profile.power = {.limit = {150.0, ""},
                           .idle = {50.0, ""},
                           .per_flop = {100.0 * free.seconds / free.flops, ""},
                           .per_byte = {100.0 * free.seconds / free.bytes, ""}};
  const SimulatedStep limited = simulate(s, cluster);
  EXPECT_NEAR(limited.seconds / free.seconds, 2.0, 0.002);
  EXPECT_NEAR(limited.joules / limited.seconds, 150.0, 0.15);
  EXPECT_NEAR(limited.throttled, 2.0, 0.1);
  EXPECT_NEAR(limited.of(Lane::kCompute).busy / free.of(Lane::kCompute).busy, limited.throttled,
              0.001);
  // Where ranks wait for each other as long, kernels may take the power of twice the time.
  cluster.profile.power->limit.value = 1e3;
  EXPECT_DOUBLE_EQ(simulate(s, cluster).seconds, free.seconds);
  cluster.profile.power->limit.value = 150.0;
  cluster.profile.node.latency.value = free.seconds;
  const SimulatedStep waiting = simulate(s, cluster);
  EXPECT_EQ(waiting.throttled, 1.0);
  EXPECT_LT(waiting.joules / waiting.seconds, 100.0);
}

// Per element 28 bytes of state and gradient and 2 of the parameter; 4 go to the host, 2 come back.
TEST(SimulatedStep, CopiesAndUpdatesOnTheHostTakeTheirBytesAndHideBehindTheNextForward) {
  Cluster cluster = without_communication();
  const Subject s = subject("zero2", 4, Recompute::kNone, 1.0);
  double elements = 0.0, units = 0.0;
  for (const ScheduleBuffer& buffer : s.schedule.buffers) {
    if (buffer.role != Role::kMaster) continue;
    elements += static_cast<double>(buffer.numel);
    ++units;
  }
  const SimulatedStep step = simulate(s, cluster);
  const double copies = cluster.profile.copy_out.value;
  EXPECT_NEAR(step.of(Lane::kCopyOut).busy, elements * 4 / copies, 1e-12);
  EXPECT_NEAR(step.of(Lane::kCopyIn).busy, elements * 2 / copies, 1e-12);
  const double share = cluster.profile.host_bandwidth.value / 4;
  EXPECT_NEAR(step.of(Lane::kOptimizer).busy, (elements * 30 + units * 16) / share, 1e-12)
      << "four ranks share the host's memory";

  // Updates of a tenth of the passes' time fit beside the next step's forward.
  const Subject behind = subject("zero2", 4, Recompute::kNone, 1.0, true);
  const double update = step.of(Lane::kOptimizer).busy;
  const double compute = step.of(Lane::kCompute).busy;
  cluster.profile.host_bandwidth.value *= update / (0.1 * compute);
  cluster.profile.copy_out.value *= 100.0;
  const double alone = simulate(s, cluster).seconds;
  const double hidden = simulate(behind, cluster).seconds;
  EXPECT_GT(alone, 1.09 * compute);
  EXPECT_LT(hidden, 1.06 * compute);
}

// The executor does the same: a second lane would only compete for the rank's cores.
TEST(SimulatedStep, ARankAloneOnACpuHasOneLane) {
  Cluster cluster{find_profile("h100-sxm"), 1};
  cluster.profile.device = "cpu";
  cluster.profile.cores.value = 2.0;
  cluster.profile.copy_out.value = 1e9;
  Subject s = subject("full_shard", 1, Recompute::kNone, 1.0);
  s.options.device = DeviceKind::kCpu;
  const SimulatedStep step = simulate(s, cluster);
  EXPECT_EQ(step.of(Lane::kCopyOut).busy, 0.0);
  double copies = 0.0, end = 0.0;
  for (const ActionSpan& span : step.spans.front()) {
    EXPECT_GE(span.begin, end) << "one after the other";
    end = span.end;
    const Action& action = s.schedule.actions[static_cast<std::size_t>(span.action)];
    if (is_copying(action.lane)) copies += span.end - span.begin;
  }
  EXPECT_GT(copies, 1e-4) << "they are in it";
  EXPECT_NEAR(step.of(Lane::kCompute).busy, step.seconds, 0.01 * step.seconds);
}

// A gather that is over when its layer begins hands nothing over: the lane goes on at once.
TEST(SimulatedStep, ALaneIsHandedOverToWhereItHadToWait) {
  Cluster cluster = without_communication();
  const Subject s = subject("full_shard", 4, Recompute::kNone, 1.0);
  const double free = simulate(s, cluster).seconds;
  const auto waiting = std::ranges::count_if(s.schedule.actions, [&](const Action& action) {
    return action.lane == Lane::kCompute && std::ranges::any_of(action.waits, [&](int wait) {
             return s.schedule.actions[static_cast<std::size_t>(wait)].lane != Lane::kCompute;
           });
  });
  ASSERT_GE(waiting, 4);
  cluster.profile.handover.value = 1e-3 * free;
  const double handed_over = (simulate(s, cluster).seconds - free) / cluster.profile.handover.value;
  EXPECT_GT(handed_over, 0.5) << "the first layer waits for its gather";
  EXPECT_LT(handed_over, static_cast<double>(waiting) - 1.0);
}

TEST(SimulatedStep, TakesNoLongerToSimulateForManyRanks) {
  const Cluster cluster{find_profile("h200-sxm"), 8};
  const auto seconds_for = [&](int count) {
    const Subject s = subject("full_shard", count);
    const std::clock_t begin = std::clock();  // of this process's time: a machine may be busy
    EXPECT_GT(simulate(s, cluster).seconds, 0.0);
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  seconds_for(8);
  EXPECT_LT(seconds_for(16384), 5.0);
}

TEST(SimulatedStep, CountsWhatAStepAddsWhereStepsOverlap) {
  Subject s = subject("full_shard", 8);
  PlanOptions options{.mesh = s.schedule.mesh,
                      .placement = s.schedule.placement,
                      .parameter_dtype = DType::kBFloat16,
                      .overlap_optimizer = true};
  const Cluster cluster{find_profile("h100-sxm"), 8};
  const SimulatedStep in_turn = simulate(s, cluster);
  s.schedule = plan(s.layout, options);
  s.options.steps_in_flight = 2;
  const SimulatedStep overlapping = simulate(s, cluster);
  EXPECT_LT(overlapping.seconds, in_turn.seconds);
  EXPECT_GT(overlapping.seconds, 0.5 * in_turn.seconds);
}

}  // namespace
}  // namespace tessera::simulate_step_test

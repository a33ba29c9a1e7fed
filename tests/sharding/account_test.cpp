#include "tessera/sharding/account.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "support/grid.h"
#include "support/small_layout.h"
#include "tessera/core/error.h"
#include "tessera/sharding/planner.h"

// The formulas are derived by hand from what a strategy does, not from the schedule. Per rank,
// small_layout's units embedding, h.0, h.1, h.2, head have 128, 192, 256, 320, 384 trainable
// elements, 1280 together; h.1 has 1280 frozen ones besides.
namespace tessera::account_test {
namespace {

using test::grid;
using test::shape_of;
using test::small_layout;

constexpr std::int64_t kTrainable = 128 + 192 + 256 + 320 + 384;
constexpr std::int64_t kFrozen = 1280;
constexpr int kUnits = 5;

// One of each unit, h.1 with two flat parameters.
constexpr std::int64_t kGatheredOnce = kTrainable + kFrozen;
constexpr int kGatherCallsOnce = kUnits + 1;
// With resharding after forward, h.2 (backward follows after the loss alone) and the head are
// gathered once, h.0 and h.1 twice, and so is the embedding: for itself and for the tied head.
constexpr std::int64_t kGatheredTwice = 2 * (128 + 192 + 256 + kFrozen) + 320 + 384;
constexpr int kGatherCallsTwice = 2 * (1 + 1 + 2) + 1 + 1;

struct Job {
  std::string strategy;
  Mesh mesh;
  int micro_steps = 1;
  DType parameter_dtype = DType::kFloat32;
  DType reduce_dtype = DType::kFloat32;
  ReductionOrder order = ReductionOrder::kRank;
  bool accumulate_unsharded = false;

  std::int64_t p() const { return static_cast<std::int64_t>(size_of(parameter_dtype)); }
  std::int64_t g() const { return static_cast<std::int64_t>(size_of(reduce_dtype)); }
  std::int64_t ranks() const { return mesh.world_size(); }
  std::int64_t replicas() const { return mesh.size(Axis::kReplicate); }
  std::int64_t shards() const { return mesh.size(Axis::kShard); }
  std::int64_t steps() const { return micro_steps; }
  /// Bytes of optimizer state per element: the master weights are the parameters if those are fp32.
  std::int64_t state() const { return parameter_dtype == DType::kFloat32 ? 8 : 12; }
  std::string text() const {
    return concat(strategy, " on ", shape_of(mesh), ", ", micro_steps, " micro-steps, ",
                  to_string(parameter_dtype), " and ", to_string(reduce_dtype), ", order ",
                  to_string(order), accumulate_unsharded ? ", no_sync" : "");
  }
};

// Without prefetching: how many slots there are, and what is kept, can then be counted by hand.
Schedule planned(const Job& setup) {
  const Strategy& strategy = find_strategy(setup.strategy);
  return plan(small_layout(setup.mesh.world_size()),
              {.mesh = setup.mesh,
               .placement = strategy.placement,
               .reshard_after_forward = strategy.reshard_after_forward,
               .reduction_order = setup.order,
               .parameter_dtype = setup.parameter_dtype,
               .reduce_dtype = setup.reduce_dtype,
               .micro_steps = setup.micro_steps,
               .accumulate_unsharded = setup.accumulate_unsharded,
               .policy = {.prefetch_forward = 0, .prefetch_backward = 0}});
}

struct Expected {
  std::int64_t all_gather = 0, all_gather_calls = 0;
  std::int64_t reduce_scatter = 0, reduce_scatter_calls = 0;
  std::int64_t all_reduce = 0, all_reduce_calls = 0;
};

void expect_traffic(const Job& setup, const Expected& expected) {
  Traffic traffic;
  traffic.sent_of(CollectiveKind::kAllGather) = expected.all_gather;
  traffic.calls_of(CollectiveKind::kAllGather) = expected.all_gather_calls;
  traffic.sent_of(CollectiveKind::kReduceScatter) = expected.reduce_scatter;
  traffic.calls_of(CollectiveKind::kReduceScatter) = expected.reduce_scatter_calls;
  // Besides, at any number of ranks, one item count and two exact sums of 28 words.
  const std::int64_t n = setup.mesh.world_size();
  const std::int64_t scalars = 2 * 8 * (n - 1) / n + 2 * (2 * 28 * 8) * (n - 1) / n;
  traffic.sent_of(CollectiveKind::kAllReduce) = expected.all_reduce + scalars;
  traffic.calls_of(CollectiveKind::kAllReduce) = expected.all_reduce_calls + (n > 1 ? 2 : 0);
  const Traffic counted = account_traffic(planned(setup));
  EXPECT_EQ(counted.sent_bytes, traffic.sent_bytes) << setup.text();
  EXPECT_EQ(counted.calls, traffic.calls) << setup.text();
  EXPECT_EQ(counted.copied_bytes, 0) << setup.text();
}

struct ExpectedMemory {
  std::int64_t parameters = 0;
  std::int64_t unsharded_parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t unsharded_gradients = 0;
  std::int64_t optimizer = 0;
};

void expect_memory(const Job& setup, const ExpectedMemory& expected) {
  MemoryUse use;
  use[MemoryCategory::kParameters] = expected.parameters;
  use[MemoryCategory::kUnshardedParameters] = expected.unsharded_parameters;
  use[MemoryCategory::kGradients] = expected.gradients;
  use[MemoryCategory::kUnshardedGradients] = expected.unsharded_gradients;
  use[MemoryCategory::kOptimizer] = expected.optimizer;
  EXPECT_EQ(account_memory(planned(setup)).bytes, use.bytes) << setup.text();
}

// Every world size, number of micro-steps and pair of dtypes.
std::vector<Job> setups(const std::string& strategy) {
  std::vector<Job> list;
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const int micro_steps : {1, 3}) {
      for (const auto& [p, g] : {std::pair{DType::kFloat32, DType::kFloat32},
                                 {DType::kBFloat16, DType::kFloat32},
                                 {DType::kBFloat16, DType::kBFloat16}}) {
        list.push_back({.strategy = strategy,
                        .mesh = grid(1, ranks),
                        .micro_steps = micro_steps,
                        .parameter_dtype = p,
                        .reduce_dtype = g});
      }
    }
  }
  return list;
}

// Of replicas: both reduction orders.
std::vector<Job> hybrid_setups(const std::string& strategy) {
  std::vector<Job> list;
  for (const Mesh mesh : {grid(2, 2), grid(2, 3), grid(3, 2)}) {
    for (const ReductionOrder order : {ReductionOrder::kRank, ReductionOrder::kHierarchical}) {
      for (Job setup : setups(strategy)) {
        if (setup.mesh.size(Axis::kShard) != 1) continue;  // dtypes and micro-steps only
        setup.mesh = mesh;
        setup.order = order;
        list.push_back(setup);
      }
    }
  }
  return list;
}

// (N-1)/N of N ranks' parts is N-1 parts; nothing is called if there is nobody to call.
std::int64_t calls(const Job& s, std::int64_t count) { return s.ranks() > 1 ? count : 0; }

// The sum of gradients that travel in bf16 is gathered in fp32.
TEST(AccountTraffic, NoShardReducesOncePerStep) {
  for (const Job& s : setups("no_shard")) {
    const std::int64_t sent = kTrainable * (s.ranks() - 1);
    if (s.reduce_dtype == DType::kFloat32) {
      expect_traffic(s, {.all_reduce = 2 * 4 * sent, .all_reduce_calls = calls(s, kUnits)});
    } else {
      expect_traffic(s, {.all_gather = 4 * sent,
                         .all_gather_calls = calls(s, kUnits),
                         .reduce_scatter = 2 * sent,
                         .reduce_scatter_calls = calls(s, kUnits)});
    }
  }
}

TEST(AccountTraffic, Zero1ReducesAndGathersOncePerStep) {
  for (const Job& s : setups("zero1")) {
    expect_traffic(s, {.all_gather = s.p() * kTrainable * (s.ranks() - 1),
                       .all_gather_calls = calls(s, kUnits),
                       .reduce_scatter = s.g() * kTrainable * (s.ranks() - 1),
                       .reduce_scatter_calls = calls(s, kUnits)});
  }
}

TEST(AccountTraffic, Zero2ReducesInEveryMicroStep) {
  for (const Job& s : setups("zero2")) {
    expect_traffic(s, {.all_gather = s.p() * kTrainable * (s.ranks() - 1),
                       .all_gather_calls = calls(s, kUnits),
                       .reduce_scatter = s.steps() * s.g() * kTrainable * (s.ranks() - 1),
                       .reduce_scatter_calls = calls(s, s.steps() * kUnits)});
  }
}

TEST(AccountTraffic, ShardGradOpGathersOncePerMicroStep) {
  for (const Job& s : setups("shard_grad_op")) {
    expect_traffic(s, {.all_gather = s.steps() * s.p() * kGatheredOnce * (s.ranks() - 1),
                       .all_gather_calls = calls(s, s.steps() * kGatherCallsOnce),
                       .reduce_scatter = s.steps() * s.g() * kTrainable * (s.ranks() - 1),
                       .reduce_scatter_calls = calls(s, s.steps() * kUnits)});
  }
}

TEST(AccountTraffic, FullShardGathersTwicePerMicroStep) {
  for (const Job& s : setups("full_shard")) {
    expect_traffic(s, {.all_gather = s.steps() * s.p() * kGatheredTwice * (s.ranks() - 1),
                       .all_gather_calls = calls(s, s.steps() * kGatherCallsTwice),
                       .reduce_scatter = s.steps() * s.g() * kTrainable * (s.ranks() - 1),
                       .reduce_scatter_calls = calls(s, s.steps() * kUnits)});
  }
}

TEST(AccountTraffic, AccumulatingUnshardedReducesOncePerStep) {
  for (Job s : setups("full_shard")) {
    s.accumulate_unsharded = true;
    expect_traffic(s, {.all_gather = s.steps() * s.p() * kGatheredTwice * (s.ranks() - 1),
                       .all_gather_calls = calls(s, s.steps() * kGatherCallsTwice),
                       .reduce_scatter = s.g() * kTrainable * (s.ranks() - 1),
                       .reduce_scatter_calls = calls(s, kUnits)});
  }
}

// The once-per-step sum of a hybrid's micro-steps: over all ranks, or inside replicas first.
TEST(AccountTraffic, AccumulatingUnshardedAcrossReplicasGathersInFp32) {
  for (Job s : hybrid_setups("hybrid_shard")) {
    s.accumulate_unsharded = true;
    Expected expected{
        .all_gather = s.steps() * s.p() * kGatheredTwice * s.replicas() * (s.shards() - 1),
        .all_gather_calls = s.steps() * kGatherCallsTwice,
        .reduce_scatter_calls = kUnits};
    if (s.order == ReductionOrder::kRank) {
      expected.reduce_scatter = s.g() * kTrainable * (s.ranks() - 1);
      expected.all_gather += 4 * kTrainable * (s.replicas() - 1);
      expected.all_gather_calls += kUnits;
    } else {
      expected.reduce_scatter = s.g() * kTrainable * s.replicas() * (s.shards() - 1);
      expected.all_reduce = 2 * 4 * kTrainable * (s.replicas() - 1);
      expected.all_reduce_calls = kUnits;
    }
    expect_traffic(s, expected);
  }
}

// A replica of F ranks holds N/F = R parts per rank. Across replicas the shard is fp32.
TEST(AccountTraffic, HybridShardsAddOneReductionAcrossReplicas) {
  for (const bool again : {true, false}) {  // are parameters gathered again for backward?
    for (const Job& s : hybrid_setups(again ? "hybrid_shard" : "hybrid_shard_zero2")) {
      const std::int64_t gathered = again ? kGatheredTwice : kGatheredOnce;
      const int gather_calls = again ? kGatherCallsTwice : kGatherCallsOnce;
      Expected expected{
          .all_gather = s.steps() * s.p() * gathered * s.replicas() * (s.shards() - 1),
          .all_gather_calls = s.steps() * gather_calls,
          .reduce_scatter_calls = s.steps() * kUnits};
      if (s.order == ReductionOrder::kRank) {
        expected.reduce_scatter = s.steps() * s.g() * kTrainable * (s.ranks() - 1);
        expected.all_gather += 4 * kTrainable * (s.replicas() - 1);
        expected.all_gather_calls += kUnits;
      } else {
        expected.reduce_scatter = s.steps() * s.g() * kTrainable * s.replicas() * (s.shards() - 1);
        expected.all_reduce = 2 * 4 * kTrainable * (s.replicas() - 1);
        expected.all_reduce_calls = kUnits;
      }
      expect_traffic(s, expected);
    }
  }
}

// The formulas of runtime/sharding/README.md for gradients, in numbers: 5120 parameters (with
// padding) on two replicas of two ranks, x = 3/4, y = 1/2, z = (R - 1) / (R F) = 1/4.
TEST(AccountTraffic, HybridsByRankSendMoreThanHierarchicalOnlyWithMicroSteps) {
  const auto gradient_bytes = [](int micro_steps, ReductionOrder order) {
    const Job job{
        .strategy = "hybrid_shard", .mesh = grid(2, 2), .micro_steps = micro_steps, .order = order};
    const Schedule schedule = planned(job);
    const std::int64_t gathered =
        4 * kGatheredTwice * job.replicas() * (job.shards() - 1) * micro_steps;
    const Traffic traffic = account_traffic(schedule);
    const std::int64_t scalars = 2 * (8 + 2 * 28 * 8) * 3 / 4;
    return std::reduce(traffic.sent_bytes.begin(), traffic.sent_bytes.end()) - gathered - scalars;
  };
  EXPECT_EQ(gradient_bytes(1, ReductionOrder::kRank), 15360 + 5120);           // g x Psi + 4 z Psi
  EXPECT_EQ(gradient_bytes(1, ReductionOrder::kHierarchical), 10240 + 10240);  // g y Psi + 8 z Psi
  EXPECT_EQ(gradient_bytes(4, ReductionOrder::kRank), 4 * 15360 + 5120);
  EXPECT_EQ(gradient_bytes(4, ReductionOrder::kHierarchical), 4 * 10240 + 10240);
}

TEST(AccountTraffic, HybridFullOptimizerGathersParametersAcrossReplicas) {
  for (const Job& s : hybrid_setups("hybrid_full_optimizer")) {
    Expected expected{
        .all_gather = s.steps() * s.p() * kGatheredTwice * s.replicas() * (s.shards() - 1) +
                      s.p() * kTrainable * (s.replicas() - 1),
        .all_gather_calls = s.steps() * kGatherCallsTwice + kUnits,
        .reduce_scatter_calls = s.steps() * kUnits};
    if (s.order == ReductionOrder::kRank) {
      expected.reduce_scatter = s.steps() * s.g() * kTrainable * (s.ranks() - 1);
    } else {
      expected.reduce_scatter = s.steps() * s.g() * kTrainable * s.replicas() * (s.shards() - 1) +
                                4 * kTrainable * (s.replicas() - 1);
      expected.reduce_scatter_calls += kUnits;
    }
    expect_traffic(s, expected);
  }
}

// With backward in view, the gradients of a unit and of the tied embedding coexist: slots for the
// largest unit and for the embedding.
constexpr std::int64_t kGradientSlots = 384 + 128;
// Of parameters: h.1, the largest (and others in turn); h.2, which stays over the loss; and the
// embedding beside the head.
constexpr std::int64_t kReshardSlots = 256 + kFrozen + 320 + 128;

// Whole gradients are in fp32. Where backward writes fp32, it writes those of the first micro-step
// in place.
std::int64_t slots_of_whole_gradients(const Job& s) {
  const bool in_place = s.steps() == 1 && s.reduce_dtype == DType::kFloat32;
  return in_place ? 0 : s.g() * kGradientSlots * s.ranks();
}

TEST(AccountMemory, NoShardHoldsEverything) {
  for (const Job& s : setups("no_shard")) {
    expect_memory(s, {.parameters = s.p() * (kTrainable + kFrozen) * s.ranks(),
                      .gradients = 4 * kTrainable * s.ranks(),
                      .unsharded_gradients = slots_of_whole_gradients(s),
                      .optimizer = s.state() * kTrainable * s.ranks()});
  }
}

TEST(AccountMemory, Zero1CutsOptimizerState) {
  for (const Job& s : setups("zero1")) {
    expect_memory(s, {.parameters = s.p() * (kTrainable + kFrozen) * s.ranks(),
                      .gradients = 4 * kTrainable * s.ranks(),
                      .unsharded_gradients = slots_of_whole_gradients(s),
                      .optimizer = s.state() * kTrainable});
  }
}

// On one rank there is nothing to reduce: gradients are whole and accumulate like no_shard's.
ExpectedMemory sharded_gradients(const Job& s) {
  return {.gradients = 4 * kTrainable,
          .unsharded_gradients =
              s.ranks() == 1 ? slots_of_whole_gradients(s) : s.g() * kGradientSlots * s.ranks(),
          .optimizer = s.state() * kTrainable};
}

TEST(AccountMemory, Zero2CutsGradientsToo) {
  for (const Job& s : setups("zero2")) {
    ExpectedMemory expected = sharded_gradients(s);
    expected.parameters = s.p() * (kTrainable + kFrozen) * s.ranks();
    expect_memory(s, expected);
  }
}

TEST(AccountMemory, ShardGradOpHoldsAllParametersInSlots) {
  for (const Job& s : setups("shard_grad_op")) {
    ExpectedMemory expected = sharded_gradients(s);
    expected.parameters = s.p() * (kTrainable + kFrozen);
    // At the loss every unit is there.
    expected.unsharded_parameters = s.ranks() == 1 ? 0 : s.p() * (kTrainable + kFrozen) * s.ranks();
    expect_memory(s, expected);
  }
}

TEST(AccountMemory, FullShardHoldsAFewUnitsInSlots) {
  for (const Job& s : setups("full_shard")) {
    ExpectedMemory expected = sharded_gradients(s);
    expected.parameters = s.p() * (kTrainable + kFrozen);
    expected.unsharded_parameters = s.ranks() == 1 ? 0 : s.p() * kReshardSlots * s.ranks();
    expect_memory(s, expected);
  }
}

TEST(AccountMemory, HybridsHoldOnePartPerReplica) {
  for (const std::string strategy : {"hybrid_shard", "hybrid_full_optimizer"}) {
    for (const Job& s : hybrid_setups(strategy)) {
      const bool full = strategy == "hybrid_full_optimizer";
      const bool by_rank = s.order == ReductionOrder::kRank;
      expect_memory(s, {.parameters = s.p() * (kTrainable + kFrozen) * s.replicas(),
                        .unsharded_parameters = s.p() * kReshardSlots * s.ranks(),
                        .gradients = 4 * kTrainable * (full && by_rank ? 1 : s.replicas()),
                        .unsharded_gradients = s.g() * kGradientSlots * s.ranks(),
                        .optimizer = s.state() * kTrainable * (full ? 1 : s.replicas())});
    }
  }
}

TEST(AccountMemory, HoldsNoGradientOfAFrozenUnit) {
  ModelLayout layout = small_layout(1);
  layout.units[3].flats[0].name = "frozen";
  layout.units[3].flats[0].trainable = false;
  const Schedule s = plan(layout, {.mesh = {}, .placement = find_strategy("no_shard").placement});
  const std::int64_t trained = kTrainable - 320;
  EXPECT_EQ(account_memory(s)[MemoryCategory::kGradients], 4 * trained);
  EXPECT_EQ(account_memory(s)[MemoryCategory::kOptimizer], 2 * 4 * trained);
}

// Allocations count in multiples of 64 bytes, each by itself.
TEST(AccountMemory, RoundsEveryAllocation) {
  constexpr DType kBf16 = DType::kBFloat16;
  Schedule s;
  s.units = {{"a", {{.numel = 1}, {.name = "frozen", .trainable = false, .numel = 1}}},
             {"b", {{.name = "frozen", .trainable = false, .numel = 33}}}};
  const auto add = [&](const char* name, Role role, int unit, DType format, std::int64_t numel) {
    s.buffers.push_back({.name = name,
                         .kind = unit < 0 ? BufferKind::kWholeSlot : BufferKind::kState,
                         .role = role,
                         .unit = unit,
                         .format = format,
                         .numel = numel});
  };
  add("a.parameter", Role::kParameter, 0, kBf16, 1);
  add("a.frozen", Role::kParameter, 0, kBf16, 1);
  add("b.frozen", Role::kParameter, 1, kBf16, 33);
  add("a.master", Role::kMaster, 0, DType::kFloat32, 1);
  add("a.first-moment", Role::kOptimizer, 0, DType::kFloat32, 16);
  add("a.second-moment", Role::kOptimizer, 0, DType::kFloat32, 17);
  add("a.gradient", Role::kGradient, 0, DType::kFloat32, 1);
  add("p0", Role::kParameter, -1, kBf16, 32);
  add("g0", Role::kGradient, -1, DType::kFloat32, 1);
  add("g1", Role::kGradient, -1, DType::kFloat32, 17);
  add("loss", Role::kScalars, -1, DType::kInt64, 28);  // workspace: a run shows it
  MemoryUse use;
  use[MemoryCategory::kParameters] = 64 + 64 + 128;
  use[MemoryCategory::kUnshardedParameters] = 64;
  use[MemoryCategory::kGradients] = 64;
  use[MemoryCategory::kUnshardedGradients] = 64 + 128;
  use[MemoryCategory::kOptimizer] = 64 + 64 + 128;
  EXPECT_EQ(account_memory(s).bytes, use.bytes);
}

// Schedules that take turns share the state, and what they name alike: the larger of each.
TEST(AccountMemory, SchedulesOfOneStateShareTheirBuffers) {
  const auto planned_for = [](Purpose purpose, int depth) {
    const Strategy& strategy = find_strategy("full_shard");
    return plan(small_layout(4), {.purpose = purpose,
                                  .mesh = grid(1, 4),
                                  .placement = strategy.placement,
                                  .reshard_after_forward = strategy.reshard_after_forward,
                                  .policy = {depth, depth}});
  };
  const Schedule train = planned_for(Purpose::kTrain, 1);
  const Schedule evaluate = planned_for(Purpose::kEvaluate, 1);
  const Schedule* const both[] = {&train, &evaluate};
  MemoryUse expected = account_memory(train);
  std::int64_t& slots = expected[MemoryCategory::kUnshardedParameters];
  slots = 0;
  const auto slot_numel = [](const Schedule& s, int number) {
    const int index = s.find(concat('p', number));
    return index < 0 ? 0 : s.buffers[static_cast<std::size_t>(index)].numel;
  };
  for (int number = 0; number < 8; ++number) {
    slots += 4 * std::max(slot_numel(train, number), slot_numel(evaluate, number));
  }
  EXPECT_EQ(account_memory(both).bytes, expected.bytes);
  EXPECT_EQ(account_memory(evaluate)[MemoryCategory::kGradients], 0);
}

TEST(AccountGradientSums, CountsWhatMicroStepsReadAndWrite) {
  const auto bytes = [](const Job& job) { return account_gradient_sums(planned(job)); };
  const DType bf16 = DType::kBFloat16;
  EXPECT_EQ(bytes({.strategy = "no_shard", .mesh = grid(1, 1)}), 0);
  // Slot and sum are read, the sum is written; the first gradient lies there already.
  EXPECT_EQ(bytes({.strategy = "no_shard", .mesh = grid(1, 1), .micro_steps = 3}),
            2 * 12 * kTrainable);
  EXPECT_EQ(bytes({.strategy = "full_shard",
                   .mesh = grid(1, 4),
                   .micro_steps = 3,
                   .accumulate_unsharded = true}),
            2 * 12 * 4 * kTrainable);
  // From bf16 slots: the first one is written to the sum, the others are added.
  EXPECT_EQ(
      bytes({.strategy = "no_shard", .mesh = grid(1, 1), .micro_steps = 3, .reduce_dtype = bf16}),
      (6 + 2 * 10) * kTrainable);
  // The reduction adds what each micro-step sends.
  EXPECT_EQ(bytes({.strategy = "zero2", .mesh = grid(1, 4), .micro_steps = 3}), 0);
}

}  // namespace
}  // namespace tessera::account_test

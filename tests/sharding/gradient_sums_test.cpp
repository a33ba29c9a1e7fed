#include "tessera/sharding/gradient_sums.h"

#include <gtest/gtest.h>

#include <atomic>
#include <ctime>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "support/extent.h"
#include "support/grid.h"
#include "support/tied_chain.h"
#include "tessera/core/error.h"
#include "tessera/sharding/operation.h"

namespace tessera::test::gradient_sums_test {
namespace {

constexpr int kLayers = 3;

// ---- What the sums say ------------------------------------------------------------------------

/// A plan for the tied chain. Ranks as the mesh has them.
Schedule planned(const std::string& strategy, Mesh mesh, SmallRun run = {}) {
  run.ranks = mesh.world_size();
  run.replicas = mesh.size(Axis::kReplicate);
  run.strategy = strategy;
  return plan(make_layout(make_tied(kLayers), run.wrap, run.ranks), plan_options(run));
}

/// One line per part.
std::string text_of(const Schedule& schedule) {
  std::string text;
  for (const GradientSum& sum : gradient_sums(schedule)) {
    text += concat(sum.part, " and ", sum.tensors - 1, " more: ", sum.terms, '\n');
  }
  return text;
}

/// Of the tensors to which only the middle layer contributes.
std::string middle_of(const Schedule& schedule) {
  for (const GradientSum& sum : gradient_sums(schedule)) {
    if (sum.part == "l1.weight") return sum.terms;
  }
  return "nothing";
}

std::uint64_t hash_of(const Schedule& schedule) { return hash_of(gradient_sums(schedule)); }

constexpr DType kBf16 = DType::kBFloat16;
constexpr ReductionOrder kHierarchical = ReductionOrder::kHierarchical;

TEST(GradientSums, OfOneMicroStepAreTheSamplesInOrder) {
  EXPECT_EQ(text_of(planned("full_shard", grid(1, 4))),
            "l0.weight and 0 more: l2+l0 s0..s3\n"
            "l0.bias and 1 more: l0 s0..s3\n"
            "l1.weight and 1 more: l1 s0..s3\n"
            "l2.weight and 2 more: l2 s0..s3\n");
}

TEST(GradientSums, SayWhatIsRounded) {
  EXPECT_EQ(text_of(planned("full_shard", grid(1, 2), {.dtype = kBf16, .reduce_dtype = kBf16})),
            "l0.weight and 0 more: bf16(bf16(l2)+l0) x2/1\n"
            "l0.bias and 1 more: bf16(l0) x2/1\n"
            "l1.weight and 1 more: bf16(l1) x2/1\n"
            "l2.weight and 2 more: bf16(l2) x2/1\n");
  const SmallRun run{.micro_steps = 2, .dtype = kBf16, .reduce_dtype = kBf16};
  EXPECT_EQ(middle_of(planned("full_shard", grid(1, 4), run)), "bf16(l1) x8/1");
  const SmallRun half{.dtype = DType::kFloat16, .reduce_dtype = DType::kFloat16};
  EXPECT_EQ(middle_of(planned("full_shard", grid(1, 2), half)), "fp16(l1) x2/1");
  EXPECT_EQ(middle_of(planned("no_shard", grid(1, 4), run)), "bf16(bf16(l1) x2/4) x4/1");
  EXPECT_EQ(middle_of(planned("no_shard", grid(1, 1), run)), "bf16(l1) x2/1") << "nothing is sent";
}

TEST(GradientSums, OfSeveralMicroStepsAreOfThreeFamilies) {
  const SmallRun rank{.micro_steps = 3};
  const SmallRun hierarchical{.micro_steps = 3, .reduction_order = kHierarchical};
  EXPECT_EQ(middle_of(planned("zero2", grid(1, 4), rank)), "l1 s0..s11");
  EXPECT_EQ(middle_of(planned("zero1", grid(1, 4), rank)), "(l1 s0..s8/4) x4/1");
  EXPECT_EQ(middle_of(planned("hybrid_shard", grid(2, 2), rank)), "l1 s0..s11");
  EXPECT_EQ(middle_of(planned("hybrid_shard", grid(2, 2), hierarchical)), "(l1 s0..s10/2) x2/1");
}

// Reduced in every micro-step; added up locally first.
TEST(GradientSums, AreTheSameInAFamilyAndDifferBetweenFamilies) {
  for (const DType reduce_dtype : {DType::kFloat32, kBf16}) {
    SmallRun run{.micro_steps = 2, .dtype = kBf16, .reduce_dtype = reduce_dtype};
    std::set<std::uint64_t> every, first;
    for (const Strategy& strategy : strategies()) {
      run.accumulate_unsharded = false;
      const bool reduces = !strategy.placement.gradient.empty();
      (reduces ? every : first).insert(hash_of(planned(strategy.name, grid(2, 2), run)));
      run.accumulate_unsharded = true;
      first.insert(hash_of(planned(strategy.name, grid(2, 2), run)));
    }
    EXPECT_EQ(every.size(), 1U);
    EXPECT_EQ(first.size(), 1U);
    EXPECT_NE(every, first);
  }
}

TEST(GradientSums, DoNotDependOnPrefetchingRecomputationOrUnits) {
  for (const Strategy& strategy : strategies()) {
    SCOPED_TRACE(strategy.name);
    SmallRun run{.micro_steps = 2, .dtype = kBf16, .reduce_dtype = kBf16};
    const std::uint64_t expected = hash_of(planned(strategy.name, grid(2, 2), run));
    for (const WrapPolicy& wrap : {WrapPolicy{}, WrapPolicy{WrapPolicy::Kind::kSize, 200},
                                   WrapPolicy{WrapPolicy::Kind::kNone}}) {
      run.wrap = wrap;
      for (const int depth : {0, 1, 3}) {
        run.policy.prefetch_forward = run.policy.prefetch_backward = depth;
        run.policy.recompute = depth == 1 ? Recompute::kFull : Recompute::kNone;
        EXPECT_EQ(hash_of(planned(strategy.name, grid(2, 2), run)), expected);
      }
    }
  }
}

// runtime/sharding/README.md, "Numerics".
TEST(GradientSums, OfRanksAreThoseOfOneRankThatAccumulates) {
  for (const int micro_steps : {1, 2, 3}) {
    for (const Mesh mesh : {grid(1, 2), grid(1, 3), grid(2, 2), grid(3, 2)}) {
      const std::uint64_t one = hash_of(
          planned("no_shard", grid(1, 1), {.micro_steps = micro_steps * mesh.world_size()}));
      for (const Strategy& strategy : strategies()) {
        SCOPED_TRACE(concat(strategy.name, ' ', shape_of(mesh), ' ', micro_steps));
        const bool same = micro_steps == 1 || !strategy.placement.gradient.empty();
        EXPECT_EQ(hash_of(planned(strategy.name, mesh, {.micro_steps = micro_steps})) == one, same);
      }
    }
  }
}

TEST(GradientSums, OfTenThousandRanksTakeMilliseconds) {
  const SmallRun run{.micro_steps = 2, .reduction_order = kHierarchical};
  const Schedule inside = planned("full_shard", grid(1, 16384), run);
  const Schedule across = planned("hybrid_shard", grid(2048, 8), run);
  const Schedule by_rank = planned("hybrid_shard", grid(2048, 8), {.micro_steps = 2});
  const std::clock_t begin = std::clock();  // of this process's time: a machine may be busy
  EXPECT_EQ(middle_of(inside), "l1 s0..s32767");
  EXPECT_EQ(middle_of(across), "(l1 s0..s30720/2048) x2048/1");
  EXPECT_EQ(middle_of(by_rank), "l1 s0..s32767");
  EXPECT_LT(std::clock() - begin, CLOCKS_PER_SEC);
}

TEST(GradientSums, OfAnEvaluationAreNone) {
  const Model model = make_tied(kLayers);
  PlanOptions options = plan_options({.ranks = 2});
  options.purpose = Purpose::kEvaluate;
  EXPECT_TRUE(gradient_sums(plan(make_layout(model, {}, 2), options)).empty());
}

TEST(GradientSums, OfABrokenScheduleMeanNothing) {
  Schedule schedule = planned("full_shard", grid(1, 2));
  std::erase_if(schedule.actions, [](const Action& action) {
    return action.operation == &operations::kReduceScatter;
  });
  for (Action& action : schedule.actions) action.waits.clear();
  try {
    gradient_sums(schedule);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("broken schedule"), std::string::npos);
  }
}

// ---- The prediction against real runs ---------------------------------------------------------

constexpr int kWorkers = 4;
constexpr int kSteps = 3;

/// A way to train, and what is said and found of its bits.
struct Way {
  std::string name;
  SmallRun run;
  std::uint64_t predicted = 0;  ///< of the sums
  std::string bits;             ///< losses, norms, parameters
};

std::string bits_of(const ChainResult& result) {
  std::string bits;
  const auto append = [&](const auto& values) {
    bits.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
  };
  append(result.losses);
  append(result.norms);
  for (const FullParameter& parameter : result.parameters) append(parameter.values);
  return bits;
}

void try_out(Way& way) {
  ChainRun chain{.run = way.run, .model = make_tied(kLayers)};
  chain.options.micro_batch = 1;
  // A few numbers in bf16 that are about as large add up in fp32 without rounding, in any order.
  chain.source.sizes = 7;
  way.predicted = hash_of(gradient_sums(chain.schedule));
  way.bits = bits_of(train(chain));
}

/// All of them, by what must be the same of ways that are compared: the dtype of parameters and the
/// samples of a step.
std::map<std::pair<DType, int>, std::vector<Way>> all_ways() {
  std::map<std::pair<DType, int>, std::vector<Way>> ways;
  for (const Strategy& strategy : strategies()) {
    for (const Mesh mesh : {grid(1, 1), grid(1, 2), grid(1, 3), grid(1, 4), grid(2, 2), grid(1, 6),
                            grid(2, 3), grid(3, 2)}) {
      for (const auto& [dtype, reduce] : {std::pair{DType::kFloat32, DType::kFloat32},
                                          {DType::kBFloat16, DType::kFloat32},
                                          {DType::kBFloat16, DType::kBFloat16}}) {
        for (const ReductionOrder order : {ReductionOrder::kRank, ReductionOrder::kHierarchical}) {
          for (const int micro_steps : {1, 2, 3}) {
            for (const bool unsharded : {false, true}) {
              const SmallRun run{.ranks = mesh.world_size(),
                                 .replicas = mesh.size(Axis::kReplicate),
                                 .strategy = strategy.name,
                                 .steps = kSteps,
                                 .micro_steps = micro_steps,
                                 .accumulate_unsharded = unsharded,
                                 .reduction_order = order,
                                 .dtype = dtype,
                                 .reduce_dtype = reduce};
              ways[{dtype, run.ranks * micro_steps}].push_back(
                  {concat(strategy.name, ' ', shape_of(mesh), " x ", micro_steps,
                          unsharded ? " unsharded" : "", ", reduced in ", to_string(reduce), ", ",
                          to_string(order)),
                   run, 0, ""});
            }
          }
        }
      }
    }
  }
  return ways;
}

TEST(GradientSums, SayWhichRunsGiveTheSameBits) {
  auto ways = all_ways();
  if (!runs_long_tests()) {  // a third: the innermost axes have two values, so both come up
    for (auto& [key, list] : ways) {
      std::size_t number = 0;
      std::erase_if(list, [&](const Way&) { return number++ % 3 != 0; });
    }
  }
  std::vector<Way*> all;
  for (auto& [key, list] : ways) {
    for (Way& way : list) all.push_back(&way);
  }
  std::atomic<std::size_t> next{0};
  {
    std::vector<std::jthread> workers;
    for (int w = 0; w < kWorkers; ++w) {
      workers.emplace_back([&] {
        for (std::size_t i = next++; i < all.size(); i = next++) try_out(*all[i]);
      });
    }
  }
  std::int64_t equal = 0, different = 0, wrong = 0;
  for (const auto& [key, list] : ways) {
    std::set<std::uint64_t> predicted;
    std::set<std::string> found;
    for (std::size_t i = 0; i < list.size(); ++i) {
      predicted.insert(list[i].predicted);
      found.insert(list[i].bits);
      for (std::size_t j = 0; j < i; ++j) {
        const bool same = list[i].bits == list[j].bits;
        ++(same ? equal : different);
        if (same == (list[i].predicted == list[j].predicted)) continue;
        if (++wrong > 20) continue;
        ADD_FAILURE() << to_string(key.first) << ", " << key.second << " samples: " << list[i].name
                      << " and " << list[j].name << ": the same bits are "
                      << (same ? "found" : "predicted");
      }
    }
    std::cout << to_string(key.first) << ", " << key.second << " samples: " << list.size()
              << " ways, " << predicted.size() << " sums, " << found.size() << " results\n";
  }
  std::cout << all.size() << " runs; of their pairs, " << equal << " are equal and " << different
            << " different; " << wrong << " not as predicted\n";
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(equal, 1000);
  EXPECT_GT(different, 1000);
}

}  // namespace
}  // namespace tessera::test::gradient_sums_test

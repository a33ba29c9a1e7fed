#include "tessera/sharding/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "support/extent.h"
#include "support/pipeline_parity.h"
#include "support/small_run.h"
#include "tessera/core/error.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/step_plan.h"

namespace tessera::test {
namespace {

constexpr PipelineOrder kOrders[] = {PipelineOrder::kGPipe, PipelineOrder::kOneForwardOneBackward};

std::string text_of(const std::vector<StagePass>& passes) {
  std::string text;
  for (const StagePass& pass : passes) {
    text += concat(text.empty() ? "" : " ", pass.backward ? 'B' : 'F', pass.micro_step);
  }
  return text;
}

TEST(PipelineOrders, AreThoseOfThePapers) {
  const PipelineShape shape{.ranks = 3, .stages = 3, .micro_steps = 4};
  const auto passes = [&](PipelineOrder order, int rank) {
    return text_of(pipeline_passes(order, shape, rank));
  };
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(passes(PipelineOrder::kGPipe, rank), "F0 F1 F2 F3 B0 B1 B2 B3");
  }
  constexpr auto k1F1B = PipelineOrder::kOneForwardOneBackward;
  EXPECT_EQ(passes(k1F1B, 0), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(passes(k1F1B, 1), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(passes(k1F1B, 2), "F0 B0 F1 B1 F2 B2 F3 B3");
}

TEST(PipelineOrders, GoOnWithAnyNumbersOfStagesMicroStepsAndMessages) {
  for (const PipelineOrder order : kOrders) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      for (int micro_steps = 1; micro_steps <= 12; ++micro_steps) {
        for (int first = 0; first < ranks; ++first) {
          for (int depth = 0; depth <= 3; ++depth) {
            const PipelineShape shape{.ranks = ranks,
                                      .stages = ranks,
                                      .micro_steps = micro_steps,
                                      .first_backward_stage = first};
            std::vector<std::vector<StagePass>> passes;
            for (int r = 0; r < ranks; ++r) passes.push_back(pipeline_passes(order, shape, r));
            ASSERT_NO_THROW(with_messages(passes, shape, depth))
                << to_string(order) << ", " << ranks << " ranks, " << micro_steps
                << " micro-steps, depth " << depth;
          }
        }
      }
    }
  }
}

TEST(Pipeline, TwoStagesHaveTheBitsOfOneProcess) {
  SmallRun run{.tied_apart = true, .strategy = "no_shard", .micro_steps = 3};
  const SmallResult one = train(run);
  run.first_layers = {0, 2};
  for (const PipelineOrder order : kOrders) {
    run.pipeline_order = order;
    expect_same(run, one, std::string(to_string(order)));
  }
}

/// Options of which every pair of values occurs in some run.
struct Option {
  std::string name;
  std::vector<std::function<void(SmallRun&)>> values;
};

template <typename Value, typename Set>
Option option(const std::string& name, const std::vector<Value>& values, const Set& set) {
  Option made{name, {}};
  for (const Value& value : values) {
    made.values.push_back([=](SmallRun& run) { set(run, value); });
  }
  return made;
}

std::vector<Option> options() {
  const auto split = [](int stages) -> std::vector<int> {
    // A model of 9 blocks, an embedding and a head. Stages of one layer, and uneven ones.
    switch (stages) {
      case 2:
        return {0, 4};
      case 3:
        return {0, 1, 8};
      case 4:
        return {0, 3, 7, 10};
      default:
        return {};
    }
  };
  return {
      option<int>("stages", {2, 3, 4, 1},
                  [=](SmallRun& run, int n) { run.first_layers = split(n); }),
      option<PipelineOrder>("order", {kOrders[1], kOrders[0]},
                            [](SmallRun& run, PipelineOrder o) { run.pipeline_order = o; }),
      option<int>("ranks", {2, 1, 3}, [](SmallRun& run, int n) { run.ranks = n; }),
      option<std::string>(
          "strategy", {"full_shard", "no_shard", "zero1", "zero2", "shard_grad_op", "hybrid_shard"},
          [](SmallRun& run, const std::string& s) { run.strategy = s; }),
      option<int>("micro-steps", {4, 8, 5, 1}, [](SmallRun& run, int n) { run.micro_steps = n; }),
      option<Recompute>("recompute", {Recompute::kNone, Recompute::kFull, Recompute::kSelective},
                        [](SmallRun& run, Recompute r) { run.policy.recompute = r; }),
      option<GptFamily>("family", {GptFamily::kGpt2, GptFamily::kQwen2},
                        [](SmallRun& run, GptFamily f) { run.family = f; }),
      option<bool>("tied", {true, false}, [](SmallRun& run, bool t) { run.tied = t; }),
      option<bool>(
          "adapter", {false, true},
          [](SmallRun& run, bool adapts) {
            if (adapts)
              run.adapter = {.kind = LoraOptions{.rank = 2}, .targets = {"q_proj", "c_attn"}};
          }),
      option<DType>("precision", {DType::kFloat32, DType::kBFloat16},
                    [](SmallRun& run, DType d) { run.dtype = d; }),
      option<int>("messages ahead", {1, 0, 2},
                  [](SmallRun& run, int n) { run.pipeline_prefetch = n; }),
      option<bool>("reduced once", {false, true},
                   [](SmallRun& run, bool once) { run.accumulate_unsharded = once; }),
      option<float>("dropout", {0.0F, 0.1F}, [](SmallRun& run, float p) { run.dropout = p; })};
}

using Choice = std::vector<std::size_t>;

/// Choices in which every pair of values of two options occurs, made greedily, and some more.
std::vector<Choice> sampled(const std::vector<Option>& options, std::size_t at_least) {
  using Pair = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>;
  std::set<Pair> missing;
  for (std::size_t a = 0; a < options.size(); ++a) {
    for (std::size_t b = a + 1; b < options.size(); ++b) {
      for (std::size_t x = 0; x < options[a].values.size(); ++x) {
        for (std::size_t y = 0; y < options[b].values.size(); ++y) missing.insert({a, x, b, y});
      }
    }
  }
  std::vector<Choice> choices;
  std::mt19937 random(5);
  while (!missing.empty() || choices.size() < at_least) {
    Choice best;
    std::size_t most = 0;
    for (int attempt = 0; attempt < 40; ++attempt) {
      Choice choice;
      for (const Option& o : options) choice.push_back(random() % o.values.size());
      if (attempt % 2 == 0 && !missing.empty()) {
        const auto& [a, x, b, y] = *missing.begin();
        choice[a] = x;
        choice[b] = y;
      }
      std::size_t covers = 0;
      for (std::size_t a = 0; a < options.size(); ++a) {
        for (std::size_t b = a + 1; b < options.size(); ++b) {
          covers += missing.count({a, choice[a], b, choice[b]});
        }
      }
      if (best.empty() || covers > most) best = choice, most = covers;
    }
    for (std::size_t a = 0; a < options.size(); ++a) {
      for (std::size_t b = a + 1; b < options.size(); ++b) {
        missing.erase({a, best[a], b, best[b]});
      }
    }
    choices.push_back(best);
  }
  return choices;
}

TEST(Pipeline, EveryPairOfOptionsHasTheBitsOfOneStage) {
  const std::vector<Option> all = options();
  const std::vector<Choice> choices = sampled(all, 200);
  const std::size_t step = runs_long_tests() ? 1 : 4;
  for (std::size_t c = 0; c < choices.size(); c += step) {
    SmallRun run{.layers = 9, .tied_apart = true, .steps = 2};
    std::string text;
    for (std::size_t o = 0; o < all.size(); ++o) {
      all[o].values[choices[c][o]](run);
      text += concat(all[o].name, ' ', choices[c][o], ", ");
    }
    if (run.family == GptFamily::kQwen2) run.dropout = 0.0F;
    run.reduce_dtype = DType::kFloat32;
    expect_same(run, train(in_one_stage(run)), text);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tessera::test

#include "tessera/sharding/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/extent.h"
#include "support/pipeline_chain.h"
#include "support/pipeline_parity.h"
#include "support/small_run.h"
#include "tessera/core/error.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/step_plan.h"

namespace tessera::test {
namespace {

using Passes = std::vector<StagePass>;

std::string text_of(const Passes& passes) {
  std::string text;
  for (const StagePass& pass : passes) text += (text.empty() ? "" : " ") + to_string(pass);
  return text;
}

TEST(PipelineOrders, AreThoseOfThePapers) {
  const auto passes = [&](PipelineOrder order, int rank) {
    return text_of(pipeline_passes(order, {.ranks = 3, .stages = 3, .micro_steps = 4}, rank));
  };
  EXPECT_EQ(passes(PipelineOrder::kGPipe, 0), "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3");
  EXPECT_EQ(passes(PipelineOrder::kGPipe, 2), "2F0 2F1 2F2 2F3 2B0 2B1 2B2 2B3");
  constexpr auto k1F1B = PipelineOrder::kOneForwardOneBackward;
  EXPECT_EQ(passes(k1F1B, 0), "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3");
  EXPECT_EQ(passes(k1F1B, 1), "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3");
  EXPECT_EQ(passes(k1F1B, 2), "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3");
  // Figure 3 of the paper on zero bubbles: the last rank does weight gradients two passes late.
  constexpr auto kH1 = PipelineOrder::kZeroBubble;
  EXPECT_EQ(passes(kH1, 0), "0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3");
  EXPECT_EQ(passes(kH1, 2), "2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3");
}

// Megatron's warm-up of two ranks with two stages each: 2 (p - r - 1) + (v - 1) p forwards.
TEST(PipelineOrders, OfSeveralStagesOnARankGoThroughThemInGroups) {
  const PipelineShape shape{.ranks = 2, .stages = 4, .micro_steps = 4};
  constexpr auto kOrder = PipelineOrder::kInterleaved;
  EXPECT_EQ(text_of(pipeline_passes(kOrder, shape, 0)),
            "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3");
  EXPECT_EQ(text_of(pipeline_passes(kOrder, shape, 1)),
            "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3");
}

/// Runs `visit` on kinds, numbers of ranks and of micro-steps, and the first stage with a backward.
void for_each_shape(const std::function<void(const PipelineKind&, const PipelineShape&)>& visit) {
  std::vector<PipelineKind> kinds(kPipelineKinds.begin(), kPipelineKinds.end());
  kinds.push_back({PipelineOrder::kInterleaved, 4});
  kinds.push_back({PipelineOrder::kZeroBubble, 3});
  for (const PipelineKind& kind : kinds) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      for (const int micro_steps : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 16, 18, 19}) {
        PipelineShape shape = shape_of(kind, ranks, micro_steps);
        for (const int first : {0, 1, ranks / 2, shape.stages - 1}) {
          shape.first_backward_stage = std::min(first, shape.stages - 1);
          visit(kind, shape);
        }
      }
    }
  }
}

TEST(PipelineOrders, GoOnWithAnyNumbersOfStagesMicroStepsAndMessages) {
  for_each_shape([](const PipelineKind& kind, const PipelineShape& shape) {
    const std::vector<Passes> passes = passes_of(kind.order, shape);
    EXPECT_NO_THROW(check_passes(passes, shape));
    for (int depth = 0; depth <= 3; ++depth) {
      EXPECT_NO_THROW(with_messages(passes, shape, depth))
          << to_string(kind.order) << ", " << shape.ranks << " ranks of " << kind.virtual_stages
          << " stages, " << shape.micro_steps << " micro-steps, depth " << depth;
    }
  });
}

TEST(PipelineOrders, EvaluateWithForwardsAlone) {
  for_each_shape([](const PipelineKind& kind, PipelineShape shape) {
    shape.trains = false;
    const std::vector<Passes> passes = passes_of(kind.order, shape);
    EXPECT_NO_THROW(check_passes(passes, shape));
    for (int depth = 0; depth <= 3; ++depth) EXPECT_NO_THROW(with_messages(passes, shape, depth));
  });
}

// A receive that is issued before one that is needed first would hold up its rank.
TEST(PipelineOrders, ReceiveInTheOrderOfUse) {
  for_each_shape([](const PipelineKind& kind, const PipelineShape& shape) {
    for (const int depth : {0, 1, 3}) {
      const auto events = with_messages(passes_of(kind.order, shape), shape, depth);
      for (const std::vector<StageEvent>& own : events) {
        std::vector<std::pair<int, int>> received[2], used[2];
        for (const StageEvent& event : own) {
          const bool back = event.pass.is_backward();
          const bool receives = event.kind == StageEvent::Kind::kReceive;
          if (event.kind == StageEvent::Kind::kSend) continue;
          if (event.pass.kind == PassKind::kBackwardWeight) continue;
          const int giver = event.pass.stage + (receives ? 0 : back ? 1 : -1);
          if (giver < 0 || giver >= shape.stages) continue;
          if (!receives && shape.rank_of(giver) == shape.rank_of(event.pass.stage)) continue;
          (receives ? received : used)[back].emplace_back(giver, event.pass.micro_step);
        }
        for (const int back : {0, 1}) {
          ASSERT_EQ(received[back], used[back])
              << to_string(kind.order) << ", " << shape.ranks << " ranks, " << shape.micro_steps
              << " micro-steps, depth " << depth;
        }
      }
    }
  });
}

std::string refusal(const std::vector<Passes>& passes, const PipelineShape& shape) {
  try {
    check_passes(passes, shape);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    return error.what();
  }
  return "none";
}

Passes parsed(const std::string& text) {
  std::istringstream words(text);
  Passes passes;
  for (std::string word; words >> word;) passes.push_back(parse_stage_pass(word));
  return passes;
}

TEST(PipelineOrders, ThatAreWrongAreRefusedWithRankAndPass) {
  const PipelineShape shape{.ranks = 2, .stages = 2, .micro_steps = 2};
  const auto of = [&](const std::string& first, const std::string& second) {
    return refusal({parsed(first), parsed(second)}, shape);
  };
  const std::string good = "1F0 1B0 1F1 1B1";
  using ::testing::HasSubstr;
  EXPECT_EQ(of("0F0 0F1 0B0 0B1", good), "none");
  EXPECT_EQ(of("0F1 0F0 0I0 0I1 0W0 0W1", good), "none");
  EXPECT_THAT(of("0F0 0F0 0B0 0B1", good), HasSubstr("rank 0: pass 0F0: it comes twice"));
  EXPECT_THAT(of("0F0 0F1 0B1 0B0", good), HasSubstr("0B1: backwards of a stage are in the order"));
  EXPECT_THAT(of("0F0 0F1 0B0 0B0", good), HasSubstr("0B0: it comes twice"));
  EXPECT_THAT(of("0F0 0B0 0B1 0F1", good), HasSubstr("0B1: its forward is not before it"));
  EXPECT_THAT(of("0F0 0F1 0B0", good), HasSubstr("stage 0 has gradients of 1 of 2"));
  EXPECT_THAT(of("0F0 0B0", good), HasSubstr("stage 0 has forwards of 1 of 2"));
  EXPECT_THAT(of("0F0 0F1 0I0 0I1 0W0", good), HasSubstr("I and W, both are needed"));
  EXPECT_THAT(of("0F0 0F1 0W0 0I0 0I1 0W1", good), HasSubstr("0W0: its first part, I, is not"));
  EXPECT_THAT(of("0F0 0F1 0I0 0B1 0W0", good), HasSubstr("0B1: backwards of a stage"));
  EXPECT_THAT(of("1F0 0F1 0B0 0B1", good), HasSubstr("1F0: its stage is on pipeline rank 1"));
  EXPECT_THAT(of("2F0 0F1 0B0 0B1", good), HasSubstr("there are 2 stages"));
  EXPECT_THAT(of("0F0 0F2 0B0 0B1", good), HasSubstr("a step has 2 micro-steps"));
  EXPECT_THAT(refusal({parsed(good)}, shape), HasSubstr("passes of 1 pipeline ranks"));
  const std::vector<Passes> circle{parsed("0F0 0B0 0F1 0B1"), parsed("1F0 1F1 1B0 1B1")};
  EXPECT_EQ(refusal(circle, shape), "none");
  EXPECT_THROW(with_messages(circle, shape, 1), Error);
}

TEST(PipelineOrders, NameThePassesThatThereAre) {
  for (const char* const text : {"0F0", "12B345", "3I1", "3W1"}) {
    EXPECT_EQ(to_string(parse_stage_pass(text)), text);
  }
  for (const char* const text : {"", "F0", "0F", "0X0", "-1F0", "0F-1", "0F0 ", "0F0x", "0"}) {
    EXPECT_THROW(parse_stage_pass(text), Error) << text;
  }
}

TEST(Pipeline, TwoStagesHaveTheBitsOfOneProcess) {
  SmallRun run{.tied_apart = true, .strategy = "no_shard", .micro_steps = 3};
  const SmallResult one = train(run);
  run.first_layers = {0, 2};
  for (const PipelineOrder order : kPipelineOrders) {
    run.pipeline_order = order;
    expect_same(run, one, std::string(to_string(order)));
  }
}

TEST(Pipeline, SeveralStagesOnARankHaveTheBitsOfOneProcess) {
  SmallRun run{.layers = 6, .tied_apart = true, .strategy = "no_shard", .micro_steps = 5};
  const SmallResult one = train(run);
  run.first_layers = {0, 2, 4, 6};
  run.virtual_stages = 2;
  for (const PipelineKind& kind : kPipelineKinds) {
    if (kind.virtual_stages != 2) continue;
    run.pipeline_order = kind.order;
    expect_same(run, one, std::string(to_string(kind.order)));
  }
}

TEST(Pipeline, ListedPassesHaveTheBitsOfOneProcess) {
  SmallRun run{.tied_apart = true, .strategy = "no_shard", .micro_steps = 3};
  const SmallResult one = train(run);
  run.first_layers = {0, 2, 4};
  run.pipeline_order = PipelineOrder::kListed;
  // The second rank has the first stage and the last; backwards are in one pass and in two.
  run.listed = {parsed("1F0 1F1 1B0 1F2 1I1 1I2 1W1 1W2"),
                parsed("0F0 0F1 2F0 2B0 0F2 2F1 0I0 2I1 2F2 2W1 2B2 0W0 0B1 0B2")};
  expect_same(run, one, "listed");
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

/// Of a model of 10 blocks, an embedding and a head: stages of one layer, and uneven ones.
std::vector<int> uneven_stages(int stages) {
  switch (stages) {
    case 1:
      return {};
    case 2:
      return {0, 4};
    case 3:
      return {0, 1, 8};
    case 4:
      return {0, 3, 7, 10};
    default:
      return even_stages(12, stages);
  }
}

std::vector<Option> options() {
  return {
      // The first layers are set by the kind, which comes next.
      option<int>("pipeline ranks", {2, 3, 4, 1},
                  [](SmallRun& run, int n) { run.first_layers.assign(std::size_t(n), 0); }),
      option<PipelineKind>("order", {kPipelineKinds.begin(), kPipelineKinds.end()},
                           [](SmallRun& run, const PipelineKind& kind) {
                             const auto ranks = static_cast<int>(run.first_layers.size());
                             run.pipeline_order = kind.order;
                             run.virtual_stages = kind.virtual_stages;
                             run.first_layers = uneven_stages(ranks * kind.virtual_stages);
                           }),
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
  const std::size_t step = runs_long_tests() ? 1 : 10;
  for (std::size_t c = 0; c < choices.size(); c += step) {
    SmallRun run{.layers = 10, .tied_apart = true, .steps = 2};
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

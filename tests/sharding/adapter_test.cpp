#include <gtest/gtest.h>

#include "support/extent.h"
#include "support/small_run.h"
#include "tessera/core/error.h"
#include "tessera/sharding/account.h"
#include "tessera/sharding/schedule_json.h"

// Adapters beside a frozen model: placements of their own, and what they send and keep.
namespace tessera::test::adapter_test {
namespace {

const AdapterConfig kLora{.kind = LoraOptions{.rank = 3, .alpha = 6.0, .dropout = 0.1F},
                          .target_pattern = "all-linear"};

/// A's of one matrix are neighbours ([Note: neighbouring a's]): each has a multiple of 64 elements.
const AdapterConfig kJoined{.kind = LoraOptions{.rank = 32, .alpha = 16.0},
                            .target_pattern = "all-linear"};

const AdapterConfig kDora{.kind = LoraOptions{.rank = 3, .alpha = 6.0, .dora = true},
                          .target_pattern = "all-linear"};

const AdapterConfig kIa3{.kind = Ia3Options{.feedforward_pattern = ".*(down|o|mlp.c)_proj"},
                         .target_pattern = "all-linear"};

const AdapterConfig kEncoder{.kind = PromptEncoderOptions{.tokens = 3, .hidden = 5}};

const AdapterConfig kPrefix{.kind = PrefixOptions{.tokens = 3}};

const AdapterConfig kProjection{.kind =
                                    PrefixOptions{.tokens = 3, .projection = true, .hidden = 5}};

const AdapterConfig kEmbeddings{
    .kind = LoraOptions{.rank = 3,
                        .alpha = 6.0,
                        .dropout = 0.1F,
                        .initialization = LoraOptions::Initialization::kRandomB},
    .targets = {"embed_tokens", "lm_head", "wte"}};

bool is_valid(const SmallRun& run) {
  try {
    check(placement_of(run));
    return true;
  } catch (const Error&) {
    return false;
  }
}

struct AdapterCase {
  const char* name;
  const AdapterConfig& adapter;
  GptFamily family;
  DType dtype;
};

class Adapters : public testing::TestWithParam<AdapterCase> {};

TEST_P(Adapters, PlacementsOfBaseAndAdaptersGiveTheSameBits) {
  const auto& [name, adapter, family, dtype] = GetParam();
  int valid = 0, chosen = 0;
  const bool long_test = runs_long_tests();
  const bool is_long = adapter.is_prompt() || &adapter == &kEmbeddings;
  for (const int ranks : {1, 2, 3, 4}) {
    // Prompts, prefixes and adapters of all logits take longer: one number of ranks is enough.
    if (is_long && ranks != 3 && !long_test) continue;
    SmallRun one{.micro_steps = ranks, .dtype = dtype, .family = family, .adapter = adapter};
    one.strategy = "no_shard";
    const SmallResult expected = train(one);
    EXPECT_NE(expected.losses.back(), expected.losses.front());
    for (const Strategy& strategy : strategies()) {
      for (const char* const trainable : {"", "no_shard", "zero1", "zero2", "full_shard"}) {
        SmallRun run = one;
        run.ranks = ranks;
        run.micro_steps = 1;
        run.strategy = strategy.name;
        run.trainable_strategy = trainable;
        if (!is_valid(run)) continue;
        if (++valid % 2 != 0 && !long_test) continue;  // the sample
        ++chosen;
        run.policy.recompute = chosen % 2 == 0 ? Recompute::kFull : Recompute::kNone;
        run.policy.prefetch_forward = run.policy.prefetch_backward = chosen % 3;
        SCOPED_TRACE(concat(strategy.name, " and '", trainable, "' on ", ranks, " ranks"));
        const SmallResult actual = train(run);
        EXPECT_EQ(actual.losses, expected.losses);
        EXPECT_EQ(actual.norms, expected.norms);
        EXPECT_TRUE(same_bits(actual.parameters, expected.parameters));
        EXPECT_EQ(actual.predicted, actual.measured);
        EXPECT_EQ(actual.predicted_traffic, actual.counted_traffic);
        EXPECT_EQ(parse_schedule(to_string(actual.schedule)), actual.schedule);
        EXPECT_EQ(schedule_from_json(to_json(actual.schedule)), actual.schedule);
      }
    }
  }
  EXPECT_GT(valid, is_long && !long_test ? 15 : 100);
}

INSTANTIATE_TEST_SUITE_P(
    Models, Adapters,
    testing::Values(
        AdapterCase{"gpt2_fp32", kLora, GptFamily::kGpt2, DType::kFloat32},
        AdapterCase{"gpt2_bf16", kLora, GptFamily::kGpt2, DType::kBFloat16},
        AdapterCase{"llama_fp32", kLora, GptFamily::kLlama, DType::kFloat32},
        AdapterCase{"llama_bf16", kLora, GptFamily::kLlama, DType::kBFloat16},
        AdapterCase{"llama_fp32_joined", kJoined, GptFamily::kLlama, DType::kFloat32},
        AdapterCase{"llama_bf16_joined", kJoined, GptFamily::kLlama, DType::kBFloat16},
        AdapterCase{"gpt2_bf16_dora", kDora, GptFamily::kGpt2, DType::kBFloat16},
        AdapterCase{"llama_fp32_dora", kDora, GptFamily::kLlama, DType::kFloat32},
        AdapterCase{"gpt2_bf16_ia3", kIa3, GptFamily::kGpt2, DType::kBFloat16},
        AdapterCase{"llama_fp32_ia3", kIa3, GptFamily::kLlama, DType::kFloat32},
        AdapterCase{"gpt2_bf16_embeddings", kEmbeddings, GptFamily::kGpt2, DType::kBFloat16},
        AdapterCase{"llama_fp32_embeddings", kEmbeddings, GptFamily::kLlama, DType::kFloat32},
        AdapterCase{"qwen3_bf16_prefix", kPrefix, GptFamily::kQwen3, DType::kBFloat16},
        AdapterCase{"llama_fp32_prefix", kPrefix, GptFamily::kLlama, DType::kFloat32},
        AdapterCase{"mistral_fp32_projection", kProjection, GptFamily::kMistral, DType::kFloat32},
        AdapterCase{"llama_bf16_projection", kProjection, GptFamily::kLlama, DType::kBFloat16},
        AdapterCase{"mistral_fp32_encoder", kEncoder, GptFamily::kMistral, DType::kFloat32},
        AdapterCase{"llama_bf16_encoder", kEncoder, GptFamily::kLlama, DType::kBFloat16}),
    [](const auto& test) { return test.param.name; });

/// Padded elements of all units.
struct Elements {
  std::int64_t frozen = 0, trained = 0, gathered = 0;
};

/// `gathered`: frozen ones that a step of full_shard gathers. Embedding: forward alone, for nothing
/// before it is trained; the last block, whose backward follows its forward after the loss, and the
/// head: once in each micro-step; other blocks: twice, but that the first, whose backward is the
/// last, stays for the next micro-step's forward.
Elements count(const Schedule& schedule) {
  Elements all;
  const std::size_t units = schedule.units.size();
  for (std::size_t u = 0; u < units; ++u) {
    all.frozen += schedule.units[u].numel(false);
    all.trained += schedule.units[u].numel(true);
    const bool twice = u > 0 && u + 2 < units;
    const int times =
        schedule.micro_steps * (twice ? 2 : 1) - (u == 1 ? schedule.micro_steps - 1 : 0);
    all.gathered += schedule.units[u].numel(false) * times;
  }
  return all;
}

// Four bytes an element, in fp32. The base is sharded or whole; the adapters are whole or, in
// zero1, their moments are sharded; frozen parameters have neither gradients nor moments.
TEST(AdapterAccount, IsTheSumOfItsParts) {
  for (const int ranks : {2, 4}) {
    for (const int micro_steps : {1, 3}) {
      for (const char* const strategy : {"no_shard", "full_shard"}) {
        for (const char* const trainable : {"no_shard", "zero1"}) {
          SCOPED_TRACE(concat(strategy, ", ", trainable, ", ", ranks, " x ", micro_steps));
          SmallRun run{.ranks = ranks, .steps = 1, .family = GptFamily::kMistral};
          run.adapter = micro_steps == 1 ? kLora : kIa3;
          run.micro_steps = micro_steps;
          run.strategy = strategy;
          run.trainable_strategy = trainable;
          const SmallResult result = train(run);
          const Elements all = count(result.schedule);
          const bool shards_base = run.strategy == "full_shard";
          const bool shards_moments = run.trainable_strategy == "zero1";
          const MemoryUse use = account_memory(result.schedule);
          EXPECT_EQ(use[MemoryCategory::kParameters],
                    4 * (all.frozen / (shards_base ? ranks : 1) + all.trained));
          EXPECT_EQ(use[MemoryCategory::kOptimizer],
                    8 * all.trained / (shards_moments ? ranks : 1));
          EXPECT_EQ(use[MemoryCategory::kGradients], 4 * all.trained);

          const Traffic& sent = result.counted_traffic;
          const std::int64_t part = 4 * all.trained / ranks * (ranks - 1);  // all but one's own
          const std::int64_t base = 4 * all.gathered / ranks * (ranks - 1);
          EXPECT_EQ(sent.sent_of(CollectiveKind::kAllGather),
                    (shards_base ? base : 0) + (shards_moments ? part : 0));
          EXPECT_EQ(sent.sent_of(CollectiveKind::kReduceScatter), shards_moments ? part : 0);
          const std::int64_t scalars = 8 + 448;
          EXPECT_EQ(sent.sent_of(CollectiveKind::kAllReduce),
                    (shards_moments ? 0 : 2 * part) + 2 * scalars * (ranks - 1) / ranks);
        }
      }
    }
  }
}

TEST(AdapterAccount, RefusesPlacementsThatOneGatherCannotServe) {
  const AxisSet shard{Axis::kShard}, both{Axis::kReplicate, Axis::kShard};
  const auto place = [](AxisSet trained, AxisSet frozen) {
    return Placement{trained, trained, trained, frozen};
  };
  EXPECT_NO_THROW(check(place({}, both)));
  EXPECT_NO_THROW(check(place(both, {})));
  EXPECT_THROW(check(place(both, shard)), Error);
  EXPECT_THROW(check(Placement{{}, {}, AxisSet{Axis::kReplicate}, shard}), Error);
}

}  // namespace
}  // namespace tessera::test::adapter_test

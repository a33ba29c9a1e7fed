#include "tessera/model/gpt_generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/extent.h"
#include "tessera/core/error.h"
#include "tessera/model/generate.h"
#include "tessera/model/gpt_sampler.h"
#include "tessera/trainer/session.h"

namespace tessera::gpt_generation_test {
namespace {

using Tokens = std::vector<std::int32_t>;

const GptConfig kConfig{
    .vocab_size = 40, .context_length = 24, .layers = 3, .heads = 2, .width = 16};

TrainerOptions options_of(const char* strategy, int ranks) {
  TrainerOptions options{.strategy = strategy, .ranks = ranks};
  options.micro_batch = 1;
  options.evaluation_samples = ranks;
  options.device = DeviceChoice::kCpu;
  options.threads_per_rank = 1;
  options.seed = 5;
  // Larger than the initial ones, so that tokens depend on what is before them.
  options.initial_parameters = [](TrainingState& state, Stream& stream) {
    std::vector<float> values;
    for (const StateTensor& tensor : state) {
      if (!is_compute_dtype(tensor.format)) continue;  // codes
      for (const StatePiece& piece : state.pieces(tensor)) {
        values.resize(static_cast<std::size_t>(piece.elements.numel));
        state.read(tensor.name, piece.first, values, stream);
        for (float& value : values) value *= 8.0F;
        state.write(tensor.name, piece.first, values, stream);
      }
    }
  };
  return options;
}

const Tokens kPrompt{3, 1, 4, 1, 5};
constexpr GenerateOptions kGenerate{.tokens = 25,
                                    .context_length = 24,
                                    .temperature = 0.9F,
                                    .top_k = 20,
                                    .top_p = 0.95F,
                                    .seed = 9};

struct Text {
  Tokens tokens;
  MemoryPeak memory;
  std::map<std::string, std::vector<float>> parameters{};
};

Text generate_with(const TrainerOptions& options) {
  GptGeneration gpt(kConfig, kConfig.context_length);
  Session session(gpt.model(), gpt, options, &gpt);
  Text text;
  text.tokens = generate(kGenerate, kPrompt, [&](std::span<const std::int32_t> context) {
    gpt.set_context(context);
    EXPECT_EQ(session.evaluate().loss, 0.0);
    return gpt.logits();
  });
  text.memory = session.use().front().memory;
  for (FullParameter& parameter : session.parameters()) {
    text.parameters[parameter.name] = std::move(parameter.values);
  }
  return text;
}

TEST(GptGeneration, GivesOneTextForEveryStrategyAndNumberOfRanks) {
  const Text alone = generate_with(options_of("no_shard", 1));
  GptSampler sampler(kConfig, read_from(alone.parameters));
  EXPECT_EQ(alone.tokens, generate(kGenerate, kPrompt, [&](std::span<const std::int32_t> context) {
              return sampler.next_logits(context);
            }));
  for (const char* strategy : {"no_shard", "zero1", "zero2", "shard_grad_op", "full_shard",
                               "hybrid_shard", "hybrid_full_optimizer"}) {
    for (const int ranks : {1, 2, 3, 4}) {
      SCOPED_TRACE(testing::Message() << strategy << " " << ranks);
      EXPECT_EQ(generate_with(options_of(strategy, ranks)).tokens, alone.tokens);
    }
  }
  for (const char* wrap : {"none", "size:2000"}) {
    TrainerOptions options = options_of("full_shard", 2);
    options.wrap = parse_wrap_policy(wrap);
    EXPECT_EQ(generate_with(options).tokens, alone.tokens) << wrap;
  }
  TrainerOptions bf16 = options_of("full_shard", 3);
  bf16.precision = DType::kBFloat16;
  TrainerOptions bf16_alone = options_of("full_shard", 1);
  bf16_alone.precision = DType::kBFloat16;
  EXPECT_EQ(generate_with(bf16).tokens, generate_with(bf16_alone).tokens);
}

/// As options_of, of one rank: what a model of random parameters continues depends on all of the
/// text, by clear margins.
Tokens text_of(const GptConfig& config, GptGeneration::Cache cache, const Tokens& prompt,
               const GenerateOptions& generate_options, DType precision = DType::kFloat32,
               int ranks = 1) {
  TrainerOptions options = options_of("full_shard", ranks);
  options.precision = precision;
  GptGeneration gpt(config, generate_options.context_length, cache);
  Session session(gpt.model(), gpt, options, &gpt);
  std::int64_t passes = 0;
  Tokens text = generate(generate_options, prompt, [&](std::span<const std::int32_t> context) {
    gpt.set_context(context);
    if (cache != GptGeneration::Cache::kNone && passes > 0 &&
        std::ssize(prompt) + passes <= generate_options.context_length) {
      EXPECT_EQ(gpt.pass_tokens(), 1);
    }
    ++passes;
    session.evaluate();
    return gpt.logits();
  });
  // The plan is of a pass over the whole window, which a text has that outgrows it.
  const std::int64_t used = session.use().front().memory.total;
  const bool fills =
      std::ssize(prompt) + generate_options.tokens - 1 > generate_options.context_length;
  EXPECT_LE(used, session.plan().memory.total);
  EXPECT_TRUE(!fills || used == session.plan().memory.total) << used;
  return text;
}

GptConfig small(const char* preset) {
  GptConfig config = gpt_preset(preset);
  config.vocab_size = 50;
  config.context_length = 40;
  config.layers = 2;
  config.window = std::min<std::int64_t>(config.window, 7);
  return config;
}

std::vector<std::pair<std::string, GptConfig>> cached_configs() {
  std::vector<std::pair<std::string, GptConfig>> all;
  for (const char* const preset : {"gpt2-tiny", "llama-tiny", "mistral-tiny", "qwen2-tiny",
                                   "qwen3-tiny", "phi3-tiny", "gemma2-tiny", "gemma3-tiny"}) {
    all.emplace_back(preset, small(preset));
    GptConfig adapted = small(preset);
    adapted.adapter = parse_adapter("lora", "r=4,alpha=64,targets=all-linear", adapted);
    adapted.base_format = WeightFormat::kNf4;
    all.emplace_back(concat(preset, " in nf4 with LoRA"), adapted);
    GptConfig prompted = small(preset);
    prompted.adapter.kind = PromptOptions{.tokens = 5};
    all.emplace_back(concat(preset, " behind a prompt"), prompted);
    GptConfig prefixed = small(preset);
    prefixed.adapter.kind = PrefixOptions{.tokens = 5};
    all.emplace_back(concat(preset, " behind a prefix"), prefixed);
  }
  GptConfig longrope = small("phi3-tiny");
  longrope.rotary.scaling = RotaryConfig::Scaling::kLongRope;
  longrope.rotary.trained_context = 12;
  const auto angles = static_cast<std::size_t>(static_cast<double>(longrope.head_width_used()) *
                                               longrope.rotary.share / 2);
  longrope.rotary.short_factors.assign(angles, 1.0);
  longrope.rotary.long_factors.assign(angles, 2.5);
  all.emplace_back("phi3-tiny with longrope", longrope);
  GptConfig dynamic = small("llama-tiny");
  dynamic.rotary.scaling = RotaryConfig::Scaling::kDynamic;
  dynamic.rotary.trained_context = 12;
  dynamic.rotary.factor = 3.0;
  all.emplace_back("llama-tiny with dynamic", dynamic);
  return all;
}

/// Greedy and drawn, beyond the window, of prompts of all lengths; see [Note: rounding with a
/// cache].
TEST(GptGeneration, ACacheGivesTheTextOfPassesOverTheWholeWindow) {
  using enum GptGeneration::Cache;
  for (const auto& [name, config] : cached_configs()) {
    for (std::uint64_t seed = 0; seed < (test::runs_long_tests() ? 6 : 2); ++seed) {
      SCOPED_TRACE(concat(name, ", seed ", seed));
      Tokens prompt;
      for (std::uint64_t i = 0; i <= 3 * seed; ++i) {
        prompt.push_back(static_cast<std::int32_t>((seed * 31 + i * i * 7 + 3) % 50));
      }
      const GenerateOptions options{.tokens = 24,
                                    .context_length = 30,
                                    .temperature = seed % 2 == 0 ? 0.0F : 0.9F,
                                    .top_p = 0.95F,
                                    .seed = seed};
      EXPECT_EQ(text_of(config, kKeysAndValues, prompt, options),
                text_of(config, kNone, prompt, options));
    }
  }
}

TEST(GptGeneration, ACacheGivesTheSameTextOnAnyNumberOfRanks) {
  using enum GptGeneration::Cache;
  const GptConfig config = small("qwen3-tiny");
  const GenerateOptions options{.tokens = 20, .context_length = 24, .temperature = 0.9F, .seed = 2};
  for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
    const Tokens alone = text_of(config, kKeysAndValues, kPrompt, options, precision);
    for (const int ranks : {2, 3}) {
      EXPECT_EQ(text_of(config, kKeysAndValues, kPrompt, options, precision, ranks), alone);
    }
  }
}

/// A text, and the logits of each of its tokens.
struct StagedText {
  Tokens tokens;
  std::vector<std::vector<float>> logits;
  bool operator==(const StagedText&) const = default;
};

/// By `ranks` of each of as many stages as `layers` has numbers of layers. There is a context
/// before the session, whose messages have room for passes over the whole window all the same.
StagedText staged_text(const GptConfig& config, GptGeneration::Cache cache,
                       const std::vector<int>& layers, int ranks = 1) {
  TrainerOptions options = options_of("full_shard", static_cast<int>(layers.size()) * ranks);
  options.pipeline.ranks = static_cast<int>(layers.size());
  options.pipeline.layers.counts = layers;
  options.pipeline.tied_apart = true;
  options.check_collectives = true;
  options.evaluation_samples = ranks;
  GptGeneration gpt(config, 16, cache);
  gpt.set_context(kPrompt);
  Session session(gpt.model(), gpt, options, &gpt);
  StagedText text;
  const GenerateOptions drawn{.tokens = 15, .context_length = 16, .temperature = 0.9F, .seed = 3};
  text.tokens = generate(drawn, kPrompt, [&](std::span<const std::int32_t> context) {
    gpt.set_context(context);
    session.evaluate();
    text.logits.emplace_back(gpt.logits().begin(), gpt.logits().end());
    return gpt.logits();
  });
  return text;
}

TEST(GptGeneration, StagesOfAPipelineGiveTheBitsOfOne) {
  using enum GptGeneration::Cache;
  GptConfig prompted = small("llama-tiny");
  prompted.adapter.kind = PromptOptions{.tokens = 5};
  GptConfig prefixed = small("qwen2-tiny");
  prefixed.adapter.kind = PrefixOptions{.tokens = 5, .projection = true, .hidden = 6};
  GptConfig adapted = small("gemma2-tiny");
  adapted.adapter = parse_adapter("lora", "r=4,alpha=64,targets=all-linear", adapted);
  adapted.base_format = WeightFormat::kNf4;
  for (const GptConfig& config :
       {small("gpt2-tiny"), prompted, prefixed, adapted}) {  // of two blocks
    for (const GptGeneration::Cache cache : {kNone, kKeysAndValues}) {
      const StagedText one = staged_text(config, cache, {4});
      for (const std::vector<int>& layers :
           {std::vector{3, 1}, std::vector{1, 2, 1}, std::vector{1, 1, 1, 1}}) {
        EXPECT_EQ(staged_text(config, cache, layers), one)
            << config.layers << " blocks, " << layers.size() << " stages, cache "
            << (cache == kKeysAndValues);
      }
    }
  }
  const GptConfig config = small("qwen3-tiny");
  EXPECT_EQ(staged_text(config, kKeysAndValues, {2, 2}, 2),
            staged_text(config, kKeysAndValues, {4}, 2));
}

TEST(GptGeneration, StagesSendTheRowsOfAPass) {
  TrainerOptions options = options_of("full_shard", 2);
  options.pipeline.ranks = 2;
  options.evaluation_samples = 1;
  GptGeneration gpt(kConfig, 12, GptGeneration::Cache::kKeysAndValues);
  Session session(gpt.model(), gpt, options, &gpt);
  std::int64_t sent = 0;
  for (const std::size_t tokens : {5, 6, 7, 11}) {
    gpt.set_context(Tokens(tokens, 7));
    session.evaluate();
    const std::int64_t all = session.use().front().traffic.sent_of(CollectiveKind::kSend);
    const auto row_bytes = kConfig.width * static_cast<std::int64_t>(sizeof(float));
    EXPECT_EQ(all - sent, gpt.pass_tokens() * row_bytes);
    sent = all;
  }
}

TEST(GptGeneration, TakesTheLogitsOfAnotherProcess) {
  GptGeneration gpt(kConfig, 12);
  EXPECT_FALSE(gpt.has_logits());
  const std::vector<float> logits(40, 0.5F);
  gpt.set_logits(logits);
  EXPECT_TRUE(gpt.has_logits());
  EXPECT_THAT(gpt.logits(), ::testing::ElementsAreArray(logits));
  EXPECT_THROW(gpt.set_logits(std::span(logits).first(39)), Error);
}

TEST(GptGeneration, ACachePassesOverWhatDiffers) {
  const auto logits_after = [](const std::vector<Tokens>& contexts,
                               const std::vector<std::int64_t>& tokens) {
    GptGeneration gpt(kConfig, 12, GptGeneration::Cache::kKeysAndValues);
    Session session(gpt.model(), gpt, options_of("full_shard", 2), &gpt);
    for (std::size_t i = 0; i < contexts.size(); ++i) {
      gpt.set_context(contexts[i]);
      EXPECT_EQ(gpt.pass_tokens(), tokens[i]) << i;
      session.evaluate();
    }
    return std::vector<float>(gpt.logits().begin(), gpt.logits().end());
  };
  const Tokens last{3, 1, 4, 2, 6, 7};
  const std::vector<float> direct = logits_after({last}, {6});
  const std::vector<float> on_the_way = logits_after(
      {{3, 1, 4, 1, 5}, {3, 1, 4, 1, 5}, {3, 1, 4, 1, 5, 9, 2}, {3, 1}, {9, 1}, {3, 1, 4}, last},
      {5, 1, 2, 1, 2, 3, 3});
  for (std::size_t i = 0; i < direct.size(); ++i) EXPECT_NEAR(direct[i], on_the_way[i], 1e-4);
  // A context without a pass over it leaves nothing to go on from.
  GptGeneration gpt(kConfig, 12, GptGeneration::Cache::kKeysAndValues);
  Session session(gpt.model(), gpt, options_of("full_shard", 1), &gpt);
  gpt.set_context(kPrompt);
  gpt.set_context(kPrompt);
  EXPECT_EQ(gpt.pass_tokens(), 5);
}

TEST(GptGeneration, KeepsShardsOfParametersAndNothingElse) {
  const auto by = [](const Text& text, MemoryCategory category) {
    return text.memory.by_category[category];
  };
  const Text whole = generate_with(options_of("no_shard", 1));
  TrainerOptions sharded = options_of("full_shard", 4);
  sharded.precision = DType::kBFloat16;
  const Text quarter = generate_with(sharded);
  const std::int64_t parameters = by(whole, MemoryCategory::kParameters);
  EXPECT_LT(by(quarter, MemoryCategory::kParameters), parameters / 8 + 4096);
  for (const Text* text : {&whole, &quarter}) {
    // Of the last bias.
    EXPECT_LT(by(*text, MemoryCategory::kGradients), 4096);
    EXPECT_LT(by(*text, MemoryCategory::kUnshardedGradients), 4096);
    EXPECT_LT(by(*text, MemoryCategory::kOptimizer), 4096);
  }
}

TEST(GptGeneration, TellsAllThatOneProcessWantsToStop) {
  GptGeneration gpt(kConfig, 8);
  Session session(gpt.model(), gpt, options_of("full_shard", 2), &gpt);
  gpt.set_context(kPrompt);
  EXPECT_EQ(session.evaluate().loss, 0.0);
  gpt.set_context(kPrompt, true);
  EXPECT_GT(session.evaluate().loss, 0.0);
}

TEST(GptGeneration, RefusesWhatItCannotRead) {
  EXPECT_THROW(GptGeneration(kConfig, 0), Error);
  EXPECT_THROW(GptGeneration(kConfig, 25), Error);
  GptGeneration gpt(kConfig, 3);
  EXPECT_THROW(gpt.set_context({}), Error);
  EXPECT_THROW(gpt.set_context(kPrompt), Error);
  EXPECT_THROW(gpt.set_context(Tokens{40}), Error);
  EXPECT_THROW(gpt.set_context(Tokens{-1}), Error);
}

}  // namespace
}  // namespace tessera::gpt_generation_test

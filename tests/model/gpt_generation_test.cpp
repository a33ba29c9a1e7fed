#include "tessera/model/gpt_generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

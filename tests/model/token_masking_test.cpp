#include "tessera/model/token_masking.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "support/golden_folder.h"
#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/model/data_mixture.h"
#include "tessera/trainer/trainer.h"

// Tokens are hidden as DataCollatorForLanguageModeling of transformers hides them.
namespace tessera::token_masking_test {
namespace {

using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tokens = std::vector<std::int32_t>;

constexpr std::int32_t kIgnored = -100, kClassify = 2, kSeparator = 3, kMask = 4;

Tokenizer word_pieces() {
  std::ifstream in(TESSERA_SOURCE_DIR "/tests/model/tokenizers/word_pieces.json");
  const auto all = nlohmann::json::parse(in);
  return Tokenizer(all.at("cases").at("uncased").at("tokenizer").dump(), "tokenizer.json");
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(TokenMasking, IsWhatTheTokenizerSays) {
  const TokenMasking masking = masking_of(word_pieces(), "[MASK]");
  EXPECT_EQ(masking.mask_token, kMask);
  EXPECT_EQ(masking.vocab_size, 78);
  EXPECT_THAT(masking.special, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(masking.before, ElementsAre(kClassify));
  EXPECT_THAT(masking.after, ElementsAre(kSeparator));
  EXPECT_THAT(refusal([] { masking_of(word_pieces(), "<mask>"); }),
              HasSubstr("has no token '<mask>' to hide others behind"));
}

/// The shares are those of the collator within four standard deviations, and what is not drawn
/// stays.
TEST(TokenMasking, HidesTheSharesOfTheCollator) {
  constexpr std::size_t kLength = 20000;
  const TemporaryFolder folder;
  std::string words;  // of uint16: 7 and 9, which is special
  for (std::size_t i = 0; i < kLength; ++i) words += {i % 2 == 0 ? '\7' : '\11', '\0'};
  std::ofstream(folder.path("tokens.bin"), std::ios::binary) << words;
  const TokenDataset data(
      {.path = folder.path("tokens.bin"),
       .sequence_length = kLength,
       .seed = 5,
       .masking =
           TokenMasking{.mask_token = 1, .vocab_size = 1000, .probability = 0.15, .special = {9}}});
  Tokens inputs(kLength), targets(kLength);
  const std::int64_t hidden = data.fill_sample(3, inputs, targets, {});
  std::map<std::string, std::int64_t> counts;
  for (std::size_t i = 0; i < kLength; ++i) {
    const bool is_target = targets[i] != kIgnored;
    if (is_target) {
      ++counts["target"];
      EXPECT_EQ(i % 2, 0U);
      EXPECT_EQ(targets[i], 7);
      ++counts[inputs[i] == 1 ? "masked" : inputs[i] == 7 ? "kept" : "random"];
      EXPECT_LT(inputs[i], 1000);
      EXPECT_GE(inputs[i], 0);
    } else {
      EXPECT_EQ(inputs[i], i % 2 == 0 ? 7 : 9);
    }
  }
  const auto near = [](std::int64_t count, std::int64_t of, double share) {
    const double n = static_cast<double>(of);
    return std::abs(static_cast<double>(count) - n * share) <
           4.0 * std::sqrt(n * share * (1.0 - share));
  };
  EXPECT_EQ(counts["target"], hidden);
  EXPECT_TRUE(near(hidden, kLength / 2, 0.15)) << hidden;
  EXPECT_TRUE(near(counts["masked"], hidden, 0.8)) << counts["masked"];
  EXPECT_TRUE(near(counts["random"], hidden, 0.1)) << counts["random"];
  EXPECT_TRUE(near(counts["kept"], hidden, 0.1)) << counts["kept"];
}

class MaskedTexts : public ::testing::Test {
 protected:
  DatasetOptions options(const std::string& name, const std::string& text) const {
    std::ofstream(folder_.path(name)) << text;
    const Tokenizer tokenizer = word_pieces();
    return {.path = folder_.path(name),
            .sequence_length = 8,
            .vocab_size = tokenizer.vocab_size(),
            .tokenizer = tokenizer,
            .encoder = true,
            .masking = masking_of(tokenizer, "[MASK]", 0.4)};
  }
  static std::string words(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += i % 2 == 0 ? "film " : "great\n";
    return text;
  }
  TemporaryFolder folder_;
};

struct Sample {
  Tokens inputs = Tokens(8), targets = Tokens(8), starts = Tokens(8);
  std::int64_t counted = 0;

  /// What the sample was before tokens were hidden.
  Tokens whole() const {
    Tokens tokens = inputs;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (targets[i] >= 0) tokens[i] = targets[i];
    }
    return tokens;
  }
  friend bool operator==(const Sample&, const Sample&) = default;
};

Sample sample_of(const TokenDataset& data, std::int64_t number) {
  Sample sample;
  sample.counted = data.fill_sample(number, sample.inputs, sample.targets, sample.starts);
  return sample;
}

TEST_F(MaskedTexts, AStreamIsCutIntoTextsOfTheirOwn) {
  DatasetOptions of = options("text.txt", words(18));
  of.shuffle = false;
  const TokenDataset data(of);
  ASSERT_EQ(data.samples_per_epoch(), 3);  // of six tokens, all of the stream
  for (std::int64_t i = 0; i < 6; ++i) {
    const Sample sample = sample_of(data, i);
    EXPECT_THAT(sample.whole(), ElementsAre(kClassify, 6, 8, 6, 8, 6, 8, kSeparator));
    EXPECT_EQ(sample.inputs.front(), kClassify);
    EXPECT_EQ(sample.inputs.back(), kSeparator);
    EXPECT_EQ(sample.starts, Tokens(8, 0));
    const auto told = std::ranges::count_if(sample.targets, [](auto t) { return t >= 0; });
    EXPECT_EQ(sample.counted, told);
    EXPECT_GT(told, 0);
  }
  const auto masks_of = [&](std::int64_t epoch) {
    std::vector<Tokens> all;
    for (std::int64_t i = 0; i < 3; ++i) all.push_back(sample_of(data, 3 * epoch + i).targets);
    return all;
  };
  EXPECT_EQ(masks_of(1), masks_of(1));
  EXPECT_NE(masks_of(0), masks_of(1));  // the next epoch's masks are others
  of.sequence_length = 2;
  EXPECT_THAT(refusal([&] { TokenDataset{of}; }), HasSubstr("has no room between the 2 tokens"));
  of.sequence_length = 30;
  EXPECT_THAT(refusal([&] { TokenDataset{of}; }), HasSubstr("a sequence length of at most 20"));
}

TEST_F(MaskedTexts, ExamplesKeepWhatIsAroundThem) {
  std::string lines;
  for (const int count : {1, 2, 30, 0}) {
    lines += nlohmann::json{{"text", words(count)}}.dump() + "\n";
  }
  DatasetOptions of = options("texts.jsonl", lines);
  of.shuffle = false;
  const TokenDataset data(of);
  EXPECT_EQ(data.samples_per_epoch(), 3);  // there is nothing to hide in the last
  const Sample one = sample_of(data, 0), cut = sample_of(data, 2);
  EXPECT_THAT(one.targets,
              ElementsAre(kIgnored, 6, kIgnored, kIgnored, kIgnored, kIgnored, kIgnored, kIgnored));
  EXPECT_THAT(one.starts, ElementsAre(0, 0, 0, 3, 3, 3, 3, 3));
  EXPECT_THAT(cut.whole(), ElementsAre(kClassify, 6, 8, 6, 8, 6, 8, kSeparator));
  EXPECT_EQ(data.example_counts()->targets, 1 + 2 + 6);
  of.packing = true;
  const Sample packed = sample_of(TokenDataset(of), 1);
  EXPECT_THAT(packed.whole(),
              ElementsAre(kClassify, 6, 8, kSeparator, kClassify, 6, kSeparator, kSeparator));
  EXPECT_THAT(packed.starts, ElementsAre(0, 0, 0, 0, 4, 4, 4, 7));
  of.held_bytes = 1;  // read as they are needed
  of.packing = false;
  EXPECT_EQ(sample_of(TokenDataset(of), 2), cut);
  of = options("prompts.jsonl", R"({"prompt": "film", "completion": "great"})");
  EXPECT_THAT(refusal([&] { TokenDataset{of}; }),
              HasSubstr("has prompts, and tokens are hidden in texts"));
  of = options("chats.jsonl", R"({"messages": [{"role": "user", "content": "film"}]})");
  EXPECT_THAT(refusal([&] { TokenDataset{of}; }), HasSubstr("has messages, and tokens are"));
}

/// Masks follow from seed and sample alone, so batches, strategies, ranks and an interruption
/// change nothing.
TEST_F(MaskedTexts, AreTrainedOnByEveryStrategyOnAnyRanks) {
  const DatasetOptions of = options("text.txt", words(96));
  const DataMixture data({{of, {}}});
  DatasetOptions other = of;
  other.masking->probability = 0.5;
  EXPECT_NE(TokenDataset(other).identity(), data.sources().front().identity());
  GptConfig config = gpt_preset("bert-tiny");
  config.vocab_size = 78;
  config.layers = 1;
  config.width = 16;
  config.heads = 2;
  const Model model = make_gpt(config);
  const auto train = [&](const std::string& strategy, int ranks, std::int64_t steps,
                         const std::string& resume) {
    TrainerOptions trainer;
    trainer.strategy = strategy;
    trainer.ranks = ranks;
    trainer.steps = 6;
    trainer.stop_after = steps;
    trainer.micro_batch = 2;
    trainer.accumulate = 4 / ranks;
    trainer.learning_rate.peak = 0.01;
    trainer.threads_per_rank = 1;
    trainer.evaluation_samples = 5;
    trainer.evaluate_every = 6;
    if (!resume.empty()) {
      trainer.checkpoints.folder = folder_.path("saves");
      trainer.checkpoints.every = 3;
      trainer.checkpoints.resume = resume;
    }
    const TokenDataset evaluated(of);
    return Trainer(model, data, trainer, &evaluated).train();
  };
  std::string expected;
  for (const auto& [strategy, ranks] : {std::pair{"no_shard", 1}, std::pair{"no_shard", 4},
                                        std::pair{"zero2", 2}, std::pair{"full_shard", 4}}) {
    SCOPED_TRACE(concat(strategy, " on ", ranks));
    const TrainingSummary summary = train(strategy, ranks, 0, "");
    if (expected.empty()) expected = summary.parameters_sha256;
    EXPECT_EQ(summary.parameters_sha256, expected);
    EXPECT_EQ(summary.measured_memory, summary.predicted_memory);
    EXPECT_LT(summary.last_loss, summary.first_loss);
    ASSERT_TRUE(summary.evaluation.has_value());
    EXPECT_TRUE(summary.evaluation->correct.has_value());
  }
  train("full_shard", 2, 3, "auto");
  EXPECT_EQ(train("zero2", 1, 0, "auto").parameters_sha256, expected);
}

}  // namespace
}  // namespace tessera::token_masking_test

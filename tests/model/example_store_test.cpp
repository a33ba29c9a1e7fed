#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/model/dataset.h"

// JSONL of prompts with completions, and of texts.
namespace tessera::example_store_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Examples : public ::testing::Test {
 protected:
  DatasetOptions options_of(const std::string& text, std::int64_t length = 6) {
    const std::string path = folder_.path("examples.jsonl");
    std::ofstream(path) << text;
    return {.path = path, .sequence_length = length, .shuffle = false};
  }

  struct Row {
    std::vector<std::int32_t> inputs, targets;
    std::int64_t counted = 0;
  };
  static Row row_of(const TokenDataset& dataset, std::int64_t sample) {
    const Shape shape = dataset.input_shape(1);
    Row row{std::vector<std::int32_t>(static_cast<std::size_t>(shape.numel())), {}};
    row.targets = row.inputs;
    row.counted = dataset.fill(sample, 1, {row.inputs.data(), DType::kInt32, shape},
                               {row.targets.data(), DType::kInt32, shape});
    return row;
  }

  std::string error_of(const std::string& text) {
    try {
      const TokenDataset dataset(options_of(text));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      return error.what();
    }
    return "";
  }

  test::TemporaryFolder folder_;
};

TEST_F(Examples, OfPromptsAndCompletionsCompletionsAreTargets) {
  const TokenDataset dataset(options_of(R"({"prompt": "ab", "completion": "cd"}

{"completion": "", "prompt": "abc"}
{"prompt": "a", "completion": "bcdefgh"}
{"prompt": "abcdefgh", "completion": "i"})"));
  EXPECT_EQ(dataset.kind(), DataKind::kExamples);
  ASSERT_EQ(dataset.samples_per_epoch(), 2);  // one has an empty completion, one does not fit
  const Row first = row_of(dataset, 0);
  EXPECT_THAT(first.inputs, ElementsAre('a', 'b', 'c', 'd', 'd', 'd'));
  EXPECT_THAT(first.targets, ElementsAre(-100, 'c', 'd', -100, -100, -100));
  EXPECT_EQ(first.counted, 2);
  const Row cut = row_of(dataset, 1);
  EXPECT_THAT(cut.inputs, ElementsAre('a', 'b', 'c', 'd', 'e', 'f'));
  EXPECT_THAT(cut.targets, ElementsAre('b', 'c', 'd', 'e', 'f', 'g'));
  EXPECT_EQ(cut.counted, 6);
  EXPECT_THAT(row_of(dataset, 2).inputs, first.inputs) << "the next epoch";
  EXPECT_THAT(dataset.notes(),
              ElementsAre(HasSubstr("2 examples of '"), HasSubstr("2 examples of '")));
  EXPECT_THAT(dataset.notes()[0], HasSubstr("cut off at the sequence length 6"));
  EXPECT_THAT(dataset.notes()[1], HasSubstr("left out: no target is within the sequence length 6"));
}

TEST_F(Examples, OfTextsAllButTheFirstTokenAreTargets) {
  const TokenDataset dataset(options_of("{\"text\": \"abc\"}\n{\"text\": \"x\"}\n"));
  ASSERT_EQ(dataset.samples_per_epoch(), 1);
  const Row row = row_of(dataset, 0);
  EXPECT_THAT(row.targets, ElementsAre('b', 'c', -100, -100, -100, -100));
  EXPECT_EQ(row.counted, 2);
}

// The tokenizer's tokens of prompt and completion together, and the end-of-text token behind them.
TEST_F(Examples, OfATokenizerEndWithItsEndOfText) {
  DatasetOptions options = options_of(R"({"prompt": "Hello", "completion": " world"})", 12);
  options.tokenizer.emplace(TESSERA_SOURCE_DIR "/tests/model/tokenizers/gpt2.json");
  const std::int32_t end = options.tokenizer->end_of_text().value();
  const auto prompt = options.tokenizer->encode("Hello");
  auto all = options.tokenizer->encode("Hello world");
  all.push_back(end);
  const TokenDataset dataset(options);
  const Row row = row_of(dataset, 0);
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(row.inputs[i], i + 1 < all.size() ? all[i] : end) << i;
    const bool counts = i + 1 >= prompt.size() && i + 1 < all.size();
    EXPECT_EQ(row.targets[i], counts ? all[i + 1] : -100) << i;
  }
  options.end_token = 7;
  const Row other = row_of(TokenDataset(options), 0);
  EXPECT_EQ(other.targets[all.size() - 2], 7);
}

TEST_F(Examples, AreHeldOutByTheirNumber) {
  DatasetOptions options = options_of(R"({"text": "abc"}
{"text": "bcd"}
{"text": "cde"}
{"text": "def"})");
  options.validation_fraction = 0.25;
  const TokenDataset training(options);
  const TokenDataset validation = training.validation();
  EXPECT_EQ(training.samples_per_epoch(), 3);
  EXPECT_EQ(validation.samples_per_epoch(), 1);
  EXPECT_EQ(row_of(validation, 0).inputs[0], 'd');
  EXPECT_NE(training.identity(), validation.identity());
}

TEST_F(Examples, ErrorsNameTheLine) {
  const std::string good = "{\"prompt\": \"a\", \"completion\": \"b\"}\n";
  EXPECT_THAT(error_of(good + "{\"prompt\": "),
              AllOf(HasSubstr("line 2 of '"), HasSubstr("is no JSON")));
  EXPECT_THAT(error_of("[1]"), HasSubstr("line 1 of '"));
  EXPECT_THAT(error_of(good + "{\"text\": \"a\"}"),
              HasSubstr("has no prompt, and those before it have one"));
  EXPECT_THAT(error_of("{\"prompt\": \"a\"}"),
              HasSubstr("has neither \"prompt\" and \"completion\" nor \"text\""));
  EXPECT_THAT(error_of("{\"messages\": []}"), HasSubstr("which need a chat template"));
  EXPECT_THAT(error_of("{\"text\": 3}"), HasSubstr("has a \"text\" that is no text"));
  EXPECT_THAT(error_of("\n \n"), HasSubstr("has no examples"));
  EXPECT_THAT(error_of("{\"text\": \"a\"}"), HasSubstr("no example with a target"));
  const TokenDataset dataset(options_of(good));
  EXPECT_NO_THROW(dataset.check_vocabulary(99));
  try {
    dataset.check_vocabulary(98);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("line 1 of '"));
    EXPECT_THAT(error.what(),
                HasSubstr("has the token 98, outside of the model's vocabulary of 98"));
  }
}

}  // namespace
}  // namespace tessera::example_store_test

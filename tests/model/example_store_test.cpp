#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

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

  static constexpr const char* kChatMl = TESSERA_SOURCE_DIR "/tests/model/chat/chatml.jinja";

  std::string error_of(const std::string& text, const char* chat_template = nullptr) {
    try {
      DatasetOptions options = options_of(text);
      if (chat_template != nullptr) options.chat_template = {.path = chat_template};
      const TokenDataset dataset(options);
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

// By {% generation %}: the tokens of transformers' assistant mask.
TEST_F(Examples, OfMessagesWhatAssistantsWriteIsTargets) {
  std::ifstream file(TESSERA_SOURCE_DIR "/tests/model/chat/golden.json");
  const auto golden = nlohmann::ordered_json::parse(file);
  for (const auto& mask : golden.at("masks")) {
    SCOPED_TRACE(mask.at("tokenizer").dump() + " " + mask.at("messages").dump());
    const auto tokens = mask.at("tokens").get<std::vector<std::int32_t>>();
    const auto assistant = mask.at("assistant").get<std::vector<int>>();
    DatasetOptions options =
        options_of(nlohmann::ordered_json{{"messages", mask.at("messages")}}.dump(), 200);
    options.tokenizer.emplace(TESSERA_SOURCE_DIR "/tests/model/tokenizers/" +
                              mask.at("tokenizer").get<std::string>());
    options.chat_template = {.path = TESSERA_SOURCE_DIR "/tests/model/chat/marked.jinja"};
    const Row row = row_of(TokenDataset(options), 0);
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      EXPECT_EQ(row.inputs[i], tokens[i]) << i;
      EXPECT_EQ(row.targets[i], assistant[i + 1] != 0 ? tokens[i + 1] : -100) << i;
    }
    EXPECT_EQ(row.counted, std::ranges::count(assistant, 1));
  }
}

TEST_F(Examples, OfMessagesWithoutGenerationBlocksAllTurnsOfAssistantsAreTargets) {
  const std::string chat =
      R"([{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}])";
  const auto targets_of = [&](const std::string& line) {
    DatasetOptions options = options_of(line, 100);
    options.chat_template = {.path = kChatMl};
    const TokenDataset dataset(options);
    std::string text;
    for (const std::int32_t token : row_of(dataset, 0).targets) {
      if (token >= 0) text += static_cast<char>(token);
    }
    const std::vector<NamedText> identity = dataset.identity();
    EXPECT_EQ(std::ranges::count(identity, "chat template", &NamedText::name), 1);
    return text;
  };
  EXPECT_EQ(targets_of("{\"messages\": " + chat + "}"), "cd<|im_end|>\n");
  EXPECT_EQ(targets_of(R"({"prompt": [{"role": "user", "content": "ab"}], )"
                       R"("completion": [{"role": "assistant", "content": "x"}]})"),
            "x<|im_end|>\n");
}

// Parts of a text, token by token.
TEST_F(Examples, TokensSayWhereTheyEnd) {
  for (const char* const name : {"gpt2", "llama3", "qwen", "llama2", "phi3", "metaspace_first"}) {
    const Tokenizer tokenizer(concat(TESSERA_SOURCE_DIR "/tests/model/tokenizers/", name, ".json"));
    const std::string text = "  Hello  world, ünd <|endoftext|> <s> 青い\n\nx";
    const Tokenizer::Placed placed = tokenizer.encode_with_ends(text);
    EXPECT_EQ(placed.tokens, tokenizer.encode(text)) << name;
    ASSERT_EQ(placed.ends.size(), placed.tokens.size()) << name;
    EXPECT_TRUE(std::ranges::is_sorted(placed.ends)) << name;
    EXPECT_EQ(placed.ends.back(), text.size()) << name;
    for (std::size_t i = 0; i < placed.tokens.size(); ++i) {
      const std::size_t begin = i == 0 ? 0 : placed.ends[i - 1];
      const std::string part = text.substr(begin, placed.ends[i] - begin);
      const std::string decoded = tokenizer.decode(std::span(&placed.tokens[i], 1));
      if (decoded.find("\xef\xbf\xbd") != std::string::npos) continue;  // part of a character
      EXPECT_THAT(" " + part, testing::EndsWith(decoded)) << name << " token " << i;
    }
  }
}

TEST_F(Examples, ArePackedByBestFit) {
  DatasetOptions options = options_of(
      "{\"text\": \"abc\"}\n{\"text\": \"defgh\"}\n{\"text\": \"ijkl\"}\n"
      "{\"text\": \"mn\"}\n");
  options.packing = true;
  const TokenDataset dataset(options);
  ASSERT_EQ(dataset.samples_per_epoch(), 2);  // 4 + 2 places, 3 + 1 places
  const Shape shape = dataset.input_shape(2);
  ASSERT_EQ(shape, (Shape{2, 2, 6}));
  std::vector<std::int32_t> inputs(24), targets(12);
  EXPECT_EQ(dataset.fill(0, 2, {inputs.data(), DType::kInt32, shape},
                         {targets.data(), DType::kInt32, Shape{2, 6}}),
            10);
  EXPECT_THAT(inputs, ElementsAre('d', 'e', 'f', 'g', 'a', 'b',  //
                                  'i', 'j', 'k', 'm', 'n', 'n',  //
                                  0, 0, 0, 0, 4, 4,              //
                                  0, 0, 0, 3, 4, 4));
  EXPECT_THAT(targets, ElementsAre('e', 'f', 'g', 'h', 'b', 'c',  //
                                   'j', 'k', 'l', 'n', -100, -100));
  options.path = TESSERA_SOURCE_DIR "/tests/text/alice.txt";
  EXPECT_THROW(TokenDataset{options}, Error);
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
              HasSubstr("has texts, and those before it have prompts"));
  EXPECT_THAT(error_of("{\"prompt\": \"a\"}"),
              HasSubstr("has neither \"prompt\" and \"completion\" nor \"text\" nor"));
  EXPECT_THAT(error_of("{\"messages\": []}"), HasSubstr("which need a chat template"));
  EXPECT_THAT(error_of("{\"messages\": [3]}", kChatMl), HasSubstr("that are no messages"));
  EXPECT_THAT(error_of(R"({"messages": [{"role": "assistant", "content": "x"}]})",
                       TESSERA_SOURCE_DIR "/tests/model/chat/llama2.jinja"),
              AllOf(HasSubstr("line 1 of '"), HasSubstr("cannot be rendered: line 1 of '")));
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

#include <gmock/gmock.h>

#include <filesystem>

#include "cli/program.h"

// A folder's own tokenizer is taken where none is named, and bytes are tokens only where that is
// said or no other tokens are known.
namespace tessera::own_tokenizer_test {
namespace {

using nlohmann::json;
using test::ProgramResult;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Words = std::vector<std::string>;

const std::string kLlama3 = TESSERA_SOURCE_DIR "/tests/model/tokenizers/llama3.json";
const std::string kAlice = TESSERA_SOURCE_DIR "/tests/text/alice.txt";

class OwnTokenizer : public test::ProgramTest {
 protected:
  ProgramResult good(Words words) const {
    words.insert(words.begin() + 1, "--no-default-config");
    const ProgramResult result = run(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }
  std::string refused(Words words) const {
    words.insert(words.begin() + 1, "--no-default-config");
    const ProgramResult result = run(words);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  }
  /// A model of 576 tokens, more than its tokenizer's 525; without a tokenizer.
  std::string bare_folder() const {
    const std::string folder = path("model");
    good({"train", "--model", "llama-tiny", "--layers", "1", "--vocab-size", "576", "--data",
          kAlice, "--sequence-length", "16", "--steps", "1", "--sample-tokens", "0", "--export",
          folder});
    return folder;
  }
  std::string folder() const {
    const std::string made = bare_folder();
    std::filesystem::copy_file(kLlama3, made + "/tokenizer.json");
    return made;
  }
  std::string examples() const {
    std::string lines;
    for (const char* const word : {"red", "green", "blue"}) {
      lines += json{{"prompt", "Colour:"}, {"completion", std::string(" ") + word}}.dump() + "\n";
    }
    return write("examples.jsonl", lines);
  }
};

TEST_F(OwnTokenizer, IsTakenByDefault) {
  const std::string init = folder(), data = examples();
  const Words training{"train", "--init",  init, "--sequence-length",
                       "16",    "--steps", "1",  "--sample-tokens",
                       "0",     "--data"};
  const auto with = [](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const ProgramResult trained = good(with(training, {data}));
  EXPECT_THAT(trained.out, AllOf(HasSubstr("one in each line: 3, tokenised at the start"),
                                 HasSubstr("model/tokenizer.json")));
  const Words given = with(training, {data, "--tokenizer"});
  EXPECT_EQ(good(with(given, {init})).out.substr(0, 200), trained.out.substr(0, 200));
  EXPECT_THAT(good(with(given, {"bytes"})).out, HasSubstr("3, a token per byte"));

  const Words evaluation{"evaluate", "--init",      init,  "--sequence-length",
                         "16",       "--eval-data", kAlice};
  const std::string loss = good(evaluation).out;
  EXPECT_THAT(loss, HasSubstr("tokenised at the start: 64722 tokens"));
  EXPECT_EQ(good(with(evaluation, {"--tokenizer", kLlama3})).out.substr(0, 100),
            loss.substr(0, 100));
  EXPECT_THAT(good(with(evaluation, {"--tokenizer", "bytes"})).out, HasSubstr("a token per byte"));

  const Words prompt{"generate", "--init", init, "--tokens", "3", "--prompt", "Alice"};
  EXPECT_EQ(good(prompt).out, good(with(prompt, {"--tokenizer", kLlama3})).out);

  EXPECT_EQ(run({"tokenize", "--init", init, "--output", path("a.bin"), kAlice}).exit_code, 0);
  EXPECT_EQ(std::filesystem::file_size(path("a.bin")), 1024U + 2 * 64722);
}

TEST_F(OwnTokenizer, OfAFolderWithoutItTextIsRefused) {
  const std::string init = bare_folder(), data = examples();
  for (const Words& words : {Words{"train", "--init", init, "--steps", "1", "--data", data},
                             Words{"train", "--init", init, "--steps", "1", "--data", kAlice},
                             Words{"train", "--model", init, "--steps", "1", "--data", kAlice},
                             Words{"evaluate", "--init", init, "--eval-data", kAlice},
                             Words{"generate", "--init", init, "--tokens", "1"}}) {
    EXPECT_THAT(refused(words), AllOf(HasSubstr("has no tokenizer.json"), HasSubstr("576 tokens"),
                                      HasSubstr("--tokenizer bytes")))
        << words[0];
  }
  // One that cannot be read keeps no file of tokens from being read.
  write("model/tokenizer.json", "{}");
  EXPECT_THAT(refused({"train", "--init", init, "--steps", "1", "--data", kAlice}),
              HasSubstr("tokenizer.json"));
  const std::string tokens = write("t.bin", std::string(400, '\0'));
  good({"train", "--init", init, "--sequence-length", "16", "--steps", "1", "--data", tokens});
}

TEST_F(OwnTokenizer, APresetSaysThatBytesAreTokens) {
  const Words training{
      "train", "--sequence-length", "16", "--steps", "1", "--sample-tokens", "0",   "--width",
      "16",    "--layers",          "1",  "--heads", "1", "--data",          kAlice};
  EXPECT_THAT(good(training).out, Not(HasSubstr("byte by byte")));
  Words large = training;
  large.insert(large.end(), {"--vocab-size", "50257"});
  EXPECT_THAT(good(large).out, HasSubstr("text is read byte by byte"));
}

TEST_F(OwnTokenizer, GoesWithAnExportedModel) {
  const std::string init = folder();
  write("model/special_tokens_map.json", R"({"eos_token": "<|eot|>"})");
  good({"train", "--init", init, "--sequence-length", "16", "--steps", "1", "--sample-tokens", "0",
        "--data", examples(), "--export", path("tuned")});
  EXPECT_EQ(test::read_file(path("tuned/tokenizer.json")), test::read_file(kLlama3));
  EXPECT_TRUE(std::filesystem::exists(path("tuned/special_tokens_map.json")));
  good({"generate", "--init", path("tuned"), "--tokens", "1"});
}

// The end token is the tokenizer's, not the first of a list, as in TRL.
TEST_F(OwnTokenizer, ExamplesEndWithItsEndToken) {
  const std::string init = folder(), data = examples();
  write("model/generation_config.json", R"({"eos_token_id": [0, 522, 523]})");
  const Words training{"train", "--init",  init, "--sequence-length",
                       "16",    "--steps", "1",  "--sample-tokens",
                       "0",     "--data",  data};
  EXPECT_THAT(good(training).out,
              HasSubstr("each example ends with the token 522, '<|end_of_text|>', the model's"));
  write("model/special_tokens_map.json", R"({"eos_token": {"content": "<|eot|>"}})");
  EXPECT_THAT(good(training).out, HasSubstr("ends with the token 524, '<|eot|>', the tokenizer's"));
  write("model/tokenizer_config.json", R"({"eos_token": "<|eot_id|>"})");
  EXPECT_THAT(good(training).out,
              HasSubstr("ends with the token 523, '<|eot_id|>', the tokenizer's eos_token"));
  Words of_bytes = training;
  of_bytes.insert(of_bytes.end(), {"--tokenizer", "bytes"});
  EXPECT_THAT(good(of_bytes).out,
              HasSubstr("each example ends with the token 0, the model's eos_token_id"));
}

/// With --resize-vocabulary a model has the tokens of a tokenizer that is larger, on any ranks and
/// in what is exported.
TEST_F(OwnTokenizer, MayBringTokensThatTheModelLacks) {
  const std::string init = TESSERA_SOURCE_DIR "/tests/model/golden/families/llama";
  const Words training{"train",
                       "--init",
                       init,
                       "--tokenizer",
                       kLlama3,
                       "--data",
                       kAlice,
                       "--steps",
                       "2",
                       "--sample-tokens",
                       "0",
                       "--quiet",
                       "--sequence-length",
                       "16",
                       "--micro-batch",
                       "1"};
  const auto with = [&](const Words& more) {
    Words words = training;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  EXPECT_THAT(refused(training),
              AllOf(HasSubstr("has 525 tokens, and the model's vocabulary is 37"),
                    HasSubstr("--resize-vocabulary")));
  EXPECT_THAT(refused(with({"--resize-vocabulary", "--lora", "r=2,targets=q_proj"})),
              HasSubstr("resize and export the base first"));
  good(with({"--resize-vocabulary", "--log", path("one"), "--accumulate", "2", "--export",
             path("resized")}));
  good(with({"--resize-vocabulary", "--log", path("two"), "--ranks", "2"}));
  EXPECT_EQ(read_log("one").back()["parameters_sha256"],
            read_log("two").back()["parameters_sha256"]);
  EXPECT_EQ(read_log("one").at(0)["vocab_size"], 525);
  const json config = json::parse(test::read_file(path("resized/config.json")));
  EXPECT_EQ(config["vocab_size"], 525);
  good({"evaluate", "--init", path("resized"), "--eval-data", kAlice, "--sequence-length", "16",
        "--eval-tokens", "32"});
  EXPECT_THAT(refused({"plan", "--init", init, "--resize-vocabulary"}),
              HasSubstr("adds the tokens of a tokenizer, and there is none"));
  EXPECT_THAT(refused({"train", "--model", "gpt2-tiny", "--data", kAlice, "--steps", "1",
                       "--resize-vocabulary"}),
              HasSubstr("adds rows to the model of --init, which is not given"));
}

TEST_F(OwnTokenizer, SaysHowMuchIsPadding) {
  const std::string init = folder(), data = examples();
  const Words training{"train", "--init",          init, "--sequence-length", "32",    "--steps",
                       "1",     "--sample-tokens", "0",  "--tokenizer",       "bytes", "--data",
                       data};
  // "Colour: red" and others: 11, 13 and 12 bytes, of which 4, 6 and 5 are targets.
  EXPECT_THAT(good(training).out,
              HasSubstr("36 tokens, 15 of them targets, in 3 samples of 32: 66 % padding; "
                        "--packing true makes 2 samples"));
  Words logged = training;
  logged.insert(logged.end(), {"--log", path("log.jsonl"), "--micro-batch", "3"});
  const ProgramResult result = good(logged);
  EXPECT_THAT(result.out, AllOf(HasSubstr(" positions/s, "), HasSubstr(" targets/s")));
  EXPECT_THAT(result.err, AllOf(HasSubstr(" positions/s, "), HasSubstr(" targets/s")));
  for (const json& line : read_log("log.jsonl")) {
    if (line["kind"] != "step" && line["kind"] != "summary") continue;
    const double ratio =
        line["positions_per_second"].get<double>() / line["tokens_per_second"].get<double>();
    EXPECT_NEAR(ratio, 3.0 * 32 / 15, 1e-9) << line["kind"];
  }
}

}  // namespace
}  // namespace tessera::own_tokenizer_test

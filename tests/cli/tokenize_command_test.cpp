#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

#include "cli/program.h"

// tessera tokenize, and training with a tokenizer.
namespace tessera {
namespace {

using test::ProgramResult;
using test::read_file;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kTokenizer = TESSERA_SOURCE_DIR "/tests/model/tokenizers/llama3.json";
const std::string kAlice = TESSERA_SOURCE_DIR "/tests/text/alice.txt";

class TokenizeCommand : public test::ProgramTest {
 protected:
  ProgramResult tokenize(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"tokenize", "--tokenizer", kTokenizer});
    return run(std::move(arguments));
  }
  /// A very small training on `data`.
  ProgramResult train_on(const std::string& data, std::vector<std::string> more) const {
    if (std::ranges::find(more, "--tokenizer") == more.end()) {
      more.insert(more.end(), {"--tokenizer", kTokenizer});
    }
    more.insert(more.begin(),
                {"train", "--no-default-config", "--data", data, "--layers", "1", "--heads", "1",
                 "--width", "16", "--context-length", "16", "--steps", "2"});
    return run(std::move(more));
  }
  static std::string hash_in(const std::string& output) {
    const std::size_t at = output.find("sha256");
    EXPECT_NE(at, std::string::npos) << output;
    return output.substr(at, 80);
  }
};

TEST_F(TokenizeCommand, TrainsOnTextAsOnItsTokens) {
  const ProgramResult made = tokenize({"--output", path("alice.bin"), kAlice});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out,
              HasSubstr("alice.bin: 64,722 tokens, uint16, of 143,111 bytes in 1 file\n"));
  EXPECT_EQ(made.err, "");
  const std::vector<std::string> sample{"--sample-tokens", "3", "--prompt", "Alice \u00e9"};
  const ProgramResult text = train_on(kAlice, sample);
  const ProgramResult tokens = train_on(path("alice.bin"), sample);
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(tokens.exit_code, 0) << tokens.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("vocabulary 525"), HasSubstr("64,722 tokens from 1 file"),
                              HasSubstr("\nsample\nAlice \u00e9")));
  EXPECT_THAT(tokens.out, HasSubstr("\nsample\nAlice \u00e9"));
  EXPECT_EQ(hash_in(text.out), hash_in(tokens.out));
}

TEST_F(TokenizeCommand, TheVocabularyMayBeLargerThanTheTokenizers) {
  const ProgramResult larger = train_on(kAlice, {"--vocab-size", "576", "--sample-tokens", "0"});
  EXPECT_EQ(larger.exit_code, 0) << larger.err;
  EXPECT_THAT(larger.out, HasSubstr("vocabulary 576"));
  const ProgramResult smaller = train_on(kAlice, {"--vocab-size", "524"});
  EXPECT_EQ(smaller.exit_code, 2);
  EXPECT_THAT(smaller.err, AllOf(HasSubstr("--vocab-size is 524"), HasSubstr("has 525 tokens")));
  const ProgramResult planned =
      run({"plan", "--no-default-config", "--layers", "1", "--tokenizer", kTokenizer});
  EXPECT_THAT(planned.out, HasSubstr("vocabulary 525")) << planned.err;
}

TEST_F(TokenizeCommand, TrainingWritesOverNoTokenizer) {
  const std::string copy = write("tokenizer.json", read_file(kTokenizer));
  const ProgramResult result =
      train_on(kAlice, {"--tokenizer", copy, "--log", copy, "--overwrite"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--log would write over"));
  EXPECT_EQ(read_file(copy), read_file(kTokenizer));
}

TEST_F(TokenizeCommand, ReplacesOnlyIfAsked) {
  const std::string output = write("out.bin", "precious");
  const ProgramResult refused = tokenize({kAlice, "--output", output});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--overwrite"));
  EXPECT_EQ(read_file(output), "precious");
  EXPECT_EQ(tokenize({kAlice, "--output", output, "--overwrite", "--quiet"}).exit_code, 0);
  EXPECT_EQ(std::filesystem::file_size(output), 1024U + 2 * 64722);
}

TEST_F(TokenizeCommand, RefusesByName) {
  const auto says = [&](const std::vector<std::string>& arguments) {
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  const std::string text = write("bad.txt", "caf\xe9");
  EXPECT_THAT(says({"tokenize", "--tokenizer", kTokenizer, "--output", path("o"), text}),
              HasSubstr("bad.txt': byte 3 is not UTF-8"));
  EXPECT_THAT(says({"tokenize", "--tokenizer", kAlice, "--output", path("o"), kAlice}),
              HasSubstr("name a tokenizer.json"));
  EXPECT_THAT(says({"tokenize", "--tokenizer", kTokenizer, "--output", path("o")}),
              HasSubstr("TEXT is required"));
  EXPECT_THAT(
      says({"tokenize", "--tokenizer", kTokenizer, "--output", path("o"), kAlice, "--overrite"}),
      HasSubstr("--overwrite"));
}

}  // namespace
}  // namespace tessera

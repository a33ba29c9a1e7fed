#include <gmock/gmock.h>

#include <cmath>
#include <string>
#include <vector>

#include "cli/program.h"

// Several --data, mixed by weights.
namespace tessera::mixture_test {
namespace {

using nlohmann::json;
using test::ProgramResult;
using ::testing::AllOf;
using ::testing::HasSubstr;

class MixedData : public test::ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    std::string lines;
    for (int i = 0; i < 30; ++i) {
      lines +=
          json{{"text", "example " + std::string(static_cast<std::size_t>(i % 5), 'x')}}.dump();
      lines += "\n";
    }
    write("examples.jsonl", lines);
    write_text();
  }
  /// Steps of eight samples, whatever the ranks.
  ProgramResult train_on(const std::vector<std::string>& data, int ranks,
                         const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words{"--steps",
                                   "9",
                                   "--log",
                                   path("log"),
                                   "--overwrite",
                                   "--sample-tokens",
                                   "0",
                                   "--ranks",
                                   std::to_string(ranks),
                                   "--accumulate",
                                   std::to_string(4 / ranks)};
    for (const std::string& one : data) words.insert(words.end(), {"--data", one});
    words.insert(words.end(), more.begin(), more.end());
    return train(words);
  }
  std::string error_of(const std::vector<std::string>& data,
                       const std::vector<std::string>& more = {}) const {
    const ProgramResult result = train_on(data, 1, more);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  }
};

TEST_F(MixedData, AreReadInProportionAndResumedOnOtherRanks) {
  const std::vector<std::string> data{"examples.jsonl=0.75", "data.txt=0.25"};
  const ProgramResult whole = train_on(data, 1);
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_THAT(whole.out, AllOf(HasSubstr("from 2 files"),
                               HasSubstr("75.0 % of 'examples.jsonl' (30 samples), 25.0 % of 'dat"),
                               HasSubstr("each of the data has been read at least once")));
  const auto log = read_log("log");
  EXPECT_EQ(log.front().at("data"), "examples.jsonl=0.75,data.txt=0.25");
  int steps = 0;
  for (const json& line : log) {
    if (line.at("kind") != "step") continue;
    const int samples = 8 * ++steps;
    const auto counts = line.at("samples_by_source").get<std::vector<int>>();
    ASSERT_EQ(counts.size(), 2U);
    EXPECT_EQ(counts[0] + counts[1], samples);
    EXPECT_LE(std::abs(counts[0] - 0.75 * samples), 1.0);
  }
  EXPECT_EQ(steps, 9);
  const std::string hash = log.back().at("parameters_sha256");

  ASSERT_EQ(train_on(data, 4, {"--save", path("run"), "--stop-after", "4"}).exit_code, 0);
  const ProgramResult rest =
      train_on({"examples.jsonl=3,data.txt=1"}, 2, {"--save", path("run"), "--resume", "latest"});
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_EQ(read_log("log").back().at("parameters_sha256"), hash);
  EXPECT_THAT(error_of({"examples.jsonl", "data.txt"}, {"--resume", path("run/step_4")}),
              HasSubstr("weights of data was 3 : 1 and is "));
}

TEST_F(MixedData, OfOneLeaveTheLogAsItIs) {
  ASSERT_EQ(train_on({"examples.jsonl"}, 1).exit_code, 0);
  for (const json& line : read_log("log")) EXPECT_FALSE(line.contains("samples_by_source"));
}

TEST_F(MixedData, EpochsReadEachOnce) {
  const ProgramResult result = train_on({"examples.jsonl=1,data.txt=1"}, 1);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const ProgramResult epoch =
      train({"--data", "examples.jsonl", "--data", "data.txt", "--epochs", "1", "--accumulate", "2",
             "--sample-tokens", "0", "--log", path("epoch"), "--quiet"});
  ASSERT_EQ(epoch.exit_code, 0) << epoch.err;
  // 30 examples, and 376 samples of 16 of the text's 6,030 bytes.
  EXPECT_EQ(read_log("epoch").front().at("steps"), (30 + 376 + 3) / 4);
}

TEST_F(MixedData, ErrorsNameTheRemedy) {
  EXPECT_THAT(error_of({"examples.jsonl=0.5", "data.txt"}),
              AllOf(HasSubstr("'data.txt' has no weight"), HasSubstr("give all of them one")));
  EXPECT_THAT(error_of({"examples.jsonl=half"}),
              AllOf(HasSubstr("'half' behind 'examples.jsonl'"), HasSubstr("'a.jsonl=0.7'")));
  EXPECT_THAT(error_of({"examples.jsonl=-1"}), HasSubstr("a number above 0"));
  EXPECT_THAT(error_of({"examples.jsonl,"}), HasSubstr("comma with no data"));
  EXPECT_THAT(error_of({"examples.jsonl", "none.jsonl"}), HasSubstr("none.jsonl"));
  EXPECT_THAT(error_of({"examples.jsonl"}, {"--eval-data", "examples.jsonl,data.txt"}),
              HasSubstr("give --eval-data one of them"));
}

// A name with a comma or a sign in it is one path.
TEST_F(MixedData, PathsAreTakenAsTheyAre) {
  write("a,b=0.5", "some text that is long enough for a sample of sixteen tokens, and more");
  const ProgramResult result = train_on({"a,b=0.5"}, 1);
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

}  // namespace
}  // namespace tessera::mixture_test

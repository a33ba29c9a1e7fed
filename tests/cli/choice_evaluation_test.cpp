#include <gmock/gmock.h>

#include <fstream>

#include "cli/launched_program.h"

// `tessera evaluate --task multiple-choice`.
namespace tessera::choice_evaluation_test {
namespace {

using nlohmann::json;
using test::ProgramResult;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

const std::string kModel = TESSERA_SOURCE_DIR "/tests/model/golden/choices/llama";
const std::string kTokenizer = TESSERA_SOURCE_DIR "/tests/model/tokenizers/llama3.json";

class ChoiceEvaluation : public test::LaunchTest {
 protected:
  json golden() const {
    return json::parse(
        std::ifstream(TESSERA_SOURCE_DIR "/tests/model/golden/choices/choices.json"));
  }
  std::string write_questions(const std::string& file) const {
    return write(file + ".jsonl", golden().at("files").at(file));
  }
  static Words command(const std::string& questions, const Words& more) {
    Words all{"evaluate",      "--no-default-config",
              "--init",        kModel,
              "--task",        "multiple-choice",
              "--tokenizer",   kTokenizer,
              "--eval-data",   questions,
              "--micro-batch", "4"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

TEST_F(ChoiceEvaluation, HasTheFiguresOfTheHarness) {
  for (const std::string file : {"hellaswag", "plain"}) {
    const ProgramResult result =
        run(command(write_questions(file), {"--format", "json", "--log", path(file + ".log")}));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const json record = json::parse(result.out);
    const json expected = golden().at("models").at("llama").at(file);
    EXPECT_EQ(record.at("kind"), "multiple_choice");
    EXPECT_EQ(record.at("questions"), 40);
    EXPECT_EQ(record.at("choices"), file == "plain" ? 119 : 160);
    for (const char* const figure : {"acc", "acc_norm", "acc_stderr", "acc_norm_stderr"}) {
      EXPECT_NEAR(record.at(figure).get<double>(), expected.at(figure).get<double>(), 1e-12)
          << figure;
    }
    EXPECT_EQ(read_log(file + ".log").at(0)["task"], "multiple-choice");
    EXPECT_EQ(read_log(file + ".log").at(1), record);
    EXPECT_THAT(result.err, HasSubstr("scored 40 of 40 questions\n"));
  }
}

TEST_F(ChoiceEvaluation, TellsOfBothAccuracies) {
  const std::string questions = write_questions("hellaswag");
  EXPECT_THAT(run(command(questions, {})).out,
              AllOf(HasSubstr("parameters of " + kModel + "\n"),
                    HasSubstr("\naccuracy 35.00 % ± 7.64 %, normalised by length 32.50 % ± 7.50 %, "
                              "of 40 questions\n")));
  EXPECT_THAT(run(command(questions, {"--questions", "1"})).out,
              ContainsRegex("\naccuracy [0-9.]+ %, normalised by length [0-9.]+ %, of 1 "
                            "question\n$"));
}

TEST_F(ChoiceEvaluation, IsTheSameOnAnyNumberOfRanks) {
  const std::string questions = write_questions("plain");
  const Words wanted{"--format", "json", "--questions", "9"};
  const auto with = [&](const Words& more) {
    Words all = command(questions, wanted);
    all.insert(all.end(), more.begin(), more.end());
    const ProgramResult result = run(all);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string one = with({});
  EXPECT_EQ(with({"--ranks", "3"}), one);
  EXPECT_EQ(with({"--ranks", "2", "--strategy", "zero1"}), one);
  EXPECT_EQ(with({"--ranks", "2", "--pipeline", "2"}), one);
  Words launched{"launch", "--processes", "3", "--"};
  const Words inner = command(questions, wanted);
  launched.insert(launched.end(), inner.begin(), inner.end());
  const ProgramResult several = run(launched);
  ASSERT_EQ(several.exit_code, 0) << several.err;
  std::string out = several.out;
  for (auto at = out.find("[rank 0] "); at != out.npos; at = out.find("[rank 0] ")) {
    out.erase(at, 9);
  }
  EXPECT_EQ(out, one);
}

TEST_F(ChoiceEvaluation, ErrorsSayWhatToDo) {
  const std::string questions = write_questions("plain");
  const std::string bad = write("bad.jsonl", "\n{\"question\": \"Q\"}\n");
  EXPECT_THAT(error_of(run(command(bad, {}))),
              AllOf(HasSubstr("--eval-data: line 2 of '" + bad + "' has neither"),
                    HasSubstr("write {\"question\"")));
  const std::string longer = write(
      "long.jsonl",
      json{{"question", "Q"}, {"choices", {std::string(400, 'x'), "b"}}, {"answer", 0}}.dump());
  EXPECT_THAT(error_of(run(command(longer, {}))),
              AllOf(HasSubstr(longer + "': choice 0 of the question in line 1 has "),
                    HasSubstr("and the model's context 64; shorten it")));
  EXPECT_THAT(error_of(run(command(path("none.jsonl"), {}))), HasSubstr("none.jsonl"));
  EXPECT_THAT(error_of(run(command(questions, {"--eval-tokens", "8"}))),
              HasSubstr("--questions N takes the first N questions"));
  EXPECT_THAT(error_of(run({"evaluate", "--no-default-config", "--init", kModel, "--task",
                            "multiple-choice"})),
              HasSubstr("no questions to score: give --eval-data a .jsonl file"));
  EXPECT_THAT(error_of(run({"evaluate", "--no-default-config", "--init", kModel, "--eval-data",
                            questions, "--questions", "3"})),
              HasSubstr("--questions counts those of --task multiple-choice"));
}

}  // namespace
}  // namespace tessera::choice_evaluation_test

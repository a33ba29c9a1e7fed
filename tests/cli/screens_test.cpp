#include <gmock/gmock.h>

#include <cstdlib>
#include <sstream>

#include "cli/program.h"
#include "cli/pseudo_terminal.h"

// What the program shows fits into a terminal of 80 columns.
namespace tessera {
namespace {

using test::ProgramResult;
using test::PseudoTerminal;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// What is left on the screen of escapes for colours and for lines that are drawn anew.
std::string without_escapes(std::string shown) {
  for (std::size_t at = 0; (at = shown.find("\033[", at)) != std::string::npos;) {
    const std::size_t end = shown.find_first_of("AGJKm", at);
    const bool anew = shown[end] == 'G' || shown[end] == 'A';
    shown.replace(at, end - at + 1, anew ? "\n" : "");
  }
  return shown;
}

/// The lines that are too long, but for those that one word makes so.
/// `path` is one of the test's, which may be long: a line with it does not count.
std::string too_long(const std::string& output, const std::string& path = "\n") {
  std::string found;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(path) != std::string::npos) continue;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    std::size_t columns = 0;
    for (const char c : line) columns += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
    if (columns > 80 && line.find_last_of(' ') > 2) found += line + "\n";
  }
  return found;
}

class Screens : public test::ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    setenv("HF_HOME", path("home").c_str(), 1);
  }
};

TEST_F(Screens, HelpOfEveryCommand) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--help"},
                                                    {"train", "--help"},
                                                    {"plan", "--help"},
                                                    {"explain", "--help"},
                                                    {"estimate-memory", "--help"},
                                                    {"env", "--help"},
                                                    {"gpu-info", "--help"},
                                                    {"config", "--help"},
                                                    {"config", "default", "--help"},
                                                    {"config", "update", "--help"},
                                                    {"test", "--help"},
                                                    {"generate", "--help"},
                                                    {"evaluate", "--help"},
                                                    {"tokenize", "--help"},
                                                    {"checkpoint", "--help"},
                                                    {"checkpoint", "convert", "--help"},
                                                    {"checkpoint", "inspect", "--help"},
                                                    {"launch", "--help"},
                                                    {"launch", "--", "train", "--help"}}) {
    const ProgramResult help = run(arguments);
    EXPECT_EQ(help.exit_code, 0) << help.err;
    EXPECT_GT(help.out.size(), 100U) << arguments.front();
    EXPECT_EQ(too_long(help.out), "") << arguments.front();
  }
}

TEST_F(Screens, HelpOfTestHasWhatItTakes) {
  const std::string help = run({"test", "--help"}).out;
  EXPECT_THAT(help, AllOf(HasSubstr("--ranks N=4"), HasSubstr("ranks to test"),
                          HasSubstr("--precision"), HasSubstr("--timeout")));
  for (const char* flag : {"--learning-rate", "--steps", "--accumulate", "--strategy", "--beta1"}) {
    EXPECT_THAT(help, Not(HasSubstr(flag)));
  }
  EXPECT_EQ(run({"test", "--ranks", "1", "--learning-rate", "1", "--device", "cpu"}).exit_code, 0);
}

TEST_F(Screens, ResultsOfATest) {
  const ProgramResult result = run({"test", "--ranks", "2", "--device", "cpu"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(too_long(result.out), "");
}

TEST_F(Screens, PlansAndEstimates) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"plan", "--model", "gpt2-xl", "--layers", "12", "--ranks", "64",
                                 "--strategy", "hybrid_full_optimizer", "--replicas", "8",
                                 "--accumulate", "4", "--precision", "bf16", "--format", "summary"},
        {"estimate-memory", "gpt2", "--layers", "3", "--ranks", "4,128", "--precision",
         "fp32,bf16"}}) {
    const ProgramResult result = run(arguments);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(too_long(result.out), "");
  }
}

TEST_F(Screens, ReportsOfARun) {
  const ProgramResult result =
      train({"--data", write_text(), "--ranks", "4", "--strategy", "hybrid_full_optimizer",
             "--accumulate", "2", "--steps", "3", "--device", "cpu"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(too_long(result.out.substr(0, result.out.find("\nsample")), path("")), "");
}

TEST_F(Screens, ErrorsAreBrokenBetweenWordsForAReader) {
  PseudoTerminal terminal({TESSERA_PROGRAM, "train", "--model", "meta-llama/Llama-2-7b-hf"});
  EXPECT_EQ(terminal.exit_code(), 2);
  EXPECT_EQ(too_long(without_escapes(terminal.shown())), "");
  EXPECT_THAT(terminal.shown(), HasSubstr("\r\n"));
}

// Every question that one path asks; the others are made of the same.
TEST_F(Screens, Questions) {
  PseudoTerminal terminal({TESSERA_PROGRAM, "config", "--config-file", path("a.yaml")});
  ASSERT_TRUE(terminal.shows("2. multi-GPU"));
  terminal.type("2\r");
  for (const char* question : {"How many different", "Should distributed", "use DeepSpeed?"}) {
    ASSERT_TRUE(terminal.shows(question)) << terminal.shown();
    terminal.type("\r");
  }
  ASSERT_TRUE(terminal.shows("FullyShardedDataParallel?"));
  terminal.type("yes\r");
  for (const char* menu : {"1. 2", "resharding after", "offload parameters", "2. NO_WRAP",
                           "_no_split_modules", "class", "1. FULL_STATE_DICT", "CPU RAM",
                           "checkpointing?", "config?", "GPU(s)", "2. bf16"}) {
    ASSERT_TRUE(terminal.shows(menu)) << terminal.shown();
    terminal.type("\r");
  }
  EXPECT_EQ(terminal.exit_code(), 0) << terminal.shown();
  EXPECT_EQ(too_long(without_escapes(terminal.shown()), path("")), "");
}

}  // namespace
}  // namespace tessera

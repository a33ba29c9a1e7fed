#include <gmock/gmock.h>

#include <algorithm>

#include "cli/launched_program.h"
#include "cli/pseudo_terminal.h"

// What a training shows while it runs: a bar in a terminal, lines in a file.
namespace tessera {
namespace {

using test::ProgramResult;
using test::PseudoTerminal;
using test::ScopedVariables;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ProgressOutput : public test::LaunchTest {
 protected:
  /// A small training in a terminal, to its end; returns what was shown.
  std::string in_terminal(const std::vector<std::string>& more, unsigned short columns = 80) {
    std::vector<std::string> arguments{TESSERA_PROGRAM};
    for (const std::string& word : small_training()) arguments.push_back(word);
    for (const char* word : {"--steps", "20", "--data"}) arguments.emplace_back(word);
    arguments.push_back(write_text());
    arguments.insert(arguments.end(), more.begin(), more.end());
    PseudoTerminal terminal(arguments, columns);
    EXPECT_EQ(terminal.exit_code(), 0) << terminal.shown();
    return terminal.shown();
  }

  static std::ptrdiff_t lines_with_steps(const std::string& text) {
    std::ptrdiff_t count = 0;
    for (std::size_t at = text.find("\nstep "); at != std::string::npos;
         at = text.find("\nstep ", at + 1)) {
      ++count;
    }
    return count + (text.rfind("step ", 0) == 0 ? 1 : 0);
  }
};

TEST_F(ProgressOutput, IsABarInATerminal) {
  const std::string shown = in_terminal({});
  EXPECT_THAT(shown, AllOf(HasSubstr("\r\033[Kstep 20/20"), HasSubstr("━"), HasSubstr("ETA 0"),
                           HasSubstr("tokens/s"), HasSubstr("\033[32m")));
  EXPECT_THAT(shown, Not(HasSubstr("gradient norm")));
}

TEST_F(ProgressOutput, FitsANarrowTerminal) {
  const ScopedVariables variables{{"NO_COLOR", "1"}};
  constexpr const char* kRedraw = "\r\033[K";
  for (const std::uint8_t columns : {std::uint8_t{50}, std::uint8_t{38}, std::uint8_t{12}}) {
    const std::string shown = in_terminal({}, columns);
    int drawn = 0;
    for (std::size_t at = shown.find(kRedraw); at != std::string::npos; ++drawn) {
      at += std::string(kRedraw).size();
      const std::string line = shown.substr(at, shown.find_first_of("\r\n", at) - at);
      EXPECT_LE(line.size(), columns) << line;
      EXPECT_THAT(line, ::testing::StartsWith("step "));
      if (columns >= 38) {
        EXPECT_THAT(line, AllOf(HasSubstr("loss "), HasSubstr("ETA ")));
      }
      at = shown.find(kRedraw, at);
    }
    EXPECT_GT(drawn, 0) << shown;
  }
}

TEST_F(ProgressOutput, HasNoColourIfNoneIsWanted) {
  const ScopedVariables variables{{"NO_COLOR", "1"}};
  EXPECT_THAT(in_terminal({}), AllOf(HasSubstr("step 20/20"), Not(HasSubstr("\033[32m"))));
}

TEST_F(ProgressOutput, IsALineForEachStepIfVerboseAndNothingIfQuiet) {
  const std::string verbose = in_terminal({"--verbose"});
  EXPECT_EQ(lines_with_steps(verbose), 20) << verbose;
  EXPECT_THAT(verbose, AllOf(HasSubstr("effective settings"), Not(HasSubstr("━"))));
  EXPECT_EQ(in_terminal({"--quiet"}), "");
}

TEST_F(ProgressOutput, IsAFewPlainLinesInAFile) {
  const ProgramResult result = train({"--steps", "20", "--data", write_text()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(lines_with_steps(result.err), 11) << result.err;  // the first, and each tenth part
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("step 1/20  loss "), HasSubstr("step 20/20"),
                    HasSubstr("gradient norm"), Not(HasSubstr("\033")), Not(HasSubstr("\r"))));
  const ProgramResult verbose = train({"--steps", "20", "--data", write_text(), "--verbose"});
  EXPECT_EQ(lines_with_steps(verbose.err), 20) << verbose.err;
  EXPECT_THAT(verbose.out, HasSubstr("effective settings"));
  const ProgramResult quiet = train({"--steps", "20", "--data", write_text(), "--quiet"});
  EXPECT_EQ(quiet.out + quiet.err, "");
}

}  // namespace
}  // namespace tessera

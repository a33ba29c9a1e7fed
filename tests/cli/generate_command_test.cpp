#include <gmock/gmock.h>

#include <csignal>

#include "cli/launched_program.h"

namespace tessera::generate_command_test {
namespace {

using test::ProgramResult;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Generate : public test::LaunchTest {
 protected:
  void SetUp() override {
    LaunchTest::SetUp();
    ASSERT_EQ(train({"--data", write_text(), "--steps", "3", "--ranks", "2", "--sample-tokens", "0",
                     "--save", path("run")})
                  .exit_code,
              0);
  }
  std::vector<std::string> words(const std::vector<std::string>& more, int tokens = 20) const {
    std::vector<std::string> all{"generate",
                                 "--no-default-config",
                                 "--init",
                                 path("run"),
                                 "--prompt",
                                 "the quick",
                                 "--tokens",
                                 std::to_string(tokens),
                                 "--seed",
                                 "4",
                                 "--threads-per-rank",
                                 "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  ProgramResult generate(const std::vector<std::string>& more) const { return run(words(more)); }
};

TEST_F(Generate, OneTextForEveryStrategy) {
  const ProgramResult alone = generate({});
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_EQ(alone.out.substr(0, 9), "the quick");
  for (const char* strategy : {"full_shard", "zero2", "hybrid_shard"}) {
    const ProgramResult sharded = generate({"--ranks", "4", "--strategy", strategy});
    EXPECT_EQ(sharded.exit_code, 0) << sharded.err;
    EXPECT_EQ(sharded.out, alone.out) << strategy;
  }
  for (const char* stages : {"2", "4"}) {
    for (const char* cache : {"true", "false"}) {
      const ProgramResult staged =
          generate({"--ranks", "4", "--pipeline", stages, "--use-cache", cache});
      EXPECT_EQ(staged.exit_code, 0) << staged.err;
      EXPECT_EQ(staged.out, alone.out) << stages << " stages";
    }
  }
  EXPECT_NE(generate({"--seed", "5"}).out, alone.out);
}

TEST_F(Generate, OneTextWithAndWithoutACache) {
  const std::string text = generate({}).out;
  EXPECT_EQ(generate({"--no-cache"}).out, text);
  EXPECT_EQ(generate({"--use-cache", "false"}).out, text);
  const ProgramResult longer = run(words({}, 30));
  EXPECT_EQ(longer.out, run(words({"--no-cache"}, 30)).out);
  EXPECT_THAT(longer.err,
              HasSubstr("prompt and text may be 38 tokens, and the model sees the last 16"));
}

TEST_F(Generate, RunsInSeveralProcesses) {
  std::vector<std::string> launched{"launch", "--processes", "2", "--ranks-per-process", "1", "--"};
  const std::vector<std::string> command = words({});
  launched.insert(launched.end(), command.begin(), command.end());
  const ProgramResult result = run(launched);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string text = generate({}).out;
  EXPECT_THAT(result.out, HasSubstr(text.substr(0, text.find('\n'))));
}

TEST_F(Generate, StagesInSeveralProcessesWriteOneText) {
  const std::string text = generate({}).out;
  for (const char* cache : {"true", "false"}) {
    std::vector<std::string> launched{"launch", "--processes", "2", "--ranks-per-process",
                                      "1",      "--"};
    const std::vector<std::string> command = words({"--pipeline", "2", "--use-cache", cache});
    launched.insert(launched.end(), command.begin(), command.end());
    const ProgramResult result = run(launched);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr(text.substr(0, text.find('\n'))));
  }
}

TEST_F(Generate, EndsWhenItIsInterrupted) {
  const ProgramResult result = run(words({"--ranks", "2"}, 1000000), [&](pid_t pid) {
    test::await([this] { return test::read_file(path("stdout")).size() >= 20; });
    kill(pid, SIGINT);
  });
  EXPECT_EQ(result.exit_code, 128 + SIGINT) << result.err;
}

TEST_F(Generate, TakesAFileOfTrainingAndRefusesItsFlags) {
  const std::string file = write("a.yaml", "save: " + path("other") +
                                               "\nsave_every: 1\nlayers: 2\nranks: 2\n"
                                               "micro_batch: 3\nstop_after: 1\n");
  const ProgramResult by_file = generate({"--config", file});
  EXPECT_EQ(by_file.exit_code, 0) << by_file.err;
  EXPECT_EQ(by_file.out, generate({}).out);
  EXPECT_FALSE(std::filesystem::exists(path("other")));
  const ProgramResult refused = generate({"--save", path("other")});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("'--save' is a flag of 'tessera train', and without effect"));
}

TEST_F(Generate, EvaluationRefusesFlagsOfCheckpointsByName) {
  const std::vector<std::string> evaluate{"evaluate",  "--no-default-config", "--init",
                                          path("run"), "--eval-data",         path("data.txt")};
  for (const char* flag : {"--save", "--save-every", "--resume", "--stop-after",
                           "--allow-other-data", "--state-dict-type", "--export"}) {
    std::vector<std::string> all = evaluate;
    all.insert(all.end(), {flag, "1"});
    const ProgramResult refused = run(all);
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.err, AllOf(HasSubstr(std::string("'") + flag + "'"),
                                   HasSubstr("without effect in 'tessera evaluate'")));
  }
  std::vector<std::string> all = evaluate;
  const std::string file =
      write("a.yaml", "save: " + path("run") + "\nstop_after: 1\nresume: latest\n");
  all.insert(all.end(), {"--config", file});
  const ProgramResult by_file = run(all);
  EXPECT_EQ(by_file.exit_code, 0) << by_file.err;
}

}  // namespace
}  // namespace tessera::generate_command_test

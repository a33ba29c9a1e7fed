#include <gmock/gmock.h>

#include <csignal>

#include "cli/program.h"

// Checkpoints of the program: --save, --resume, and the command that looks at them.
namespace tessera::checkpoint_command_test {
namespace {

using nlohmann::json;
using test::ProgramResult;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Checkpoints : public test::ProgramTest {
 protected:
  ProgramResult train_to(int stop_after, const std::vector<std::string>& more = {},
                         const std::function<void(pid_t)>& while_running = {}) const {
    std::vector<std::string> words{"--data",
                                   path("data.txt"),
                                   "--steps",
                                   std::to_string(steps),
                                   "--log",
                                   path("log"),
                                   "--overwrite",
                                   "--seed",
                                   "3",
                                   "--ranks",
                                   "2",
                                   "--dropout",
                                   "0.1",
                                   "--sample-tokens",
                                   "0"};
    if (stop_after > 0) {
      words.insert(words.end(), {"--stop-after", std::to_string(stop_after)});
    }
    words.insert(words.end(), more.begin(), more.end());
    return train(words, while_running);
  }
  /// Does something to the program when it is past its first step.
  std::function<void(pid_t)> when_it_trains(const std::function<void(pid_t)>& body) const {
    return [this, body](pid_t pid) {
      for (int i = 0; i < 12000; ++i) {
        if (test::read_file(path("stderr")).find("step 1/") != std::string::npos) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      body(pid);
    };
  }
  std::string sha256() const { return read_log("log").back().at("parameters_sha256"); }
  std::vector<json> lines_of(const char* kind) const {
    std::vector<json> lines;
    for (json& line : read_log("log")) {
      if (line.at("kind") == kind) lines.push_back(std::move(line));
    }
    return lines;
  }
};

TEST_F(Checkpoints, ARunThatIsResumedGivesTheBitsOfTheWholeRun) {
  write_text();
  ASSERT_EQ(train_to(0).exit_code, 0);
  const std::string whole = sha256();
  const ProgramResult first =
      train_to(5, {"--save", path("run"), "--save-every", "2", "--save-total-limit", "2"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("stopped after step 5 of 8"));
  EXPECT_THAT(first.err, HasSubstr("checkpoint " + path("run/step_5")));
  const std::vector<json> saves = lines_of("checkpoint");
  ASSERT_EQ(saves.size(), 3U);
  EXPECT_EQ(saves[1].at("step"), 4);
  EXPECT_EQ(saves[1].at("path"), path("run/step_4"));
  const ProgramResult rest = train_to(0, {"--save", path("run"), "--resume", "auto", "--strategy",
                                          "zero2", "--prefetch-forward", "2"});
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_THAT(rest.err, AllOf(HasSubstr("resumed from"), HasSubstr("at step 5, sample 20"),
                              HasSubstr("strategy was full_shard and is zero2")));
  EXPECT_EQ(sha256(), whole);
  EXPECT_EQ(lines_of("step").front().at("step"), 6);
}

TEST_F(Checkpoints, GoOnWithOtherProcesses) {
  write_text();
  const auto launched = [&](int processes, const std::string& folder,
                            const std::vector<std::string>& more) {
    const std::string count = std::to_string(processes);
    std::vector<std::string> words{"launch", "--processes", count, "--", "train"};
    for (const std::string& word : std::vector<std::string>{"--layers",
                                                            "2",
                                                            "--heads",
                                                            "2",
                                                            "--width",
                                                            "16",
                                                            "--context-length",
                                                            "16",
                                                            "--steps",
                                                            "8",
                                                            "--overwrite",
                                                            "--dropout",
                                                            "0.1",
                                                            "--sample-tokens",
                                                            "0",
                                                            "--micro-batch",
                                                            "1",
                                                            "--data",
                                                            path("data.txt"),
                                                            "--log",
                                                            path("log"),
                                                            "--save",
                                                            folder,
                                                            "--save-every",
                                                            "1",
                                                            "--resume",
                                                            "auto",
                                                            "--ranks",
                                                            count,
                                                            "--accumulate",
                                                            std::to_string(4 / processes)}) {
      words.push_back(word);
    }
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult result = run(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
  };
  launched(2, path("whole"), {});
  const std::string whole = sha256();
  launched(2, path("parts"), {"--stop-after", "3"});
  launched(4, path("parts"), {"--stop-after", "2", "--strategy", "zero2"});
  launched(1, path("parts"), {});
  EXPECT_EQ(sha256(), whole);
}

TEST_F(Checkpoints, SignalsOfSchedulersSaveAndEndWell) {
  write_text();
  for (const int signal : {SIGTERM, SIGUSR1}) {
    const std::string folder = path("run" + std::to_string(signal));
    const ProgramResult result = train_to(
        0, {"--save", folder}, when_it_trains([&](pid_t pid) { kill(pid, signal); }), 1000000);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("checkpoint " + folder));
    EXPECT_EQ(run({"checkpoint", "verify", folder}).exit_code, 0);
  }
}

TEST_F(Checkpoints, CanBeLookedAt) {
  write_text();
  ASSERT_EQ(train_to(2, {"--save", path("run"), "--save-every", "1"}).exit_code, 0);
  const ProgramResult inspected = run({"checkpoint", "inspect", path("run"), "--json"});
  ASSERT_EQ(inspected.exit_code, 0) << inspected.err;
  const json object = json::parse(inspected.out);
  EXPECT_EQ(object.at("step"), 2);
  EXPECT_EQ(object.at("model").at("layers"), "2");
  EXPECT_EQ(object.at("files").size(), 2U);
  EXPECT_THAT(run({"checkpoint", "inspect", path("run/step_1")}).out,
              AllOf(HasSubstr("step 1"), HasSubstr("first-moment")));
  EXPECT_THAT(run({"checkpoint", "list", path("run")}).out, HasSubstr("latest"));
  EXPECT_THAT(run({"checkpoint", "verify", path("run")}).out, HasSubstr("whole"));

  std::string bytes = test::read_file(path("run/step_2/rank_00001.safetensors"));
  bytes[bytes.size() / 2] ^= 1;
  write("run/step_2/rank_00001.safetensors", bytes);
  const ProgramResult damaged = run({"checkpoint", "verify", path("run")});
  EXPECT_EQ(damaged.exit_code, 2);
  EXPECT_THAT(damaged.err, AllOf(HasSubstr("rank_00001"), HasSubstr("damaged")));
  EXPECT_NE(train_to(0, {"--resume", path("run")}).exit_code, 0);
  const ProgramResult none = run({"checkpoint", "inspect", path("nothing")});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("there is no checkpoint"));
}

}  // namespace
}  // namespace tessera::checkpoint_command_test

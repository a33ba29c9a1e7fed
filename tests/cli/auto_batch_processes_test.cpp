#include <gmock/gmock.h>

#include <cstdlib>

#include "cli/launched_program.h"

// --auto-batch in several processes: all choose what the one with the least memory can.
namespace tessera {
namespace {

using test::ProgramResult;
using test::read_file;
using test::ScopedVariables;
using ::testing::HasSubstr;

class AutoBatchProcesses : public test::LaunchTest {
 protected:
  void SetUp() override {
    LaunchTest::SetUp();
    setenv("OMP_NUM_THREADS", "1", 1);  // as `tessera launch` would have it
  }
  void TearDown() override {
    unsetenv("OMP_NUM_THREADS");
    LaunchTest::TearDown();
  }

  std::vector<std::string> arguments(const std::string& limit, const std::string& log) const {
    std::vector<std::string> all = small_training();
    all.insert(all.end(), {"--data", path("data.txt"), "--steps", "1", "--accumulate", "4",
                           "--auto-batch", "--memory-limit", limit, "--log", path(log)});
    return all;
  }
  std::int64_t micro_batch(const std::string& log) const {
    return read_log(log).at(0)["micro_batch"].get<std::int64_t>();
  }
};

TEST_F(AutoBatchProcesses, ChooseTheSameFromTheLeastMemory) {
  write_text();
  // What a micro-batch of 4 needs, and a little more, is too little for 8.
  std::vector<std::string> four = small_training();
  four.back() = "4";
  four.insert(four.end(), {"--data", path("data.txt"), "--steps", "1", "--ranks", "2", "--quiet",
                           "--log", path("four.jsonl")});
  ASSERT_EQ(run(four).exit_code, 0);
  const auto bytes =
      read_log("four.jsonl").back()["peak_bytes"]["predicted"]["total"].get<std::int64_t>();
  const std::string tight = std::to_string(bytes + bytes / 18);
  const std::string ample = std::to_string(bytes * 10);

  ScopedVariables torchrun{{"RANK", "0"},
                           {"WORLD_SIZE", "2"},
                           {"MASTER_ADDR", "127.0.0.1"},
                           {"MASTER_PORT", port_of_test()}};
  const auto run_with = [&](const std::string& first_limit, const std::string& second_limit,
                            const std::string& log) {
    torchrun.set("RANK", "0");
    int second = -1;
    const ProgramResult first = run(arguments(first_limit, log), [&](pid_t) {
      torchrun.set("RANK", "1");
      second = std::system(
          (in_shell(arguments(second_limit, "unused")) + " >" + path("second") + " 2>&1").c_str());
    });
    EXPECT_EQ(second, 0) << read_file(path("second"));
    EXPECT_EQ(first.exit_code, 0) << first.err;
    EXPECT_THAT(first.err, HasSubstr("auto-batch: micro-batch"));
    EXPECT_EQ(read_file(path("second")), "");
  };
  run_with(ample, tight, "second_is_tight.jsonl");
  EXPECT_EQ(micro_batch("second_is_tight.jsonl"), 4);
  run_with(tight, ample, "first_is_tight.jsonl");
  EXPECT_EQ(micro_batch("first_is_tight.jsonl"), 4);
  run_with(ample, ample, "none_is_tight.jsonl");
  EXPECT_EQ(micro_batch("none_is_tight.jsonl"), 8);
  EXPECT_EQ(read_log("none_is_tight.jsonl").at(0)["accumulate"], 1);
  EXPECT_EQ(numbers("first_is_tight.jsonl"), numbers("second_is_tight.jsonl"));
}

TEST_F(AutoBatchProcesses, WorkUnderLaunch) {
  write_text();
  const ProgramResult result =
      launch({"--processes", "2"}, {"--data", path("data.txt"), "--steps", "1", "--auto-batch"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("[rank 0] auto-batch: micro-batch 2"));
}

}  // namespace
}  // namespace tessera

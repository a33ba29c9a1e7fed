#include <gmock/gmock.h>

#include <filesystem>

#include "cli/program.h"

// --state-dict-type full: one Hugging Face folder beside the checkpoints, at the end of a run.
namespace tessera::full_state_test {
namespace {

namespace fs = std::filesystem;
using test::ProgramResult;
using test::read_file;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class FullState : public test::ProgramTest {
 protected:
  ProgramResult train_to(int stop_after, const std::vector<std::string>& more) const {
    std::vector<std::string> words{"--data", path("data.txt"),  "--steps", "4",      "--ranks",
                                   "2",      "--sample-tokens", "0",       "--save", path("run")};
    if (stop_after > 0) {
      words.insert(words.end(), {"--stop-after", std::to_string(stop_after)});
    }
    words.insert(words.end(), more.begin(), more.end());
    return train(words);
  }
  /// What is exported of the newest checkpoint.
  std::string weights_of_checkpoint(const std::string& name) const {
    EXPECT_EQ(run({"checkpoint", "export", path("run"), path(name)}).exit_code, 0);
    return read_file(path(name + "/model.safetensors"));
  }
};

TEST_F(FullState, IsWrittenWhereARunEnds) {
  write_text();
  const ProgramResult first = train_to(2, {"--state-dict-type", "full"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const std::string folder = path("run/step_2_hugging_face");
  EXPECT_THAT(first.out, HasSubstr("exported  " + folder + ", a Hugging Face folder"));
  EXPECT_EQ(read_file(folder + "/model.safetensors"), weights_of_checkpoint("out2"));
  EXPECT_FALSE(fs::exists(folder + ".tmp"));
  const ProgramResult listed = run({"checkpoint", "list", path("run")});
  EXPECT_THAT(listed.out, AllOf(HasSubstr("step_2"), Not(HasSubstr("hugging_face"))));
  // A run that goes on and ends elsewhere writes another; pruning leaves both.
  ASSERT_EQ(train_to(0, {"--fsdp_state_dict_type", "FULL_STATE_DICT", "--resume", "auto",
                         "--save-total-limit", "1", "--export", path("exported")})
                .exit_code,
            0);
  EXPECT_TRUE(fs::exists(folder));
  EXPECT_FALSE(fs::exists(path("run/step_2")));
  const std::string last = read_file(path("run/step_4_hugging_face/model.safetensors"));
  EXPECT_EQ(last, weights_of_checkpoint("out4"));
  EXPECT_EQ(last, read_file(path("exported/model.safetensors")));
}

TEST_F(FullState, ReplacesTheFolderOfTheSameStep) {
  write_text();
  ASSERT_EQ(train_to(1, {}).exit_code, 0);
  EXPECT_FALSE(fs::exists(path("run/step_1_hugging_face")));
  fs::create_directories(path("run/step_4_hugging_face"));
  write("run/step_4_hugging_face/model.safetensors", "of a run before");
  const ProgramResult rest =
      train_to(0, {"--state-dict-type", "full", "--resume", "auto", "--strategy", "zero2"});
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_EQ(read_file(path("run/step_4_hugging_face/model.safetensors")),
            weights_of_checkpoint("out"));
}

TEST_F(FullState, NeedsAFolderOfCheckpoints) {
  const ProgramResult refused =
      train({"--data", write_text(), "--steps", "1", "--state-dict-type", "full"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("beside the checkpoints of --save, which is not given"));
  // A file may say so for runs that save.
  const std::string file = write("a.yaml",
                                 "distributed_type: FSDP\nnum_processes: 2\nuse_cpu: true\n"
                                 "fsdp_config:\n  fsdp_state_dict_type: FULL_STATE_DICT\n");
  EXPECT_EQ(train({"--data", path("data.txt"), "--steps", "1", "--config", file}).exit_code, 0);
  const ProgramResult saved =
      train({"--data", path("data.txt"), "--steps", "1", "--config", file, "--save", path("run")});
  EXPECT_THAT(saved.out, HasSubstr("run/step_1_hugging_face"));
  const ProgramResult explained = run({"explain", file, "--all"});
  EXPECT_THAT(explained.out, AllOf(HasSubstr("state_dict_type"), HasSubstr("Hugging Face folder")));
}

}  // namespace
}  // namespace tessera::full_state_test

#include <gmock/gmock.h>

#include <filesystem>

#include "cli/program.h"

// tessera checkpoint convert: between checkpoints, Hugging Face folders and llm.c's files.
namespace tessera::convert_command_test {
namespace {

namespace fs = std::filesystem;
using test::ProgramResult;
using test::read_file;
using ::testing::AllOf;
using ::testing::HasSubstr;

const fs::path kGolden = TESSERA_SOURCE_DIR "/tests/model/golden";
const std::string kFolder = kGolden / "hugging_face/v5";
const std::string kLlmC = kGolden / "llm_c_fp32.bin";

class Convert : public test::ProgramTest {
 protected:
  ProgramResult convert(const std::vector<std::string>& words) const {
    std::vector<std::string> all{"checkpoint", "convert"};
    all.insert(all.end(), words.begin(), words.end());
    return run(all);
  }
  /// Of the golden models' vocabulary.
  std::string write_tokens() const {
    std::string bytes;
    for (int i = 0; i < 2000; ++i) {
      bytes += static_cast<char>((i * i + i / 7) % 65);
      bytes += '\0';
    }
    return write("tokens.bin", bytes);
  }
  ProgramResult train_from(const std::vector<std::string>& more, const std::string& log) const {
    std::vector<std::string> words{"train",
                                   "--no-default-config",
                                   "--data",
                                   path("tokens.bin"),
                                   "--sequence-length",
                                   "12",
                                   "--micro-batch",
                                   "1",
                                   "--ranks",
                                   "2",
                                   "--steps",
                                   "3",
                                   "--sample-tokens",
                                   "0",
                                   "--log",
                                   path(log)};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  std::string sha256(const std::string& log) const {
    return read_log(log).back().at("parameters_sha256");
  }
};

TEST_F(Convert, ThereAndBackGivesTheSameBytes) {
  const ProgramResult made = convert({kFolder, path("run")});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, AllOf(HasSubstr(path("run/step_0") + ": "), HasSubstr("parameters of")));
  EXPECT_EQ(run({"checkpoint", "verify", path("run")}).exit_code, 0);
  EXPECT_THAT(run({"checkpoint", "inspect", path("run")}).out,
              AllOf(HasSubstr("step 0"), HasSubstr("parameter")));
  ASSERT_EQ(convert({path("run"), path("hf")}).exit_code, 0);
  EXPECT_EQ(read_file(path("hf/model.safetensors")), read_file(kFolder + "/model.safetensors"));
  ASSERT_EQ(convert({kLlmC, path("run2")}).exit_code, 0);
  ASSERT_EQ(convert({path("run2"), path("m.bin"), "--to", "llmc"}).exit_code, 0);
  EXPECT_EQ(read_file(path("m.bin")), read_file(kLlmC));
  ASSERT_EQ(convert({kLlmC, path("hf2"), "--to", "hf"}).exit_code, 0);
  EXPECT_EQ(read_file(path("hf2/model.safetensors")), read_file(kFolder + "/model.safetensors"));
}

TEST_F(Convert, ACheckpointOfOtherWeightsCanBeTrainedOn) {
  write_tokens();
  ASSERT_EQ(convert({kFolder, path("from"), "--to", "tessera"}).exit_code, 0);
  ASSERT_EQ(train_from({"--init", kFolder}, "a").exit_code, 0);
  const ProgramResult started = train_from({"--init", path("from")}, "b");
  ASSERT_EQ(started.exit_code, 0) << started.err;
  const std::vector<std::string> sizes{"--layers",         "2",        "--heads",      "3",
                                       "--width",          "12",       "--vocab-size", "65",
                                       "--context-length", "24",       "--resume",     path("from"),
                                       "--save",           path("run")};
  const ProgramResult resumed = train_from(sizes, "c");
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("first-moment (not there: from zero)"));
  EXPECT_EQ(sha256("a"), sha256("b"));
  EXPECT_EQ(sha256("a"), sha256("c"));
  const ProgramResult other = train_from({"--resume", path("from")}, "d");
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("of a run with another model"));
}

TEST_F(Convert, RefusesWhatIsThereAndWhatIsNot) {
  fs::create_directory(path("there"));
  EXPECT_THAT(convert({kFolder, path("there")}).err, HasSubstr("exists already"));
  EXPECT_THAT(convert({kFolder, path("out"), "--dtype", "bf16"}).err,
              HasSubstr("--export-dtype bf16: a checkpoint has fp32 weights"));
  EXPECT_THAT(convert({path("none"), path("out")}).err, HasSubstr("does not exist"));
  EXPECT_FALSE(fs::exists(path("out")));
  EXPECT_THAT(convert({kFolder, path("out"), "--to", "onnx"}).err, HasSubstr("--to"));
  const ProgramResult theirs = run({"merge-weights", "a", "b"});
  EXPECT_EQ(theirs.exit_code, 2);
  EXPECT_THAT(theirs.err, HasSubstr("tessera checkpoint convert CHECKPOINT FOLDER"));
}

}  // namespace
}  // namespace tessera::convert_command_test

#include <gmock/gmock.h>

#include <filesystem>

#include "cli/launched_program.h"

// LoRA from the command line: trained beside a frozen model, written, read, merged.
namespace tessera::adapters_test {
namespace {

using nlohmann::json;
using test::ProgramResult;
using ::testing::HasSubstr;

class AdaptersOnTheCommandLine : public test::LaunchTest {
 protected:
  ProgramResult train(std::vector<std::string> more) {
    std::vector<std::string> words{"train",
                                   "--no-default-config",
                                   "--data",
                                   TESSERA_SOURCE_DIR "/tests/text/alice.txt",
                                   "--ranks",
                                   "2",
                                   "--steps",
                                   "3",
                                   "--sequence-length",
                                   "32",
                                   "--sample-tokens",
                                   "0"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  std::string loss_of(std::vector<std::string> model) {
    model.insert(model.begin(), {"evaluate", "--no-default-config", "--eval-data",
                                 TESSERA_SOURCE_DIR "/tests/text/alice.txt", "--eval-tokens", "128",
                                 "--sequence-length", "32", "--format", "json"});
    const ProgramResult result = run(model);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.exit_code == 0 ? json::parse(result.out)["loss"].dump() : "";
  }
};

TEST_F(AdaptersOnTheCommandLine, AreTrainedWrittenReadAndMerged) {
  const std::string base = path("base"), adapter = path("adapter"), saved = path("saved");
  ASSERT_EQ(train({"--model", "llama-tiny", "--layers", "2", "--export", base}).exit_code, 0);
  const ProgramResult tuned =
      train({"--init", base, "--lora", "r=4,alpha=64,targets=q_proj,v_proj,down_proj",
             "--learning-rate", "0.01", "--export", adapter, "--save", saved});
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  EXPECT_THAT(tuned.out, HasSubstr("trained, zero1)"));
  EXPECT_THAT(tuned.out, HasSubstr("exported  " + adapter + ", adapters as PEFT reads them"));

  const std::string expected = loss_of({"--init", base, "--adapter", adapter});
  EXPECT_NE(expected, loss_of({"--init", base}));
  EXPECT_EQ(loss_of({"--init", saved}), expected);
  EXPECT_EQ(
      loss_of({"--init", base, "--adapter", adapter, "--ranks", "3", "--strategy", "full_shard"}),
      expected);
  ASSERT_EQ(run({"checkpoint", "merge-adapter", base, adapter, path("merged")}).exit_code, 0);
  EXPECT_NEAR(std::stod(loss_of({"--init", path("merged")})), std::stod(expected), 1e-5);

  const ProgramResult generated = run({"generate", "--no-default-config", "--init", base,
                                       "--adapter", adapter, "--prompt", "ab", "--tokens", "4"});
  EXPECT_EQ(generated.exit_code, 0) << generated.err;
  const ProgramResult further = train({"--init", base, "--adapter", adapter});
  EXPECT_EQ(further.exit_code, 0) << further.err;
}

TEST_F(AdaptersOnTheCommandLine, SayWhatIsMissing) {
  const auto refused = [&](std::vector<std::string> words) {
    const ProgramResult result = train(std::move(words));
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(refused({"--adapter", "nowhere"}), HasSubstr("give --init a Hugging Face folder"));
  EXPECT_THAT(refused({"--lora", "rank=4"}), HasSubstr("'rank' is no setting of LoRA"));
  EXPECT_THAT(refused({"--model", "llama-tiny", "--lora", "targets=c_attn"}),
              HasSubstr("no linear module of this llama is a target; its modules are q_proj"));
  EXPECT_THAT(refused({"--model", "phi3-tiny", "--lora", "r=4"}),
              HasSubstr("name them: targets=qkv_proj"));
  EXPECT_THAT(refused({"--model", "llama-tiny", "--lora", "targets=q_proj,lm_head"}),
              HasSubstr("target lm_head is an embedding or the head"));
}

}  // namespace
}  // namespace tessera::adapters_test

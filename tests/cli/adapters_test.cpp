#include <gmock/gmock.h>

#include <filesystem>

#include "cli/launched_program.h"

// LoRA and IA3 from the command line: trained beside a frozen model, written, read, merged.
namespace tessera::adapters_test {
namespace {

using nlohmann::json;
using test::ProgramResult;
using ::testing::HasSubstr;

class AdaptersOnTheCommandLine : public test::LaunchTest {
 protected:
  ProgramResult train(std::vector<std::string> more, const char* steps = "3") {
    std::vector<std::string> words{"train",
                                   "--no-default-config",
                                   "--data",
                                   TESSERA_SOURCE_DIR "/tests/text/alice.txt",
                                   "--ranks",
                                   "2",
                                   "--steps",
                                   steps,
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

TEST_F(AdaptersOnTheCommandLine, AreTrainedBesideAQuantisedBase) {
  const std::string base = path("base"), adapter = path("adapter"), saved = path("saved");
  ASSERT_EQ(train({"--model", "llama-tiny", "--layers", "2", "--export", base}).exit_code, 0);
  const std::vector<std::string> model{"--init",        base, "--lora", "r=4,targets=all-linear",
                                       "--base-format", "nf4"};
  std::vector<std::string> words = model;
  words.insert(words.end(), {"--strategy", "full_shard", "--export", adapter, "--save", saved});
  const ProgramResult tuned = train(words);
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;

  const std::string quantised =
      loss_of({"--init", base, "--adapter", adapter, "--base-format", "nf4"});
  EXPECT_NE(quantised, loss_of({"--init", base, "--adapter", adapter}));
  EXPECT_EQ(loss_of({"--init", saved, "--base-format", "nf4"}), quantised);
  EXPECT_EQ(loss_of({"--init", base, "--adapter", adapter, "--base-format", "nf4", "--ranks", "3",
                     "--strategy", "full_shard"}),
            quantised);
  words = model;
  words.insert(words.end(), {"--resume", saved});
  const ProgramResult resumed = train(words, "5");
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  const ProgramResult refused = train({"--init", base, "--base-format", "nf4"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--base-format nf4 is for matrices that are not trained"));
}

// New adapters take the same from the base's weights in every rank, and in whoever goes on.
TEST_F(AdaptersOnTheCommandLine, BeginWithWhatTheyTakeFromTheBase) {
  const std::string base = path("base");
  ASSERT_EQ(train({"--model", "llama-tiny", "--layers", "2", "--export", base}).exit_code, 0);
  const double before = std::stod(loss_of({"--init", base}));
  for (const std::string lora :
       {"r=4,targets=all-linear,dora=true", "r=4,targets=q_proj,init=pissa",
        "r=3,targets=k_proj,up_proj,dora=true,init=pissa"}) {
    SCOPED_TRACE(lora);
    const std::string folder = path(lora);
    const std::string begun = loss_of({"--init", base, "--lora", lora});
    EXPECT_NEAR(std::stod(begun), before, 1e-5 * before);
    EXPECT_EQ(loss_of({"--init", base, "--lora", lora, "--ranks", "3", "--strategy", "full_shard"}),
              begun);
    const ProgramResult tuned =
        train({"--init", base, "--lora", lora, "--strategy", "full_shard", "--learning-rate",
               "1e-2", "--export", folder, "--save", folder + "_saved", "--log", folder + ".log"});
    ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
    const json summary = read_log(lora + ".log").back();
    EXPECT_EQ(summary["peak_bytes"]["predicted"], summary["peak_bytes"]["measured"]);
    EXPECT_EQ(summary["sent_bytes"]["predicted"], summary["sent_bytes"]["counted"]);
    const std::string trained = loss_of({"--init", base, "--adapter", folder});
    EXPECT_LT(std::stod(trained), before);
    EXPECT_EQ(loss_of({"--init", folder + "_saved"}), trained);
    const ProgramResult merged =
        run({"checkpoint", "merge-adapter", base, folder, folder + "_merged"});
    ASSERT_EQ(merged.exit_code, 0) << merged.err;
    EXPECT_NEAR(std::stod(loss_of({"--init", folder + "_merged"})), std::stod(trained), 1e-5);
    const ProgramResult resumed = train(
        {"--init", base, "--lora", lora, "--strategy", "zero1", "--resume", folder + "_saved"},
        "5");
    EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  }
  const ProgramResult refused = train({"--model", "llama-tiny", "--lora", "dora=true"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("DoRA and PiSSA begin with what they take from a model's "
                                     "weights; give --init the model"));
}

// A folder is written once in the format, and then says itself what it is.
TEST_F(AdaptersOnTheCommandLine, KeepTheFormatOfAQuantisedFolder) {
  const std::string base = path("base"), folder = path("folder"), adapter = path("adapter");
  ASSERT_EQ(train({"--model", "llama-tiny", "--layers", "2", "--export", base}).exit_code, 0);
  const ProgramResult made = run({"checkpoint", "convert", base, folder, "--to", "hugging-face",
                                  "--base-format", "nf4-double"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("quantised to nf4-double"));
  const ProgramResult tuned = train({"--init", folder, "--lora", "r=4,targets=all-linear",
                                     "--strategy", "full_shard", "--export", adapter});
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  EXPECT_THAT(tuned.out, HasSubstr("quantised to nf4-double"));
  const std::string loss = loss_of({"--init", folder, "--adapter", adapter});
  EXPECT_EQ(loss_of({"--init", base, "--adapter", adapter, "--base-format", "nf4-double"}), loss);
  EXPECT_EQ(loss_of({"--init", folder, "--adapter", adapter, "--base-format", "none"}), loss);

  const auto refused = [&](const std::vector<std::string>& words) {
    const ProgramResult result = run(words);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  };
  EXPECT_THAT(refused({"generate", "--no-default-config", "--init", folder, "--adapter", adapter,
                       "--base-format", "fp4"}),
              HasSubstr("is stored in nf4-double, which would be quantised a second time"));
  EXPECT_THAT(
      refused({"checkpoint", "convert", folder, path("x"), "--to", "hf", "--base-format", "int8"}),
      HasSubstr("would be quantised a second time"));
  const auto text = [&](const std::vector<std::string>& model) {
    std::vector<std::string> words{"generate", "--no-default-config", "--prompt", "ab", "--tokens",
                                   "8",        "--temperature",       "0"};
    words.insert(words.end(), model.begin(), model.end());
    const ProgramResult result = run(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out + "|" + result.err;
  };
  const std::string written = text({"--init", folder, "--adapter", adapter});
  EXPECT_EQ(
      text({"--init", base, "--adapter", adapter, "--base-format", "nf4-double", "--ranks", "2"}),
      written);
  EXPECT_THAT(text({"--init", folder}),
              HasSubstr("its nf4-double weights are dequantised to fp32: only a base beside"));
}

// Query, key and value have 12 x 20 elements each, gate and up 27 x 20.
TEST_F(AdaptersOnTheCommandLine, OfMatricesThatEndWithinABlockAreReadAsTheyAreWritten) {
  ASSERT_EQ(train({"--model", "llama-tiny", "--layers", "2", "--width", "20", "--heads", "2",
                   "--export", path("made")},
                  "1")
                .exit_code,
            0);
  json config = json::parse(test::read_file(path("made/config.json")));
  config["intermediate_size"] = 27;
  config["head_dim"] = 6;
  std::filesystem::create_directory(path("sizes"));
  write("sizes/config.json", config.dump());
  const std::string base = path("base");
  ASSERT_EQ(train({"--model", path("sizes"), "--export", base}).exit_code, 0);
  for (const std::string format : {"nf4", "fp4-double"}) {
    const std::string folder = path("folder" + format), adapter = path("adapter" + format);
    ASSERT_EQ(run({"checkpoint", "convert", base, folder, "--to", "hf", "--base-format", format})
                  .exit_code,
              0);
    const ProgramResult tuned = train({"--init", folder, "--lora", "r=4,targets=all-linear",
                                       "--strategy", "full_shard", "--export", adapter});
    ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
    EXPECT_THAT(tuned.out, HasSubstr("quantised to " + format));
    const std::string loss = loss_of({"--init", folder, "--adapter", adapter});
    EXPECT_EQ(loss_of({"--init", base, "--adapter", adapter, "--base-format", format}), loss);
    EXPECT_EQ(loss_of({"--init", folder, "--adapter", adapter, "--base-format", "none"}), loss);
    EXPECT_NE(loss_of({"--init", base, "--adapter", adapter}), loss);
  }
}

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

// Plans and estimates know them; a checkpoint goes on, and becomes a folder as PEFT has it.
TEST_F(AdaptersOnTheCommandLine, OfIa3AreTrainedWrittenReadAndMerged) {
  const std::string base = path("base"), adapter = path("adapter"), saved = path("saved");
  const std::vector<std::string> sizes{"--model", "gpt2-tiny", "--layers", "2"};
  std::vector<std::string> words = sizes;
  words.insert(words.end(), {"--export", base});
  ASSERT_EQ(train(words).exit_code, 0);
  const auto with_ia3 = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--init", base, "--ia3", "save=ln_f", "--learning-rate", "0.01"});
    return more;
  };
  const ProgramResult tuned = train(with_ia3({"--export", adapter, "--save", saved}));
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  const std::string expected = loss_of({"--init", base, "--adapter", adapter});
  EXPECT_NE(expected, loss_of({"--init", base}));
  EXPECT_EQ(loss_of({"--init", saved, "--ranks", "2", "--strategy", "full_shard"}), expected);
  ASSERT_EQ(run({"checkpoint", "merge-adapter", base, adapter, path("merged")}).exit_code, 0);
  EXPECT_NEAR(std::stod(loss_of({"--init", path("merged")})), std::stod(expected), 1e-5);
  ASSERT_EQ(run({"checkpoint", "convert", saved, path("converted")}).exit_code, 0);
  EXPECT_EQ(loss_of({"--init", base, "--adapter", path("converted")}), expected);
  const ProgramResult resumed = train(with_ia3({"--resume", saved}), "5");
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  const ProgramResult generated = run({"generate", "--no-default-config", "--init", base,
                                       "--adapter", adapter, "--prompt", "ab", "--tokens", "4"});
  EXPECT_EQ(generated.exit_code, 0) << generated.err;

  const ProgramResult planned = run({"plan", "--no-default-config", "--model", "llama2-7b", "--ia3",
                                     "", "--ranks", "8", "--strategy", "full_shard"});
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("trained, zero1"));
}

struct EncodedPrompt {
  const char* name;
  const char* model;
  const char* flag;
  const char* settings;
  bool encoded;  ///< the folder has what an encoder makes, and not the encoder
};

class PromptsOnTheCommandLine : public AdaptersOnTheCommandLine,
                                public testing::WithParamInterface<EncodedPrompt> {};

// A checkpoint has all that is trained.
TEST_P(PromptsOnTheCommandLine, AreTrainedWrittenAndRead) {
  const auto& [name, model, flag, settings, encoded] = GetParam();
  const std::string base = path("base"), adapter = path("adapter"), saved = path("saved");
  ASSERT_EQ(train({"--model", model, "--layers", "2", "--export", base}).exit_code, 0);
  const auto with_prompt = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--init", base, GetParam().flag, GetParam().settings,
                               "--learning-rate", "0.01", "--strategy", "full_shard"});
    return more;
  };
  const ProgramResult tuned =
      train(with_prompt({"--export", adapter, "--save", saved, "--log", path("log")}));
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  const json summary = read_log("log").back();
  EXPECT_EQ(summary["peak_bytes"]["predicted"], summary["peak_bytes"]["measured"]);
  EXPECT_EQ(summary["sent_bytes"]["predicted"], summary["sent_bytes"]["counted"]);
  const std::string expected = loss_of({"--init", saved});
  EXPECT_NE(expected, loss_of({"--init", base}));
  const std::vector<std::string> read{"--init", base, "--adapter", adapter};
  EXPECT_NEAR(std::stod(loss_of(read)), std::stod(expected), 1e-6 * std::stod(expected));
  ASSERT_EQ(run({"checkpoint", "convert", saved, path("converted")}).exit_code, 0);
  EXPECT_EQ(loss_of({"--init", base, "--adapter", path("converted")}), loss_of(read));
  const ProgramResult resumed = train(with_prompt({"--resume", saved}), "5");
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  const auto text = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"generate", "--no-default-config", "--prompt", "ab", "--tokens",
                                 "8", "--temperature", "0"});
    const ProgramResult result = run(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  EXPECT_EQ(text({"--init", saved, "--ranks", "2"}), text(read));
  const ProgramResult further = train(read);
  EXPECT_EQ(further.exit_code, encoded ? 2 : 0) << further.err;
  EXPECT_EQ(further.err.find("has what the encoder of ") != std::string::npos, encoded);
}

INSTANTIATE_TEST_SUITE_P(All, PromptsOnTheCommandLine,
                         testing::Values(EncodedPrompt{"encoder", "llama-tiny", "--p-tuning",
                                                       "tokens=5,hidden=24", true},
                                         EncodedPrompt{"embeddings", "llama-tiny", "--lora",
                                                       "r=4,targets=embed_tokens,lm_head", false},
                                         EncodedPrompt{"prefix", "gpt2-tiny", "--prefix-tuning",
                                                       "tokens=5,init=zero", false},
                                         EncodedPrompt{"projection", "qwen2-tiny",
                                                       "--prefix-tuning",
                                                       "tokens=3,projection=true,hidden=24", true}),
                         [](const auto& test) { return test.param.name; });

TEST_F(AdaptersOnTheCommandLine, SayWhatIsMissing) {
  const auto refused = [&](std::vector<std::string> words) {
    const ProgramResult result = train(std::move(words));
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(refused({"--adapter", "nowhere"}), HasSubstr("give --init a Hugging Face folder"));
  EXPECT_THAT(refused({"--lora", "r=4", "--ia3", "targets=c_attn"}),
              HasSubstr("--lora and --ia3 are two adapters; give one of them"));
  EXPECT_THAT(refused({"--lora", "rank=4"}), HasSubstr("'rank' is no setting of LoRA"));
  EXPECT_THAT(refused({"--model", "llama-tiny", "--lora", "targets=c_attn"}),
              HasSubstr("no linear module of this llama is a target; its modules are q_proj"));
  EXPECT_THAT(refused({"--model", "phi3-tiny", "--lora", "r=4"}),
              HasSubstr("name them: targets=qkv_proj"));
  EXPECT_THAT(refused({"--model", "llama-tiny", "--ia3", "targets=q_proj,lm_head"}),
              HasSubstr("target lm_head is an embedding or the head"));
}

}  // namespace
}  // namespace tessera::adapters_test

#include <gmock/gmock.h>

#include <filesystem>

#include "cli/launched_program.h"
#include "tessera/compat/config_sources.h"
#include "tessera/model/gpt_family.h"

// Every family from the command line: presets, folders, and what trained models are written as.
namespace tessera::families_test {
namespace {

using nlohmann::json;
using test::ProgramResult;
using test::read_file;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

const std::string kFolders = TESSERA_SOURCE_DIR "/tests/model/golden/families/";

class Families : public test::LaunchTest {
 protected:
  static std::vector<std::string> small(std::vector<std::string> words) {
    words.insert(words.end(), {"--no-default-config", "--sequence-length", "16", "--ranks", "2"});
    return words;
  }
};

TEST_F(Families, TinyModelsTrainEvaluateAndGenerate) {
  const std::string data = write("data.txt", std::string(3000, 'a') + std::string(3000, 'b'));
  for (const std::string model : {"llama-tiny", "mistral-tiny", "qwen2-tiny", "qwen3-tiny",
                                  "phi3-tiny", "gemma2-tiny", "gemma3-tiny"}) {
    SCOPED_TRACE(model);
    const std::string out = path(model);
    const ProgramResult train =
        run(small({"train", "--model", model, "--layers", "2", "--data", data, "--steps", "3",
                   "--micro-batch", "1", "--sample-tokens", "0", "--export", out, "--save",
                   path(model + "-checkpoint")}));
    ASSERT_EQ(train.exit_code, 0) << train.err;
    std::vector<std::string> losses;
    for (const std::string& init : {out, path(model + "-checkpoint")}) {
      const ProgramResult evaluate = run(small({"evaluate", "--init", init, "--eval-data", data,
                                                "--eval-tokens", "64", "--format", "json"}));
      ASSERT_EQ(evaluate.exit_code, 0) << evaluate.err;
      losses.push_back(json::parse(evaluate.out)["loss"].dump());
    }
    EXPECT_EQ(losses[0], losses[1]);
    const ProgramResult generate =
        run({"generate", "--no-default-config", "--init", out, "--prompt", "ab", "--tokens", "4"});
    EXPECT_EQ(generate.exit_code, 0) << generate.err;
    EXPECT_THAT(generate.out, HasSubstr("ab"));
  }
}

/// Of sizes that no instruction set's blocks divide; with what this processor has, and with
/// oneDNN's kernels for AVX2, whose sums depend most on how oneDNN splits a product by itself.
TEST_F(Families, BitsDoNotDependOnTheThreadsOfARank) {
  const std::string data = write("data.txt", std::string(3000, 'a') + std::string(3000, 'b'));
  const auto trained = [&](const std::string& model, const std::string& threads) {
    const ProgramResult train = run({"train",
                                     "--no-default-config",
                                     "--device",
                                     "cpu",
                                     "--model",
                                     model,
                                     "--layers",
                                     "2",
                                     "--width",
                                     "60",
                                     "--heads",
                                     model == "gpt2-tiny" ? "3" : "2",
                                     "--data",
                                     data,
                                     "--sequence-length",
                                     "40",
                                     "--precision",
                                     "fp32",
                                     "--micro-batch",
                                     "1",
                                     "--steps",
                                     "2",
                                     "--ranks",
                                     "1",
                                     "--sample-tokens",
                                     "0",
                                     "--threads-per-rank",
                                     threads,
                                     "--log",
                                     path("log"),
                                     "--overwrite"});
    EXPECT_EQ(train.exit_code, 0) << train.err;
    return read_log("log").back().at("parameters_sha256").get<std::string>();
  };
  test::ScopedVariables isa({});
  for (const bool all_instructions : {true, false}) {
    if (!all_instructions) {
      isa.set("ONEDNN_MAX_CPU_ISA", "AVX2");
      isa.set("DNNL_MAX_CPU_ISA", "AVX2");
    }
    for (const std::string model : {"gpt2-tiny", "llama-tiny", "mistral-tiny", "qwen2-tiny",
                                    "qwen3-tiny", "phi3-tiny", "gemma2-tiny", "gemma3-tiny"}) {
      const std::string one = trained(model, "1");
      for (const std::string threads : {"2", "3", "5"}) {
        EXPECT_EQ(trained(model, threads), one)
            << model << " on " << threads << " threads" << (all_instructions ? "" : " with AVX2");
      }
    }
  }
}

TEST_F(Families, AFolderNamesItsModel) {
  for (const std::string folder : {"llama", "qwen3", "phi3_longrope"}) {
    const ProgramResult plan =
        run(small({"plan", "--model", kFolders + folder, "--format", "json"}));
    ASSERT_EQ(plan.exit_code, 0) << plan.err;
    const json planned = json::parse(plan.out);
    EXPECT_EQ(planned["settings"]["model"], kFolders + folder);
    EXPECT_EQ(planned["settings"]["width"], 16);
    EXPECT_GT(planned["parameters"].get<int>(), 4000);
  }
}

TEST_F(Families, WhatAFolderAsksForAndIsNotBuiltIsNamed) {
  const auto refused = [&](const std::string& folder, const std::string& key, const json& value) {
    json config = json::parse(read_file(kFolders + folder + "/config.json"));
    config[key] = value;
    std::filesystem::create_directories(path("spoilt"));
    write("spoilt/config.json", config.dump());
    const ProgramResult plan = run(small({"plan", "--model", path("spoilt")}));
    EXPECT_EQ(plan.exit_code, 2);
    return plan.err;
  };
  EXPECT_THAT(refused("llama", "hidden_act", "gelu"),
              AllOf(HasSubstr("hidden_act is \"gelu\""), HasSubstr("only \"silu\"")));
  EXPECT_THAT(refused("llama", "attention_bias", true), HasSubstr("attention_bias is true"));
  EXPECT_THAT(refused("llama", "model_type", "gemma"),
              HasSubstr("what can be read is gpt2, llama, mistral, qwen2, qwen3, phi3, gemma2, "
                        "gemma3_text"));
  EXPECT_THAT(refused("llama", "architectures", {"LlamaForTokenClassification"}),
              HasSubstr("only LlamaForCausalLM and LlamaForSequenceClassification can be read"));
  EXPECT_THAT(refused("llama3", "rope_parameters", {{"rope_type", "ntk"}, {"factor", 4.0}}),
              HasSubstr("rope_parameters.rope_type is \"ntk\""));
  EXPECT_THAT(refused("llama3", "rope_parameters", {{"rope_type", "llama3"}, {"mrope", 4.0}}),
              HasSubstr("rope_parameters.mrope is 4.0"));
  EXPECT_THAT(refused("llama", "num_key_value_heads", 3),
              HasSubstr("heads 4 is not a multiple of kv_heads 3"));
  EXPECT_THAT(refused("qwen3", "head_dim", nullptr), HasSubstr("head_dim is null"));
  EXPECT_THAT(refused("qwen2", "quantization_config", {{"quant_method", "gptq"}}),
              HasSubstr("quantization_config.quant_method is \"gptq\""));
}

/// Configs of FSDP name a family's block; each of them means that blocks are units here.
TEST(FamiliesInConfigs, WrapPoliciesKnowTheirBlocks) {
  for (const FamilyRow& family : gpt_families()) {
    EXPECT_THAT(block_class_names(), Contains(std::string(family.block_class)));
  }
}

}  // namespace
}  // namespace tessera::families_test

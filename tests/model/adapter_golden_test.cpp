#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/golden_folder.h"
#include "temporary_folder.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/error.h"
#include "tessera/model/adapter.h"
#include "tessera/model/hugging_face.h"

// LoRA and IA3 adapters of small random models against what PEFT computes with the same folders.
namespace tessera::adapter_golden_test {
namespace {

using namespace test;

const std::string kModels = TESSERA_SOURCE_DIR "/tests/model/golden/families/";
const std::string kAdapters = TESSERA_SOURCE_DIR "/tests/model/golden/adapters/";
constexpr const char* kWeights = "adapter_model.safetensors";

/// Of the adapter's name: "llama", or "llama_ia3".
PretrainedGpt base_of(const std::string& name) {
  const std::string base = name.substr(0, name.find('_'));
  return open_hugging_face(base == "gpt2" ? kAdapters + "gpt2_base" : kModels + base);
}

class AdapterGolden : public ::testing::TestWithParam<std::string> {
 protected:
  AdapterGolden()
      : golden_(kAdapters + GetParam()),
        base_(base_of(GetParam())),
        adapted_(open_adapter(base_, kAdapters + GetParam())),
        model_(make_gpt(adapted_.config())),
        initial_(values_in(adapted_, model_)) {}

  /// Bounds relative to the largest magnitude.
  void expect_golden(DType dtype, bool selective, double of_logits, double of_gradients) const {
    const Computed computed = compute(golden_, model_, initial_, dtype, selective);
    EXPECT_LT(relative_error(computed.logits, golden_.floats("logits")), of_logits);
    const InitialValues gradients = written(computed.gradients);
    EXPECT_EQ(gradients.size(), theirs().size());
    for (const auto& [name, gradient] : gradients) {
      EXPECT_LT(relative_error(gradient, golden_.floats("gradient/" + name)), of_gradients) << name;
    }
  }

  /// PEFT's tensors, without the base's matrices that it writes beside adapters of an embedding or
  /// a head.
  InitialValues theirs() const {
    InitialValues tensors = stored_tensors(kAdapters + GetParam(), kWeights);
    std::erase_if(tensors,
                  [](const auto& tensor) { return tensor.first.ends_with(".base_layer.weight"); });
    return tensors;
  }

  /// As a folder they have PEFT's names and shapes.
  InitialValues written(const InitialValues& values) const {
    TemporaryFolder folder;
    PretrainedWriter writer = write_adapter(folder.path("adapter"), adapted_.config(), "base");
    for (const auto& [name, own] : values) writer.write(name, own);
    writer.finish();
    return stored_tensors(folder.path("adapter"), kWeights);
  }

  bool takes_from_base() const {
    const LoraOptions* const lora = adapted_.config().adapter.lora();
    return lora != nullptr &&
           (lora->dora || lora->initialization == LoraOptions::Initialization::kPissa);
  }

  /// Of new adapters, which have no values but those that they take from the base; a default A is
  /// of no matter, since B is zero.
  std::vector<float> logits_of_derived(const PretrainedGpt& begun) const {
    const Model model = make_gpt(begun.config());
    InitialValues values;
    for (const auto& layer : model.layers) {
      for (const ParameterSpec& spec : layer->parameters()) {
        auto& own = values[spec.name];
        own.resize(static_cast<std::size_t>(spec.shape.numel()));
        const bool is_default =
            begun.config().adapter.lora()->initialization != LoraOptions::Initialization::kPissa &&
            (spec.name.ends_with("lora_A.weight") || spec.name.ends_with("lora_B.weight"));
        if (!is_default) begun.read(spec.name, own);
      }
    }
    return compute(golden_, model, values, DType::kFloat32, false).logits;
  }

  std::vector<float> logits_of(const PretrainedGpt& pretrained) const {
    const Model model = make_gpt(pretrained.config());
    return compute(golden_, model, values_in(pretrained, model), DType::kFloat32, false).logits;
  }

  Golden golden_;
  PretrainedGpt base_, adapted_;
  Model model_;
  InitialValues initial_;
};

TEST_P(AdapterGolden, LogitsAndGradientsAreThoseOfPeft) {
  for (const bool selective : {false, true}) expect_golden(DType::kFloat32, selective, 1e-5, 1e-5);
}

// The largest error of so few numbers varies; two and a half times that of PEFT in bf16.
TEST_P(AdapterGolden, LogitsAndGradientsInBFloat16AreNear) {
  const auto& error = golden_.index().at("bf16_error");
  expect_golden(DType::kBFloat16, false, 2.5 * error.at("logits").get<double>(),
                2.5 * error.at("gradients").get<double>());
}

TEST_P(AdapterGolden, TwentyStepsStayWithPeftUnderEveryStrategy) {
  for (const Strategy& strategy : strategies()) {
    for (const int ranks : {1, 3}) {
      SCOPED_TRACE(strategy.name);
      const Trained trained = train_golden(golden_, model_, initial_, strategy.name, ranks);
      EXPECT_LT(relative_error(trained.losses, golden_.floats("step_loss")), 1e-5);
      EXPECT_LT(relative_error(trained.norms, golden_.floats("step_gradient_norm")), 1e-4);
    }
  }
}

// B is zero, and vectors are ones: not a bit of the base model's logits changes. DoRA divides by
// norms and multiplies by them, and PiSSA adds what it has subtracted.
TEST_P(AdapterGolden, NewAdaptersAreTheBaseModel) {
  const PretrainedGpt fresh = open_adapter(base_, kAdapters + GetParam() + "_new");
  const std::vector<float> expected = logits_of(base_);
  if (takes_from_base()) {
    EXPECT_LT(relative_error(logits_of(fresh), expected), 1e-5);
    // And so do those that no file has.
    const PretrainedGpt begun = with_adapter(base_, fresh.config().adapter);
    EXPECT_LT(relative_error(logits_of_derived(begun), expected), 1e-5);
  } else {
    EXPECT_EQ(logits_of(fresh), expected);
  }
  EXPECT_LT(relative_error(expected, golden_.floats("base_logits")), 1e-5);
}

TEST_P(AdapterGolden, FoldersGoRoundTrip) {
  EXPECT_EQ(written(initial_), theirs());
  const GptConfig& config = adapted_.config();
  EXPECT_EQ(parse_adapter_json(to_adapter_json(config.adapter, config), "", config),
            config.adapter);
  EXPECT_EQ(parse_gpt_configuration(configuration_of(config)), config);
}

TEST_P(AdapterGolden, MergedModelsComputeTheSame) {
  TemporaryFolder folder;
  GptConfig plain = adapted_.config();
  plain.adapter = {};
  PretrainedWriter writer = write_hugging_face(folder.path("merged"), plain);
  if (GetParam().ends_with("_embedding") && plain.tie_embedding) {
    try {
      write_merged(adapted_, writer);
      FAIL();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("embedding and head are one matrix"));
    }
    return;
  }
  write_merged(adapted_, writer);
  writer.finish();
  const std::vector<float> logits = logits_of(open_hugging_face(folder.path("merged")));
  EXPECT_LT(relative_error(logits, golden_.floats("logits")), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(All, AdapterGolden,
                         ::testing::Values("llama", "qwen2", "mistral", "phi3", "gpt2", "llama_ia3",
                                           "gpt2_ia3", "qwen2_ia3", "phi3_ia3", "gemma2",
                                           "gemma3_ia3", "llama_dora", "gpt2_dora", "qwen2_dora",
                                           "llama_pissa", "gpt2_pissa", "llama_embedding",
                                           "gpt2_embedding", "gemma2_embedding"),
                         [](const auto& test) { return test.param; });

/// A copy of an adapter's folder in which one text of its configuration is another.
std::string error_of_edited(const std::string& from, const std::string& to,
                            const std::string& adapter = "llama") {
  TemporaryFolder folder;
  std::filesystem::copy(kAdapters + adapter, folder.path("adapter"));
  const std::string path = folder.path("adapter/adapter_config.json");
  std::ifstream in(path);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  const std::size_t at = text.find(from);
  if (at == std::string::npos) return "nothing to edit";
  std::ofstream(path) << text.replace(at, from.size(), to);
  try {
    open_adapter(base_of(adapter), folder.path("adapter"));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// As they stand in a model's own state, whose adapter has a name.
TEST(AdapterFolders, TakesNamesWithTheNameOfTheAdapter) {
  for (const std::string name : {"llama", "llama_ia3", "llama_dora"}) {
    const TemporaryFolder folder;
    const std::filesystem::path from = kAdapters + name;
    std::filesystem::create_directories(folder.path("adapter"));
    std::filesystem::copy_file(from / "adapter_config.json",
                               folder.path("adapter/adapter_config.json"));
    std::ifstream in(from / "adapter_model.safetensors", std::ios::binary);
    const std::string file{std::istreambuf_iterator<char>(in), {}};
    std::vector<SafetensorsEntry> entries;
    std::string data;
    for (SafetensorsEntry& entry :
         read_safetensors_header(InputFile((from / "adapter_model.safetensors").string()))
             .tensors) {
      data += file.substr(static_cast<std::size_t>(entry.begin),
                          static_cast<std::size_t>(entry.bytes()));
      for (const std::string part : {"lora_A", "lora_B", "ia3_l"}) {
        const std::size_t at = entry.name.find("." + part);
        if (at != std::string::npos) entry.name.insert(at + 1 + part.size(), ".default");
      }
      if (entry.name.ends_with("lora_magnitude_vector")) entry.name += ".default.weight";
      entries.push_back(std::move(entry));
    }
    std::ofstream(folder.path("adapter/adapter_model.safetensors"), std::ios::binary)
        << safetensors_header(entries) << data;
    const PretrainedGpt renamed = open_adapter(base_of(name), folder.path("adapter"));
    EXPECT_EQ(renamed.config(), open_adapter(base_of(name), from.string()).config());
  }
}

TEST(AdapterFolders, RefusesByNameWhatChangesTheMathematics) {
  using testing::HasSubstr;
  EXPECT_EQ(error_of_edited("\"use_dora\": false", "\"use_dora\": null"), "");
  EXPECT_THAT(error_of_edited("\"use_dora\": false", "\"use_dora\": true"),
              HasSubstr("missing:\n  base_model.model.model.layers.0.self_attn.q_proj."
                        "lora_magnitude_vector\n"));
  EXPECT_THAT(error_of_edited("\"lora_dropout\": 0.0", "\"lora_dropout\": 0.1", "llama_dora"),
              HasSubstr("dropout is 0.1, and DoRA (use_dora) has none here"));
  EXPECT_THAT(
      error_of_edited("\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa_niter_16\""),
      HasSubstr("that begins at random; Tessera has the exact decomposition, \"pissa\""));
  EXPECT_THAT(
      error_of_edited("\"LORA\"", "\"ADALORA\""),
      HasSubstr("peft_type is \"ADALORA\"; Tessera has LORA, IA3, PROMPT_TUNING, P_TUNING and "
                "PREFIX_TUNING"));
  EXPECT_THAT(error_of_edited("\"init_ia3_weights\"", "\"new_thing\": 3, \"init_ia3_weights\"",
                              "llama_ia3"),
              HasSubstr("Tessera does not know this key of IA3"));
  EXPECT_THAT(error_of_edited("\"down_proj\"\n", "\"o_proj\"\n", "llama_ia3"),
              HasSubstr("feed-forward module 'o_proj' is not among the targets"));
  EXPECT_THAT(error_of_edited("\"bias\": \"none\"", "\"bias\": \"all\""), HasSubstr("bias is"));
  EXPECT_THAT(error_of_edited("\"init_lora_weights\": true", "\"init_lora_weights\": \"olora\""),
              HasSubstr("init_lora_weights is \"olora\"; Tessera has true, false, \"gaussian\" and "
                        "\"pissa\""));
  EXPECT_THAT(error_of_edited("\"use_rslora\"", "\"use_new_thing\": 3, \"use_rslora\""),
              HasSubstr("Tessera does not know this key"));
}

TEST(AdapterFolders, NamesTensorsThatAreMissingAndThoseThatBelongNowhere) {
  const std::string error = error_of_edited("\"v_proj\"", "\"o_proj\"");
  EXPECT_THAT(error, testing::HasSubstr("missing:\n  base_model.model.model.layers.0.self_attn."
                                        "o_proj.lora_A.weight\n"));
  EXPECT_THAT(error, testing::HasSubstr("no module:\n  base_model.model.model.layers.0.self_attn."
                                        "v_proj.lora_A.weight\n"));
  EXPECT_THAT(
      error_of_edited("\"r\": 4", "\"r\": 5"),
      testing::HasSubstr("has the shape (4, 16), and by adapter_config.json it is (5, 16)"));
}

TEST(AdapterFolders, TakesAnEmbeddingsMatrixOnlyIfItIsTheBases) {
  const PretrainedGpt other = open_hugging_face(kModels + "llama");
  const PretrainedGpt adapted = open_adapter(other, kAdapters + "llama_embedding");
  TemporaryFolder folder;
  GptConfig plain = adapted.config();
  plain.adapter = {};
  PretrainedWriter writer = write_hugging_face(folder.path("merged"), plain);
  write_merged(adapted, writer);
  writer.finish();
  try {
    open_adapter(open_hugging_face(folder.path("merged")), kAdapters + "llama_embedding");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("is another matrix than the base's"));
  }
}

TEST(AdapterFolders, AdaptsEmbeddingsAndHeadsByPlainLoraAlone) {
  const auto error_of = [](const char* setting, const char* text) -> std::string {
    try {
      const PretrainedGpt base = base_of("llama");
      make_gpt(with_adapter(base, parse_adapter(setting, text, base.config())).config());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      return error.what();
    }
    return "";
  };
  using testing::HasSubstr;
  EXPECT_EQ(error_of("lora", "targets=embed_tokens,lm_head,dropout=0.1"), "");
  EXPECT_THAT(error_of("lora", "targets=q_proj,lm_head,dora=true"),
              HasSubstr("DoRA (use_dora): target 'lm_head' is an embedding or the head"));
  EXPECT_THAT(error_of("lora", "targets=embed_tokens,init=pissa"),
              HasSubstr("PiSSA: target 'model.embed_tokens' is an embedding or the head"));
  EXPECT_THAT(error_of("ia3", "targets=embed_tokens"), HasSubstr("which LoRA alone adapts"));
  EXPECT_THAT(error_of("lora", "targets=wpe"), HasSubstr("target wpe has the positions"));
}

TEST(AdapterFolders, NamesVectorsThatAreMissing) {
  const std::string error = error_of_edited("\"v_proj\"", "\"o_proj\"", "llama_ia3");
  EXPECT_THAT(error, testing::HasSubstr("missing:\n  base_model.model.model.layers.0.self_attn."
                                        "o_proj.ia3_l\n"));
  EXPECT_THAT(error, testing::HasSubstr("no module:\n  base_model.model.model.layers.0.self_attn."
                                        "v_proj.ia3_l\n"));
}

TEST(AdapterFolders, ReadsTheFlagOfLora) {
  const GptConfig llama = base_of("llama").config();
  const AdapterConfig expected{.kind = LoraOptions{.rank = 16, .alpha = 32.0, .dropout = 0.05F},
                               .targets = {"k_proj", "q_proj"}};
  EXPECT_EQ(parse_adapter("lora", "r=16,alpha=32,targets=q_proj,k_proj,dropout=0.05", llama),
            expected);
  EXPECT_EQ(parse_adapter("lora", "", llama).targets,
            (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(parse_adapter("lora", "targets=all-linear", llama).target_pattern, "all-linear");
  const LoraOptions begun = *parse_adapter("lora", "dora=true,init=pissa", llama).lora();
  EXPECT_TRUE(begun.dora);
  EXPECT_EQ(begun.initialization, LoraOptions::Initialization::kPissa);
  EXPECT_THROW(parse_adapter("lora", "init=svd", llama), Error);
  EXPECT_THROW(parse_adapter("lora", "rank=3", llama), Error);
  EXPECT_THROW(parse_adapter("lora", "r=0", llama), Error);
  EXPECT_THROW(parse_adapter("lora", "r=2,", base_of("phi3").config()), Error);
}

TEST(AdapterFolders, ReadsTheFlagOfIa3) {
  using Names = std::vector<std::string>;
  const GptConfig llama = base_of("llama").config(), gpt2 = base_of("gpt2").config();
  const auto parse = [](const char* text, const GptConfig& config) {
    const AdapterConfig adapter = parse_adapter("ia3", text, config);
    return std::pair{adapter.targets, adapter.ia3()->feedforward};
  };
  EXPECT_EQ(parse("", llama),
            std::pair(Names{"down_proj", "k_proj", "v_proj"}, Names{"down_proj"}));
  EXPECT_EQ(parse("", gpt2), std::pair(Names{"c_attn", "mlp.c_proj"}, Names{"mlp.c_proj"}));
  EXPECT_EQ(parse("targets=q_proj,up_proj", llama), std::pair(Names{"q_proj", "up_proj"}, Names{}));
  // PEFT takes any end of a path for feed-forward modules, and reads back only targets.
  EXPECT_EQ(parse("targets=c_proj", gpt2),
            std::pair(Names{"c_proj", "mlp.c_proj"}, Names{"mlp.c_proj"}));
  EXPECT_EQ(parse("targets=mlp.down_proj", llama),
            std::pair(Names{"mlp.down_proj"}, Names{"mlp.down_proj"}));
  EXPECT_EQ(parse("targets=down_proj,feedforward=none", llama),
            std::pair(Names{"down_proj"}, Names{}));
  const auto error_of = [&](const char* text, const GptConfig& config) -> std::string {
    try {
      make_gpt(with_adapter(base_of("llama"), parse_adapter("ia3", text, config)).config());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      return error.what();
    }
    return "";
  };
  using testing::HasSubstr;
  EXPECT_THAT(error_of("targets=q_proj,feedforward=q_proj", llama),
              HasSubstr("'model.layers.0.self_attn.q_proj' is one matrix here with the modules"));
  EXPECT_THAT(error_of("targets=q_proj,feedforward=down_proj", llama),
              HasSubstr("'down_proj' is not among the targets"));
  EXPECT_THAT(error_of("r=3", llama), HasSubstr("'r' is no setting of IA3; there are targets"));
  EXPECT_THAT(error_of("targets=o_proj", base_of("phi3").config()),
              HasSubstr("no modules that are feed-forward unless told"));
}

}  // namespace
}  // namespace tessera::adapter_golden_test

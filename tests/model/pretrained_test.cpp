#include "tessera/model/pretrained.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "support/golden.h"
#include "support/model_run.h"
#include "temporary_folder.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"
#include "tessera/model/hugging_face.h"
#include "tessera/model/llm_c.h"

namespace tessera::pretrained_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const fs::path kGolden = TESSERA_SOURCE_DIR "/tests/model/golden";

fs::path golden_folder(const std::string& name) { return kGolden / "hugging_face" / name; }

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

json golden() { return json::parse(read_file(kGolden / "hugging_face.json")); }

std::map<std::string, std::vector<float>> values_of(const PretrainedGpt& pretrained) {
  std::map<std::string, std::vector<float>> values;
  const Model model = make_gpt(pretrained.config());
  for (const auto& layer : model.layers) {
    for (const ParameterSpec& spec : layer->parameters()) {
      auto& own = values[spec.name];
      own.resize(static_cast<std::size_t>(spec.shape.numel()));
      pretrained.read(spec.name, own);
    }
  }
  return values;
}

void write_all(PretrainedWriter writer, const std::map<std::string, std::vector<float>>& values) {
  for (const auto& [name, own] : values) writer.write(name, own);
  writer.finish();
}

/// What the model computes on the golden's tokens, against transformers.
void expect_golden(const PretrainedGpt& pretrained, const json& expected, const json& tokens) {
  const Model model = make_gpt(pretrained.config());
  const auto device = make_cpu_device();
  Memory memory(*device);
  const auto stream = device->create_stream({.name = "compute"});
  test::WholeModel whole(model, memory, DType::kFloat32, DType::kFloat32);
  for (const auto& [name, values] : values_of(pretrained)) {
    test::copy_to(whole.value(name), values);
  }
  const auto rows = static_cast<std::int64_t>(tokens.size());
  const auto length = static_cast<std::int64_t>(tokens[0].size());
  const auto make = [&](std::int64_t ahead) {
    Tensor tensor =
        Tensor::empty(memory, Shape{rows, length}, DType::kInt32, MemoryCategory::kData, "tokens");
    for (std::int64_t i = 0; i < rows * length; ++i) {
      const std::int64_t at = i % length + ahead;
      tensor.as<std::int32_t>()[i] =
          at < length ? tokens[static_cast<std::size_t>(i / length)][static_cast<std::size_t>(at)]
                            .get<std::int32_t>()
                      : -1;
    }
    return tensor;
  };
  Batch batch{.inputs = make(0), .targets = make(1)};
  batch.items = rows * (length - 1);
  Tensor scale = Tensor::empty(memory, Shape{1}, DType::kFloat32, MemoryCategory::kData, "scale");
  *scale.as<float>() = 1.0F;
  test::run_on(*stream, [&] {
    const Tensor logits =
        gpt_logits(model, whole.parameters(), memory, *stream, batch.inputs, LogitPositions::kAll);
    EXPECT_LT(test::relative_error(test::to_floats(logits),
                                   expected.at("logits").get<std::vector<float>>()),
              1e-5);
    const Tensor losses = whole.forward_backward(memory, *stream, batch,
                                                 {.tape = {.loss_scale = scale, .threads = 1}});
    double sum = 0.0;
    for (const float loss : test::to_floats(losses)) sum += static_cast<double>(loss);
    EXPECT_NEAR(sum / static_cast<double>(batch.items), expected.at("loss").get<double>(), 1e-5);
  });
}

/// The text of the error, whose code is `code`.
template <typename Body>
std::string refusal(const Body& body, ErrorCode code = ErrorCode::kConfig) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "not refused";
  return "";
}

/// A copy of a golden folder, to be spoilt.
class Copy : public TemporaryFolder {
 public:
  explicit Copy(const std::string& name = "v5") {
    for (const auto& file : fs::directory_iterator(golden_folder(name))) {
      fs::copy_file(file, path(file.path().filename().string()));
    }
  }
  void set(const std::string& key, const json& value) const {
    json config = json::parse(read_file(path("config.json")));
    config[key] = value;
    write("config.json", config.dump());
  }
  /// Writes model.safetensors anew, after `change` to the tensors, whose bytes come along.
  struct Stored {
    SafetensorsEntry entry;
    std::string bytes;
  };
  void change(const std::function<void(std::map<std::string, Stored>&)>& change) const {
    const std::string file = read_file(path("model.safetensors"));
    std::map<std::string, Stored> all;
    for (const auto& entry :
         read_safetensors_header(InputFile(path("model.safetensors"))).tensors) {
      all[entry.name] = {entry, file.substr(static_cast<std::size_t>(entry.begin),
                                            static_cast<std::size_t>(entry.bytes()))};
    }
    change(all);
    std::vector<SafetensorsEntry> entries;
    std::string data;
    for (const auto& [name, stored] : all) {
      entries.push_back(stored.entry);
      entries.back().name = name;
      data += stored.bytes;
    }
    write("model.safetensors", safetensors_header(entries) + data);
  }
  std::string refused(ErrorCode code = ErrorCode::kConfig) const {
    return refusal([&] { open_pretrained(path()); }, code);
  }
};

TEST(HuggingFace, ComputesWhatTransformersComputesFromEveryFolder) {
  const json all = golden();
  EXPECT_EQ(all.at("folders").size(), 4U);
  for (const auto& [name, expected] : all.at("folders").items()) {
    SCOPED_TRACE(name);
    const PretrainedGpt pretrained = open_hugging_face(golden_folder(name).string());
    EXPECT_EQ(pretrained.config().layers, 2);
    EXPECT_EQ(pretrained.config().heads, 3);
    EXPECT_EQ(pretrained.config().width, 12);
    EXPECT_EQ(pretrained.config().vocab_size, 65);
    EXPECT_EQ(pretrained.config().context_length, 24);
    EXPECT_EQ(pretrained.config().tie_embedding, name != "untied");
    EXPECT_THAT(pretrained.format(), HasSubstr(name == "v4"    ? " BF16"
                                               : name == "hub" ? " F16"
                                                               : " F32"));
    expect_golden(pretrained, expected, all.at("tokens"));
  }
}

TEST(HuggingFace, WritesTheBytesThatTransformersWrote) {
  const TemporaryFolder folder;
  for (const std::string name : {"v5", "untied"}) {
    const PretrainedGpt pretrained = open_hugging_face(golden_folder(name).string());
    write_all(write_hugging_face(folder.path(name), pretrained.config()), values_of(pretrained));
    EXPECT_EQ(read_file(folder.path(name + "/model.safetensors")),
              read_file(golden_folder(name) / "model.safetensors"));
    EXPECT_FALSE(fs::exists(folder.path(name + ".tmp")));
    // Every key of ours says what transformers said, but for dropout and what it knows alone.
    json ours = json::parse(read_file(folder.path(name + "/config.json")));
    const json theirs = json::parse(read_file(golden_folder(name) / "config.json"));
    for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop", "n_ctx"}) ours.erase(key);
    for (const auto& [key, value] : ours.items()) EXPECT_EQ(theirs.at(key), value) << key;
  }
}

TEST(HuggingFace, WhatIsWrittenIsReadAgain) {
  const TemporaryFolder folder;
  for (const std::string name : {"hub", "v4"}) {
    const PretrainedGpt pretrained = open_hugging_face(golden_folder(name).string());
    write_all(write_hugging_face(folder.path(name) + "/", pretrained.config()),
              values_of(pretrained));
    EXPECT_EQ(values_of(open_pretrained(folder.path(name))), values_of(pretrained));
  }
}

TEST(HuggingFace, TakesATiedMatrixUnderTheNameOfTheHead) {
  const Copy copy;
  copy.change([](auto& all) {
    all["lm_head.weight"] = all.at("transformer.wte.weight");
    all.erase("transformer.wte.weight");
  });
  EXPECT_EQ(values_of(open_pretrained(copy.path())),
            values_of(open_hugging_face(golden_folder("v5").string())));
  copy.set("tie_word_embeddings", false);
  EXPECT_THAT(copy.refused(), HasSubstr("has no tensor 'transformer.wte.weight'"));
}

TEST(HuggingFace, CallsAPointerOfGitLfsOne) {
  constexpr const char* kPointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12345\n";
  for (const char* const file : {"model.safetensors", "config.json"}) {
    const Copy copy;
    copy.write(file, kPointer);
    EXPECT_THAT(copy.refused(), AllOf(HasSubstr(file), HasSubstr("git lfs pull")));
  }
}

TEST(HuggingFace, TakesAFileThatAlsoHasTheTiedHead) {
  const Copy copy;
  copy.change([](auto& all) { all["lm_head.weight"] = all.at("transformer.wte.weight"); });
  EXPECT_EQ(values_of(open_pretrained(copy.path())),
            values_of(open_hugging_face(golden_folder("v5").string())));
  copy.change([](auto& all) { all["lm_head.weight"].bytes[7] ^= 1; });
  EXPECT_THAT(copy.refused(), AllOf(HasSubstr("'lm_head.weight' is not 'transformer.wte.weight'"),
                                    HasSubstr("set tie_word_embeddings to false")));
  copy.set("tie_word_embeddings", false);
  EXPECT_FALSE(open_pretrained(copy.path()).config().tie_embedding);
}

TEST(HuggingFace, RefusesByNameWhatChangesTheComputation) {
  struct Row {
    const char* key;
    json value;
    const char* text;
  };
  for (const Row& row : {
           Row{"activation_function", "gelu", "only \"gelu_pytorch_tanh\" is computed"},
           Row{"activation_function", nullptr, "activation_function is null"},
           Row{"n_inner", 49, "n_inner is 49, and only 48"},
           Row{"layer_norm_epsilon", 1e-6, "layer_norm_epsilon is 1e-06"},
           Row{"scale_attn_weights", false, "scale_attn_weights is false"},
           Row{"scale_attn_by_inverse_layer_idx", true, "scale_attn_by_inverse_layer_idx is true"},
           Row{"reorder_and_upcast_attn", true, "reorder_and_upcast_attn is true"},
           Row{"add_cross_attention", true, "add_cross_attention is true"},
           Row{"quantization_config", {{"bits", 4}}, "quantization_config.quant_method is absent"},
           Row{"model_type", "gemma", "model_type is \"gemma\"; what can be read is gpt2, llama"},
           Row{"architectures",
               {"GPT2ForTokenClassification"},
               "only GPT2LMHeadModel and GPT2ForSequenceClassification can be read"},
           Row{"n_head", 5, "width 12 is not a multiple of heads 5"},
           Row{"n_layer", 0, "n_layer is 0, and must be an integer from 1"},
           Row{"n_layer", -1, "n_layer is -1"},
           Row{"n_layer", 2.5, "n_layer is 2.5"},
           Row{"n_layer", 60000, "has 28 tensors, too few"},
           Row{"n_embd", "12", "n_embd is \"12\""},
           Row{"tie_word_embeddings", 1, "tie_word_embeddings is 1"},
       }) {
    const Copy copy;
    copy.set(row.key, row.value);
    EXPECT_THAT(copy.refused(), AllOf(HasSubstr(copy.path()), HasSubstr(row.text))) << row.key;
  }
}

TEST(HuggingFace, KnowsTheTokensThatEndAText) {
  const Copy copy;
  EXPECT_THAT(end_tokens_of(copy.path()), ElementsAre());
  copy.set("eos_token_id", 7);
  EXPECT_THAT(end_tokens_of(copy.path()), ElementsAre(7));
  copy.write("generation_config.json", R"({"eos_token_id": [1, 2]})");
  EXPECT_THAT(end_tokens_of(copy.path()), ElementsAre(1, 2));
  copy.write("generation_config.json", R"({"eos_token_id": "x"})");
  EXPECT_THAT(refusal([&] { end_tokens_of(copy.path()); }),
              HasSubstr("eos_token_id is \"x\", and must be a token's id or a list of them"));
}

TEST(HuggingFace, TakesOtherSpellingsOfTheSameModel) {
  const Copy copy;
  json config = json::parse(read_file(copy.path("config.json")));
  config["n_inner"] = 48;
  config["activation_function"] = "gelu_pytorch_tanh";
  config["hidden_size"] = config["n_embd"];
  config["torch_dtype"] = "float16";  // a wish; the tensors say what they are
  config["architectures"] = {"GPT2Model"};
  for (const char* key : {"n_embd", "dtype", "layer_norm_epsilon", "tie_word_embeddings"}) {
    config.erase(key);
  }
  copy.write("config.json", config.dump());
  EXPECT_EQ(values_of(open_pretrained(copy.path())),
            values_of(open_hugging_face(golden_folder("v5").string())));
}

TEST(HuggingFace, NamesTheTensorThatIsMissingUnknownOrOfAnotherShape) {
  {
    const Copy copy;
    copy.change([](auto& all) { all.erase("transformer.h.1.mlp.c_fc.bias"); });
    EXPECT_THAT(copy.refused(), HasSubstr("has no tensor 'transformer.h.1.mlp.c_fc.bias'"));
  }
  {
    const Copy copy;
    copy.change([](auto& all) { all["score.weight"] = all.at("transformer.wte.weight"); });
    EXPECT_THAT(copy.refused(),
                HasSubstr("has the tensor 'score.weight', which a GPT2LMHeadModel"));
  }
  {
    const Copy copy;
    copy.change([](auto& all) {
      auto& shape = all.at("transformer.h.0.mlp.c_fc.weight").entry.shape;
      shape = Shape{shape[1], shape[0]};
    });
    EXPECT_THAT(copy.refused(), AllOf(HasSubstr("'transformer.h.0.mlp.c_fc.weight'"),
                                      HasSubstr("(48, 12), and by config.json it is (12, 48)")));
  }
  {
    const Copy copy;
    copy.change([](auto& all) { all.at("transformer.wpe.weight").entry.dtype = "I32"; });
    EXPECT_THAT(copy.refused(), HasSubstr("'transformer.wpe.weight' is I32; F32, F16 and BF16"));
  }
}

TEST(HuggingFace, ChecksTheIndexAgainstItsFiles) {
  const auto spoil = [](const std::function<void(json&)>& change) {
    const Copy copy("v4");
    json index = json::parse(read_file(copy.path("model.safetensors.index.json")));
    change(index);
    copy.write("model.safetensors.index.json", index.dump());
    return copy.refused();
  };
  const char* const kName = "transformer.wte.weight";
  EXPECT_THAT(spoil([&](json& index) { index["weight_map"].erase(kName); }),
              AllOf(HasSubstr("model-00001-of-00002.safetensors' has the tensor"),
                    HasSubstr("it is in no file")));
  EXPECT_THAT(
      spoil([&](json& index) { index["weight_map"][kName] = "model-00002-of-00002.safetensors"; }),
      HasSubstr("it is in model-00002-of-00002.safetensors"));
  EXPECT_THAT(
      spoil([&](json& index) { index["weight_map"]["x"] = "model-00002-of-00002.safetensors"; }),
      HasSubstr("does not have the tensor 'x'"));
  EXPECT_THAT(spoil([&](json& index) { index["weight_map"][kName] = "../model.safetensors"; }),
              HasSubstr("which is not the name of a .safetensors file of this folder"));
  EXPECT_THAT(spoil([&](json& index) { index = json::array(); }), HasSubstr("has no weight_map"));
  const Copy copy("v4");
  fs::remove(copy.path("model-00002-of-00002.safetensors"));
  EXPECT_THAT(copy.refused(ErrorCode::kNotFound), HasSubstr("model-00002-of-00002.safetensors"));
}

TEST(HuggingFace, SaysWhatAFolderLacks) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal([&] { open_pretrained(folder.path("gpt2")); }, ErrorCode::kNotFound),
              HasSubstr("hf download NAME --local-dir FOLDER"));
  EXPECT_THAT(refusal([&] { open_pretrained(folder.path()); }, ErrorCode::kNotFound),
              HasSubstr("has no config.json"));
  fs::copy_file(golden_folder("v5") / "config.json", folder.path("config.json"));
  EXPECT_THAT(refusal([&] { open_pretrained(folder.path()); }, ErrorCode::kNotFound),
              HasSubstr("pytorch_model.bin"));
}

TEST(HuggingFace, RefusesConfigsThatReadersMayTakeDifferently) {
  const std::string good = read_file(golden_folder("v5") / "config.json");
  const std::string start = good.substr(0, good.rfind('}'));
  for (const auto& [text, why] : std::vector<std::pair<std::string, std::string>>{
           {start + R"(,"n_layer":2})", "has the key \"n_layer\" twice"},
           {start + R"(,"n_\u006cayer":2})", "has the key \"n_layer\" twice"},
           {good + std::string(1, '\0'), "NUL"},
           {"\xef\xbb\xbf" + good, "byte order mark"},
           {good.substr(0, 100), "is not JSON"},
           {std::string(200, '['), "nested deeper"},
           {"[]", "is no JSON object"}}) {
    const Copy copy;
    copy.write("config.json", text);
    EXPECT_THAT(copy.refused(), AllOf(HasSubstr("config.json"), HasSubstr(why)));
  }
}

TEST(Pretrained, GivesValuesToSeveralThreadsAtOnce) {
  const PretrainedGpt pretrained = open_hugging_face(golden_folder("hub").string());
  const auto expected = values_of(pretrained);
  const auto values = pretrained.values();
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 20; ++round) {
        for (const auto& [name, own] : expected) {
          if (t % 2 == 0 && name.ends_with("bias")) continue;  // not all in the same order
          const std::span<const float> first = values(name), again = values(name);
          if (!std::ranges::equal(first, own) || first.data() != again.data()) ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_THROW(values("x"), Error);
}

TEST(Pretrained, TellsFilesOfOtherContentApart) {
  const Copy copy;
  const auto identity = open_pretrained(copy.path()).identity();
  EXPECT_EQ(identity, open_hugging_face(golden_folder("v5").string()).identity());
  copy.change([](auto& all) { all.at("transformer.ln_f.bias").bytes[0] ^= 1; });
  const auto other = open_pretrained(copy.path()).identity();
  ASSERT_EQ(identity.size(), 2U);
  EXPECT_EQ(identity[1].name, "content of initial parameters");
  EXPECT_NE(other[1].value, identity[1].value);
}

TEST(Pretrained, ConvertsEveryHalfPrecisionNumber) {
  // One matrix holds all of them: 65536 = 2 * 32768 rows of vocabulary.
  const TemporaryFolder folder;
  const GptConfig config{
      .vocab_size = 32768, .context_length = 1, .layers = 1, .heads = 1, .width = 2};
  std::map<std::string, std::vector<float>> values;
  const Model model = make_gpt(config);
  for (const auto& layer : model.layers) {
    for (const ParameterSpec& spec : layer->parameters()) {
      values[spec.name].resize(static_cast<std::size_t>(spec.shape.numel()));
    }
  }
  write_all(write_hugging_face(folder.path("model"), config), values);
  const std::string path = folder.path("model/model.safetensors");
  std::vector<SafetensorsEntry> entries = read_safetensors_header(InputFile(path)).tensors;
  std::string data;
  for (SafetensorsEntry& entry : entries) {
    if (entry.name != "transformer.wte.weight") {
      data.append(static_cast<std::size_t>(entry.bytes()), '\0');
      continue;
    }
    entry.dtype = "F16";
    for (unsigned i = 0; i < 65536; ++i) {
      data += static_cast<char>(i & 0xffU);
      data += static_cast<char>(i >> 8U);
    }
  }
  folder.write("model/model.safetensors", safetensors_header(entries) + data);
  std::vector<float> read(65536);
  open_pretrained(folder.path("model")).read("wte.weight", read);
  for (unsigned i = 0; i < 65536; ++i) {
    const int exponent = static_cast<int>(i >> 10U & 31U);
    const double fraction = static_cast<double>(i & 1023U) / 1024.0;
    const double sign = (i & 0x8000U) != 0 ? -1.0 : 1.0;
    const float value = read[i];
    ASSERT_EQ(std::signbit(value), sign < 0.0) << i;
    if (exponent == 31) {
      ASSERT_EQ(std::isinf(value), fraction == 0.0) << i;
      ASSERT_EQ(std::isnan(value), fraction != 0.0) << i;
    } else {
      const double expected =
          exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1.0 + fraction, exponent - 15);
      ASSERT_EQ(static_cast<double>(value), sign * expected) << i;
    }
  }
}

TEST(Pretrained, TransposesMatricesThatAreReadInSeveralPieces) {
  const TemporaryFolder folder;
  const GptConfig config{
      .vocab_size = 10, .context_length = 3, .layers = 1, .heads = 3, .width = 303};
  std::map<std::string, std::vector<float>> values;
  const Model model = make_gpt(config);
  float next = 0.0F;
  for (const auto& layer : model.layers) {
    for (const ParameterSpec& spec : layer->parameters()) {
      auto& own = values[spec.name];
      own.resize(static_cast<std::size_t>(spec.shape.numel()));
      for (float& value : own) value = next++;
    }
  }
  write_all(write_hugging_face(folder.path("model"), config), values);
  EXPECT_EQ(values_of(open_pretrained(folder.path("model"))), values);
  const std::string path = folder.path("model/model.safetensors");
  const std::string bytes = read_file(path);
  const auto tensors = read_safetensors_header(InputFile(path)).tensors;
  const auto found = std::ranges::find(tensors, "transformer.h.0.mlp.c_fc.weight",
                                       [](const SafetensorsEntry& entry) { return entry.name; });
  ASSERT_EQ(found->shape, (Shape{303, 1212}));
  const std::vector<float>& ours = values.at("h.0.mlp.c_fc.weight");
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < 303; ++i) {
    for (std::size_t o = 0; o < 1212; ++o) {
      float stored = 0.0F;
      std::memcpy(&stored, bytes.data() + found->begin + (i * 1212 + o) * sizeof(stored),
                  sizeof(stored));
      if (stored != ours[o * 303 + i]) ++wrong;
    }
  }
  EXPECT_EQ(wrong, 0U);
}

TEST(Pretrained, AWriterThatDoesNotFinishLeavesNothing) {
  const TemporaryFolder folder;
  const PretrainedGpt pretrained = open_hugging_face(golden_folder("v5").string());
  const auto values = values_of(pretrained);
  for (const bool is_folder : {true, false}) {
    const std::string path = folder.path("out");
    const auto make = [&] {
      return is_folder ? write_hugging_face(path, pretrained.config())
                       : write_llm_c(path, pretrained.config());
    };
    {
      PretrainedWriter writer = make();
      EXPECT_TRUE(fs::exists(path + ".tmp"));
      writer.write("wte.weight", values.at("wte.weight"));
      EXPECT_THAT(refusal([&] { writer.write("wte.weight", values.at("wte.weight")); },
                          ErrorCode::kInvalidArgument),
                  HasSubstr("twice"));
      EXPECT_THAT(refusal([&] { writer.write("wpe.weight", values.at("wte.weight")); },
                          ErrorCode::kInvalidArgument),
                  HasSubstr("takes 288 values, not 780"));
      refusal([&] { writer.write("x", {}); }, ErrorCode::kNotFound);
      EXPECT_THAT(refusal([&] { writer.finish(); }, ErrorCode::kInvalidArgument),
                  HasSubstr("parameter 'h.0.attn.c_attn.bias' was not written"));
    }
    EXPECT_TRUE(fs::is_empty(folder.path()));
    write_all(make(), values);
    EXPECT_THAT(refusal(make), HasSubstr("exists already"));
    fs::remove_all(path);
  }
}

/// The disk, whose calls fail from one of them on until the writing has ended.
class FailingStorage : public Storage {
 public:
  explicit FailingStorage(int good) : good_(good) {}
  void make_folder(const std::string& path) override { count(), disk().make_folder(path); }
  std::unique_ptr<File> create(const std::string& path, std::int64_t bytes) override {
    count();
    return std::make_unique<FailingFile>(*this, disk().create(path, bytes));
  }
  void sync_folder(const std::string& path) override { count(), disk().sync_folder(path); }
  void rename(const std::string& from, const std::string& to) override {
    count(), disk().rename(from, to);
  }
  void remove(const std::string& path) override { disk().remove(path); }
  bool failed() const { return good_ < 0; }

 private:
  class FailingFile : public File {
   public:
    FailingFile(FailingStorage& storage, std::unique_ptr<File> file)
        : storage_(storage), file_(std::move(file)) {}
    void write(std::int64_t offset, std::span<const std::byte> bytes) override {
      storage_.count(), file_->write(offset, bytes);
    }
    void sync() override { storage_.count(), file_->sync(); }

   private:
    FailingStorage& storage_;
    std::unique_ptr<File> file_;
  };
  void count() { require(--good_ >= 0, ErrorCode::kIo, "no space left"); }

  int good_;
};

TEST(Pretrained, AWriteThatFailsLeavesAllOrNothing) {
  const PretrainedGpt pretrained = open_hugging_face(golden_folder("v5").string());
  const auto values = values_of(pretrained);
  const TemporaryFolder folder;
  const std::string path = folder.path("out");
  for (const bool is_folder : {true, false}) {
    bool done = false;
    int good = 0;
    for (; !done; ++good) {
      FailingStorage storage(good);
      try {
        write_all(is_folder ? write_hugging_face(path, pretrained.config(), storage)
                            : write_llm_c(path, pretrained.config(), DType::kFloat32, storage),
                  values);
        done = true;
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::kIo) << error.what();
      }
      EXPECT_EQ(storage.failed(), !done) << good;
      EXPECT_FALSE(fs::exists(path + ".tmp")) << good;
      EXPECT_TRUE(!fs::exists(path) || values_of(open_pretrained(path)) == values) << good;
      fs::remove_all(path);
    }
    EXPECT_GT(good, 30);  // a call for each parameter, and those around them
  }
}

/// Nothing but an Error comes of a spoilt file.
TEST(Pretrained, MutantsOfConfigIndexAndHeaderAreReadOrRefused) {
  const Copy copy("v4");
  std::mt19937_64 random(5);
  const auto below = [&](std::size_t count) { return static_cast<std::size_t>(random() % count); };
  const std::string words[]{"9", "-", "\"", "{", "}", "[", "null", "true", ",", "e9", "\\u0000"};
  const std::string header = read_file(kGolden / "llm_c_bf16.bin");
  int taken = 0;
  for (int i = 0; i < 1500; ++i) {
    const std::string name = i % 3 == 0   ? "config.json"
                             : i % 3 == 1 ? "model.safetensors.index.json"
                                          : "model.bin";
    const std::string good = i % 3 == 2 ? header : read_file(golden_folder("v4") / name);
    std::string bytes = good;
    const std::size_t at = below(std::min<std::size_t>(bytes.size(), i % 3 == 2 ? 32 : 4000));
    const std::size_t way = below(3);
    if (way == 0) bytes[at] = static_cast<char>(random());
    if (way == 1) bytes.erase(at, below(20) + 1);
    if (way == 2) bytes.insert(at, words[below(std::size(words))]);
    fs::remove(copy.path(name));
    copy.write(name, bytes);
    try {
      const PretrainedGpt model = open_pretrained(i % 3 == 2 ? copy.path(name) : copy.path());
      values_of(model);
      ++taken;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(copy.path()));
    }
    fs::remove(copy.path(name));  // ext4 waits for the disk if content is replaced
    copy.write(name, good);
  }
  EXPECT_GT(taken, 20);
}

TEST(LlmC, ReadsAndWritesTheBytesOfItsOwnWriter) {
  const TemporaryFolder folder;
  const auto expected = values_of(open_hugging_face(golden_folder("v5").string()));
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const std::string name = concat("llm_c_", to_string(dtype), ".bin");
    const PretrainedGpt pretrained = open_pretrained((kGolden / name).string());
    EXPECT_EQ(pretrained.config().vocab_size, 65);
    EXPECT_EQ(pretrained.config().heads, 3);
    const auto values = values_of(pretrained);
    EXPECT_EQ(values == expected, dtype == DType::kFloat32);
    const std::string path = folder.path(name);
    // From the fp32 values: bf16 is rounded as PyTorch rounds it.
    write_all(write_llm_c(path, pretrained.config(), dtype), expected);
    EXPECT_EQ(read_file(path), read_file(kGolden / name));
  }
  const json all = golden();
  expect_golden(open_llm_c((kGolden / "llm_c_fp32.bin").string()), all.at("folders").at("v5"),
                all.at("tokens"));
}

TEST(LlmC, SaysWhatIsWrongWithAFile) {
  const TemporaryFolder folder;
  const std::string good = read_file(kGolden / "llm_c_fp32.bin");
  const auto refused = [&](const std::string& bytes, ErrorCode code = ErrorCode::kConfig) {
    return refusal([&] { open_pretrained(folder.write("model.bin", bytes)); }, code);
  };
  const auto with = [&](std::size_t index, std::int32_t value) {
    std::string bytes = good;
    std::memcpy(bytes.data() + 4 * index, &value, sizeof(value));
    return bytes;
  };
  EXPECT_THAT(refused("short"), HasSubstr("is not a model file of llm.c"));
  EXPECT_THAT(refused(with(0, 20240520)), HasSubstr("is not a model file of llm.c"));
  EXPECT_THAT(refused(with(1, 1)), HasSubstr("of version 1; versions 3 (fp32) and 5 (bf16)"));
  EXPECT_THAT(refused(with(4, -2)), HasSubstr("layers must be positive, got -2"));
  EXPECT_THAT(refused(with(5, 5)), HasSubstr("not a multiple of heads 5"));
  EXPECT_THAT(refused(with(7, 64)), HasSubstr("65 tokens are padded to 64"));
  EXPECT_THAT(refused(with(4, 2147483647), ErrorCode::kIo), HasSubstr("copy or download it again"));
  EXPECT_THAT(refused(with(6, 2147483646), ErrorCode::kIo), HasSubstr("copy or download it again"));
  EXPECT_THAT(refused(good.substr(0, good.size() - 1), ErrorCode::kIo),
              HasSubstr("has 23487 bytes, and a model of 2 layers, width 12"));
  EXPECT_THAT(refused(good + "x", ErrorCode::kIo), HasSubstr("has 23489 bytes"));
  EXPECT_THAT(
      refusal([&] { write_llm_c(folder.path("x"), {.layers = 1, .tie_embedding = false}); }),
      HasSubstr("no head of their own"));
}

}  // namespace
}  // namespace tessera::pretrained_test

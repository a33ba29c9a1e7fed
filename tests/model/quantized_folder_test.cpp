#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "support/golden_folder.h"
#include "support/golden_run.h"
#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/model/adapter.h"
#include "tessera/model/hugging_face.h"

// Folders that bitsandbytes has quantised: what is read of them, and with adapters beside them what
// PEFT computes; and such folders as we write them.
namespace tessera::quantized_folder_test {
namespace {

using namespace test;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

namespace fs = std::filesystem;
const std::string kFolders = TESSERA_SOURCE_DIR "/tests/model/golden/quantized/";

struct Case {
  const char* name;
  const char* base;
  WeightFormat format;
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::uint64_t fnv(std::span<const float> values) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte byte : std::as_bytes(values)) {
    hash = (hash ^ static_cast<std::uint8_t>(byte)) * 0x100000001b3;
  }
  return hash;
}

/// The tensors of a folder as bytes, with their dtypes and shapes.
std::map<std::string, std::string> raw_tensors(const std::string& folder) {
  const InputFile file(folder + "/model.safetensors");
  std::map<std::string, std::string> tensors;
  for (const SafetensorsEntry& entry : read_safetensors_header(file).tensors) {
    std::string bytes(static_cast<std::size_t>(entry.bytes()), '\0');
    file.read(entry.begin, std::as_writable_bytes(std::span(bytes)));
    tensors[entry.name] = bytes;
  }
  return tensors;
}

class QuantizedFolder : public ::testing::TestWithParam<Case> {
 protected:
  QuantizedFolder()
      : golden_(kFolders + GetParam().name),
        folder_(open_hugging_face(kFolders + GetParam().name)),
        adapted_(open_adapter(folder_, kFolders + GetParam().name + "_adapter")) {}

  Golden golden_;
  PretrainedGpt folder_, adapted_;
};

TEST_P(QuantizedFolder, HasTheWeightsOfBitsandbytes) {
  EXPECT_EQ(folder_.stored_format(), GetParam().format);
  EXPECT_EQ(folder_.config().base_format, WeightFormat::kNone);
  EXPECT_THAT(folder_.format(), HasSubstr(concat(", quantised to ", to_string(GetParam().format))));
  TemporaryFolder other;
  PretrainedWriter writer = write_hugging_face(other.path("plain"), folder_.config());
  for (const auto& [name, values] : values_in(folder_, make_gpt(folder_.config()))) {
    writer.write(name, values);
  }
  writer.finish();
  InitialValues tensors = stored_tensors(other.path("plain"));
  ASSERT_FALSE(golden_.index().at("weights").empty());
  for (const auto& [name, hash] : golden_.index().at("weights").items()) {
    std::vector<float>& values = tensors.at(name);
    if (name.starts_with("transformer.")) {  // a Conv1D, which we write transposed
      const GptConfig& config = folder_.config();
      const ParameterSpec spec = [&] {
        for (const auto& layer : make_gpt(config).layers) {
          for (const ParameterSpec& own : layer->parameters()) {
            if ("transformer." + own.name == name) return own;
          }
        }
        return ParameterSpec{};
      }();
      folder_.read(spec.name, values);
    }
    for (float& value : values) value += 0.0F;  // fp4 has a -0
    EXPECT_EQ(fnv(values), std::stoull(hash.get<std::string>(), nullptr, 16)) << name;
  }
}

TEST_P(QuantizedFolder, LogitsAndGradientsAreThoseOfPeft) {
  const Model plain = make_gpt(folder_.config());
  const Computed base = compute(golden_, plain, values_in(folder_, plain), DType::kFloat32, false);
  EXPECT_LT(relative_error(base.logits, golden_.floats("base_logits")), 1e-5);
  const Model model = make_gpt(adapted_.config());
  const Computed computed =
      compute(golden_, model, values_in(adapted_, model), DType::kFloat32, false);
  EXPECT_LT(relative_error(computed.logits, golden_.floats("logits")), 1e-5);
  TemporaryFolder folder;
  PretrainedWriter writer = write_adapter(folder.path("adapter"), adapted_.config(), "base");
  for (const auto& [name, gradient] : computed.gradients) writer.write(name, gradient);
  writer.finish();
  const InitialValues gradients =
      stored_tensors(folder.path("adapter"), "adapter_model.safetensors");
  EXPECT_FALSE(gradients.empty());
  for (const auto& [name, gradient] : gradients) {
    EXPECT_LT(relative_error(gradient, golden_.floats("gradient/" + name)), 2e-5) << name;
  }
}

TEST_P(QuantizedFolder, KeepsItsFormatBesideAdapters) {
  EXPECT_EQ(adapted_.config().base_format, GetParam().format);
  const bool skips = std::string(GetParam().name) == "llama_nf4_double";
  EXPECT_THAT(
      adapted_.config().unquantized,
      testing::ElementsAreArray(skips ? std::vector<std::string>{"layers.1.mlp.down_proj.weight"}
                                      : std::vector<std::string>{}));
  EXPECT_EQ(folder_.unquantized(), adapted_.config().unquantized);
  EXPECT_EQ(parse_gpt_configuration(configuration_of(adapted_.config())), adapted_.config());
}

// The codes and scales of the folder, on every rank and with every strategy: what is gathered has
// not changed by a bit.
TEST_P(QuantizedFolder, FiveStepsStayWithPeftUnderEveryStrategy) {
  const Model model = make_gpt(adapted_.config());
  const InitialValues stored = values_in(adapted_, model);
  const auto load = [&](TrainingState& state, Stream& stream) { adapted_.load(state, stream); };
  std::vector<float> losses;
  for (const auto& [strategy, ranks] : std::vector<std::pair<const char*, int>>{
           {"no_shard", 1}, {"full_shard", 1}, {"full_shard", 3}, {"shard_grad_op", 3}}) {
    SCOPED_TRACE(concat(strategy, " on ", ranks));
    const Trained trained =
        train_golden(golden_, model, {}, strategy, ranks, DType::kFloat32, std::nullopt, load);
    EXPECT_LT(relative_error(trained.losses, golden_.floats("step_loss")), 1e-5);
    EXPECT_LT(relative_error(trained.norms, golden_.floats("step_gradient_norm")), 1e-4);
    if (ranks == 3) {
      if (losses.empty()) losses = trained.losses;
      EXPECT_EQ(trained.losses, losses);
    }
    for (const FullParameter& parameter : trained.parameters) {
      if (is_adapter_parameter(parameter.name)) continue;
      EXPECT_EQ(parameter.values, stored.at(parameter.name)) << parameter.name;
    }
  }
}

TEST_P(QuantizedFolder, IsWrittenAsTransformersWritesIt) {
  const PretrainedGpt base = open_hugging_face(kFolders + GetParam().base);
  TemporaryFolder folder;
  GptConfig config = base.config();
  config.unquantized = folder_.unquantized();
  const auto write = [&](const std::string& name, const PretrainedGpt& from, bool copies) {
    PretrainedWriter writer =
        write_hugging_face(folder.path(name), config, disk(), {.format = GetParam().format});
    for (const auto& [parameter, values] : values_in(from, make_gpt(base.config()))) {
      if (copies && writer.copy(parameter, from)) continue;
      writer.write(parameter, values);
    }
    writer.finish();
    return raw_tensors(folder.path(name));
  };
  const auto theirs = raw_tensors(kFolders + GetParam().name);
  const auto made = write("made", base, false), copied = write("copied", folder_, true);
  const bool fp4 = std::string(GetParam().name).find("fp4") != std::string::npos;
  for (const auto* const ours : {&made, &copied}) {
    ASSERT_EQ(ours->size(), theirs.size());
    for (const auto& [name, bytes] : theirs) {
      ASSERT_TRUE(ours->contains(name)) << name;
      std::string own = ours->at(name), other = bytes;
      if (name.find("quant_state") != std::string::npos) {
        EXPECT_EQ(json::parse(own), json::parse(other)) << name;
        continue;
      }
      const bool codes = theirs.contains(name + ".absmax");
      for (std::string* const text : {&own, &other}) {
        for (char& pair : *text) {  // fp4 has two codes of zero, 0 and 8
          if (!fp4 || !codes) break;
          auto byte = static_cast<unsigned char>(pair);
          if (byte >> 4U == 8) byte &= 15U;
          if ((byte & 15U) == 8) byte &= 0xf0U;
          pair = static_cast<char>(byte);
        }
      }
      EXPECT_TRUE(own == other) << name;
    }
  }
  const json ours = json::parse(read_file(folder.path("made/config.json")));
  const json expected = json::parse(read_file(kFolders + GetParam().name + "/config.json"));
  json own = ours.at("quantization_config"), other = expected.at("quantization_config");
  for (json* const one : {&own, &other}) {
    one->erase("llm_int8_skip_modules");  // named otherwise
    one->erase("bnb_4bit_quant_storage");
  }
  EXPECT_EQ(own, other);
  const PretrainedGpt again = open_hugging_face(folder.path("copied"));
  EXPECT_EQ(values_in(again, make_gpt(base.config())), values_in(folder_, make_gpt(base.config())));
}

INSTANTIATE_TEST_SUITE_P(
    All, QuantizedFolder,
    ::testing::Values(Case{"llama_nf4", "llama", WeightFormat::kNf4},
                      Case{"llama_nf4_double", "llama", WeightFormat::kNf4Double},
                      Case{"gpt2_fp4", "gpt2", WeightFormat::kFp4},
                      Case{"gpt2_fp4_double", "gpt2", WeightFormat::kFp4Double},
                      Case{"llama_int8", "llama", WeightFormat::kInt8}),
    [](const auto& test) { return std::string(test.param.name); });

/// A folder in which one thing is another: of its configuration, or of a tensor.
class Spoilt {
 public:
  explicit Spoilt(const std::string& name) {
    fs::copy(kFolders + name, folder_.path("model"), fs::copy_options::recursive);
  }
  Spoilt& configure(const std::function<void(json&)>& edit) {
    const std::string path = folder_.path("model/config.json");
    json config = json::parse(read_file(path));
    edit(config["quantization_config"]);
    if (config["quantization_config"].is_null()) config.erase("quantization_config");
    std::ofstream(path) << config;
    return *this;
  }
  /// Writes the tensors anew. Edits see the entry and its bytes; an entry without a name is left
  /// out.
  Spoilt& tensors(const std::function<void(SafetensorsEntry&, std::string&)>& edit) {
    const std::string path = folder_.path("model/model.safetensors");
    std::vector<SafetensorsEntry> entries;
    std::string data;
    {
      const InputFile file(path);
      for (SafetensorsEntry entry : read_safetensors_header(file).tensors) {
        std::string bytes(static_cast<std::size_t>(entry.bytes()), '\0');
        file.read(entry.begin, std::as_writable_bytes(std::span(bytes)));
        edit(entry, bytes);
        if (entry.name.empty()) continue;
        entries.push_back(entry);
        data += bytes;
      }
    }
    const std::string header = safetensors_header(entries, {{"format", "pt"}});
    std::ofstream(path, std::ios::binary) << header << data;
    return *this;
  }
  std::string error() const {
    try {
      open_hugging_face(folder_.path("model"));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig) << error.what();
      return error.what();
    }
    return "";
  }

 private:
  TemporaryFolder folder_;
};

std::function<void(SafetensorsEntry&, std::string&)> without(const std::string& end) {
  return [end](SafetensorsEntry& entry, std::string&) {
    if (entry.name.ends_with(end)) entry.name.clear();
  };
}

TEST(QuantizedFolders, RefuseOtherMethodsByName) {
  const auto error = [](const std::function<void(json&)>& edit) {
    return Spoilt("llama_nf4").configure(edit).error();
  };
  EXPECT_EQ(error([](json& of) { of.erase("_load_in_4bit"); }), "");
  EXPECT_EQ(error([](json& of) { of["bnb_4bit_compute_dtype"] = "bfloat16"; }), "");
  for (const char* const method : {"gptq", "awq", "fp8"}) {
    EXPECT_THAT(error([&](json& of) {
                  of = {{"quant_method", method}};
                }),
                AllOf(HasSubstr("quantization_config.quant_method is"), HasSubstr(method),
                      HasSubstr("give `base_format`")));
  }
  EXPECT_THAT(error([](json& of) { of["bnb_4bit_quant_type"] = "int4"; }),
              HasSubstr("quantization_config.bnb_4bit_quant_type is \"int4\""));
  EXPECT_THAT(error([](json& of) { of["load_in_8bit"] = true; }),
              HasSubstr("either it or load_in_8bit must be true"));
  EXPECT_THAT(error([](json& of) { of["llm_int8_has_fp16_weight"] = true; }),
              HasSubstr("llm_int8_has_fp16_weight"));
  EXPECT_THAT(error([](json& of) { of = nullptr; }),
              HasSubstr("is quantised, and config.json has no quantization_config"));
  EXPECT_THAT(error([](json& of) { of["bnb_4bit_use_double_quant"] = true; }),
              AllOf(HasSubstr("absmax' is F32"), HasSubstr("in nf4-double it is U8")));
  EXPECT_THAT(error([](json& of) { of["bnb_4bit_quant_type"] = "fp4"; }),
              HasSubstr("quant_map' has other numbers than bitsandbytes' fp4"));
}

TEST(QuantizedFolders, RefuseWhatDoesNotFitByTensor) {
  const auto q = "model.layers.0.self_attn.q_proj.weight";
  const std::string state = ".quant_state.bitsandbytes__nf4";
  for (const std::string& missing :
       {std::string(".absmax"), std::string(".quant_map"), state, std::string(".nested_absmax"),
        std::string(".nested_quant_map")}) {
    EXPECT_THAT(Spoilt("llama_nf4_double").tensors(without(q + missing)).error(),
                AllOf(HasSubstr(concat("there is no '", q, missing, "' beside it")),
                      HasSubstr("download or write all of the folder's files again")));
  }
  EXPECT_THAT(Spoilt("llama_int8").tensors(without("q_proj.SCB")).error(),
              HasSubstr("there is no 'model.layers.0.self_attn.q_proj.SCB' beside it"));
  EXPECT_EQ(Spoilt("llama_int8").tensors(without(".weight_format")).error(), "");
  EXPECT_THAT(Spoilt("llama_int8")
                  .tensors([](SafetensorsEntry& entry, std::string& bytes) {
                    if (entry.name.ends_with("o_proj.weight_format")) bytes[0] = 2;
                  })
                  .error(),
              HasSubstr("o_proj.weight_format' is 2, a layout of old GPUs"));
  const auto described = [&](const std::string& from, const std::string& to) {
    return Spoilt("llama_nf4_double")
        .tensors([&](SafetensorsEntry& entry, std::string& bytes) {
          const std::size_t at = bytes.find(from);
          if (entry.name != q + state || at == std::string::npos) return;
          bytes.replace(at, from.size(), to);
          entry.shape = Shape{std::ssize(bytes)};
        })
        .error();
  };
  EXPECT_EQ(described("\"dtype\": \"float32\"", "\"dtype\": \"bfloat16\""), "");
  EXPECT_THAT(described("\"blocksize\": 64", "\"blocksize\": 128"),
              AllOf(HasSubstr("has blocksize 128, and 64 can be read here"),
                    HasSubstr("quantise the model anew")));
  EXPECT_THAT(described("[32, 32]", "[16, 64]"), HasSubstr("has shape [16,64]"));
  EXPECT_THAT(described("\"nested_blocksize\": 256", "\"nested_blocksize\": 64"),
              HasSubstr("has nested_blocksize 64, and 256"));
  EXPECT_THAT(described("\"nested_offset\"", "\"nested_other\""),
              HasSubstr("has no nested_offset"));
  EXPECT_THAT(described("{", "["), HasSubstr("quant_state"));
  EXPECT_THAT(Spoilt("llama_nf4")
                  .tensors([&](SafetensorsEntry& entry, std::string& bytes) {
                    if (entry.name != q) return;
                    bytes.resize(bytes.size() / 2);
                    entry.shape = Shape{std::ssize(bytes), 1};
                  })
                  .error(),
              AllOf(HasSubstr(q), HasSubstr("in nf4 it is U8")));
}

TEST(QuantizedFolders, HaveATensorThatIsQuantised) {
  EXPECT_THAT(Spoilt("llama")
                  .configure([](json& of) {
                    of = {{"load_in_4bit", true}};
                  })
                  .error(),
              HasSubstr("quantization_config is of fp4, and no tensor is quantised"));
}

TEST(QuantizedFolders, AreNotQuantisedAgain) {
  const std::string name = kFolders + "llama_nf4";
  const PretrainedGpt adapted = open_adapter(open_hugging_face(name), name + "_adapter");
  GptConfig config = adapted.config();
  config.base_format = WeightFormat::kFp4;
  try {
    train_golden(Golden(name), make_gpt(config), {}, "no_shard", 1, DType::kFloat32, std::nullopt,
                 [&](TrainingState& state, Stream& stream) { adapted.load(state, stream); });
    ADD_FAILURE() << "quantised twice";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("is stored in nf4, and would be quantised again, to fp4"));
  }
}

}  // namespace
}  // namespace tessera::quantized_folder_test

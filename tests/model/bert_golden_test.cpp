#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "support/golden_folder.h"
#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/model/adapter.h"
#include "tessera/model/classification.h"
#include "tessera/model/gpt_generation.h"
#include "tessera/model/gpt_sampler.h"
#include "tessera/model/gpt_scoring.h"
#include "tessera/model/hugging_face.h"
#include "tessera/trainer/trainer.h"

// Small random BERTs, which classify texts or tell masked tokens, against transformers and PEFT.
namespace tessera::bert_golden_test {
namespace {

using namespace test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kFolders = TESSERA_SOURCE_DIR "/tests/model/golden/encoders/";

/// The model of a case: "classifier", or "classifier_lora" with PEFT's adapters.
PretrainedGpt open_case(const std::string& name) {
  constexpr std::string_view kLora = "_lora";
  if (!name.ends_with(kLora)) return open_hugging_face(kFolders + name);
  const std::string base = name.substr(0, name.size() - kLora.size());
  return open_adapter(open_hugging_face(kFolders + base), kFolders + name);
}

class BertGolden : public ::testing::TestWithParam<std::string> {
 protected:
  BertGolden()
      : golden_(kFolders + GetParam()),
        folder_(open_case(GetParam())),
        model_(make_gpt(folder_.config())),
        initial_(values_in(folder_, model_)) {}

  bool is_lora() const { return folder_.config().adapter.is_set(); }
  PretrainedWriter writer(const std::string& path) const {
    return is_lora() ? write_adapter(path, folder_.config(), "base")
                     : write_hugging_face(path, folder_.config());
  }
  const char* weights() const {
    return is_lora() ? "adapter_model.safetensors" : "model.safetensors";
  }

  Golden golden_;
  PretrainedGpt folder_;
  Model model_;
  InitialValues initial_;
};

TEST_P(BertGolden, LogitsAndGradientsAreThoseOfTransformers) {
  const Shape all = golden_.shape("tokens");
  const std::int64_t batch = all[1], length = all[2];
  const auto numel = static_cast<std::size_t>(batch * length);
  const std::vector<std::int32_t> tokens = golden_.ints("tokens"), starts = golden_.ints("starts");
  std::vector<std::int32_t> inputs(tokens.begin(), tokens.begin() + batch * length);
  inputs.insert(inputs.end(), starts.begin(), starts.begin() + batch * length);
  std::vector<std::int32_t> targets = golden_.ints("targets");
  targets.resize(numel);
  const std::int64_t items = std::ranges::count_if(targets, [](auto t) { return t >= 0; });
  const GptConfig& config = folder_.config();
  const auto classes = static_cast<std::size_t>(config.labels.empty() ? config.vocab_size
                                                                      : std::ssize(config.labels));
  for (const bool selective : {false, true}) {
    const Computed computed = compute_batch(model_, initial_, inputs, Shape{2, batch, length},
                                            targets, items, DType::kFloat32, selective);
    std::vector<float> told;
    for (std::size_t place = 0; place < numel; ++place) {
      if (targets[place] < 0) continue;
      const auto at = computed.logits.begin() + static_cast<std::ptrdiff_t>(place * classes);
      told.insert(told.end(), at, at + static_cast<std::ptrdiff_t>(classes));
    }
    EXPECT_LT(relative_error(told, golden_.floats("logits")), 1e-5);
    TemporaryFolder written;
    PretrainedWriter target = writer(written.path("gradients"));
    for (const auto& [name, gradient] : computed.gradients) target.write(name, gradient);
    target.finish();
    const InitialValues gradients = stored_tensors(written.path("gradients"), weights());
    EXPECT_EQ(gradients.size(), stored_tensors(kFolders + GetParam(), weights()).size());
    for (const auto& [name, gradient] : gradients) {
      // Softmax does not see what a bias adds to all keys: its gradient is rounding.
      if (name.ends_with("self.key.bias")) continue;
      EXPECT_LT(relative_error(gradient, golden_.floats("gradient/" + name)), 1e-5) << name;
    }
  }
}

TEST_P(BertGolden, TenStepsStayWithTransformersUnderEveryStrategy) {
  for (const int ranks : {1, 3}) {
    std::vector<std::vector<float>> parameters;  // of the first strategy
    for (const Strategy& strategy : strategies()) {
      SCOPED_TRACE(concat(strategy.name, " on ", ranks));
      const Trained trained = train_golden(golden_, model_, initial_, strategy.name, ranks);
      EXPECT_LT(relative_error(trained.losses, golden_.floats("step_loss")), 1e-5);
      EXPECT_LT(relative_error(trained.norms, golden_.floats("step_gradient_norm")), 1e-4);
      std::vector<std::vector<float>> own;
      for (const FullParameter& parameter : trained.parameters) own.push_back(parameter.values);
      if (parameters.empty()) parameters = own;
      EXPECT_EQ(own, parameters);
    }
  }
}

TEST_P(BertGolden, FoldersGoRoundTrip) {
  TemporaryFolder written;
  PretrainedWriter target = writer(written.path("copy"));
  for (const auto& [name, values] : initial_) target.write(name, values);
  target.finish();
  EXPECT_EQ(stored_tensors(written.path("copy"), weights()),
            stored_tensors(kFolders + GetParam(), weights()));
  if (!is_lora()) {
    EXPECT_EQ(open_hugging_face(written.path("copy")).config(), folder_.config());
  }
  EXPECT_EQ(parse_gpt_configuration(configuration_of(folder_.config())), folder_.config());
}

INSTANTIATE_TEST_SUITE_P(All, BertGolden,
                         ::testing::Values("classifier", "classifier_lora", "masked"),
                         [](const auto& test) { return test.param; });

template <typename Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// A classifier begins with a model that tells masked tokens, and with one without a head.
TEST(Bert, BeginsToClassifyWithAnyOfItsModels) {
  const PretrainedGpt masked = open_hugging_face(kFolders + "masked");
  const PretrainedGpt classifier = with_labels(masked, {"no", "yes"});
  const InitialValues from = stored_tensors(kFolders + "masked");
  const std::string name = "encoder.layer.1.output.dense.weight";
  std::vector<float> values(from.at("bert." + name).size());
  classifier.read(name, values);
  EXPECT_EQ(values, from.at("bert." + name));
  EXPECT_THAT(classifier.config().labels, ElementsAre("no", "yes"));
  // What it had for masked tokens is no part of it.
  std::vector<float> bias(static_cast<std::size_t>(classifier.config().vocab_size));
  EXPECT_THAT(refusal([&] { classifier.read("cls.predictions.bias", bias); }),
              HasSubstr("has no parameter"));
}

TEST(Bert, WritesNoTextAndSaysWhatItDoes) {
  const GptConfig config = open_hugging_face(kFolders + "masked").config();
  const auto reads =
      HasSubstr("is an encoder, which reads texts and writes none; classify with it");
  EXPECT_THAT(
      refusal([&] { GptSampler(config, [](const ParameterSpec&, std::span<float>) {}, {}); }),
      reads);
  EXPECT_THAT(refusal([&] { GptGeneration(config, 8); }), reads);
  EXPECT_THAT(refusal([&] { GptScoring(config, 8); }), reads);
}

TEST(Bert, WhatItsConfigSaysOtherwiseIsRefusedByName) {
  const auto refused = [](const char* key, const nlohmann::json& value) {
    TemporaryFolder folder;
    std::ifstream in(kFolders + "masked/config.json");
    nlohmann::json config = nlohmann::json::parse(in);
    config[key] = value;
    std::ofstream(folder.path("config.json")) << config.dump();
    return refusal([&] { hugging_face_config_of(folder.path("")); });
  };
  EXPECT_EQ(refused("hidden_dropout_prob", 0.3), "");
  EXPECT_EQ(refused("architectures", {"BertForPreTraining"}), "");
  EXPECT_THAT(refused("hidden_act", "relu"), HasSubstr("hidden_act is \"relu\""));
  EXPECT_THAT(refused("position_embedding_type", "relative_key"),
              HasSubstr("position_embedding_type is \"relative_key\""));
  EXPECT_THAT(refused("is_decoder", true), HasSubstr("is_decoder is true"));
  EXPECT_THAT(refused("tie_word_embeddings", false), HasSubstr("tie_word_embeddings"));
  EXPECT_THAT(refused("architectures", {"BertForTokenClassification"}),
              HasSubstr("only BertForMaskedLM and BertForSequenceClassification can be read"));
}

/// Texts of bytes with labels.
class LabelledTexts : public ::testing::Test {
 protected:
  DatasetOptions options(const std::string& lines) const {
    std::ofstream(folder_.path("data.jsonl")) << lines;
    return {.path = folder_.path("data.jsonl"),
            .sequence_length = 5,
            .shuffle = false,
            .vocab_size = 256,
            .labels = {"no", "yes"},
            .encoder = true};
  }
  TemporaryFolder folder_;
};

TEST_F(LabelledTexts, TheLabelIsTheTargetOfTheFirstToken) {
  DatasetOptions of =
      options("{\"text\": \"ab\", \"label\": 1}\n{\"text\": \"cde\", \"label\": 0}\n");
  for (const bool packing : {false, true}) {
    of.packing = packing;
    const TokenDataset data(of);
    EXPECT_EQ(data.input_shape(3), Shape({2, 3, 5}));
    std::vector<std::int32_t> inputs(5), targets(5), starts(5);
    EXPECT_EQ(data.fill_sample(0, inputs, targets, starts), packing ? 2 : 1);
    if (packing) {
      EXPECT_THAT(inputs, ElementsAre('c', 'd', 'e', 'a', 'b'));
      EXPECT_THAT(starts, ElementsAre(0, 0, 0, 3, 3));
      EXPECT_THAT(targets, ElementsAre(0, -100, -100, 1, -100));
    } else {
      EXPECT_THAT(starts, ElementsAre(0, 0, 2, 2, 2));
      EXPECT_THAT(targets, ElementsAre(1, -100, -100, -100, -100));
    }
  }
}

/// The memory is what the plan says, to the byte, and the bits are those of every strategy.
TEST_F(LabelledTexts, AreTrainedOnByEveryStrategyOnAnyRanks) {
  std::string lines;
  for (int i = 0; i < 15; ++i) {
    const nlohmann::json line{{"text", std::string(1 + i % 4, static_cast<char>('a' + i % 2))},
                              {"label", i % 2}};
    lines += line.dump() + "\n";
  }
  const DatasetOptions of = options(lines);
  const TokenDataset data(of);
  GptConfig config = gpt_preset("bert-tiny");
  config.layers = 1;
  config.width = 16;
  config.heads = 2;
  config.labels = of.labels;
  for (const bool lora : {false, true}) {
    if (lora) config.adapter = parse_adapter("lora", "r=2", config);
    const Model model = make_gpt(config);
    std::string expected;
    for (const int ranks : {1, 4}) {
      for (const Strategy& strategy : strategies()) {
        if (ranks == 1 && !expected.empty()) continue;
        SCOPED_TRACE(concat(strategy.name, " on ", ranks));
        TrainerOptions trainer;
        trainer.strategy = strategy.name;
        trainer.ranks = ranks;
        trainer.steps = 6;
        trainer.micro_batch = 2;
        trainer.accumulate = 4 / ranks;
        trainer.learning_rate.peak = 0.02;
        trainer.threads_per_rank = 1;
        trainer.evaluation_samples = 15;  // fewer than its batches hold
        trainer.evaluate_every = 6;
        const TrainingSummary summary = Trainer(model, data, trainer, &data).train();
        if (expected.empty()) expected = summary.parameters_sha256;
        EXPECT_EQ(summary.parameters_sha256, expected);
        EXPECT_EQ(summary.measured_memory, summary.predicted_memory);
        ASSERT_TRUE(summary.evaluation.has_value());
        EXPECT_EQ(summary.evaluation->tokens, 15);
        EXPECT_TRUE(summary.evaluation->correct.has_value());
        EXPECT_LT(summary.last_loss, summary.first_loss);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::bert_golden_test

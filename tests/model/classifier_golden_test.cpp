#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "support/golden_folder.h"
#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/model/adapter.h"
#include "tessera/model/classification.h"
#include "tessera/model/gpt_sampler.h"
#include "tessera/model/hugging_face.h"
#include "tessera/trainer/trainer.h"

// Small random classifiers of sequences against what transformers, PEFT and scikit-learn say.
namespace tessera::classifier_golden_test {
namespace {

using namespace test;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kFolders = TESSERA_SOURCE_DIR "/tests/model/golden/classifiers/";

/// The model of a case: "llama", or "llama_lora" with PEFT's adapters.
PretrainedGpt open_case(const std::string& name) {
  constexpr std::string_view kLora = "_lora";
  if (!name.ends_with(kLora)) return open_hugging_face(kFolders + name);
  const std::string base = name.substr(0, name.size() - kLora.size());
  return open_adapter(open_hugging_face(kFolders + base), kFolders + name);
}

class ClassifierGolden : public ::testing::TestWithParam<std::string> {
 protected:
  ClassifierGolden()
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

TEST_P(ClassifierGolden, LogitsAndGradientsAreThoseOfTransformers) {
  const Shape all = golden_.shape("tokens");
  const std::int64_t batch = all[1], length = all[2];
  const std::vector<std::int32_t> targets = golden_.ints("targets");
  for (const bool selective : {false, true}) {
    const Computed computed =
        compute_batch(model_, initial_, golden_.ints("tokens"), Shape{batch, length},
                      std::span(targets).first(static_cast<std::size_t>(batch * length)), batch,
                      DType::kFloat32, selective);
    const std::size_t classes = folder_.config().labels.size();
    std::vector<float> pooled;
    for (std::size_t place = 0; std::cmp_less(place, batch * length); ++place) {
      if (targets[place] < 0) continue;
      const auto at = computed.logits.begin() + static_cast<std::ptrdiff_t>(place * classes);
      pooled.insert(pooled.end(), at, at + static_cast<std::ptrdiff_t>(classes));
    }
    EXPECT_LT(relative_error(pooled, golden_.floats("logits")), 1e-5);
    TemporaryFolder written;
    PretrainedWriter target = writer(written.path("gradients"));
    for (const auto& [name, gradient] : computed.gradients) target.write(name, gradient);
    target.finish();
    const InitialValues gradients = stored_tensors(written.path("gradients"), weights());
    EXPECT_EQ(gradients.size(), stored_tensors(kFolders + GetParam(), weights()).size());
    for (const auto& [name, gradient] : gradients) {
      EXPECT_LT(relative_error(gradient, golden_.floats("gradient/" + name)), 1e-5) << name;
    }
  }
}

TEST_P(ClassifierGolden, TenStepsStayWithTransformersUnderEveryStrategy) {
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

TEST_P(ClassifierGolden, FoldersGoRoundTrip) {
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

INSTANTIATE_TEST_SUITE_P(All, ClassifierGolden,
                         ::testing::Values("gpt2", "llama", "qwen3", "gemma2", "gpt2_lora",
                                           "llama_lora"),
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

TEST(Classifier, BeginsWithAModelThatWritesText) {
  const PretrainedGpt base =
      open_hugging_face(TESSERA_SOURCE_DIR "/tests/model/golden/families/llama");
  const PretrainedGpt classifier = with_labels(base, {"no", "yes"});
  EXPECT_THAT(classifier.config().labels, ElementsAre("no", "yes"));
  std::vector<float> values(
      static_cast<std::size_t>(classifier.config().vocab_size * classifier.config().width));
  std::vector<float> expected = values;
  classifier.read("embed_tokens.weight", values);
  base.read("embed_tokens.weight", expected);
  EXPECT_EQ(values, expected);
  EXPECT_THAT(refusal([&] {
                with_labels(classifier, {"no", "yes", "perhaps"});
              }),
              HasSubstr("classifies 2 labels already"));
  EXPECT_THAT(refusal([&] { with_labels(base, {"no"}); }), HasSubstr("is the only label"));
  EXPECT_THAT(refusal([&] { with_labels(base, {"no", "no"}); }), HasSubstr("there twice"));
  EXPECT_THAT(refusal([&] {
                GptSampler(classifier.config(), [](const ParameterSpec&, std::span<float>) {}, {});
              }),
              HasSubstr("writes no text"));
}

TEST(Classifier, WhatItsConfigSaysOtherwiseIsRefusedByName) {
  const auto refused = [](const std::function<void(nlohmann::json&)>& change) {
    TemporaryFolder folder;
    std::ifstream in(kFolders + "llama/config.json");
    nlohmann::json config = nlohmann::json::parse(in);
    change(config);
    std::ofstream(folder.path("config.json")) << config.dump();
    return refusal([&] { hugging_face_config_of(folder.path("")); });
  };
  using nlohmann::json;
  EXPECT_THAT(refused([](json&) {}), IsEmpty());
  EXPECT_THAT(refused([](json& of) { of["problem_type"] = "regression"; }),
              HasSubstr("problem_type is \"regression\""));
  EXPECT_THAT(refused([](json& of) { of["num_labels"] = 3; }), HasSubstr("num_labels is 3"));
  EXPECT_THAT(refused([](json& of) {
                of["id2label"] = {{"0", "a"}, {"2", "b"}};
              }),
              HasSubstr("id2label"));
  EXPECT_THAT(refused([](json& of) {
                of["id2label"] = {{"0", "a"}};
              }),
              HasSubstr("a regression to transformers"));
  EXPECT_THAT(refused([](json& of) {
                of["id2label"] = {{"0", "a"}, {"1", "a"}};
              }),
              HasSubstr("there twice"));
}

TEST(F1, IsThatOfScikitLearn) {
  std::ifstream in(kFolders + "metrics.json");
  for (const auto& row : nlohmann::json::parse(in)) {
    EvaluationRecord record;
    record.classes.resize(row.at("classes").get<std::size_t>());
    const auto labels = row.at("labels").get<std::vector<std::size_t>>();
    const auto predictions = row.at("predictions").get<std::vector<std::size_t>>();
    for (std::size_t i = 0; i < labels.size(); ++i) {
      record.classes[labels[i]].add({.actual = 1});
      record.classes[predictions[i]].add({.correct = labels[i] == predictions[i], .predicted = 1});
    }
    EXPECT_DOUBLE_EQ(record.macro_f1().value(), row.at("macro").get<double>());
    EXPECT_EQ(record.f1().has_value(), row.contains("binary"));
    if (record.f1()) {
      EXPECT_DOUBLE_EQ(*record.f1(), row.at("binary").get<double>());
    }
  }
  EXPECT_FALSE(EvaluationRecord().macro_f1());
}

/// Texts of bytes with labels.
class LabelledData : public ::testing::Test {
 protected:
  std::string write(const std::string& lines) const {
    std::ofstream(folder_.path("data.jsonl")) << lines;
    return folder_.path("data.jsonl");
  }
  static DatasetOptions options(const std::string& path, std::vector<std::string> labels) {
    return {.path = path,
            .sequence_length = 4,
            .shuffle = false,
            .vocab_size = 256,
            .labels = std::move(labels)};
  }
  TemporaryFolder folder_;
};

TEST_F(LabelledData, TheLabelIsTheTargetOfTheLastToken) {
  const std::string path = write(
      R"({"text": "ab", "label": 1}
{"sentence": "abcdef", "labels": "no", "idx": 7}
{"text": "abcd", "label": "yes"}
)");
  for (const bool packing : {false, true}) {
    DatasetOptions of = options(path, {"no", "yes"});
    of.packing = packing;
    const TokenDataset data(of);
    ASSERT_EQ(data.samples_per_epoch(), 3);
    std::multiset<std::vector<std::int32_t>> found;
    for (std::int64_t sample = 0; sample < 3; ++sample) {
      std::vector<std::int32_t> inputs(4), targets(4), starts(packing ? 4 : 0);
      EXPECT_EQ(data.fill_sample(sample, inputs, targets, starts), 1);
      const auto last = std::ranges::find_if(targets, [](auto target) { return target >= 0; });
      inputs.resize(static_cast<std::size_t>(last - targets.begin()) + 1);
      inputs.push_back(*last);
      found.insert(inputs);
    }
    EXPECT_THAT(found, ElementsAre(ElementsAre('a', 'b', 1), ElementsAre('a', 'b', 'c', 'd', 0),
                                   ElementsAre('a', 'b', 'c', 'd', 1)));
  }
}

/// The memory is what the plan says, to the byte, and the bits are those of every strategy.
TEST_F(LabelledData, IsTrainedOnByEveryStrategyOnAnyRanks) {
  std::string lines;
  for (int i = 0; i < 16; ++i) {
    lines += nlohmann::json{{"text", std::string(1 + i % 4, static_cast<char>('a' + i % 2))},
                            {"label", i % 2}}
                 .dump() +
             "\n";
  }
  DatasetOptions of = options(write(lines), {"no", "yes"});
  const TokenDataset data(of);
  GptConfig config = gpt_preset("llama-tiny");
  config.layers = 2;
  config.width = config.mlp_width = 16;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_width = 0;
  config.labels = of.labels;
  for (const bool lora : {false, true}) {
    if (lora) config.adapter = parse_adapter("lora", "r=2", config);
    const Model model = make_gpt(config);
    std::string expected;
    for (const int ranks : {1, 4}) {
      for (const Strategy& strategy : strategies()) {
        SCOPED_TRACE(concat(strategy.name, " on ", ranks));
        TrainerOptions trainer;
        trainer.strategy = strategy.name;
        trainer.ranks = ranks;
        trainer.steps = 12;
        trainer.micro_batch = 2;
        trainer.accumulate = 4 / ranks;
        trainer.learning_rate.peak = 0.02;
        trainer.threads_per_rank = 1;
        trainer.evaluation_samples = 16;
        trainer.evaluate_every = 12;
        const TrainingSummary summary = Trainer(model, data, trainer, &data).train();
        if (expected.empty()) expected = summary.parameters_sha256;
        EXPECT_EQ(summary.parameters_sha256, expected);
        EXPECT_EQ(summary.measured_memory, summary.predicted_memory);
        ASSERT_TRUE(summary.evaluation.has_value());
        EXPECT_EQ(summary.evaluation->tokens, 16);
        EXPECT_TRUE(summary.evaluation->correct.has_value());
        EXPECT_LT(summary.last_loss, summary.first_loss);
      }
    }
  }
}

TEST_F(LabelledData, LabelsAreFoundInTheFiles) {
  EXPECT_THAT(labels_in(write(R"({"text": "a", "label": "yes"}
{"text": "b", "label": "no"}
{"text": "b", "label": "yes"}
)")),
              ElementsAre("no", "yes"));
  EXPECT_THAT(labels_in(write(R"({"text": "a", "label": 2}
{"text": "b", "label": 0}
)")),
              ElementsAre("LABEL_0", "LABEL_1", "LABEL_2"));
}

TEST_F(LabelledData, MalformedLabelsNameFileLineAndRemedy) {
  const auto refused = [&](const std::string& line) {
    const std::string path = write("{\"text\": \"a\", \"label\": 0}\n" + line + "\n");
    return refusal([&] { TokenDataset(options(path, {"no", "yes"})); });
  };
  EXPECT_THAT(refused(R"({"text": "a", "label": 2})"),
              AllOf(HasSubstr("data.jsonl"), HasSubstr("2"), HasSubstr("has the label 2"),
                    HasSubstr("0 to 1 (no, yes); mend the line")));
  EXPECT_THAT(refused(R"({"text": "a", "label": "perhaps"})"),
              AllOf(HasSubstr("line 2"), HasSubstr("'perhaps', which is none of the model's")));
  EXPECT_THAT(refused(R"({"text": "a", "label": -1})"), HasSubstr("a label is a number from 0 on"));
  EXPECT_THAT(refused(R"({"text": "a", "label": 1.5})"), HasSubstr("has the label 1.5"));
  EXPECT_THAT(refused(R"({"text": "a"})"), HasSubstr("has neither \"label\" nor \"labels\""));
  EXPECT_THAT(refused(R"({"text": "a", "label": 0, "labels": 1})"), HasSubstr("leave one of them"));
  EXPECT_THAT(refused(R"({"label": 0})"), HasSubstr("has neither \"text\" nor \"sentence\""));
  EXPECT_THAT(refused(R"({"text": 7, "label": 0})"), HasSubstr("that is no text"));
  EXPECT_THAT(
      refusal([&] { labels_in(write("{\"text\": \"a\", \"label\": 0}\n{\"label\": \"x\"}\n")); }),
      AllOf(HasSubstr("line 2"), HasSubstr("write all of one kind")));
  std::ofstream(folder_.path("plain.txt")) << "no labels";
  EXPECT_THAT(refusal([&] {
                TokenDataset(options(folder_.path("plain.txt"), {"no", "yes"}));
              }),
              HasSubstr("has no labels"));
}

}  // namespace
}  // namespace tessera::classifier_golden_test

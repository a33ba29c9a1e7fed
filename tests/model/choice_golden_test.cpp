#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/model/gpt_scoring.h"
#include "tessera/model/hugging_face.h"
#include "tessera/model/multiple_choice.h"
#include "tessera/trainer/multiple_choice_record.h"
#include "tessera/trainer/session.h"

// Questions with choices against what lm-evaluation-harness says of the same models.
namespace tessera::choice_golden_test {
namespace {

using nlohmann::json;

const std::string kGolden = TESSERA_SOURCE_DIR "/tests/model/golden/choices/";
const std::string kTokenizers = TESSERA_SOURCE_DIR "/tests/model/tokenizers/";

json read_golden() { return json::parse(std::ifstream(kGolden + "choices.json")); }

/// A model of the golden, and the questions of one of its files.
struct Case {
  Case(const json& golden, const std::string& model, const std::string& file)
      : pretrained(open_hugging_face(kGolden + model)),
        tokenizer(kTokenizers + (model == "llama" ? "llama3" : model) + ".json") {
    const test::TemporaryFolder folder;
    std::ofstream(folder.path("questions.jsonl")) << golden.at("files").at(file).get<std::string>();
    questions = read_choice_questions(folder.path("questions.jsonl")).questions;
  }

  TrainerOptions options(const std::string& strategy, int ranks) const {
    TrainerOptions options{.strategy = strategy, .ranks = ranks};
    options.device = DeviceChoice::kCpu;
    options.threads_per_rank = 1;
    options.micro_batch = 4;
    options.forward = true;
    options.initial_parameters = [this](TrainingState& state, Stream& stream) {
      pretrained.load(state, stream);
    };
    return options;
  }

  std::vector<std::vector<double>> scores(const TrainerOptions& options) const {
    const GptConfig& config = pretrained.config();
    const GptScoring gpt(config, config.context_length);
    Session session(gpt.model(), gpt, options);
    std::vector<std::vector<double>> all;
    for (const ChoiceQuestion& question : questions) {
      all.push_back(gpt.log_likelihoods(encode_choices(question, tokenizer, config.context_length),
                                        [&](const TensorView& inputs, const TensorView& targets) {
                                          return session.forward(inputs, targets).values;
                                        }));
    }
    for (const RankUse& use : session.use()) {
      EXPECT_LE(use.memory.total, session.plan().memory.total);
    }
    return all;
  }

  PretrainedGpt pretrained;
  Tokenizer tokenizer;
  std::vector<ChoiceQuestion> questions;
};

TEST(ChoiceGolden, ScoresAndFiguresAreThoseOfTheHarness) {
  const json golden = read_golden();
  for (const std::string model : {"gpt2", "llama"}) {
    for (const std::string file : {"hellaswag", "plain"}) {
      SCOPED_TRACE(model + " " + file);
      const Case one(golden, model, file);
      const auto scores = one.scores(one.options("full_shard", 2));
      const json& expected = golden.at("models").at(model).at(file);
      ASSERT_EQ(scores.size(), expected.at("scores").size());
      MultipleChoiceRecord record{.questions = std::ssize(scores)};
      for (std::size_t q = 0; q < scores.size(); ++q) {
        const auto want = expected.at("scores")[q].get<std::vector<double>>();
        ASSERT_EQ(scores[q].size(), want.size());
        for (std::size_t c = 0; c < want.size(); ++c) {
          EXPECT_NEAR(scores[q][c], want[c], 1e-5 * std::abs(want[c])) << q << " " << c;
        }
        const ChosenChoices chosen = choose(one.questions[q], scores[q]);
        record.correct += chosen.likeliest == one.questions[q].answer ? 1 : 0;
        record.correct_by_length += chosen.likeliest_by_length == one.questions[q].answer ? 1 : 0;
      }
      const double accuracy = record.accuracy(), normalised = record.normalised_accuracy();
      EXPECT_NE(accuracy, normalised);
      EXPECT_DOUBLE_EQ(accuracy, expected.at("acc").get<double>());
      EXPECT_DOUBLE_EQ(normalised, expected.at("acc_norm").get<double>());
      EXPECT_NEAR(record.standard_error(accuracy).value(), expected.at("acc_stderr").get<double>(),
                  1e-12);
      EXPECT_NEAR(record.standard_error(normalised).value(),
                  expected.at("acc_norm_stderr").get<double>(), 1e-12);
    }
  }
}

TEST(ChoiceGolden, ScoresHaveTheSameBitsForEveryStrategyAndNumberOfRanks) {
  Case one(read_golden(), "llama", "hellaswag");
  one.questions.resize(5);
  const auto expected = one.scores(one.options("no_shard", 1));
  for (const Strategy& strategy : strategies()) {
    for (const int ranks : {2, 3, 4}) {
      if (strategy.hybrid && ranks < 4) continue;
      SCOPED_TRACE(concat(strategy.name, " on ", ranks));
      EXPECT_EQ(one.scores(one.options(strategy.name, ranks)), expected);
    }
  }
  TrainerOptions stages = one.options("full_shard", 4);
  stages.pipeline.ranks = 2;
  EXPECT_EQ(one.scores(stages), expected);
}

}  // namespace
}  // namespace tessera::choice_golden_test

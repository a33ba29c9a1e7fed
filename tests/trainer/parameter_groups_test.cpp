#include "tessera/sharding/parameter_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "support/tiny_model.h"
#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/trainer/trainer.h"

// Rates of parameters by name.
namespace tessera::parameter_groups_test {
namespace {

using test::tiny_model;
using test::TinyData;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Groups = std::vector<ParameterGroup>;

TrainerOptions options_with(const Groups& groups, const std::string& strategy = "full_shard") {
  TrainerOptions options;
  options.strategy = strategy;
  options.ranks = 4;
  options.steps = 4;
  options.optimizer.name = "sgd";
  options.optimizer.hyperparameters = {{"momentum", 0.5}};
  options.optimizer.weight_decay = 0.25F;
  options.optimizer.groups = groups;
  options.learning_rate = {.kind = LearningRateSchedule::Kind::kConstant, .peak = 0.125};
  options.threads_per_rank = 1;
  options.gather_parameters = true;
  return options;
}

TrainingSummary trained(const TrainerOptions& options) {
  const Model model = tiny_model();
  const TinyData data;
  return Trainer(model, data, options).train();
}

std::map<std::string, std::vector<float>> parameters_of(const TrainingSummary& summary) {
  std::map<std::string, std::vector<float>> all;
  for (const FullParameter& parameter : summary.parameters) all[parameter.name] = parameter.values;
  return all;
}

TEST(ParameterGroups, GiveTheSameBitsWithEveryStrategyAndOptimizer) {
  const Groups groups{{"*.bias", 2.0F}, {"second.*", 0.3F, 0.0F}, {"last.*", 0.0F}};
  for (const char* const optimizer : {"adamw", "lion", "sgd", "adamw8bit"}) {
    std::string expected;
    for (const Strategy& strategy : strategies()) {
      TrainerOptions options = options_with(groups, strategy.name);
      options.optimizer.name = optimizer;
      options.optimizer.hyperparameters.clear();
      const TrainingSummary summary = trained(options);
      if (expected.empty()) expected = summary.parameters_sha256;
      EXPECT_EQ(summary.parameters_sha256, expected) << optimizer << ", " << strategy.name;
      EXPECT_EQ(summary.measured_memory, summary.predicted_memory);
    }
    TrainerOptions plain = options_with({});
    plain.optimizer.name = optimizer;
    plain.optimizer.hyperparameters.clear();
    EXPECT_NE(trained(plain).parameters_sha256, expected);
  }
}

/// A factor is that of the learning rate, wherever it occurs in an update.
TEST(ParameterGroups, AFactorOfAllParametersIsAnotherLearningRate) {
  for (const char* const optimizer : {"adamw", "lion", "sgd"}) {
    TrainerOptions halved = options_with({{"*", 0.5F}});
    TrainerOptions slower = options_with({});
    slower.learning_rate.peak /= 2;
    for (TrainerOptions* options : {&halved, &slower}) {
      options->optimizer.name = optimizer;
      options->optimizer.hyperparameters.clear();
    }
    EXPECT_EQ(trained(halved).parameters_sha256, trained(slower).parameters_sha256) << optimizer;
    TrainerOptions ones = slower;
    ones.optimizer.groups = {{"*", 1.0F}};
    EXPECT_EQ(trained(ones).parameters_sha256, trained(slower).parameters_sha256) << optimizer;
  }
}

TEST(ParameterGroups, AFactorOf0LeavesParametersAsTheyAre) {
  TrainerOptions still = options_with({});
  still.learning_rate.peak = 0.0;
  const auto initial = parameters_of(trained(still));
  const auto after = parameters_of(trained(options_with({{"first.w*", 0.0F}, {"?????.*", 0.5F}})));
  EXPECT_EQ(after.at("first.weight"), initial.at("first.weight"));
  for (const char* const name : {"first.bias", "second.weight", "last.weight"}) {
    EXPECT_NE(after.at(name), initial.at(name)) << name;
  }
}

TEST(ParameterGroups, TheWeightDecayOfAGroupCountsInItAlone) {
  const TrainerOptions all = options_with({{"*", 1.0F, 0.5F}});
  TrainerOptions other = options_with({});
  other.optimizer.weight_decay = 0.5F;
  EXPECT_EQ(trained(all).parameters_sha256, trained(other).parameters_sha256);
  const TrainerOptions none = options_with({{"second.weight", 1.0F, 0.0F}});
  EXPECT_NE(trained(none).parameters_sha256, trained(options_with({})).parameters_sha256);
}

template <typename Body>
std::string refusal(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(ParameterGroups, APatternThatMatchesNothingNamesNearNames) {
  EXPECT_THAT(refusal([] {
                trained(options_with({{"secnd.*", 0.5F}}));
              }),
              AllOf(HasSubstr("no parameter that is trained is called like 'secnd.*'"),
                    HasSubstr("near names are second.*")));
  EXPECT_THAT(refusal([] {
                trained(options_with({{"*", -1.0F}}));
              }),
              HasSubstr("learning rate factor of the parameters '*' is -1"));
}

TEST(ParameterGroups, OthersThanTheCheckpointsAreRefused) {
  const test::TemporaryFolder folder;
  TrainerOptions first = options_with({{"last.*", 0.5F}});
  first.checkpoints.folder = folder.path("run");
  first.stop_after = 2;
  trained(first);
  TrainerOptions rest = options_with({{"last.*", 0.5F}});
  rest.checkpoints.resume = folder.path("run/step_2");
  const std::string sha256 = trained(rest).parameters_sha256;
  EXPECT_EQ(sha256, trained(options_with({{"last.*", 0.5F}})).parameters_sha256);
  rest.optimizer.groups = {{"last.*", 0.25F}};
  EXPECT_THAT(refusal([&] { trained(rest); }),
              HasSubstr("learning_rate_groups was last.*=0.5 and is last.*=0.25"));
  rest.optimizer.groups.clear();
  EXPECT_THAT(refusal([&] { trained(rest); }), HasSubstr("learning_rate_groups"));
}

TEST(ParameterGroups, AreTextsAndBack) {
  const Groups groups{{"h.*.attn.*", 0.1F}, {"wte.*", 0.5F, 0.0F}};
  EXPECT_EQ(to_string(groups), "h.*.attn.*=0.1,wte.*=0.5:0");
  EXPECT_EQ(parse_groups(to_string(groups)), groups);
  EXPECT_TRUE(parse_groups("").empty());
  for (const char* const text : {"wte", "=1", "wte=", "wte=x", "wte=1:", "wte=1x", "a=1,,b=2"}) {
    EXPECT_THAT(refusal([&] { parse_groups(text); }), HasSubstr("is no group of parameters"))
        << text;
  }
}

}  // namespace
}  // namespace tessera::parameter_groups_test

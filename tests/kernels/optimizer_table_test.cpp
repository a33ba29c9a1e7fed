#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tessera/core/error.h"
#include "tessera/kernels/optimizer.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Body>
void expect_config_error(const Body& body, const std::string& text) {
  try {
    body();
    ADD_FAILURE() << "was taken; expected: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

using Given = std::vector<std::pair<std::string_view, double>>;

std::vector<double> values_of(std::string_view optimizer, const Given& given = {}) {
  return hyperparameter_values(find_optimizer(optimizer), given);
}

TEST(OptimizerTable, EveryRowIsFoundByItsNameAndHoldsTogether) {
  for (int i = 0; i < static_cast<int>(optimizers().size()); ++i) {
    const Optimizer& row = optimizers()[static_cast<std::size_t>(i)];
    SCOPED_TRACE(row.name);
    EXPECT_EQ(&find_optimizer(row.name), &row);
    EXPECT_EQ(row.rule, i);
    EXPECT_FALSE(row.title.empty());
    const std::vector<double> values = hyperparameter_values(row);
    EXPECT_EQ(values.size(), row.hyperparameters.size());
    EXPECT_LE(optimizer_states(row, values).size(), row.states.size());
    for (const Hyperparameter& parameter : row.hyperparameters) {
      EXPECT_FALSE(parameter.meaning.empty()) << parameter.name;
    }
  }
}

std::vector<std::string_view> names_of(std::span<const OptimizerState> states) {
  std::vector<std::string_view> names;
  for (const OptimizerState& state : states) names.push_back(state.name);
  return names;
}

TEST(OptimizerTable, SgdKeepsWhatItsMomentumNeeds) {
  const Optimizer& sgd = find_optimizer("sgd");
  EXPECT_TRUE(optimizer_states(sgd, values_of("sgd")).empty());
  EXPECT_THAT(names_of(optimizer_states(sgd, values_of("sgd", {{"momentum", 0.9}}))),
              ElementsAre("momentum"));
  EXPECT_THAT(names_of(optimizer_states(find_optimizer("adamw"), values_of("adamw"))),
              ElementsAre("first-moment", "second-moment"));
}

TEST(OptimizerTable, AdamW8bitKeepsCodesAndAbsmaxOfBlocks) {
  const Optimizer& row = find_optimizer("adamw8bit");
  const auto states = optimizer_states(row, values_of("adamw8bit"));
  EXPECT_THAT(names_of(states), ElementsAre("first-moment-codes", "first-moment-absmax",
                                            "second-moment-codes", "second-moment-absmax"));
  double bytes = 0.0;  // per element
  for (const OptimizerState& state : states) {
    bytes += static_cast<double>(size_of(state.dtype)) / static_cast<double>(state.block);
  }
  EXPECT_DOUBLE_EQ(bytes, 2.03125);
  EXPECT_EQ(optimizer_block(row), 256);
  EXPECT_EQ(optimizer_block(find_optimizer("adamw")), 1);
}

TEST(OptimizerTable, ValuesAreDefaultsOrWhatIsGiven) {
  EXPECT_THAT(values_of("adamw"), ElementsAre(0.9, 0.95, 1e-8));
  EXPECT_THAT(values_of("adamw", {{"beta2", 0.99}}), ElementsAre(0.9, 0.99, 1e-8));
  EXPECT_THAT(values_of("sgd", {{"nesterov", 1.0}, {"momentum", 0.5}}), ElementsAre(0.5, 1.0));
}

/// bitsandbytes' and DeepSpeed's defaults, and transformers' name.
TEST(OptimizerTable, LionIsThatOfOtherPrograms) {
  const Optimizer& lion = find_optimizer("lion");
  EXPECT_EQ(&find_optimizer("lion_32bit"), &lion);
  EXPECT_THAT(values_of("lion"), ElementsAre(0.9, 0.99));
  EXPECT_EQ(lion.weight_decay, 0.0);
  EXPECT_THAT(names_of(optimizer_states(lion, values_of("lion"))), ElementsAre("momentum"));
}

TEST(OptimizerTable, SaysWhatIsWrong) {
  expect_config_error([] { find_optimizer("lamb"); },
                      "unknown optimizer 'lamb'; there are adamw, adamw8bit, lion, sgd");
  expect_config_error(
      [] {
        values_of("sgd", {{"beta1", 0.5}});
      },
      "sgd has no hyperparameter 'beta1'; it has momentum, nesterov");
  expect_config_error(
      [] {
        values_of("adamw", {{"beta1", 1.0}});
      },
      "adamw: beta1 is 1, expected a number from 0 to below 1");
  expect_config_error(
      [] {
        values_of("adamw", {{"epsilon", -1.0}});
      },
      "adamw: epsilon is -1, expected a number from 0 on");
  expect_config_error(
      [] {
        values_of("adamw8bit", {{"epsilon", 0.0}});
      },
      "adamw8bit: epsilon is 0, expected a number above");
  expect_config_error(
      [] {
        values_of("sgd", {{"momentum", 0.5}, {"nesterov", 0.5}});
      },
      "sgd: nesterov is 0.5, expected true or false");
  expect_config_error(
      [] {
        values_of("sgd", {{"nesterov", 1.0}});
      },
      "sgd: nesterov needs a momentum above 0");
}

TEST(OptimizerTable, StepsAreCountedFromOne) {
  for (const Optimizer& row : optimizers()) {
    const std::vector<double> values = hyperparameter_values(row);
    EXPECT_THROW(optimizer_scalars(row, values, 0.1, 0), Error) << row.name;
    EXPECT_EQ(optimizer_scalars(row, values, 0.1, 1)[0], 0.1F) << row.name;
    EXPECT_THROW(optimizer_scalars(row, {}, 0.1, 1), Error) << row.name;
  }
}

/// Of the first step, the moments' corrections leave the learning rate as it is.
TEST(OptimizerTable, AdamWCorrectsItsMoments) {
  const auto scalars = optimizer_scalars(find_optimizer("adamw"), values_of("adamw"), 0.125, 1);
  EXPECT_FLOAT_EQ(scalars[1], 0.125F / 0.1F);
  EXPECT_FLOAT_EQ(scalars[2], 1.0F / std::sqrt(0.05F));
}

}  // namespace
}  // namespace tessera

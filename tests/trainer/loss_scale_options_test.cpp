#include "tessera/trainer/loss_scale_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/error.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

LossScaleOptions dynamic(LossScaleDialect dialect) {
  return {.choice = parse_loss_scale("dynamic"), .dialect = dialect};
}

LossScaling scaling_of(const LossScaleOptions& options) {
  return *loss_scaling(resolved(options, DType::kFloat32));
}

std::string refusal(const LossScaleOptions& options) {
  try {
    resolved(options, DType::kFloat32);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    return error.what();
  }
  return "nothing";
}

TEST(LossScaleOptions, TheChoiceIsNoneDynamicOrANumber) {
  for (const char* text : {"none", "dynamic", "1024", "0.5"}) {
    EXPECT_EQ(to_string(parse_loss_scale(text)), text);
  }
  for (const char* text : {"", "auto", "0", "-1", "inf", "nan", "1e39", "2x"}) {
    EXPECT_THROW(parse_loss_scale(text), Error) << text;
  }
}

TEST(LossScaleOptions, WithoutOneNothingIsScaled) {
  const LossScaleOptions none = resolved(LossScaleOptions{}, DType::kBFloat16);
  EXPECT_EQ(to_string(*none.choice), "none");
  EXPECT_FALSE(loss_scaling(none));
}

TEST(LossScaleOptions, Fp16IsScaledByTorchsRulesUnlessSomethingElseIsSaid) {
  const auto scaling = loss_scaling(resolved(LossScaleOptions{}, DType::kFloat16));
  ASSERT_TRUE(scaling);
  EXPECT_EQ(scaling->initial_scale, 65536.0F);
  EXPECT_EQ(scaling->rule.window, 2000);
  EXPECT_FALSE(loss_scaling(resolved({.choice = parse_loss_scale("none")}, DType::kFloat16)));
}

TEST(LossScaleOptions, EveryDialectHasItsDefaults) {
  const LossScaling torch = scaling_of(dynamic(LossScaleDialect::kTorch));
  EXPECT_EQ(torch.initial_scale, 65536.0F);
  EXPECT_EQ(torch.rule.window, 2000);
  EXPECT_EQ(torch.rule.minimum, 0.0F);
  const LossScaling deepspeed = scaling_of(dynamic(LossScaleDialect::kDeepSpeed));
  EXPECT_EQ(deepspeed.initial_scale, 65536.0F);
  EXPECT_EQ(deepspeed.rule.window, 1000);
  EXPECT_EQ(deepspeed.rule.minimum, 1.0F);
  EXPECT_EQ(deepspeed.rule.hysteresis, 2);
  EXPECT_FALSE(deepspeed.rule.refills_hysteresis);
  const LossScaling megatron = scaling_of(dynamic(LossScaleDialect::kMegatron));
  EXPECT_EQ(megatron.initial_scale, 4294967296.0F);
  EXPECT_EQ(megatron.rule.window, 1000);
  EXPECT_EQ(megatron.rule.minimum, 1.0F);
  EXPECT_EQ(megatron.rule.hysteresis, 2);
  for (const LossScaling& scaling : {torch, deepspeed, megatron}) {
    EXPECT_EQ(scaling.rule.growth_factor, 2.0);
    EXPECT_EQ(scaling.rule.backoff_factor, 0.5);
  }
}

TEST(LossScaleOptions, ResolvedOnesStayAsTheyAre) {
  for (const auto dialect :
       {LossScaleDialect::kTorch, LossScaleDialect::kDeepSpeed, LossScaleDialect::kMegatron}) {
    const LossScaleOptions once = resolved(dynamic(dialect), DType::kFloat32);
    EXPECT_NO_THROW(resolved(once, DType::kFloat32));
  }
  LossScaleOptions fixed{.choice = parse_loss_scale("128")};
  const LossScaling scaling = scaling_of(resolved(fixed, DType::kFloat32));
  EXPECT_FALSE(scaling.rule.dynamic);
  EXPECT_EQ(scaling.initial_scale, 128.0F);
}

TEST(LossScaleOptions, ADialectTakesWhatItHas) {
  LossScaleOptions options = dynamic(LossScaleDialect::kTorch);
  options.hysteresis = 2;
  EXPECT_THAT(refusal(options), HasSubstr("the loss scale dialect torch has none"));
  options = dynamic(LossScaleDialect::kDeepSpeed);
  options.growth_factor = 2.0;
  EXPECT_THAT(refusal(options), HasSubstr("the loss scale dialect deepspeed has none"));
  options = dynamic(LossScaleDialect::kMegatron);
  options.consecutive_hysteresis = true;
  EXPECT_THAT(refusal(options), HasSubstr("the loss scale dialect megatron has none"));
  options = {.choice = parse_loss_scale("128")};
  options.window = 5;
  EXPECT_THAT(refusal(options), HasSubstr("`loss_scale.choice` is 128: only dynamic has it"));
}

TEST(LossScaleOptions, NumbersFitTogether) {
  LossScaleOptions options = dynamic(LossScaleDialect::kMegatron);
  options.initial = 4.0;
  options.minimum = 8.0;
  EXPECT_THAT(refusal(options), HasSubstr("loss_scale_minimum is 8 and the initial scale 4"));
  options = dynamic(LossScaleDialect::kTorch);
  options.growth_factor = 1.0;
  EXPECT_THAT(refusal(options), HasSubstr("it must be above 1"));
  options = dynamic(LossScaleDialect::kTorch);
  options.backoff_factor = 0.0;
  EXPECT_THAT(refusal(options), HasSubstr("above 0 and below 1"));
}

}  // namespace
}  // namespace tessera

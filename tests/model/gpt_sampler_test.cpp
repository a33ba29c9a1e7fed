#include "tessera/model/gpt_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/core/error.h"
#include "tessera/kernels/philox.h"
#include "tessera/model/generate.h"

namespace tessera::gpt_sampler_test {
namespace {

using testing::HasSubstr;
using Tokens = std::vector<std::int32_t>;
using Values = std::map<std::string, std::vector<float>>;

const GptConfig kConfig{.vocab_size = 16,
                        .context_length = 5,
                        .layers = 2,
                        .heads = 2,
                        .width = 16,
                        .dropout = 0.5F,
                        .tie_embedding = false};

/// Every parameter of the model with values made by `value(spec, element)`.
template <typename MakeValue>
Values make_values(const GptConfig& config, const MakeValue& value) {
  Values values;
  const Model model = make_gpt(config);
  for (const auto& layer : model.layers) {
    for (const ParameterSpec& spec : layer->parameters()) {
      std::vector<float>& out = values[spec.name];
      for (std::int64_t i = 0; i < spec.shape.numel(); ++i) out.push_back(value(spec, i));
    }
  }
  return values;
}

Values random_values(const GptConfig& config) {
  return make_values(config, [](const ParameterSpec& spec, std::int64_t i) {
    return 0.3F * random_normal({1, stream_of(spec.name)}, i);
  });
}

/// A model whose blocks add nothing and whose embedding is one-hot. The logit of v is the last
/// norm's output at channel v - 1, so the likeliest token is the one after the last.
Values counting_values(const GptConfig& config) {
  return make_values(config, [&](const ParameterSpec& spec, std::int64_t i) {
    const std::int64_t row = i / config.width;
    const std::int64_t column = i % config.width;
    if (spec.name == "wte.weight") return row == column ? 1.0F : 0.0F;
    if (spec.name == "lm_head.weight") {
      return row == (column + 1) % config.vocab_size ? 1.0F : 0.0F;
    }
    return spec.name == "ln_f.weight" ? 1.0F : 0.0F;
  });
}

TEST(GptSampler, GivesTheLogitsOfAModelThatCounts) {
  const Values values = counting_values(kConfig);
  GptSampler sampler(kConfig, read_from(values));
  const std::span<const float> logits = sampler.next_logits(Tokens{4, 2, 9});
  // The norm of a one-hot vector of 16 channels: mean 1/16, variance 1/16 - 1/256.
  const double rstd = 1.0 / std::sqrt(15.0 / 256.0 + 1e-5);
  ASSERT_EQ(logits.size(), 16U);
  for (std::size_t v = 0; v < logits.size(); ++v) {
    EXPECT_FLOAT_EQ(logits[v], static_cast<float>(((v == 10 ? 1.0 : 0.0) - 1.0 / 16.0) * rstd));
  }
}

TEST(GptSampler, Generates) {
  const Values values = counting_values(kConfig);
  GptSampler sampler(kConfig, read_from(values));
  const Tokens text = generate({.tokens = 8, .context_length = 5, .temperature = 0.0F}, Tokens{11},
                               [&](auto context) { return sampler.next_logits(context); });
  EXPECT_EQ(text, (Tokens{12, 13, 14, 15, 0, 1, 2, 3}));
}

TEST(GptSampler, ComputesInBFloat16) {
  const Values values = counting_values(kConfig);
  GptSampler sampler(kConfig, read_from(values), {.dtype = DType::kBFloat16});
  const std::span<const float> logits = sampler.next_logits(Tokens{9});
  EXPECT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), 10);
  EXPECT_NEAR(logits[10], 15.0 / 16.0 / std::sqrt(15.0 / 256.0 + 1e-5), 0.02);
}

TEST(GptSampler, UsesTheTiedEmbeddingForTheHead) {
  GptConfig tied_config = kConfig;
  tied_config.tie_embedding = true;
  Values values = random_values(kConfig);
  values["lm_head.weight"] = values["wte.weight"];
  GptSampler untied(kConfig, read_from(values));
  values.erase("lm_head.weight");
  GptSampler tied(tied_config, read_from(values));
  const Tokens context{3, 1, 4, 1};
  const std::span<const float> expected = untied.next_logits(context);
  const std::span<const float> logits = tied.next_logits(context);
  EXPECT_THAT(std::vector(logits.begin(), logits.end()), testing::ElementsAreArray(expected));
}

TEST(GptSampler, DependsOnTheContextAlone) {
  const Values values = random_values(kConfig);
  GptSampler sampler(kConfig, read_from(values));
  const auto logits = [&](const Tokens& context) {
    const std::span<const float> span = sampler.next_logits(context);
    return std::vector(span.begin(), span.end());
  };
  const std::vector<float> first = logits({3, 1, 4});
  EXPECT_NE(first, logits({3, 2, 4}));  // not of the last token alone
  EXPECT_NE(first, logits({1, 3, 4}));  // in its order
  EXPECT_EQ(first, logits({3, 1, 4}));  // and not of earlier calls; dropout is off
}

TEST(GptSampler, KeepsNothingButTheParameters) {
  const Values values = random_values(kConfig);
  GptSampler sampler(kConfig, read_from(values));
  const MemoryUse before = sampler.memory().current();
  std::int64_t expected = 0;
  for (const auto& [name, numbers] : values) {
    expected += allocation_bytes(static_cast<std::int64_t>(numbers.size() * sizeof(float)));
  }
  EXPECT_EQ(before[MemoryCategory::kParameters], expected);
  sampler.next_logits(Tokens{1, 2, 3, 4, 5});
  EXPECT_EQ(sampler.memory().current(), before);
}

TEST(GptSampler, RejectsContextsThatDoNotFitAndGoesOn) {
  const Values values = counting_values(kConfig);
  GptSampler sampler(kConfig, read_from(values));
  for (const Tokens& context : {Tokens{}, Tokens{0, 1, 2, 3, 4, 5}, Tokens{16}, Tokens{1, -1, 2}}) {
    EXPECT_THROW(sampler.next_logits(context), Error);
  }
  EXPECT_GT(sampler.next_logits(Tokens{9})[10], 3.0F);
}

TEST(GptSampler, NamesTheParameterThatIsMissing) {
  const auto expect_error = [](ErrorCode code, const Values& values, const std::string& part) {
    try {
      const GptSampler sampler(kConfig, read_from(values));
      FAIL() << "expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  };
  Values values = counting_values(kConfig);
  values["h.1.ln_2.bias"].pop_back();
  expect_error(ErrorCode::kInvalidArgument, values, "'h.1.ln_2.bias' (16) takes 16 values, not 15");
  values.erase("h.1.ln_2.bias");
  expect_error(ErrorCode::kNotFound, values, "'h.1.ln_2.bias'");
}

}  // namespace
}  // namespace tessera::gpt_sampler_test

#include "tessera/model/resized_vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/golden_folder.h"
#include "support/golden_run.h"
#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/model/adapter.h"
#include "tessera/model/hugging_face.h"

// Rows for more tokens, against transformers' resize_token_embeddings: golden/resized.json.
namespace tessera::resized_vocabulary_test {
namespace {

using namespace test;
using ::testing::HasSubstr;

const std::string kGolden = TESSERA_SOURCE_DIR "/tests/model/golden/";
constexpr std::int64_t kMore = 5;

class ResizedVocabulary : public ::testing::TestWithParam<std::string> {};

TEST_P(ResizedVocabulary, HasTheRowsOfTransformers) {
  const Golden golden(kGolden + "resized");
  const PretrainedGpt base = open_hugging_face(kGolden + GetParam());
  const std::int64_t tokens = base.config().vocab_size + kMore;
  const PretrainedGpt resized = with_vocabulary(base, tokens);
  EXPECT_EQ(resized.config().vocab_size, tokens);
  TemporaryFolder written;
  HuggingFaceOptions options;
  options.files = base.companion_files();
  PretrainedWriter target =
      write_hugging_face(written.path("copy"), resized.config(), disk(), options);
  for (const auto& [name, values] : values_in(resized, make_gpt(resized.config()))) {
    target.write(name, values);
  }
  target.finish();
  EXPECT_EQ(open_hugging_face(written.path("copy")).config(), resized.config());
  const auto config_of = [](const std::string& folder) {
    std::ifstream in(folder + "/config.json");
    return nlohmann::json::parse(in);
  };
  nlohmann::json before = config_of(kGolden + GetParam());
  before["vocab_size"] = tokens;
  EXPECT_EQ(config_of(written.path("copy")), before);
  std::size_t grown = 0;
  const InitialValues old = stored_tensors(kGolden + GetParam());
  for (const auto& [name, values] : stored_tensors(written.path("copy"))) {
    const std::vector<float>& own = old.at(name);
    ASSERT_GE(values.size(), own.size());
    EXPECT_TRUE(std::ranges::equal(std::span(values).first(own.size()), own)) << name;
    if (values.size() == own.size()) continue;
    ++grown;
    const std::vector<float> added(values.begin() + std::ssize(own), values.end());
    const std::vector<float> theirs = golden.floats(GetParam() + "/" + name);
    ASSERT_EQ(added.size(), theirs.size());
    for (std::size_t i = 0; i < added.size(); ++i) {
      EXPECT_NEAR(added[i], theirs[i], 2e-4) << name;  // six of their deviations
    }
  }
  EXPECT_EQ(grown, 2U);  // of a BERT a matrix and a bias
}

INSTANTIATE_TEST_SUITE_P(All, ResizedVocabulary,
                         ::testing::Values("families/llama", "families/qwen3", "encoders/masked"),
                         [](const auto& test) {
                           return test.param.substr(test.param.find('/') + 1);
                         });

TEST(Resizing, WhatCannotGrowIsRefused) {
  const PretrainedGpt base = open_hugging_face(kGolden + "families/llama");
  const std::int64_t tokens = base.config().vocab_size;
  const auto refusal = [&](const PretrainedGpt& of, std::int64_t wanted) -> std::string {
    try {
      with_vocabulary(of, wanted);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(base, tokens), "");
  EXPECT_THAT(refusal(base, tokens - 1), HasSubstr("rows are added, not taken away"));
  const PretrainedGpt adapted =
      with_adapter(base, parse_adapter("lora", "r=2,targets=q_proj", base.config()));
  EXPECT_THAT(refusal(adapted, tokens + 1), HasSubstr("resize and export the base first"));
}

}  // namespace
}  // namespace tessera::resized_vocabulary_test

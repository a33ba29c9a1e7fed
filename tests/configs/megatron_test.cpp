#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/compat/aliases.h"
#include "tessera/core/error.h"
#include "tessera/trainer/trainer_options.h"

// Stages as Megatron-LM's flags give them, beside those that Megatron-LM itself makes of them:
// megatron_golden.json, from make_megatron_golden.py.
namespace tessera::megatron_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

json golden() {
  return json::parse(std::ifstream(TESSERA_SOURCE_DIR "/tests/configs/megatron_golden.json"));
}

std::optional<int> number(const json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<int>());
}

/// The layers of each stage of a model of so many blocks; what is wrong instead.
std::string divided(const PipelineSplit& pipeline, int blocks) {
  try {
    const PipelineSplit first = with_blocks(pipeline, blocks + 2);
    // A plan's own options are read again.
    EXPECT_EQ(with_blocks(first, blocks + 2).layers, first.layers);
    EXPECT_EQ(static_cast<int>(first.layers.counts.size()), first.stages());
    return to_string(first.layers);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    return error.what();
  }
}

/// Beside the embedding in the first stage and the head in the last one; "" where one has no layer.
std::string layers_of(std::vector<int> blocks) {
  ++blocks.front();
  ++blocks.back();
  if (std::ranges::find(blocks, 0) != blocks.end()) return "";
  return to_string(StageLayers{blocks});
}

TEST(Megatron, StagesHaveAsManyBlocksAsThere) {
  int divides = 0, refused = 0;
  const json known = golden();
  for (const json& of : known["stages"]) {
    SCOPED_TRACE(of.dump());
    const int blocks = of["layers"];
    const int ranks = of["ranks"], virtual_stages = of["virtual"];
    PipelineSplit pipeline;
    pipeline.ranks = ranks;
    pipeline.virtual_stages = virtual_stages;
    pipeline.first_blocks = number(of["first"]);
    pipeline.last_blocks = number(of["last"]);
    const bool is_even = !pipeline.first_blocks && !pipeline.last_blocks;
    // Megatron-LM takes --num-layers-per-virtual-pipeline-stage where all ranks have equally many.
    if (is_even) pipeline.stage_blocks = std::max(1, blocks / ranks / virtual_stages);
    const std::string expected =
        of["stages"].is_null() ? "" : layers_of(of["stages"].get<std::vector<int>>());
    const std::string got = divided(pipeline, blocks);
    if (expected.empty()) {
      EXPECT_THAT(got, HasSubstr(" "));
      ++refused;
      continue;
    }
    EXPECT_EQ(got, expected);
    ++divides;
    if (is_even) {
      pipeline.virtual_stages = 0;
      EXPECT_EQ(with_blocks(pipeline, blocks + 2).virtual_stages, virtual_stages);
    }
  }
  EXPECT_GT(divides, 60);
  EXPECT_GT(refused, 30);
}

TEST(Megatron, StagesOfAVHaveTheBlocksOfTheirRanks) {
  PipelineSplit pipeline{.ranks = 3};
  pipeline.schedule.order = PipelineOrder::kZeroBubbleV;
  pipeline.first_blocks = 2;
  EXPECT_EQ(divided(pipeline, 10), "2,2,2,2,2,2");
  pipeline.last_blocks = 4;
  EXPECT_EQ(divided(pipeline, 12), "2,3,2,2,3,2");
}

TEST(Megatron, ErrorsHaveTheNumbers) {
  PipelineSplit pipeline{.ranks = 4};
  pipeline.stage_blocks = 3;
  EXPECT_THAT(
      divided(pipeline, 16),
      AllOf(HasSubstr("layers_per_virtual_stage is 3, which does not divide the 4 blocks of "
                      "a pipeline rank (16 blocks on 4)"),
            HasSubstr("`pipeline.layers`")));
  EXPECT_THAT(divided(pipeline, 14), HasSubstr("the model has 14 blocks; 14 are left for 4"));
  pipeline.stage_blocks = 2;
  pipeline.virtual_stages = 4;
  EXPECT_THAT(divided(pipeline, 16), HasSubstr("a pipeline rank has 2 stages of its 4 blocks"));
  pipeline.virtual_stages = 0;
  pipeline.first_blocks = 1;
  EXPECT_THAT(divided(pipeline, 16), HasSubstr("give that instead of `layers_per_virtual_stage`"));
  pipeline.stage_blocks.reset();
  EXPECT_THAT(divided(pipeline, 17),
              HasSubstr("with first_rank_layers 1, 16 are left for 3 pipeline ranks"));
  pipeline.first_blocks = 30;
  EXPECT_THAT(divided(pipeline, 16), HasSubstr("-14 are left"));
  pipeline.first_blocks = pipeline.last_blocks = std::numeric_limits<int>::max();
  EXPECT_THAT(divided(pipeline, 16), HasSubstr("-4294967278 are left for 2 pipeline ranks"));
  pipeline.last_blocks.reset();
  pipeline.first_blocks = 4;
  pipeline.layers = parse_stage_layers("5,5,4,4");
  EXPECT_THAT(divided(pipeline, 16),
              HasSubstr("pipeline_split is 5,5,4,4, but with first_rank_layers 4 stages have "
                        "5,4,4,5 layers"));
  pipeline.layers = parse_stage_layers("5,4,4,5");
  EXPECT_EQ(divided(pipeline, 16), "5,4,4,5");
  pipeline = {.ranks = 1};
  pipeline.stage_blocks = 2;
  EXPECT_THAT(divided(pipeline, 4), HasSubstr("`pipeline.ranks` is 1"));
  pipeline.stage_blocks.reset();
  pipeline.first_blocks = pipeline.last_blocks = 2;
  EXPECT_THAT(divided(pipeline, 4), HasSubstr("are of two pipeline ranks"));
  pipeline.last_blocks.reset();
  EXPECT_THAT(divided(pipeline, 0), HasSubstr("none is between its first and its last one"));
}

/// A layout as --pipeline-split; what is wrong instead.
std::string split_of(const std::string& layout) {
  const auto found =
      std::ranges::find(aliases(), "--pipeline-model-parallel-layout", &Alias::theirs);
  EXPECT_EQ(found->ours, "--pipeline-split");
  try {
    return found->value(layout);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    return error.what();
  }
}

TEST(Megatron, LayoutsAreThoseOfMegatron) {
  int read = 0;
  const json known = golden();
  for (const json& of : known["layouts"]) {
    SCOPED_TRACE(of.dump());
    const std::string got = split_of(of["layout"]);
    const auto stages =
        of["stages"].is_null() ? std::vector<int>{} : of["stages"].get<std::vector<int>>();
    if (stages.empty() || std::ranges::find(stages, 0) != stages.end()) {
      EXPECT_THAT(got, HasSubstr("' "));
      continue;
    }
    EXPECT_EQ(got, to_string(StageLayers{stages}));
    ++read;
  }
  EXPECT_EQ(read, 11);
}

TEST(Megatron, LayoutsThatCannotBeSayWhy) {
  EXPECT_THAT(split_of("Ett||ttL"), HasSubstr("leaves stage 1 without a layer"));
  EXPECT_THAT(split_of("Ett|m|L"), HasSubstr("multi-token prediction (m)"));
  EXPECT_THAT(split_of("Ett|xL"), HasSubstr("has a 'x'"));
  EXPECT_THAT(split_of("tt|ttL"), HasSubstr("does not begin with the one embedding"));
  EXPECT_THAT(split_of("Ett|tt"), HasSubstr("does not end with the one head"));
  EXPECT_THAT(split_of("E((tt)*2|)*2L"), HasSubstr("parenthesis around nothing, or around"));
  EXPECT_THAT(split_of("E()*2L"), HasSubstr("parenthesis around nothing"));
  EXPECT_THAT(split_of("E(tt|L"), HasSubstr("has a parenthesis that no ')*N' ends"));
  for (const char* const endless :
       {"Et*99999999999999999999L", "Et*L", "Et*-1L", "E(t*60000)*60000L", "Et*65536L"}) {
    EXPECT_THAT(split_of(endless), HasSubstr("65536")) << endless;
  }
  EXPECT_THAT(split_of("*3"), HasSubstr("' "));
}

}  // namespace
}  // namespace tessera::megatron_test

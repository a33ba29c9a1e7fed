#include "tessera/sharding/pipeline_csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/pipeline_chain.h"
#include "support/pipeline_parity.h"
#include "tessera/core/error.h"

// Files in golden/pytorch are those of PyTorch 2.15: pipeline_order of ScheduleInterleaved1F1B,
// ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble and ScheduleDualPipeV, written by
// csv.writer; their names have ranks, stages on a rank, and micro-steps.
namespace tessera::test::pipeline_csv_test {
namespace {

using ::testing::HasSubstr;
using Passes = std::vector<StagePass>;

std::vector<Passes> passes_of_pytorch(const std::string& name) {
  const std::string path =
      concat(TESSERA_SOURCE_DIR, "/tests/sharding/golden/pytorch/", name, ".csv");
  std::ifstream file(path);
  EXPECT_TRUE(file) << "no " << path;
  return parse_pipeline_csv(std::string{std::istreambuf_iterator<char>(file), {}}, path);
}

TEST(PipelineCsv, OrdersAreThoseOfPyTorch) {
  struct Case {
    std::string name;
    PipelineOrder order;
    int ranks, virtual_stages, micro_steps;
  };
  for (const Case& c : {Case{"interleaved", PipelineOrder::kInterleaved, 2, 2, 4},
                        Case{"interleaved", PipelineOrder::kInterleaved, 4, 2, 8},
                        Case{"interleaved", PipelineOrder::kInterleaved, 3, 3, 6},
                        Case{"zb1p", PipelineOrder::kZeroBubble, 4, 1, 8},
                        Case{"izb", PipelineOrder::kZeroBubble, 4, 2, 8},
                        Case{"zbv", PipelineOrder::kZeroBubbleV, 3, 2, 6},
                        Case{"zbv", PipelineOrder::kZeroBubbleV, 4, 2, 8}}) {
    const std::string name =
        concat(c.name, '_', c.ranks, '_', c.virtual_stages, '_', c.micro_steps);
    const PipelineShape shape = shape_of({c.order, c.virtual_stages}, c.ranks, c.micro_steps);
    const std::vector<Passes> theirs = passes_of_pytorch(name);
    EXPECT_EQ(passes_of(c.order, shape), theirs) << name;
    const std::vector<int> ranks = stage_ranks(theirs);
    for (int stage = 0; stage < shape.stages; ++stage) {
      EXPECT_EQ(ranks[static_cast<std::size_t>(stage)], shape.rank_of(stage)) << name;
    }
  }
}

TEST(PipelineCsv, WritesWhatItReads) {
  for (const PipelineKind& kind : kPipelineKinds) {
    for (const int ranks : {1, 2, 5}) {
      const PipelineShape shape = shape_of(kind, ranks, 6);
      const std::vector<Passes> passes = passes_of(kind.order, shape);
      const std::string text = pipeline_csv(passes, shape);
      EXPECT_EQ(parse_pipeline_csv(text, "f"), passes) << text;
    }
  }
}

TEST(PipelineCsv, LeavesCellsEmptyWhereRanksWait) {
  const PipelineShape shape{.ranks = 2, .stages = 2, .micro_steps = 2};
  EXPECT_EQ(pipeline_csv(passes_of(PipelineOrder::kOneForwardOneBackward, shape), shape),
            "0F0,0F1,,0B0,,0B1\n"
            ",1F0,1B0,1F1,1B1,\n");
  EXPECT_EQ(pipeline_csv(passes_of(PipelineOrder::kZeroBubble, shape), shape),
            "0F0,0F1,,0I0,0W0,0I1,0W1\n"
            ",1F0,1I0,1F1,1I1,1W0,1W1\n");
}

std::string refusal(const std::string& text) {
  try {
    parse_pipeline_csv(text, "passes.csv");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    return error.what();
  }
  return "none";
}

TEST(PipelineCsv, NamesRowAndColumnOfWhatIsNoPass) {
  EXPECT_EQ(refusal("0F0, 0B0\r\n1F0,1B0\r\n"), "none");
  EXPECT_EQ(refusal("\"0F0\",(0F1;0B0)OVERLAP_F_B"), "none");
  EXPECT_THAT(refusal(""), HasSubstr("passes.csv has no rows"));
  EXPECT_THAT(refusal("0F0,0B0\n1F0,x\n"),
              HasSubstr("passes.csv: row 2, column 2: 'x' is no pass"));
  EXPECT_THAT(refusal("0UNSHARD,0F0"),
              HasSubstr("row 1, column 1: '0UNSHARD' is of PyTorch's form"));
  EXPECT_THAT(refusal("0F0,0SEND_F0"), HasSubstr("compute_only belongs here"));
  EXPECT_THAT(refusal("(0F0;0B0"), HasSubstr("column 1: '(0F0;0B0' is no pass"));
}

// Of a bidirectional order, two passes of which PyTorch overlaps; the first rank has both ends.
TEST(PipelineCsv, AFileOfPyTorchTrainsWithTheBitsOfOneProcess) {
  SmallRun run{.layers = 3, .tied_apart = true, .strategy = "no_shard", .micro_steps = 4};
  const SmallResult one = train(run);
  run.first_layers = {0, 1, 2, 4};
  run.pipeline_order = PipelineOrder::kListed;
  run.listed = passes_of_pytorch("dualpipev_2_2_4");
  expect_same(run, one, "DualPipeV");
}

TEST(PipelineCsv, PassesOfAnotherStepAreRefused) {
  SmallRun run{.layers = 3, .tied_apart = true, .strategy = "no_shard", .micro_steps = 3};
  run.first_layers = {0, 1, 2, 4};
  run.pipeline_order = PipelineOrder::kListed;
  run.listed = passes_of_pytorch("dualpipev_2_2_4");
  try {
    train(run);
    ADD_FAILURE() << "four micro-steps of three";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("a step has 3 micro-steps"));
  }
}

}  // namespace
}  // namespace tessera::test::pipeline_csv_test

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/core/error.h"
#include "tessera/trainer/trainer_options.h"

// Stages as Megatron-LM divides a model: by blocks, of which each pipeline rank has equally many.
namespace tessera {
namespace {

constexpr const char* kWriteThemOut =
    ", or write the layers of each stage, the embedding and the head among them: "
    "`pipeline.layers` 4,5,2";

/// The user's numbers, as "first_rank_layers 3 and last_rank_layers 2".
std::string given_blocks(const PipelineSplit& pipeline) {
  std::string text;
  const auto add = [&](const char* name, const std::optional<int>& blocks) {
    if (blocks) text += concat(text.empty() ? "" : " and ", name, " ", *blocks);
  };
  add("layers_per_virtual_stage", pipeline.stage_blocks);
  add("first_rank_layers", pipeline.first_blocks);
  add("last_rank_layers", pipeline.last_blocks);
  return text;
}

/// The blocks of each pipeline rank.
std::vector<int> blocks_of_ranks(const PipelineSplit& pipeline, int blocks) {
  require(pipeline.first_blocks.value_or(1) > 0 && pipeline.last_blocks.value_or(1) > 0,
          ErrorCode::kConfig, given_blocks(pipeline),
          ": a pipeline rank has one block at least, as in Megatron-LM; stages of the embedding or "
          "the head alone are written out: `pipeline.layers` 1,4,1");
  const int given = (pipeline.first_blocks ? 1 : 0) + (pipeline.last_blocks ? 1 : 0);
  require(given <= pipeline.ranks, ErrorCode::kConfig, given_blocks(pipeline),
          " are of two pipeline ranks, but `pipeline.ranks` is ", pipeline.ranks);
  const int others = pipeline.ranks - given;
  const std::int64_t taken =
      std::int64_t{pipeline.first_blocks.value_or(0)} + pipeline.last_blocks.value_or(0);
  const std::int64_t left = blocks - taken;
  const bool divides = left >= 0 && (others > 0 ? left % others == 0 : left == 0);
  require(divides, ErrorCode::kConfig, "the model has ", blocks, " blocks; ",
          given > 0 ? concat("with ", given_blocks(pipeline), ", ") : "", left, " are left for ",
          others,
          " pipeline ranks, which have equally many each; choose "
          "numbers that divide",
          kWriteThemOut);
  std::vector<int> of_ranks(static_cast<std::size_t>(pipeline.ranks),
                            others > 0 ? static_cast<int>(left / others) : 0);
  if (pipeline.first_blocks) of_ranks.front() = *pipeline.first_blocks;
  if (pipeline.last_blocks) of_ranks.back() = *pipeline.last_blocks;
  return of_ranks;
}

/// The stages of a pipeline rank, where each has so many blocks.
int stages_of_blocks(const PipelineSplit& pipeline, int blocks) {
  const int of_stage = *pipeline.stage_blocks;
  require(!pipeline.first_blocks && !pipeline.last_blocks, ErrorCode::kConfig,
          given_blocks(pipeline),
          ": where pipeline ranks have different numbers of blocks, as many stages on each are "
          "said by `virtual_stages`; give that instead of `layers_per_virtual_stage`");
  require(pipeline.ranks > 1, ErrorCode::kConfig, given_blocks(pipeline),
          " is of a pipeline, but `pipeline.ranks` is 1; give several, or leave it out");
  const int of_rank = blocks / pipeline.ranks;
  require(of_rank > 0 && of_rank % of_stage == 0, ErrorCode::kConfig,
          "layers_per_virtual_stage is ", of_stage, ", which does not divide the ", of_rank,
          " blocks of a pipeline rank (", blocks, " blocks on ", pipeline.ranks,
          "); choose a divisor", kWriteThemOut);
  const int stages = of_rank / of_stage;
  require(pipeline.virtual_stages == 0 || pipeline.virtual_stages == stages, ErrorCode::kConfig,
          "virtual_stages is ", pipeline.virtual_stages, ", but with layers_per_virtual_stage ",
          of_stage, " a pipeline rank has ", stages, " stages of its ", of_rank,
          " blocks; give one of them");
  return stages;
}

}  // namespace

PipelineSplit with_blocks(PipelineSplit pipeline, int layers) {
  if (!pipeline.stage_blocks && !pipeline.first_blocks && !pipeline.last_blocks) return pipeline;
  const int blocks = layers - 2;  // beside the embedding and the head
  require(blocks > 0, ErrorCode::kConfig, given_blocks(pipeline), " counts blocks, but of the ",
          layers, " layers of the model none is between its first and its last one");
  const std::vector<int> of_ranks = blocks_of_ranks(pipeline, blocks);
  const StageLayers given = pipeline.layers;
  pipeline.layers = {};
  const bool is_listed = pipeline.schedule.order == PipelineOrder::kListed;
  if (pipeline.stage_blocks && !is_listed) {
    pipeline.virtual_stages = stages_of_blocks(pipeline, blocks);
  }
  pipeline = resolved_pipeline(pipeline);
  const std::vector<int> rank_of_stage = pipeline.ranks_of_stages();
  for (const int rank : rank_of_stage) {
    const int own = of_ranks[static_cast<std::size_t>(rank)];
    const auto stages = static_cast<int>(std::ranges::count(rank_of_stage, rank));
    require(own % stages == 0 && own / stages == pipeline.stage_blocks.value_or(own / stages),
            ErrorCode::kConfig, "pipeline rank ", rank, " has ", own, " blocks and ", stages,
            " stages, which cannot have ",
            pipeline.stage_blocks ? concat(*pipeline.stage_blocks) : std::string("equally many"),
            " each; choose numbers that divide", kWriteThemOut);
    pipeline.layers.counts.push_back(own / stages);
  }
  ++pipeline.layers.counts.front();
  ++pipeline.layers.counts.back();
  require(std::ranges::find(pipeline.layers.counts, 0) == pipeline.layers.counts.end(),
          ErrorCode::kConfig, "with ", given_blocks(pipeline), " stages have ",
          to_string(pipeline.layers), " layers, and a stage has one at least");
  require(given.counts.empty() || given == pipeline.layers, ErrorCode::kConfig,
          "pipeline_split is ", to_string(given), ", but with ", given_blocks(pipeline),
          " stages have ", to_string(pipeline.layers), " layers; give one of them");
  return pipeline;
}

}  // namespace tessera

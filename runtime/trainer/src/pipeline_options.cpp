#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "tessera/core/error.h"
#include "tessera/sharding/pipeline_csv.h"
#include "tessera/trainer/trainer_options.h"

// How a run is divided into stages: what options say, as values and as texts.
namespace tessera {

namespace {

/// How many stages each pipeline rank has of a split that the user has written; 0: it does not say.
int virtual_stages_of(const PipelineSplit& pipeline) {
  const auto stages = static_cast<int>(pipeline.layers.counts.size());
  const bool several = pipeline.ranks > 1 && stages > pipeline.ranks;
  return several && stages % pipeline.ranks == 0 ? stages / pipeline.ranks : 0;
}

}  // namespace

PipelineSplit resolved_pipeline(PipelineSplit pipeline) {
  PipelineSchedule& schedule = pipeline.schedule;
  if (pipeline.virtual_stages == 0 && schedule.order != PipelineOrder::kListed) {
    pipeline.virtual_stages = virtual_stages_of(pipeline);
  }
  if (!schedule.order) {
    schedule.order = pipeline.virtual_stages > 1 ? PipelineOrder::kInterleaved
                                                 : PipelineOrder::kOneForwardOneBackward;
  }
  if (schedule.order == PipelineOrder::kListed) {
    const auto rows = static_cast<int>(schedule.listed.size());
    require(rows == pipeline.ranks, ErrorCode::kConfig, schedule.file, " has the passes of ", rows,
            " pipeline ranks, but pipeline is ", pipeline.ranks, "; write `pipeline.ranks` ", rows);
    require(pipeline.virtual_stages == 0, ErrorCode::kConfig, "virtual_stages is ",
            pipeline.virtual_stages, ", but ", schedule.file, " says which rank has which stages");
  } else if (pipeline.virtual_stages == 0) {
    pipeline.virtual_stages = pipeline.ranks == 1 ? 1 : usual_virtual_stages(*schedule.order);
  }
  if (pipeline.stages() > 1 && schedule.listed.empty()) {  // throws if it has other stages
    pipeline_passes(*schedule.order, {.ranks = pipeline.ranks, .stages = pipeline.stages()}, 0);
  }
  return pipeline;
}

int PipelineSplit::stages() const {
  if (schedule.order == PipelineOrder::kListed) {
    return static_cast<int>(stage_ranks(schedule.listed).size());
  }
  return ranks * std::max(virtual_stages, 1);
}

std::vector<int> PipelineSplit::ranks_of_stages() const {
  std::vector<int> of_stages = schedule.listed.empty()
                                   ? stage_ranks(*schedule.order, ranks, stages())
                                   : stage_ranks(schedule.listed);
  for (int stage = 0; static_cast<int>(of_stages.size()) < stages(); ++stage) {
    of_stages.push_back(stage % ranks);
  }
  return of_stages;
}

std::string to_string(const PipelineSchedule& schedule) {
  if (!schedule.order) return "";
  return schedule.order == PipelineOrder::kListed ? schedule.file
                                                  : std::string(to_string(*schedule.order));
}

PipelineSchedule parse_pipeline_schedule(std::string_view text) {
  if (text.empty()) return {};
  if (!text.ends_with(".csv")) {
    require(text != to_string(PipelineOrder::kListed), ErrorCode::kConfig, "'", text,
            "' lists no passes; name a file that does, which ends in .csv");
    return {.order = parse_pipeline_order(text)};
  }
  const std::string path(text);
  std::ifstream file(path, std::ios::binary);
  require(file.is_open(), ErrorCode::kNotFound, "cannot read the pipeline schedule ", path, ": ",
          std::strerror(errno));
  const std::string passes{std::istreambuf_iterator<char>(file), {}};
  return {
      .order = PipelineOrder::kListed, .file = path, .listed = parse_pipeline_csv(passes, path)};
}

std::vector<int> StageLayers::first_layers() const {
  std::vector<int> first;
  int next = 0;
  for (const int count : counts) {
    first.push_back(next);
    next += count;
  }
  return first;
}

std::string to_string(const StageLayers& layers) {
  std::string text;
  for (const int count : layers.counts) text += concat(text.empty() ? "" : ",", count);
  return text;
}

StageLayers parse_stage_layers(std::string_view text) {
  StageLayers layers;
  const char* const end = text.data() + text.size();
  for (const char* next = text.data(); next < end;) {
    int count = 0;
    const auto read = std::from_chars(next, end, count);
    require(read.ec == std::errc() && count >= 1 && (read.ptr == end || *read.ptr == ','),
            ErrorCode::kConfig, "'", text,
            "' is no split of layers; write how many each stage has, like 4,5,2");
    layers.counts.push_back(count);
    next = read.ptr + (read.ptr == end ? 0 : 1);
  }
  return layers;
}

}  // namespace tessera

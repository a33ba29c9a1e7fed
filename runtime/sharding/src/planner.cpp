#include "tessera/sharding/planner.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "passes/pass_tools.h"
#include "tessera/core/error.h"
#include "tessera/sharding/passes.h"

namespace tessera {
namespace {

// A list of a few times as many actions is planned and checked within half a minute.
constexpr std::int64_t kMaxPasses = std::int64_t{1} << 20;

void append_unique(std::vector<int>& list, int value) {
  if (std::ranges::find(list, value) == list.end()) list.push_back(value);
}

/// The unit from which a layer reads a parameter: of a mirror the unit itself, where one pipeline
/// rank has both.
int read_unit(const std::vector<ScheduleUnit>& units, int unit) {
  const ScheduleUnit& given = units[static_cast<std::size_t>(unit)];
  const bool reads_home =
      given.mirrors >= 0 && units[static_cast<std::size_t>(given.mirrors)].rank == given.rank;
  return reads_home ? given.mirrors : unit;
}

std::vector<ScheduleLayer> schedule_layers(const ModelLayout& layout,
                                           const std::vector<ScheduleUnit>& units,
                                           bool split_backward) {
  std::vector<ScheduleLayer> layers;
  for (const LayerLayout& in : layout.layers) {
    ScheduleLayer out{.name = in.name,
                      .forward_reads = {},
                      .backward_reads = {},
                      .gradients = {},
                      .reads_batch = in.reads_batch,
                      .counted_classes = in.counted_classes};
    for (const ParameterAddress& address : in.parameters) {
      const int unit = read_unit(units, address.unit);
      append_unique(out.forward_reads, unit);
      if (in.backward_reads_parameters) append_unique(out.backward_reads, unit);
      const FlatId id{address.unit, address.flat};
      const bool is_new = std::ranges::find(out.gradients, id) == out.gradients.end();
      if (layout.flat_of(address).trainable && is_new) out.gradients.push_back(id);
    }
    out.fp8_histories = in.fp8_histories;
    out.splits_backward = split_backward && in.splits_backward;
    layers.push_back(std::move(out));
  }
  return layers;
}

/// Unit, flat parameter and index of tensors to which mirrors contribute.
std::set<std::tuple<int, std::string, int>> tied_tensors(const ModelLayout& layout) {
  std::set<std::tuple<int, std::string, int>> tied;
  for (const LayerLayout& layer : layout.layers) {
    for (const ParameterAddress& a : layer.parameters) {
      const Unit& unit = layout.units[static_cast<std::size_t>(a.unit)];
      if (unit.mirrors >= 0) tied.insert({unit.mirrors, layout.flat_of(a).name, a.tensor});
    }
  }
  return tied;
}

/// Groups the tensors of each trainable flat parameter by the layers that contribute to their
/// gradients.
void list_parts(Schedule& schedule, const ModelLayout& layout) {
  std::map<FlatId, std::vector<std::vector<int>>> writers;  // by tensor
  for (int l = static_cast<int>(layout.layers.size()) - 1; l >= 0; --l) {
    for (const ParameterAddress& a : layout.layers[static_cast<std::size_t>(l)].parameters) {
      const FlatParameter& flat = layout.flat_of(a);
      if (!flat.trainable) continue;
      auto& of_flat = writers[{a.unit, a.flat}];
      of_flat.resize(flat.tensors.size());
      auto& of_tensor = of_flat[static_cast<std::size_t>(a.tensor)];
      if (of_tensor.empty() || of_tensor.back() != l) of_tensor.push_back(l);
    }
  }
  const std::set<std::tuple<int, std::string, int>> tied = tied_tensors(layout);
  for (const auto& [id, of_flat] : writers) {
    ScheduleFlat& flat =
        schedule.units[static_cast<std::size_t>(id.unit)].flats[static_cast<std::size_t>(id.flat)];
    std::vector<bool> is_apart;  // by part: mirrors contribute as well
    for (std::size_t t = 0; t < of_flat.size(); ++t) {
      if (of_flat[t].empty()) continue;  // of a mirror: what its layer is not tied to
      const bool is_tied = tied.contains({id.unit, flat.name, static_cast<int>(t)});
      std::size_t same = 0;
      while (same < is_apart.size() &&
             (is_apart[same] != is_tied || flat.parts[same].layers != of_flat[t])) {
        ++same;
      }
      if (same < is_apart.size()) {
        ++flat.parts[same].tensors;
        continue;
      }
      is_apart.push_back(is_tied);
      const ParameterAddress first{id.unit, id.flat, static_cast<int>(t)};
      flat.parts.push_back({.name = layout.tensor_of(first).spec.name, .layers = of_flat[t]});
    }
  }
}

/// Whether each pipeline rank has stages.
void check_stage_ranks(const PipelineOptions& pipeline, int ranks) {
  const std::vector<int>& of_stages = pipeline.stage_ranks;
  if (of_stages.empty()) {
    require(pipeline.stages() % ranks == 0, ErrorCode::kConfig, pipeline.stages(),
            " stages cannot be spread evenly over ", ranks, " pipeline ranks");
    return;
  }
  require(std::ssize(of_stages) == pipeline.stages(), ErrorCode::kConfig, "the pipeline ranks of ",
          of_stages.size(), " stages are given, and there are ", pipeline.stages(), " stages");
  for (const int rank : of_stages) {
    require(rank >= 0 && rank < ranks, ErrorCode::kConfig, "a stage is on pipeline rank ", rank,
            ", and there are ", ranks);
  }
  for (int rank = 0; rank < ranks; ++rank) {
    require(std::ranges::find(of_stages, rank) != of_stages.end(), ErrorCode::kConfig,
            "pipeline rank ", rank, " has no stage");
  }
}

/// Whether the stages are layers, and pipeline ranks have them.
void check_pipeline(const ModelLayout& layout, const PlanOptions& options) {
  const PipelineOptions& pipeline = options.pipeline;
  const int ranks = options.mesh.size(Axis::kPipeline);
  const auto layers = static_cast<int>(layout.layers.size());
  require(pipeline.stages() <= layers, ErrorCode::kConfig, "a pipeline of ", pipeline.stages(),
          " stages needs as many layers, and the model has ", layers,
          " (the embedding and the head count); use ", layers, " stages or fewer");
  check_stage_ranks(pipeline, ranks);
  require(pipeline.rank >= 0 && pipeline.rank < ranks, ErrorCode::kInvalidArgument,
          "there is no pipeline rank ", pipeline.rank, " of ", ranks);
  require(pipeline.prefetch >= 0, ErrorCode::kConfig, "prefetch depths must be 0 or more");
  if (ranks == 1) return;
  const std::vector<int>& first = pipeline.first_layers;
  require(first.front() == 0 && first.back() < layers &&
              std::ranges::adjacent_find(first, std::greater_equal()) == first.end(),
          ErrorCode::kConfig,
          "stages begin with layers in ascending order, the first one with layer 0, the last one "
          "before layer ",
          layers);
  require(pipeline.input_numels.size() == first.size(), ErrorCode::kInvalidArgument,
          "the sizes of ", pipeline.input_numels.size(),
          " stages' inputs are given, and there are ", first.size(),
          " stages; stage_input_numels() makes them");
}

/// Whether a factored optimizer finds all gradients on the device, and the norm.
void check_factored(const PlanOptions& options) {
  if (!is_factored(options.optimizer_tensors)) {
    require(!options.scale_parameter, ErrorCode::kConfig,
            "`scale_parameter` is of an optimizer that keeps moments by row and column");
    return;
  }
  require(options.optimizer_tensors.size() == 1, ErrorCode::kInvalidArgument,
          "an optimizer that keeps moments by row and column keeps nothing else");
  require(options.updates_wait_for_norm, ErrorCode::kInvalidArgument,
          "moments by row and column need the gradient norm, so updates must wait for it");
  for (const auto& [name, share] : {std::pair("offload_optimizer", options.offload_optimizer),
                                    std::pair("offload_parameters", options.offload_parameters),
                                    std::pair("offload_gradients", options.offload_gradients),
                                    std::pair("disk_optimizer", options.disk_optimizer),
                                    std::pair("disk_parameters", options.disk_parameters)}) {
    require(share == 0.0, ErrorCode::kConfig, "`", name, "` is ", share,
            ", but an optimizer that keeps moments by row and column (adafactor) needs sums over "
            "whole matrices of all gradients at once, on the device; leave it out, or use another "
            "optimizer");
  }
}

/// Whether layers' inputs can wait on the host.
void check_inputs(const ModelLayout& layout, const PlanOptions& options) {
  if (options.offload_activations.empty()) return;
  require(options.policy.recompute == Recompute::kFull, ErrorCode::kConfig,
          "activations wait on the host only where layers keep nothing but their input: recompute "
          "is ",
          to_string(options.policy.recompute),
          "; use `policy.recompute` full, or leave `offload_activations` ", "out");
  require(options.offload_activations.size() == layout.layers.size(), ErrorCode::kInvalidArgument,
          "the sizes of ", options.offload_activations.size(),
          " layers' inputs are given, and the model has ", layout.layers.size(), " layers");
}

}  // namespace

Schedule describe_step(const ModelLayout& layout, const PlanOptions& options) {
  require(options.micro_steps >= 1, ErrorCode::kConfig, "micro-steps must be 1 or more, not ",
          options.micro_steps);
  require(options.policy.prefetch_forward >= 0 && options.policy.prefetch_backward >= 0,
          ErrorCode::kConfig, "prefetch depths must be 0 or more");
  require(options.policy.prefetch_host >= 0 && options.policy.prefetch_disk >= 0,
          ErrorCode::kConfig, "prefetch depths must be 0 or more");
  require(options.scale_units >= 1, ErrorCode::kConfig,
          "scales are joined by units, 1 or more, not ", options.scale_units);
  require(options.fp8_history >= 0, ErrorCode::kConfig, "histories are of steps, 0 or more, not ",
          options.fp8_history);
  check_factored(options);
  check_inputs(layout, options);
  check_pipeline(layout, options);
  Schedule schedule;
  static_cast<PlanOptions&>(schedule) = options;
  schedule.placement = ShardNesting(options.mesh, options.placement).placement();
  state_buffers(layout, options.state());  // throws what does not fit the layout
  const int parts = flat_parts(options.mesh);
  for (const Unit& unit : layout.units) {
    require(std::ssize(unit.flats) <= FlatSet::kMost, ErrorCode::kInvalidArgument, "unit '",
            unit.name, "' has ", unit.flats.size(), " flat parameters, more than ", FlatSet::kMost);
    for (const FlatParameter& flat : unit.flats) {
      require(flat.padded_numel % (parts * kFlatAlignment) == 0, ErrorCode::kInvalidArgument,
              "unit '", unit.name, "' is padded to ", flat.padded_numel,
              " elements, which cannot be cut into ", parts,
              " parts; make the layout for flat_parts() of the mesh");
    }
  }
  schedule.units = schedule_units(layout, options.state());
  schedule.layers =
      schedule_layers(layout, schedule.units,
                      options.policy.split_backward || splits_backward(options.pipeline.order));
  list_parts(schedule, layout);
  const auto passes = static_cast<std::int64_t>(schedule.layers.size()) * options.micro_steps;
  require(passes <= kMaxPasses, ErrorCode::kConfig, schedule.layers.size(), " layers in each of ",
          options.micro_steps, " micro-steps are more than the ", kMaxPasses,
          " passes that a step may have; accumulate less, or use fewer layers");
  const auto trains = [](const ScheduleLayer& layer) { return !layer.gradients.empty(); };
  const auto first = std::ranges::find_if(schedule.layers, trains);
  require(first != schedule.layers.end(), ErrorCode::kConfig,
          "every parameter is frozen; there is nothing to train");
  schedule.first_backward_layer = static_cast<int>(first - schedule.layers.begin());
  return schedule;
}

std::span<const PlanPass> plan_passes() {
  static constexpr std::array kPasses{
      PlanPass{"order", "passes through layers of one rank that keeps everything", order},
      PlanPass{"update", "the gradient norm and the optimizer steps", update},
      PlanPass{"shard", "collectives around what the placement cuts", shard},
      PlanPass{"tiers", "copies between tiers, and decoding", tiers},
      PlanPass{"prefetch", "what comes ahead of use, and which uses are joined", prefetch},
      PlanPass{"factored", "sums over matrices, for optimizers that keep moments by row and column",
               factored},
      PlanPass{"histories", "scales of earlier steps, and the largest magnitudes of this one",
               histories},
      PlanPass{"codes", "all-gathers of matrices as fp8 codes, and their scales", codes},
      PlanPass{"slots", "memory that contents share", slots},
      PlanPass{"synchronise", "waits between lanes", synchronise}};
  return kPasses;
}

Schedule plan(const ModelLayout& layout, const PlanOptions& options, std::string_view last) {
  Schedule schedule = describe_step(layout, options);
  for (const PlanPass& pass : plan_passes()) {
    schedule = pass.run(std::move(schedule));
    if (pass.name == last) return schedule;
  }
  std::string names;
  for (const PlanPass& pass : plan_passes())
    names += (names.empty() ? "" : ", ") + std::string(pass.name);
  require(last.empty(), ErrorCode::kConfig, "there is no pass '", last, "'; passes are ", names);
  return schedule;
}

}  // namespace tessera

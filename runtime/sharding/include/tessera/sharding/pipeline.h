#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// In which order the stages of a pipeline pass micro-steps on.
enum class PipelineOrder : std::uint8_t {
  kGPipe,                  ///< all forwards, then all backwards
  kOneForwardOneBackward,  ///< "1f1b": a backward follows each forward once the pipeline is full
};
std::string_view to_string(PipelineOrder order);
/// Throws Error{kConfig} that lists the names.
PipelineOrder parse_pipeline_order(std::string_view text);

/// How the layers of a model are divided into stages, and which pipeline rank runs which of them.
/// Stage s runs on pipeline rank s modulo the mesh's pipeline axis.
struct PipelineOptions {
  /// By stage: its first layer; the first stage's is 0. Empty: all layers are one stage.
  std::vector<int> first_layers{};
  PipelineOrder order = PipelineOrder::kOneForwardOneBackward;
  /// Messages that a rank may receive ahead of the one that it uses, in each direction, and may
  /// have on their way to others.
  int prefetch = 1;
  /// By stage: elements of its input in a micro-step; see stage_input_numels(). 0 of the first.
  std::vector<std::int64_t> input_numels{};
  /// The pipeline rank whose schedule, or whose state, this is about.
  int rank = 0;

  int stages() const { return first_layers.empty() ? 1 : static_cast<int>(first_layers.size()); }
  /// The stage of a layer.
  int stage_of(int layer) const;
  bool operator==(const PipelineOptions&) const = default;
};

/// One pass of a micro-step through the layers of a stage.
struct StagePass {
  int stage = 0;
  int micro_step = 0;
  bool backward = false;
  bool operator==(const StagePass&) const = default;
};

/// What an order knows of a pipeline.
struct PipelineShape {
  int ranks = 1;
  int stages = 1;
  int micro_steps = 1;
  bool trains = true;  ///< else there are forwards only
  /// Stages before it have no backward, and get no gradients.
  int first_backward_stage = 0;

  int rank_of(int stage) const { return stage % ranks; }
  bool operator==(const PipelineShape&) const = default;
};

/// The passes of one pipeline rank, in their order. Throws Error{kConfig} unless each rank has one
/// stage.
std::vector<StagePass> pipeline_passes(PipelineOrder order, const PipelineShape& shape, int rank);

/// What a pipeline rank does, in the order in which its host issues it.
struct StageEvent {
  enum class Kind : std::uint8_t {
    kPass,
    kSend,     ///< what `pass` of this rank has made, to `peer`
    kReceive,  ///< what `pass` of `peer` has made
  } kind = Kind::kPass;
  StagePass pass{};
  int peer = -1;  ///< of messages: the other pipeline rank
  bool operator==(const StageEvent&) const = default;
};

/// Adds to the passes of all ranks the messages between them: what a forward makes goes to the next
/// stage, what a backward makes to the stage before, between stages of one rank no message. A
/// message is sent when it is there and its receiver is at most `prefetch` passes away from using
/// it. All ranks' events together are the events of one list, from which each rank has its own in
/// the same order: so they cannot wait for one another in a circle, even where each event blocks
/// its rank. Throws Error{kInvalidArgument} that names a pass if the passes cannot go on.
std::vector<std::vector<StageEvent>> with_messages(
    const std::vector<std::vector<StagePass>>& passes, const PipelineShape& shape, int prefetch);

}  // namespace tessera

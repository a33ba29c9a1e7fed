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
  kInterleaved,            ///< the same with several stages on each rank, in groups of micro-steps
  kZeroBubble,             ///< "zb-h1": 1f1b whose weight gradients fill the time of waiting
  kZeroBubbleV,            ///< "zb-v": two stages on each rank, the first and the last on the first
  kListed,                 ///< PipelineOptions::listed says it
};
/// "listed" of kListed, which no setting names.
std::string_view to_string(PipelineOrder order);
/// Throws Error{kConfig} that lists the names.
PipelineOrder parse_pipeline_order(std::string_view text);
/// Stages on each rank where nobody says how many.
int usual_virtual_stages(PipelineOrder order);
/// Whether backward is two passes, of which the second, for weights, may come later.
bool splits_backward(PipelineOrder order);

/// The part of a micro-step that a pass does.
enum class PassKind : std::uint8_t {
  kForward,
  kBackward,        ///< gradients of the stage's input and of its weights
  kBackwardInput,   ///< the first part of it: of the input
  kBackwardWeight,  ///< the second part: of the weights
};

/// One pass of a micro-step through the layers of a stage.
struct StagePass {
  int stage = 0;
  int micro_step = 0;
  PassKind kind = PassKind::kForward;
  bool operator==(const StagePass&) const = default;

  /// Whether it makes the gradient of the stage's input.
  bool is_backward() const {
    return kind == PassKind::kBackward || kind == PassKind::kBackwardInput;
  }
};
/// "2F0": stage 2, forward of micro-step 0; B is a backward, I and W are its parts. As PyTorch
/// writes actions of its pipeline schedules.
std::string to_string(const StagePass& pass);
/// Inverse of it. Throws Error{kConfig}.
StagePass parse_stage_pass(std::string_view text);

/// How the layers of a model are divided into stages, and which pipeline rank runs which of them.
struct PipelineOptions {
  /// By stage: its first layer; the first stage's is 0. Empty: all layers are one stage.
  std::vector<int> first_layers{};
  /// By stage: the pipeline rank that runs it. Empty: s modulo the mesh's pipeline axis.
  std::vector<int> stage_ranks{};
  PipelineOrder order = PipelineOrder::kOneForwardOneBackward;
  /// The passes of a step that trains, by pipeline rank; of kListed alone.
  std::vector<std::vector<StagePass>> listed{};
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
  /// The pipeline rank, of `ranks`, that runs a stage.
  int rank_of_stage(int stage, int ranks) const {
    return stage_ranks.empty() ? stage % ranks : stage_ranks[static_cast<std::size_t>(stage)];
  }
  /// The stages that it runs.
  std::vector<int> stages_of_rank(int rank, int ranks) const;
  bool operator==(const PipelineOptions&) const = default;
};

/// PipelineOptions::stage_ranks of an order: empty, but where stages do not go round.
std::vector<int> stage_ranks(PipelineOrder order, int ranks, int stages);
/// Returns the pipeline rank of each stage of listed passes. Throws Error{kConfig} if a stage is on
/// two ranks, or on none.
std::vector<int> stage_ranks(const std::vector<std::vector<StagePass>>& listed);

/// An order knows this of a pipeline.
struct PipelineShape {
  int ranks = 1;
  int stages = 1;
  int micro_steps = 1;
  bool trains = true;  ///< else there are forwards only
  /// Stages before it have no backward, and get no gradients.
  int first_backward_stage = 0;
  std::vector<int> stage_ranks{};  ///< as PipelineOptions has it

  int rank_of(int stage) const {
    return stage_ranks.empty() ? stage % ranks : stage_ranks[static_cast<std::size_t>(stage)];
  }
  bool has_backward(int stage) const { return trains && stage >= first_backward_stage; }
  bool operator==(const PipelineShape&) const = default;
};

/// The passes of one pipeline rank, in their order. Throws Error{kConfig} if the order cannot run
/// so many stages on a rank, or is kListed.
std::vector<StagePass> pipeline_passes(PipelineOrder order, const PipelineShape& shape, int rank);
/// The passes of all pipeline ranks. Throws Error{kConfig}, the same or as check_passes() does.
std::vector<std::vector<StagePass>> pipeline_passes(const PipelineOptions& pipeline,
                                                    const PipelineShape& shape);

/// Throws Error{kConfig} that names rank and pass unless each stage does, on its rank, one forward
/// of each micro-step and behind it one backward, in one pass or in two, and adds up the gradients
/// of its weights in the order of micro-steps.
void check_passes(const std::vector<std::vector<StagePass>>& passes, const PipelineShape& shape);

/// An element of the list that the host of a pipeline rank issues.
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
/// it; a rank receives those of one direction in the order in which it uses them. All ranks' events
/// together are the events of one list, from which each rank has its own in the same order: so they
/// cannot wait for one another in a circle, even where each event blocks its rank. Throws
/// Error{kConfig} that names a pass if the passes cannot go on.
std::vector<std::vector<StageEvent>> with_messages(
    const std::vector<std::vector<StagePass>>& passes, const PipelineShape& shape, int prefetch);

}  // namespace tessera

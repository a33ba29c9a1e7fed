#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tessera/collectives/process_group.h"
#include "tessera/sharding/schedule.h"

namespace tessera {

class ContentWalk;
class StepContext;

/// Which ranks meet in an operation.
enum class Meeting : std::uint8_t {
  kNone,       ///< none: a task of the action's lane
  kAlongAxes,  ///< those that differ along the action's axes
  kWorld,      ///< all of them, for scalars
  kPair,       ///< two pipeline ranks: the action's, and its `peer`
};

/// In which memory an operation finds its operands; scalars lie on the device always.
enum class OperandTiers : std::uint8_t {
  kDevice,
  kOne,  ///< all in the same, whichever it is
  kAny,
};

/// The part of its layer that a pass does. Its operands follow from this, see rules::pass() and
/// planners:
///   reads   `forward`: ScheduleLayer::forward_reads and the output of the layer before;
///           `backward`: backward_reads and, but of the last layer, the gradient of the output;
///           not `forward`: what the forward has kept; of the last layer: the number of tokens, if
///           the schedule trains
///   writes  `forward` and not `backward`: the output, or of the last layer what it keeps;
///           `backward`: the gradient of the input; `gradients`: those of parameters;
///           `losses`: these
struct PassParts {
  bool forward = false;
  bool backward = false;
  bool gradients = false;
  bool losses = false;
};

/// One row of the table of operations. To add an operation: a row, its rule and its handler.
struct Operation {
  std::string_view name;     ///< "all-gather": in texts, reports and traces
  std::string_view summary;  ///< one line for people
  Meeting meeting = Meeting::kNone;
  bool is_pass = false;     ///< through a layer: actions have a layer and a micro-step
  PassParts parts{};        ///< of a pass
  bool is_message = false;  ///< between pipeline ranks: actions have a peer, and those of
                            ///< activations a layer and a micro-step
  bool on_host = false;     ///< run() is called on the host although no ranks meet
  OperandTiers tiers = OperandTiers::kDevice;
  /// Not a pass, but of what passes keep: whether its operands may be activations.
  bool moves_activations = false;
  /// Takes memory of activations or gives it back, which the compute lane does in its order.
  bool changes_memory = false;

  /// The effect on contents: reads the operands from `walk`, requires what must hold,
  /// and writes the results.
  void (*rule)(ContentWalk& walk, const Action& action) = nullptr;
  /// Adds the calls and the bytes that one rank sends or copies; null: none.
  void (*charge)(const Schedule& schedule, const Action& action, Traffic& traffic) = nullptr;
  /// Carries it out: on the host, which puts tasks on `stream`, if ranks meet or `on_host` says so;
  /// else as a task of `stream`. Null: there is nothing to do but to wait.
  void (*run)(StepContext& context, const Action& action, Stream& stream) = nullptr;
};

/// The operations that planners use.
namespace operations {
extern const Operation kCountTokens;
extern const Operation kAllGather;
extern const Operation kReduceScatter;
extern const Operation kAllReduce;
extern const Operation kForward;
extern const Operation kForwardLoss;
extern const Operation kLoss;
extern const Operation kLossBackward;
extern const Operation kBackward;
extern const Operation kBackwardInput;
extern const Operation kBackwardWeight;
extern const Operation kReshard;
extern const Operation kDecode;
extern const Operation kAmax;
extern const Operation kRollHistory;
extern const Operation kAllReduceMax;
extern const Operation kEncode;
extern const Operation kCast;
extern const Operation kCopy;
extern const Operation kRelease;
extern const Operation kReserve;
extern const Operation kPack;
extern const Operation kUnpack;
extern const Operation kSend;
extern const Operation kReceive;
extern const Operation kAddTied;
extern const Operation kNormPartial;
extern const Operation kResults;
extern const Operation kSquareSums;
extern const Operation kMoments;
extern const Operation kUpdateSquares;
extern const Operation kOptimizerStep;
}  // namespace operations

/// All of them, in the order above.
std::span<const Operation* const> all_operations();
/// Null if there is none of this name.
const Operation* find_operation(std::string_view name,
                                std::span<const Operation* const> operations = all_operations());
/// A schedule whose actions name other operations than those of the table.
Schedule parse_schedule(std::string_view text, std::span<const Operation* const> operations);

/// The bytes of what a pipeline rank sends or receives.
std::int64_t message_bytes(const Schedule& schedule, const Action& message);

/// True of a part of with_snapshot().
bool copies_to_snapshot(const Schedule& schedule, const Action& action);

inline bool is_collective(const Action& action) {
  return action.operation->meeting != Meeting::kNone;
}

/// The flat parameters that an operand of a unit names, in the order in which they lie in a slot.
std::vector<int> flats_of(const Schedule& schedule, const Operand& operand);

/// Where an operand's buffer is; layers leave activations on the device.
Tier tier_of(const Schedule& schedule, const Operand& operand);

/// Adds a copy of `bytes` from one tier to another.
void count_copy(Tier from, Tier to, std::int64_t bytes, Traffic& traffic);

/// Bytes that a copy moves.
std::int64_t copied_bytes(const Schedule& schedule, const Action& copy);

/// Bytes of memory that an action's operands take on one rank: what it has to read and write at
/// least. Passes through layers: parameters and gradients only.
std::int64_t operand_bytes(const Schedule& schedule, const Action& action);

}  // namespace tessera

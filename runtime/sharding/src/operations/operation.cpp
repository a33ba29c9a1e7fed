#include "tessera/sharding/operation.h"

#include <algorithm>
#include <array>

#include "operations/operation_handlers.h"
#include "operations/operation_rules.h"
#include "tessera/core/error.h"
#include "tessera/sharding/factored_table.h"

// The table of operations.
namespace tessera {
namespace {

constexpr auto kScaleBytes = static_cast<std::int64_t>(sizeof(std::int32_t));
constexpr auto kWordBytes = static_cast<std::int64_t>(sizeof(std::int64_t));

std::int64_t operand_bytes(const Schedule& schedule, const Operand& operand) {
  const ScheduleBuffer& buffer = schedule.buffer(operand);
  const std::int64_t numel = operand.unit < 0
                                 ? buffer.numel
                                 : schedule.numel(operand) / schedule.mesh.size(operand.sharded);
  return numel * static_cast<std::int64_t>(size_of(buffer.format));
}

/// Adds one call of a collective on a buffer of `bytes`; empty flat parameters are never sent.
void charge(Traffic& traffic, CollectiveKind kind, std::int64_t bytes, int ranks) {
  if (bytes == 0 || ranks == 1) return;
  ++traffic.calls_of(kind);
  traffic.sent_of(kind) += sent_bytes(kind, bytes, ranks);
}

/// A call for each flat parameter that is read: of all that the ranks together put in.
void charge_all_gather(const Schedule& schedule, const Action& action, Traffic& traffic) {
  const int ranks = schedule.mesh.size(action.axes);
  for (const Operand& operand : action.reads) {
    for (const int flat : flats_of(schedule, operand)) {
      Operand one = operand;
      one.flats = {flat};
      charge(traffic, CollectiveKind::kAllGather, operand_bytes(schedule, one) * ranks, ranks);
    }
  }
}

void charge_reduce_scatter(const Schedule& schedule, const Action& action, Traffic& traffic) {
  charge(traffic, CollectiveKind::kReduceScatter, operand_bytes(schedule, action.reads.front()),
         schedule.mesh.size(action.axes));
}

void charge_all_reduce(const Schedule& schedule, const Action& action, Traffic& traffic) {
  charge(traffic, CollectiveKind::kAllReduce, operand_bytes(schedule, action.reads.front()),
         schedule.mesh.size(action.axes));
}

/// Rows of all ranks are gathered, of which each rank takes the maximum: no group has one of its
/// own, and a row is a few words.
void charge_all_reduce_max(const Schedule& schedule, const Action& action, Traffic& traffic) {
  const int ranks = schedule.mesh.size(action.axes);
  const std::int64_t row = schedule.buffer(action.reads.front()).numel / (1 + ranks);
  charge(traffic, CollectiveKind::kAllGather, row * ranks * kScaleBytes, ranks);
}

void charge_count(const Schedule& schedule, const Action& /*action*/, Traffic& traffic) {
  charge(traffic, CollectiveKind::kAllReduce, kWordBytes, schedule.mesh.world_size());
}

/// Bytes that a copy moves of one operand; activations are as large as their copies on the host.
std::int64_t copied_bytes(const Schedule& schedule, const Operand& from, const Operand& to) {
  return operand_bytes(schedule, schedule.buffer(from).is_activation() ? to : from);
}

void charge_copy(const Schedule& schedule, const Action& action, Traffic& traffic) {
  const Operand& to = action.writes.front();
  for (const Operand& from : action.reads) {
    count_copy(tier_of(schedule, from), tier_of(schedule, to), copied_bytes(schedule, from, to),
               traffic);
  }
}

void charge_send(const Schedule& schedule, const Action& action, Traffic& traffic) {
  charge(traffic, CollectiveKind::kSend, message_bytes(schedule, action), 2);
}

void charge_receive(const Schedule& schedule, const Action& action, Traffic& traffic) {
  charge(traffic, CollectiveKind::kRecv, message_bytes(schedule, action), 2);
}

/// The sums that are read, in one message.
void charge_results(const Schedule& schedule, const Action& action, Traffic& traffic) {
  std::int64_t bytes = 0;
  for (const Operand& operand : action.reads) {
    if (!schedule.is_of_kind(operand, BufferKind::kTokens))
      bytes += operand_bytes(schedule, operand);
  }
  charge(traffic, CollectiveKind::kAllReduce, bytes, schedule.mesh.world_size());
}

}  // namespace

namespace operations {

const Operation kCountTokens{
    .name = "count-tokens",
    .summary = "all-reduce of the token count; sets the loss scale, clears the sums",
    .meeting = Meeting::kWorld,
    .rule = rules::count_tokens,
    .charge = charge_count,
    .run = handlers::count_tokens};
const Operation kAllGather{
    .name = "all-gather",
    .summary = "gathers the shards of parameters or gradients from all ranks",
    .meeting = Meeting::kAlongAxes,
    .rule = rules::all_gather,
    .charge = charge_all_gather,
    .run = handlers::all_gather};
const Operation kReduceScatter{.name = "reduce-scatter",
                               .summary = "sums gradients over ranks; each keeps its shard",
                               .meeting = Meeting::kAlongAxes,
                               .rule = rules::reduce_scatter,
                               .charge = charge_reduce_scatter,
                               .run = handlers::reduce_scatter};
const Operation kAllReduce{.name = "all-reduce",
                           .summary = "sums gradients, or sums over matrices, over ranks, in place",
                           .meeting = Meeting::kAlongAxes,
                           .rule = rules::all_reduce,
                           .charge = charge_all_reduce,
                           .run = handlers::all_reduce};
const Operation kForward{.name = "forward",
                         .summary = "a layer's forward",
                         .is_pass = true,
                         .parts = {.forward = true},
                         .rule = rules::forward,
                         .run = handlers::forward};
const Operation kForwardLoss{.name = "forward-loss",
                             .summary = "the last layer's forward, which gives the losses",
                             .is_pass = true,
                             .parts = {.forward = true, .losses = true},
                             .rule = rules::forward_loss,
                             .run = handlers::forward_loss};
const Operation kLoss{
    .name = "loss",
    .summary = "the last layer's forward and backward in one",
    .is_pass = true,
    .parts = {.forward = true, .backward = true, .gradients = true, .losses = true},
    .rule = rules::loss,
    .run = handlers::loss};
const Operation kLossBackward{.name = "loss-backward",
                              .summary = "the last layer's backward, after its forward-loss",
                              .is_pass = true,
                              .parts = {.backward = true, .gradients = true},
                              .rule = rules::loss_backward,
                              .run = handlers::loss_backward};
const Operation kBackward{.name = "backward",
                          .summary = "a layer's backward, with its forward before it if recomputed",
                          .is_pass = true,
                          .parts = {.backward = true, .gradients = true},
                          .rule = rules::backward,
                          .run = handlers::backward};
const Operation kBackwardInput{
    .name = "backward-input",
    .summary = "the part of a layer's backward that gives the gradient of its input",
    .is_pass = true,
    .parts = {.backward = true},
    .rule = rules::backward_input,
    .run = handlers::backward_input};
const Operation kBackwardWeight{
    .name = "backward-weight",
    .summary = "the rest of it: gradients of parameters, of what backward-input has kept",
    .is_pass = true,
    .parts = {.gradients = true},
    .rule = rules::backward_weight,
    .run = handlers::backward_weight};
const Operation kReshard{.name = "reshard",
                         .summary = "gives a slot of unsharded parameters back to the ring",
                         .rule = rules::reshard};
const Operation kDecode{.name = "decode",
                        .summary = "dequantises a unit's parameters for the layers that read them",
                        .rule = rules::decode,
                        .run = handlers::decode};
const Operation kAmax{
    .name = "amax",
    .summary = "the largest magnitude in this rank's shard of each of a unit's matrices in fp8",
    .rule = rules::amax,
    .run = handlers::amax};
const Operation kRollHistory{
    .name = "roll-history",
    .summary = "adds the largest magnitudes of a step to the histories that make fp8's scales",
    .rule = rules::roll_history,
    .run = handlers::roll_history};
const Operation kAllReduceMax{.name = "all-reduce-max",
                              .summary = "all-reduce of largest magnitudes by maximum, in place",
                              .meeting = Meeting::kAlongAxes,
                              .rule = rules::all_reduce_max,
                              .charge = charge_all_reduce_max,
                              .run = handlers::all_reduce_max};
const Operation kEncode{.name = "encode",
                        .summary = "rounds this rank's shard of a unit's matrices to fp8 codes",
                        .rule = rules::encode,
                        .run = handlers::encode};
const Operation kCast{.name = "cast",
                      .summary = "copies a gradient to another buffer and dtype, or adds it there",
                      .rule = rules::cast,
                      .run = handlers::cast};
const Operation kCopy{.name = "copy",
                      .summary =
                          "copies a buffer, or all parameters of a unit, between the "
                          "device's memory, the host's and the disk",
                      .on_host = true,
                      .tiers = OperandTiers::kAny,
                      .moves_activations = true,
                      .rule = rules::copy,
                      .charge = charge_copy,
                      .run = handlers::copy};
const Operation kRelease{
    .name = "release",
    .summary = "gives back the memory of a layer's input, which the host has a copy of",
    .moves_activations = true,
    .changes_memory = true,
    .rule = rules::release,
    .run = handlers::release};
const Operation kReserve{.name = "reserve",
                         .summary = "takes memory for a layer's input that comes from the host",
                         .moves_activations = true,
                         .changes_memory = true,
                         .rule = rules::reserve,
                         .run = handlers::reserve};
const Operation kPack{.name = "pack",
                      .summary = "copies what a layer has left to a message for another rank",
                      .moves_activations = true,
                      .changes_memory = true,
                      .rule = rules::pack,
                      .run = handlers::pack};
const Operation kUnpack{.name = "unpack",
                        .summary = "copies a message from another rank to where a layer reads it",
                        .moves_activations = true,
                        .changes_memory = true,
                        .rule = rules::unpack,
                        .run = handlers::unpack};
const Operation kSend{.name = "send",
                      .summary = "sends what a stage has made to another pipeline rank",
                      .meeting = Meeting::kPair,
                      .is_message = true,
                      .rule = rules::send,
                      .charge = charge_send,
                      .run = handlers::send};
const Operation kReceive{.name = "receive",
                         .summary = "receives what another pipeline rank sends",
                         .meeting = Meeting::kPair,
                         .is_message = true,
                         .rule = rules::receive,
                         .charge = charge_receive,
                         .run = handlers::receive};
const Operation kAddTied{.name = "add-tied",
                         .summary = "adds the gradient of a layer that is tied to a unit's",
                         .rule = rules::add_tied,
                         .run = handlers::add_tied};
const Operation kNormPartial{
    .name = "norm-partial",
    .summary = "adds the squares of this rank's shard of a gradient to its norm partial",
    .rule = rules::norm_partial,
    .run = handlers::norm_partial};
const Operation kResults{
    .name = "results",
    .summary = "all-reduce of losses and norm partials; sets the mean loss and the clip factor",
    .meeting = Meeting::kWorld,
    .rule = rules::results,
    .charge = charge_results,
    .run = handlers::results};
const Operation kSquareSums{
    .name = "square-sums",
    .summary = "adds the squares of this rank's shard of a gradient, by rows and columns",
    .rule = rules::square_sums,
    .run = handlers::square_sums};
const Operation kMoments{
    .name = "moments",
    .summary = "updates a unit's moments of rows and columns, and makes factors of them",
    .rule = rules::moments,
    .run = handlers::moments};
const Operation kUpdateSquares{
    .name = "update-squares",
    .summary = "adds the squares of this rank's shard of a unit's update, by matrices",
    .rule = rules::update_squares,
    .run = handlers::update_squares};
const Operation kOptimizerStep{
    .name = "optimizer-step",
    .summary = "updates this rank's shard of a unit and of its optimizer state",
    .tiers = OperandTiers::kOne,
    .rule = rules::optimizer_step,
    .run = handlers::optimizer_step};

}  // namespace operations

std::span<const Operation* const> all_operations() {
  using namespace operations;  // NOLINT: the table above
  static constexpr std::array kAll{
      &kCountTokens,    &kAllGather,    &kReduceScatter, &kAllReduce,  &kForward,
      &kForwardLoss,    &kLoss,         &kLossBackward,  &kBackward,   &kBackwardInput,
      &kBackwardWeight, &kReshard,      &kDecode,        &kAmax,       &kRollHistory,
      &kAllReduceMax,   &kEncode,       &kCast,          &kCopy,       &kRelease,
      &kReserve,        &kPack,         &kUnpack,        &kSend,       &kReceive,
      &kAddTied,        &kNormPartial,  &kResults,       &kSquareSums, &kMoments,
      &kUpdateSquares,  &kOptimizerStep};
  return kAll;
}

const Operation* find_operation(std::string_view name,
                                std::span<const Operation* const> operations) {
  const auto found = std::ranges::find(operations, name, &Operation::name);
  return found == operations.end() ? nullptr : *found;
}

std::int64_t message_bytes(const Schedule& schedule, const Action& message) {
  const Operand& operand = message.reads.empty() ? message.writes.front() : message.reads.front();
  if (operand.unit >= 0) return operand_bytes(schedule, operand);
  return schedule.message_numel(message.layer) *
         static_cast<std::int64_t>(size_of(schedule.buffer(operand).format));
}

bool copies_to_snapshot(const Schedule& schedule, const Action& action) {
  return action.operation == &operations::kCopy &&
         schedule.is_of_kind(action.writes.front(), BufferKind::kSnapshot);
}

std::vector<int> flats_of(const Schedule& schedule, const Operand& operand) {
  std::vector<int> flats;
  const FlatSet set = schedule.flats(operand);
  for (int flat = 0; flat < FlatSet::kMost; ++flat) {
    if (set.contains(flat)) flats.push_back(flat);
  }
  return flats;
}

Tier tier_of(const Schedule& schedule, const Operand& operand) {
  return schedule.buffer(operand).tier;
}

void count_copy(Tier from, Tier to, std::int64_t bytes, Traffic& traffic) {
  if (from == to) return;
  if (from == Tier::kDisk) {
    traffic.from_disk_bytes += bytes;
  } else if (to == Tier::kDisk) {
    traffic.to_disk_bytes += bytes;
  } else {
    (to == Tier::kHost ? traffic.to_host_bytes : traffic.to_device_bytes) += bytes;
  }
}

std::int64_t copied_bytes(const Schedule& schedule, const Action& copy) {
  std::int64_t bytes = 0;
  for (const Operand& from : copy.reads) {
    bytes += copied_bytes(schedule, from, copy.writes.front());
  }
  return bytes;
}

std::int64_t operand_bytes(const Schedule& schedule, const Action& action) {
  // An action on one flat parameter touches its part of the statistics, on average so much.
  const auto parts = is_collective(action)
                         ? 1
                         : std::max<std::int64_t>(1, std::ssize(FactoredTable(schedule).entries()));
  const auto touched = [&](const Operand& operand) {
    const bool is_part = schedule.role(operand.buffer) == Role::kStatistics;
    return operand_bytes(schedule, operand) / (is_part ? parts : 1);
  };
  std::int64_t bytes = 0;
  for (const Operand& operand : action.reads) bytes += touched(operand);
  for (const Operand& operand : action.writes) {
    bytes += touched(operand) * (operand.adds ? 2 : 1);
  }
  return bytes;
}

}  // namespace tessera

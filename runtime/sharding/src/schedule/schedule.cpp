#include "tessera/sharding/schedule.h"

#include <algorithm>

#include "tessera/core/error.h"

namespace tessera {
std::string_view to_string(Lane lane) {
  switch (lane) {
    case Lane::kCompute:
      return "compute";
    case Lane::kGather:
      return "gather";
    case Lane::kOptimizer:
      return "optimizer";
    case Lane::kReduce:
      return "reduce";
    case Lane::kCopyOut:
      return "copy-out";
    case Lane::kCopyIn:
      return "copy-in";
    case Lane::kDiskIn:
      return "disk-in";
    case Lane::kDiskOut:
      return "disk-out";
    case Lane::kSend:
      return "send";
    case Lane::kReceive:
      return "receive";
    case Lane::kSendBack:
      return "send-back";
    case Lane::kReceiveBack:
      return "receive-back";
  }
  return "unknown";
}

std::string_view to_string(Role role) {
  switch (role) {
    case Role::kParameter:
      return "parameter";
    case Role::kDecoded:
      return "decoded";
    case Role::kCode:
      return "code";
    case Role::kScales:
      return "scales";
    case Role::kHistory:
      return "history";
    case Role::kMaxima:
      return "maxima";
    case Role::kStatistics:
      return "statistics";
    case Role::kMaster:
      return "master";
    case Role::kOptimizer:
      return "optimizer";
    case Role::kGradient:
      return "gradient";
    case Role::kScalars:
      return "scalars";
    case Role::kActivation:
      return "activation";
    case Role::kActivationGradient:
      return "activation-gradient";
    case Role::kBatch:
      return "batch";
  }
  return "unknown";
}

std::string_view to_string(Purpose purpose) {
  return purpose == Purpose::kTrain ? "train" : "evaluate";
}

std::string_view to_string(BufferKind kind) {
  switch (kind) {
    case BufferKind::kState:
      return "state";
    case BufferKind::kGradient:
      return "gradient";
    case BufferKind::kCopy:
      return "copy";
    case BufferKind::kSnapshot:
      return "snapshot";
    case BufferKind::kInput:
      return "input";
    case BufferKind::kActivation:
      return "activation";
    case BufferKind::kActivationGradient:
      return "activation-gradient";
    case BufferKind::kBatch:
      return "batch";
    case BufferKind::kScales:
      return "scales";
    case BufferKind::kHistory:
      return "history";
    case BufferKind::kMaxima:
      return "maxima";
    case BufferKind::kSquares:
      return "squares";
    case BufferKind::kFactors:
      return "factors";
    case BufferKind::kUpdateSquares:
      return "update-squares";
    case BufferKind::kTokens:
      return "tokens";
    case BufferKind::kLoss:
      return "loss";
    case BufferKind::kNorm:
      return "norm";
    case BufferKind::kResults:
      return "results";
    case BufferKind::kWholeSlot:
      return "slot";
    case BufferKind::kShardSlot:
      return "shard-slot";
    case BufferKind::kStagingSlot:
      return "staging-slot";
    case BufferKind::kUpdateSlot:
      return "update-slot";
    case BufferKind::kSumSlot:
      return "sum-slot";
    case BufferKind::kStateSlot:
      return "state-slot";
    case BufferKind::kSendSlot:
      return "send-slot";
    case BufferKind::kReceiveSlot:
      return "receive-slot";
  }
  return "unknown";
}

std::string format_of(const ScheduleBuffer& buffer) {
  const std::string_view format = to_string(buffer.format);
  return buffer.block == 1 ? std::string(format) : concat(format, '/', buffer.block);
}

std::string Schedule::name_of(int buffer) const {
  const bool exists = buffer >= 0 && buffer < static_cast<int>(buffers.size());
  return exists ? buffers[static_cast<std::size_t>(buffer)].name : concat('?', buffer);
}

bool Schedule::keeps_input(int layer) const {
  return purpose == Purpose::kTrain && policy.recompute == Recompute::kFull &&
         takes_activation(layer) && layer >= first_backward_layer &&
         layer < static_cast<int>(layers.size()) - 1 &&
         !layers[static_cast<std::size_t>(layer)].backward_reads.empty();
}

int Schedule::input_on_host(int layer) const {
  const auto found = std::ranges::find_if(buffers, [layer](const ScheduleBuffer& buffer) {
    return buffer.kind == BufferKind::kInput && buffer.layer == layer;
  });
  return found == buffers.end() ? -1 : static_cast<int>(found - buffers.begin());
}

std::int64_t ScheduleUnit::numel(bool trainable) const {
  std::int64_t numel = 0;
  for (const ScheduleFlat& flat : flats) numel += flat.trainable == trainable ? flat.numel : 0;
  return numel;
}

FlatSet Schedule::flats_in(const ScheduleBuffer& buffer, int unit) const {
  if (buffer.unit >= 0) return {buffer.flat};
  FlatSet set;
  const std::vector<ScheduleFlat>& flats = units[static_cast<std::size_t>(unit)].flats;
  for (int f = 0; f < static_cast<int>(flats.size()); ++f) {
    const ScheduleFlat& flat = flats[static_cast<std::size_t>(f)];
    if (buffer.role == Role::kDecoded) {
      if (flat.is_quantized()) set.insert(f);
    } else if (buffer.role == Role::kCode) {
      if (flat.has_codes()) set.insert(f);
    } else if (buffer.holds_for_layers()) {
      if (flat.format == buffer.format) set.insert(f);
    } else if (flat.trainable && set.empty()) {
      set.insert(f);
    }
  }
  return set;
}

std::int64_t Schedule::numel(const Operand& operand) const {
  const FlatSet named = flats(operand);
  const ScheduleBuffer& in = buffer(operand);
  std::int64_t sum = 0;
  const auto count = static_cast<int>(units[static_cast<std::size_t>(operand.unit)].flats.size());
  for (int f = 0; f < count; ++f) {
    if (named.contains(f)) sum += numel_in(in, flat(operand.unit, f));
  }
  return sum;
}

int Schedule::find(Role role, int unit, int flat) const {
  const auto found = std::ranges::find_if(buffers, [&](const ScheduleBuffer& buffer) {
    return buffer.role == role && buffer.unit == unit && buffer.flat == flat &&
           buffer.tier == Tier::kDevice;
  });
  return found == buffers.end() ? -1 : static_cast<int>(found - buffers.begin());
}

const ScheduleBuffer& Schedule::state_of(const ScheduleBuffer& copy) const {
  const auto found = std::ranges::find_if(buffers, [&](const ScheduleBuffer& buffer) {
    return buffer.kind == BufferKind::kState && buffer.is_same_tensor(copy);
  });
  require(found != buffers.end(), ErrorCode::kInvalidArgument, copy.name,
          " is a copy of no state tensor");
  return *found;
}

int Schedule::find(BufferKind kind) const {
  const auto found = std::ranges::find(buffers, kind, &ScheduleBuffer::kind);
  return found == buffers.end() ? -1 : static_cast<int>(found - buffers.begin());
}

const Operand* Schedule::find(const std::vector<Operand>& operands, BufferKind kind) const {
  const auto found = std::ranges::find_if(
      operands, [&](const Operand& operand) { return is_of_kind(operand, kind); });
  return found == operands.end() ? nullptr : &*found;
}

int Schedule::find(std::string_view name) const {
  const auto found = std::ranges::find(buffers, name, &ScheduleBuffer::name);
  return found == buffers.end() ? -1 : static_cast<int>(found - buffers.begin());
}

}  // namespace tessera

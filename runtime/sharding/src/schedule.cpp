#include "tessera/sharding/schedule.h"

#include "tessera/core/error.h"

namespace tessera {

std::string_view to_string(ActionKind kind) {
  switch (kind) {
    case ActionKind::kCountItems:
      return "count-items";
    case ActionKind::kUnshard:
      return "unshard";
    case ActionKind::kForward:
      return "forward";
    case ActionKind::kLoss:
      return "loss";
    case ActionKind::kBackward:
      return "backward";
    case ActionKind::kReshard:
      return "reshard";
    case ActionKind::kAccumulate:
      return "accumulate";
    case ActionKind::kRound:
      return "round";
    case ActionKind::kReduceScatter:
      return "reduce-scatter";
    case ActionKind::kAllReduce:
      return "all-reduce";
    case ActionKind::kGatherGradient:
      return "gather-gradient";
    case ActionKind::kSquares:
      return "squares";
    case ActionKind::kExchange:
      return "exchange";
    case ActionKind::kUpdate:
      return "update";
    case ActionKind::kGatherParameter:
      return "gather-parameter";
  }
  return "unknown";
}

std::string_view to_string(Lane lane) {
  switch (lane) {
    case Lane::kCompute:
      return "compute";
    case Lane::kGather:
      return "gather";
    case Lane::kReduce:
      return "reduce";
  }
  return "unknown";
}

Lane lane_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
    case ActionKind::kLoss:
    case ActionKind::kBackward:
    case ActionKind::kReshard:
    case ActionKind::kAccumulate:
    case ActionKind::kRound:
    case ActionKind::kUpdate:
      return Lane::kCompute;
    case ActionKind::kUnshard:
    case ActionKind::kGatherParameter:
      return Lane::kGather;
    case ActionKind::kCountItems:
    case ActionKind::kReduceScatter:
    case ActionKind::kAllReduce:
    case ActionKind::kGatherGradient:
    case ActionKind::kSquares:
    case ActionKind::kExchange:
      return Lane::kReduce;
  }
  fail(ErrorCode::kInternal, "unknown kind of action ", static_cast<int>(kind));
}

bool is_collective(ActionKind kind) {
  switch (kind) {
    case ActionKind::kCountItems:
    case ActionKind::kUnshard:
    case ActionKind::kReduceScatter:
    case ActionKind::kAllReduce:
    case ActionKind::kGatherGradient:
    case ActionKind::kExchange:
    case ActionKind::kGatherParameter:
      return true;
    default:
      return false;
  }
}

AxisSet Schedule::gradient_buffer_axes() const {
  if (!reduces_every_micro_step()) return {};
  return reduction_order == ReductionOrder::kRank ? placement.optimizer : placement.gradient;
}

int Schedule::gradient_slot(int unit, int micro_step) const {
  for (const GradientTarget& target : gradient_targets) {
    if (target.unit == unit && target.micro_step == micro_step) return target.slot;
  }
  fail(ErrorCode::kInvalidArgument, "the schedule names no target for the gradient of unit ", unit,
       " in micro-step ", micro_step);
}

}  // namespace tessera

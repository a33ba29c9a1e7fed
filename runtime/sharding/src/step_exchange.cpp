#include "step_exchange.h"

#include <algorithm>
#include <limits>

#include "tessera/core/error.h"
#include "tessera/kernels/norm_tree.h"

namespace tessera {
namespace {

BlockRange blocks_of(const Range& range) {
  return {range.begin / kNormBlock, range.numel / kNormBlock};
}

std::int64_t numel_of(const std::vector<std::int32_t>& values) {
  return static_cast<std::int64_t>(values.size());
}

std::int64_t most_blocks(const Schedule& schedule) {
  std::int64_t most = 0;
  for (const ScheduleUnit& unit : schedule.units) most = std::max(most, unit.trainable_numel);
  return most / schedule.mesh.world_size() / kNormBlock;
}

}  // namespace

StepExchange::StepExchange(const Schedule& schedule, const RankState& state, ProcessGroup* control,
                           Memory& memory)
    : schedule_(schedule),
      state_(state),
      kernels_(kernels_for(memory.device())),
      control_(control),
      members_(control == nullptr ? 1 : control->size()),
      me_(control == nullptr ? 0 : control->rank()),
      plan_(make_plan(schedule, state, members_, control == nullptr)),
      counts_(memory.device(), members_ * schedule.micro_steps),
      loss_scale_(memory.device(), 1),
      adamw_(memory.device(), kAdamWScalars),
      values_(memory.device(), plan_.values_numel),
      additions_(memory.device(), numel_of(plan_.additions)),
      units_(memory.device(), numel_of(plan_.units)),
      roots_(memory.device(), numel_of(plan_.roots)),
      results_(memory.device(), 2),
      workspace_(Tensor::empty(memory, Shape{most_blocks(schedule)}, DType::kFloat64,
                               MemoryCategory::kWorkspace, "block sums of the gradient norm")) {}

/// `alone`: there are no other ranks to hear of, though the schedule may be for many (simulated).
StepExchange::Plan StepExchange::make_plan(const Schedule& schedule, const RankState& state,
                                           std::int64_t members, bool alone) {
  Plan plan;
  plan.message_numel = schedule.micro_steps;
  std::vector<std::vector<BlockRange>> ranges(schedule.units.size());  // by unit and member
  for (std::size_t u = 0; u < ranges.size(); ++u) {
    const std::int64_t finest = schedule.units[u].trainable_numel / schedule.mesh.world_size();
    std::int64_t most_nodes = 0;
    for (std::int64_t r = 0; r < members; ++r) {
      const Range range = alone ? state.finest_range(static_cast<int>(u), true)
                                : Range{.begin = r * finest, .numel = finest};
      ranges[u].push_back(blocks_of(range));
      most_nodes =
          std::max(most_nodes, static_cast<std::int64_t>(norm_nodes(ranges[u].back()).size()));
    }
    plan.offsets.push_back(plan.message_numel);
    plan.node_counts.push_back(most_nodes);
    plan.message_numel += most_nodes;
  }
  require(members * plan.message_numel < std::numeric_limits<std::int32_t>::max() / 4,
          ErrorCode::kInvalidArgument, "the gradient norm of ", schedule.units.size(),
          " units is not possible over ", members, " ranks; wrap more layers into one unit");
  auto scratch = static_cast<std::int32_t>(members * plan.message_numel);
  std::vector<NormAddition> additions;
  plan.units.push_back(0);
  for (std::size_t u = 0; u < ranges.size(); ++u) {
    std::vector<std::int32_t> first_value;
    for (std::int64_t r = 0; r < members; ++r) {
      first_value.push_back(static_cast<std::int32_t>(r * plan.message_numel + plan.offsets[u]));
    }
    plan.roots.push_back(plan_norm_sum(ranges[u], first_value, scratch, additions));
    plan.units.push_back(static_cast<std::int32_t>(additions.size()));
  }
  for (const NormAddition& a : additions) {
    plan.additions.insert(plan.additions.end(), {a.target, a.left, a.right});
  }
  plan.values_numel = scratch;
  return plan;
}

void StepExchange::upload_plan(Stream& stream) {
  const auto fill = [&](DeviceArray<std::int32_t>& array, const std::vector<std::int32_t>& values) {
    std::ranges::copy(values, array.host());
    array.upload(stream);
  };
  fill(additions_, plan_.additions);
  fill(units_, plan_.units);
  fill(roots_, plan_.roots);
  plan_is_there_ = true;
}

void StepExchange::begin_step(const std::vector<std::int64_t>& items,
                              const std::array<float, kAdamWScalars>& adamw) {
  std::ranges::copy(items, counts_.host() + me_ * schedule_.micro_steps);
  std::copy_n(adamw.begin(), kAdamWGradientScale, adamw_.host());
}

void StepExchange::send_scalars(Stream& stream) {
  if (!plan_is_there_) upload_plan(stream);
  // All but the last, the clip factor, which exchange_results makes on the device.
  static_assert(kAdamWGradientScale == kAdamWScalars - 1);
  adamw_.upload(stream, kAdamWGradientScale);
}

void StepExchange::exchange_items(Stream& stream) {
  counts_.upload(stream);
  if (control_ != nullptr) {
    const std::int64_t mine = schedule_.micro_steps;
    control_->all_gather(counts_.view(me_ * mine, mine), counts_.view(), stream);
  }
  stream.submit({.name = "loss scale"}, [this, &stream] {
    kernels_.loss_scale({.counts = counts_.view(), .scale = loss_scale_.view()}, stream);
  });
}

TensorView StepExchange::loss_sum(int micro_step) const {
  return values_.view(me_ * plan_.message_numel + micro_step, 1);
}

void StepExchange::squares(int unit, Stream& stream) {
  const auto u = static_cast<std::size_t>(unit);
  const Range finest = state_.finest_range(unit, true);
  kernels_.norm_nodes(
      {.x = state_.gradient_range(unit, state_.nesting().all_axes()),
       .first_block = finest.begin / kNormBlock,
       .workspace = workspace_,
       .nodes = values_.view(me_ * plan_.message_numel + plan_.offsets[u], plan_.node_counts[u])},
      stream);
}

/// Losses in the order of the micro-batches: micro-step by micro-step, rank by rank, as one rank
/// that accumulates would add them. Norms unit by unit.
void StepExchange::exchange_results(double clip_norm, Stream& stream) {
  const std::int64_t message = plan_.message_numel;
  if (control_ != nullptr) {
    control_->all_gather(values_.view(me_ * message, message), values_.view(0, members_ * message),
                         stream);
  }
  stream.submit({.name = "combine"}, [this, clip_norm, message, &stream] {
    kernels_.step_results({.values = values_.view(),
                           .additions = additions_.view(),
                           .units = units_.view(),
                           .roots = roots_.view(),
                           .ranks = members_,
                           .message = message,
                           .micro_steps = schedule_.micro_steps,
                           .clip_norm = clip_norm,
                           .results = results_.view(),
                           .clip_factor = adamw_.view(kAdamWGradientScale, 1)},
                          stream);
  });
  results_.download(stream);
  counts_.download(stream);
}

std::int64_t StepExchange::total_items() const {
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < counts_.numel(); ++i) total += counts_.host()[i];
  return total;
}

double StepExchange::mean_loss() const {
  const std::int64_t items = total_items();
  return items > 0 ? results_.host()[0] / static_cast<double>(items) : 0.0;
}

}  // namespace tessera

#include "execution/optimizer_runner.h"

#include <algorithm>
#include <utility>

#include "execution/step_exchange.h"
#include "tessera/core/cpu_device.h"
#include "tessera/kernels/kernel_table.h"

namespace tessera {
namespace {

/// Trainable flat parameters in order of units.
std::vector<std::pair<FlatId, const FlatParameter*>> trainable_flats(const ModelLayout& layout) {
  std::vector<std::pair<FlatId, const FlatParameter*>> all;
  for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
    const std::vector<FlatParameter>& flats = layout.units[static_cast<std::size_t>(u)].flats;
    for (int f = 0; f < static_cast<int>(flats.size()); ++f) {
      const FlatParameter& flat = flats[static_cast<std::size_t>(f)];
      if (flat.trainable) all.emplace_back(FlatId{u, f}, &flat);
    }
  }
  return all;
}

}  // namespace

OptimizerRunner::OptimizerRunner(const TrainingState& state, const ExecutorOptions& options,
                                 Device& device)
    : options_(options.optimizer),
      optimizer_(find_optimizer(options.optimizer.name)),
      device_(device) {
  plan_segments(state);
  if (is_factored(optimizer_)) {
    factored_ = std::make_unique<FactoredRunner>(
        state, [this](const ParameterSpec& spec) { return rates_of(spec); },
        scale_parameter(options_), options_.stochastic_rounding);
  }
  if (device.kind() != DeviceKind::kCuda || !state.is_offloaded()) return;
  host_device_ = make_cpu_device();
  host_stream_ = host_device_->create_stream({.name = "host", .threads = options.threads});
}

SegmentRates OptimizerRunner::rates_of(const ParameterSpec& spec) const {
  const ParameterGroup* const group = find_group(options_.groups, spec.name);
  float weight_decay = options_.weight_decay.value_or(static_cast<float>(optimizer_.weight_decay));
  if (group != nullptr && group->weight_decay) weight_decay = *group->weight_decay;
  return {.weight_decay = weight_decay * spec.weight_decay_scale,
          .learning_rate_scale = group != nullptr ? group->learning_rate_factor : 1.0F};
}

/// Where this rank's optimizer shard overlaps each tensor, and at what rates.
void OptimizerRunner::plan_segments(const TrainingState& state) {
  // Elements count as in the layout: a place among all depends on no division into units.
  const std::int64_t alignment = flat_alignment(state.options().optimizer_tensors);
  std::int64_t elements = 0;
  for (const auto& [id, layout] : trainable_flats(state.layout())) {
    const FlatParameter& flat = *layout;
    const Range shard = state.nesting().range(flat.padded_numel,
                                              state.nesting().placement().optimizer, state.rank());
    std::vector<OptimizerSegment> segments;
    for (const FlatTensor& tensor : flat.tensors) {
      const std::int64_t begin = std::max(shard.begin, tensor.offset);
      const std::int64_t end = std::min(shard.end(), tensor.offset + tensor.spec.shape.numel());
      if (begin >= end) continue;
      segments.push_back(
          {.begin = begin - shard.begin, .end = end - shard.begin, .rates = rates_of(tensor.spec)});
    }
    updates_[id] = {.segments = std::move(segments), .first_element = elements + shard.begin};
    elements += (flat.numel + alignment - 1) / alignment * alignment;
  }
}

/// The shards of an optimizer step: operands by their roles, in the order of the optimizer's
/// tensors. On the host, the CPU's kernel works on them, which gives the same bits as a GPU's.
void OptimizerRunner::step(StepContext& context, const Action& action, Stream& stream) {
  if (factored_ != nullptr) return factored_->step(context, action, stream);
  const Schedule& schedule = context.schedule();
  StepExchange& exchange = context.exchange();
  TensorView gradient, master, parameter;
  std::vector<TensorView> states;
  Tier tier = Tier::kDevice;
  for (const Operand& operand : action.reads) {
    if (schedule.role(operand.buffer) == Role::kGradient) {
      gradient = context.view(operand);
      tier = schedule.buffer(operand).tier;
    }
  }
  for (const Operand& operand : action.writes) {
    const TensorView view = context.view(operand);
    const Role role = schedule.role(operand.buffer);
    if (role == Role::kParameter) parameter = view;
    if (role == Role::kMaster) master = view;
    if (role == Role::kOptimizer) states.push_back(view);
  }
  const bool has_copy = static_cast<bool>(master);
  const DeviceLossScaler* const scaler = exchange.scaler();
  const Operand& written = action.writes.front();
  const FlatUpdate& of_flat = updates_.at({written.unit, schedule.flats(written).front()});
  OptimizerStepArgs args{.optimizer = &optimizer_,
                         .master = has_copy ? master : parameter,
                         .gradient = gradient,
                         .states = states,
                         .parameter = has_copy ? parameter : TensorView(),
                         .segments = of_flat.segments,
                         .scalars = exchange.optimizer_scalars(tier),
                         .gradient_scale = schedule.updates_wait_for_norm
                                               ? exchange.clip_factor(tier)
                                               : exchange.no_clipping(tier),
                         .skip = scaler != nullptr ? scaler->skip(tier) : TensorView(),
                         .stochastic_rounding = options_.stochastic_rounding,
                         .rounding_key = exchange.rounding_key(tier),
                         .first_index = of_flat.first_element};
  if (tier == Tier::kDevice || device_.kind() != DeviceKind::kCuda) {
    return context.kernels().optimizer_step(args, stream);
  }
  // The driver's thread hands it to one that has a team for it, see [Note: teams of threads].
  stream.submit_on_host(
      {.name = "optimizer step on the host"}, [this, args, states = std::move(states)]() mutable {
        args.states = states;
        host_stream_->submit({.name = "optimizer step"},
                             [&] { cpu_kernels().optimizer_step(args, *host_stream_); });
        host_stream_->synchronize();
      });
}

}  // namespace tessera

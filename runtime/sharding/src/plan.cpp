#include "tessera/sharding/plan.h"

#include <algorithm>
#include <utility>

#include "planning.h"
#include "tessera/core/error.h"
#include "tessera/kernels/exact_sum.h"
#include "tessera/sharding/synchronise.h"

// [Note: planning]
//
// 1. The compute lane is fixed by the model: forward of every layer, the loss layer's forward and
//    backward in one, backward of the other layers in reverse; once per micro-step.
// 2. A *residency* is a stretch of compute actions during which a unit's parameters stay in a slot.
//    Uses of a unit are merged into one residency when releasing it in between would be pointless:
//    the next use is (nearly) the next action, its all-gather would be issued before the release
//    anyway, or the policy keeps parameters until backward.
// 3. Residencies are numbered by first use; those that begin with the same action share a number.
//    The unshard of number i is issued just before the compute action with which number i - depth
//    begins. So `depth` unshards are in flight ahead of use, and all-gather i + 1 is issued before
//    the reshard or the reduction of i.
// 4. Residencies whose intervals (issue to release) overlap need different slots (residency.h). A
//    chain of equal units gets a ring: one slot in use and `depth` ahead, and one more where a
//    layer is kept while its successor is already there.
// 5. Gradient slots likewise, from the first backward action that writes to one to the point where
//    `prefetch_backward` later gradients have been started: by then its reduction must be done.
// 6. The list is emitted in issue order, without waits. These follow from what actions read and
//    write, so all that an action must come after has to be among their operands ([Note: waits]).
// 7. Steps follow each other without a pause: where an action would touch a buffer that the
//    previous step's last actions may still use, it waits for them. So updates and their
//    all-gathers run beside the next step's forward, which waits for each unit's own.
// 8. Units whose optimizer state is on the host: the reduced gradient is copied there as soon as it
//    is complete, beside the rest of backward; once the clip factor is known, the updates run on
//    the optimizer's lane in forward order, and each unit's parameters go back while the next one
//    is updated. By 7, the next step's forward waits for the copies of the units that it reads.
// 9. Units whose parameters are on the host: what an all-gather would read is copied to a slot for
//    shards first, on a lane of its own. Copies wait for their slot only, so with n slots n - 1 of
//    them are ahead of the all-gathers. Where nothing is sharded, the copy takes the all-gather's
//    place: its residency is planned as any other. Units whose parameters are on disk: the same
//    from slots on the host, to which they are read before. Where ranks keep more of a unit than
//    they update, the updated parts are copied to a slot on the device, gathered there and copied
//    back, from the host to the disk if need be.
// 10. Units whose gradients are on the host: a micro-step's gradient is reduced into a slot for
//    sums, after what the host has of it was copied there, and copied out. Actions on such a slot
//    follow one another in the list, so slots take turns; with n of them, n - 1 copies are ahead.
// 11. Units whose optimizer state, or whose parameters, are on disk: before the update what it
//    reads or writes of them is read into slots on the host, after it the slots are written back.
//    With n of them, n - 1 units are read, updated or written beside the one that is next. Reading
//    waits for the slots alone, so the first units of a step are read while its passes run.
// 12. Inputs of recomputed layers that wait on the host: each is copied out once its layer's
//    forward is over, and copied back before its backward, both on lanes of their own, behind as
//    many passes as `prefetch_host` says. Their memory on the device comes and goes by actions of
//    the compute lane, so that the peak does not depend on how fast the copies are.
// 13. Quantised parameters of a unit are gathered as bytes, by 2 and 3, and decoded on the compute
//    lane right before each use, into one more kind of slot: what is prefetched and kept is packed.
//    Those away from the device come by 9.
//
// [Note: sums of micro-steps] Backward could add to what earlier micro-steps have left: a GEMM with
// beta 1 saves the slot and the pass over it that adds it (12 bytes per parameter). But then the
// sum is another one. N ranks with one micro-step each add N complete gradients; a kernel that adds
// in place adds its pieces one by one to what is there: the rows of an embedding, the layers that
// share a tensor, the blocks into which a CPU's GEMM cuts K. The same bits for any split of the
// samples over ranks and micro-steps are worth more, so the pass stays: account_gradient_sums
// counts it.
namespace tessera {
namespace {

// A list of a few times as many actions is planned and checked within half a minute.
constexpr std::int64_t kMaxPasses = std::int64_t{1} << 20;

void append_unique(std::vector<int>& list, int value) {
  if (std::ranges::find(list, value) == list.end()) list.push_back(value);
}

std::vector<ScheduleLayer> schedule_layers(const ModelLayout& layout) {
  std::vector<ScheduleLayer> layers;
  for (const LayerLayout& in : layout.layers) {
    ScheduleLayer out{.name = in.name, .forward_reads = {}, .backward_reads = {}, .gradients = {}};
    for (const ParameterAddress& address : in.parameters) {
      append_unique(out.forward_reads, address.unit);
      if (in.backward_reads_parameters) append_unique(out.backward_reads, address.unit);
      if (address.trainable) append_unique(out.gradients, address.unit);
    }
    layers.push_back(std::move(out));
  }
  return layers;
}

/// Groups each unit's trainable tensors by the layers that contribute to their gradients.
void list_parts(Schedule& schedule, const ModelLayout& layout) {
  std::vector<std::vector<std::vector<int>>> writers;  // by unit and tensor
  for (const Unit& unit : layout.units) writers.emplace_back(unit.trainable.tensors.size());
  for (int l = static_cast<int>(layout.layers.size()) - 1; l >= 0; --l) {
    for (const ParameterAddress& a : layout.layers[static_cast<std::size_t>(l)].parameters) {
      if (!a.trainable) continue;
      auto& of_tensor =
          writers[static_cast<std::size_t>(a.unit)][static_cast<std::size_t>(a.tensor)];
      if (of_tensor.empty() || of_tensor.back() != l) of_tensor.push_back(l);
    }
  }
  for (std::size_t u = 0; u < layout.units.size(); ++u) {
    std::vector<GradientPart>& parts = schedule.units[u].parts;
    for (std::size_t t = 0; t < writers[u].size(); ++t) {
      const auto same = std::ranges::find(parts, writers[u][t], &GradientPart::layers);
      if (same != parts.end()) {
        ++same->tensors;
      } else {
        parts.push_back(
            {.name = layout.units[u].trainable.tensors[t].spec.name, .layers = writers[u][t]});
      }
    }
  }
}

/// The schedule but for its slots and actions.
Schedule describe_step(const ModelLayout& layout, const PlanOptions& options) {
  require(options.micro_steps >= 1, ErrorCode::kConfig, "micro-steps must be 1 or more, not ",
          options.micro_steps);
  require(options.policy.prefetch_forward >= 0 && options.policy.prefetch_backward >= 0,
          ErrorCode::kConfig, "prefetch depths must be 0 or more");
  require(options.policy.prefetch_host >= 0 && options.policy.prefetch_disk >= 0,
          ErrorCode::kConfig, "prefetch depths must be 0 or more");
  Schedule schedule;
  schedule.purpose = options.purpose;
  schedule.mesh = options.mesh;
  schedule.placement = ShardNesting(options.mesh, options.placement).placement();
  schedule.parameter_dtype = options.parameter_dtype;
  schedule.reduce_dtype = options.reduce_dtype;
  schedule.micro_steps = options.micro_steps;
  schedule.recompute = options.policy.recompute;
  const int ranks = options.mesh.world_size();
  for (const Unit& unit : layout.units) {
    for (const FlatParameter* flat : {&unit.trainable, &unit.frozen, &unit.quantized}) {
      require(flat->padded_numel % (ranks * kFlatAlignment) == 0, ErrorCode::kInvalidArgument,
              "unit '", unit.name, "' is padded to ", flat->padded_numel,
              " elements, which cannot be divided among ", ranks,
              " ranks; make the layout for as many ranks as the mesh has");
    }
    schedule.units.push_back({.name = unit.name,
                              .trainable_numel = unit.trainable.padded_numel,
                              .frozen_numel = unit.frozen.padded_numel,
                              .quantized_bytes = unit.quantized.padded_numel,
                              .decoded_numel = unit.quantized.decoded_numel});
  }
  schedule.layers = schedule_layers(layout);
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

std::vector<Compute> list_computes(const Schedule& schedule) {
  std::vector<Compute> computes;
  const int last = static_cast<int>(schedule.layers.size()) - 1;
  const bool trains = schedule.purpose == Purpose::kTrain;
  for (int m = 0; m < schedule.micro_steps; ++m) {
    for (int l = 0; l < last; ++l) computes.push_back({&operations::kForward, l, m});
    computes.push_back({trains ? &operations::kLoss : &operations::kForwardLoss, last, m});
    for (int l = last - 1; trains && l >= schedule.first_backward_layer; --l) {
      computes.push_back({&operations::kBackward, l, m});
    }
  }
  return computes;
}

void add_slots(Schedule& schedule, BufferKind kind, const std::string& letters, Role role,
               DType format, const std::vector<std::int64_t>& sizes, Tier tier = Tier::kDevice) {
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    schedule.buffers.push_back({.name = concat(letters, i),
                                .kind = kind,
                                .role = role,
                                .format = format,
                                .numel = sizes[i],
                                .tier = tier});
  }
}

void add_sum_slots(Schedule& schedule, const GradientRoute& route,
                   const std::vector<std::int64_t>& sizes) {
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    schedule.buffers.push_back({.name = concat("sum", i),
                                .kind = BufferKind::kSumSlot,
                                .role = Role::kGradient,
                                .sharded = route.buffer_axes,
                                .numel = sizes[i]});
  }
}

void add_update_slots(Schedule& schedule, const PlanOptions& options) {
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    const std::vector<std::int64_t> sizes = plan_update_slots(schedule, options, tier);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      schedule.buffers.push_back({.name = concat("update", i, tier == Tier::kHost ? "@host" : ""),
                                  .kind = BufferKind::kUpdateSlot,
                                  .role = Role::kParameter,
                                  .format = options.parameter_dtype,
                                  .sharded = schedule.placement.parameter,
                                  .numel = sizes[i],
                                  .tier = tier});
    }
  }
}

/// Of each tensor that units have on disk for the optimizer, as large as the largest.
void add_state_slots(Schedule& schedule, const PlanOptions& options) {
  std::vector<ScheduleBuffer> tensors;
  for (const ScheduleBuffer& buffer : schedule.buffers) {
    if (buffer.tier != Tier::kDisk || buffer.role == Role::kFrozen ||
        buffer.role == Role::kQuantized) {
      continue;
    }
    const std::int64_t numel =
        schedule.unit_numel(buffer.unit, buffer) / schedule.mesh.size(schedule.placement.optimizer);
    const auto known = std::ranges::find_if(tensors, [&](const ScheduleBuffer& other) {
      return other.role == buffer.role && other.tensor == buffer.tensor;
    });
    if (known == tensors.end()) {
      tensors.push_back({.name = buffer.role == Role::kOptimizer
                                     ? buffer.tensor
                                     : std::string(to_string(buffer.role)),
                         .kind = BufferKind::kStateSlot,
                         .role = buffer.role,
                         .tensor = buffer.tensor,
                         .format = buffer.format,
                         .block = buffer.block,
                         .numel = numel,
                         .tier = Tier::kHost});
    } else {
      known->numel = std::max(known->numel, numel);
    }
  }
  for (std::size_t i = 0; i <= static_cast<std::size_t>(options.policy.prefetch_disk); ++i) {
    for (ScheduleBuffer slot : tensors) {
      slot.name = concat('o', i, '.', slot.name);
      schedule.buffers.push_back(std::move(slot));
    }
  }
}

/// What passes leave for others: forwards, and backwards and losses for the layer before.
void add_activations(Schedule& schedule, const std::vector<Compute>& computes) {
  const auto add = [&](bool gradient, int layer, int micro_step) {
    schedule.buffers.push_back(
        {.name = concat(gradient ? "d." : "x.",
                        schedule.layers[static_cast<std::size_t>(layer)].name, ".m", micro_step),
         .kind = gradient ? BufferKind::kActivationGradient : BufferKind::kActivation,
         .role = gradient ? Role::kActivationGradient : Role::kActivation,
         .layer = layer,
         .micro_step = micro_step,
         .format = schedule.parameter_dtype});
  };
  for (const Compute& compute : computes) {
    if (compute.pass == &operations::kForward) {
      add(false, compute.layer, compute.micro_step);
    } else if (compute.pass != &operations::kForwardLoss &&
               compute.layer > schedule.first_backward_layer) {
      add(true, compute.layer - 1, compute.micro_step);
    }
  }
}

void add_scalars(Schedule& schedule) {
  const auto add = [&](BufferKind kind, DType format, std::int64_t numel) {
    schedule.buffers.push_back(
        {.name = std::string(to_string(kind)), .kind = kind, .format = format, .numel = numel});
  };
  add(BufferKind::kTokens, DType::kInt64, 1);
  const bool trains = schedule.purpose == Purpose::kTrain;
  add(BufferKind::kLoss, DType::kInt64, kExactSumWords + (trains ? 0 : kHitWords));
  if (trains) add(BufferKind::kNorm, DType::kInt64, kExactSumWords);
  add(BufferKind::kResults, DType::kFloat64, 2);
}

/// Where the optimizer reads gradients of units whose state is on the host, and where gradients are
/// from one micro-step to the next.
void add_host_gradients(Schedule& schedule, const GradientRoute& route) {
  for (int u = 0; u < static_cast<int>(schedule.units.size()); ++u) {
    if (!schedule.updates_on_host(u) && !route.is_on_host(u)) continue;
    const ScheduleUnit& unit = schedule.units[static_cast<std::size_t>(u)];
    const bool adds_there = route.is_on_host(u) && route.micro_steps > 1;
    const AxisSet sharded = adds_there ? route.buffer_axes : schedule.placement.optimizer;
    schedule.buffers.push_back({.name = unit.name + ".gradient@host",
                                .kind = BufferKind::kCopy,
                                .role = Role::kGradient,
                                .unit = u,
                                .sharded = sharded,
                                .numel = unit.trainable_numel / schedule.mesh.size(sharded),
                                .tier = Tier::kHost});
  }
}

void add_gradients(Schedule& schedule, const GradientRoute& route) {
  for (int u = 0; u < static_cast<int>(schedule.units.size()); ++u) {
    const ScheduleUnit& unit = schedule.units[static_cast<std::size_t>(u)];
    if (unit.trainable_numel == 0 || route.is_on_host(u)) continue;
    schedule.buffers.push_back(
        {.name = unit.name + ".gradient",
         .kind = BufferKind::kGradient,
         .role = Role::kGradient,
         .unit = u,
         .sharded = route.buffer_axes,
         .numel = unit.trainable_numel / schedule.mesh.size(route.buffer_axes)});
  }
}

}  // namespace

GradientRoute::GradientRoute(const Schedule& schedule, const ModelLayout& layout,
                             const PlanOptions& options)
    : every(!schedule.placement.gradient.empty() && !options.accumulate_unsharded),
      adds_up(!every && options.micro_steps > 1),
      by_rank(options.reduction_order == ReductionOrder::kRank),
      reduce_dtype(options.reduce_dtype),
      micro_steps(options.micro_steps),
      on_host(last_trained_units(layout, options.offload_gradients)),
      all_axes(ShardNesting(schedule.mesh, schedule.placement).all_axes()),
      optimizer_axes(schedule.placement.optimizer) {
  if (every) buffer_axes = by_rank ? optimizer_axes : schedule.placement.gradient;
  if (by_rank || optimizer_axes.empty()) {
    sent_axes = all_axes;
  } else {
    sent_axes = every ? schedule.placement.gradient : optimizer_axes;
  }
}

Schedule plan(const ModelLayout& layout, const PlanOptions& options) {
  Schedule schedule = describe_step(layout, options);
  schedule.buffers = state_buffers(layout, options.state());
  const GradientRoute route(schedule, layout, options);
  const std::vector<Compute> computes = list_computes(schedule);
  std::vector<std::int64_t> parameter_slots, quantized_slots, decoded_slots, gradient_slots;
  const Residencies residencies{
      .parameters = plan_parameters(schedule, options, computes, parameter_slots),
      .quantized = plan_quantized(schedule, options, computes, quantized_slots),
      .decoded = plan_decoded(schedule, options, computes, decoded_slots),
      .gradients = plan_gradients(schedule, options, route, computes, gradient_slots),
      .inputs = plan_inputs(schedule, options, computes)};
  if (schedule.purpose == Purpose::kTrain) {
    add_host_gradients(schedule, route);
    add_gradients(schedule, route);
    add_inputs(schedule, options, residencies.inputs);
  }
  add_slots(schedule, BufferKind::kWholeSlot, "p", Role::kParameter, options.parameter_dtype,
            parameter_slots);
  add_slots(schedule, BufferKind::kWholeSlot, "q", Role::kQuantized, DType::kUInt8,
            quantized_slots);
  add_slots(schedule, BufferKind::kWholeSlot, "w", Role::kDecoded, options.parameter_dtype,
            decoded_slots);
  add_slots(schedule, BufferKind::kWholeSlot, "g", Role::kGradient, options.reduce_dtype,
            gradient_slots);
  for (const Role role : {Role::kParameter, Role::kQuantized}) {
    const bool quantized = role == Role::kQuantized;
    const DType format = quantized ? DType::kUInt8 : options.parameter_dtype;
    const char* const prefix = quantized ? "q" : "";
    add_slots(schedule, BufferKind::kShardSlot, concat(prefix, 's'), role, format,
              plan_shard_slots(schedule, options, role));
    add_slots(schedule, BufferKind::kStagingSlot, concat(prefix, 'd'), role, format,
              plan_staging_slots(schedule, options, role), Tier::kHost);
  }
  add_update_slots(schedule, options);
  add_sum_slots(schedule, route, plan_sum_slots(schedule, options, route));
  if (options.purpose == Purpose::kTrain) add_state_slots(schedule, options);
  add_scalars(schedule);
  add_activations(schedule, computes);
  emit_actions(schedule, options, route, computes, residencies);
  return synchronise(std::move(schedule));
}

}  // namespace tessera

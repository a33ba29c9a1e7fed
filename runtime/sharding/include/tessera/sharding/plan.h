#pragma once

#include <string>
#include <vector>

#include "tessera/sharding/layout.h"
#include "tessera/sharding/schedule.h"
#include "tessera/sharding/state_buffers.h"

namespace tessera {

/// What a step holds in memory to save time, and computes again to save memory.
struct StepPolicy {
  int prefetch_forward = 1;   ///< unshards issued ahead of use in forward
  int prefetch_backward = 1;  ///< the same in backward, and reductions in flight behind it
  Recompute recompute = Recompute::kNone;
  int prefetch_host = 1;  ///< shards copied from the host ahead of their all-gather, gradients
                          ///< ahead of what is added to them, layers' inputs ahead of backward
  int prefetch_disk = 2;  ///< units read from disk ahead of the one that is copied to the device,
                          ///< or updated and written back
  /// Backward is two passes, of the gradient of a layer's input and directly after it of those of
  /// its parameters, and the loss is two, of layers that declare it (Layer::splits_backward).
  bool split_backward = false;
};

/// All that turns a layout into a schedule.
///
/// A mixed precision policy chooses only these two dtypes. Tensors that layers hand
/// on, logits included, has parameter_dtype: a dtype for outputs would only add casts. Losses are
/// fp32. So are master weights, moments and sharded gradients, always: in bf16, most updates would
/// be lost in rounding.
struct PlanOptions {
  Purpose purpose = Purpose::kTrain;
  Mesh mesh;
  Placement placement;
  bool reshard_after_forward = true;
  ReductionOrder reduction_order = ReductionOrder::kRank;
  DType parameter_dtype = DType::kFloat32;
  DType reduce_dtype = DType::kFloat32;
  int micro_steps = 1;
  bool accumulate_unsharded = false;
  StepPolicy policy{};
  /// Optimizer steps have a lane of their own, beside the next step's forward; else they run on the
  /// compute lane. Those on the host always have.
  bool overlap_optimizer = false;
  /// The tensors that the optimizer keeps; see StateOptions.
  std::vector<OptimizerTensor> optimizer_tensors{{"first-moment"}, {"second-moment"}};

  double offload_optimizer = 0.0;   ///< see StateOptions
  double offload_parameters = 0.0;  ///< see StateOptions
  double disk_optimizer = 0.0;      ///< see StateOptions
  double disk_parameters = 0.0;     ///< see StateOptions
  /// Share of the units with something to train, the last ones, whose reduced gradients are on the
  /// host between micro-steps and until the optimizer step; the device has slots for them.
  double offload_gradients = 0.0;
  /// By layer: elements of its input in a micro-step, see layer_input_numels(). The inputs that
  /// recomputed layers keep wait for backward on the host then, but for those of the last
  /// policy.prefetch_host layers, whose backward comes first. Empty: they stay.
  std::vector<std::int64_t> offload_activations{};

  /// The part of these that decides which state a rank keeps.
  StateOptions state() const {
    return {mesh,
            placement,
            parameter_dtype,
            optimizer_tensors,
            offload_optimizer,
            offload_parameters,
            disk_optimizer,
            disk_parameters};
  }
};

/// Plans one training step, or (Purpose::kEvaluate) the forward passes of an evaluation. A pure
/// function: no device, no clock, no randomness; linear in the number of actions. Throws
/// Error{kConfig} for an invalid placement or a negative depth, Error{kInvalidArgument} for a
/// layout that was made for another number of ranks. [Note: planning] in plan.cpp explains how.
Schedule plan(const ModelLayout& layout, const PlanOptions& options);

/// By layer: elements of its input, of a micro-batch of so many samples; 0 of the first layer,
/// whose input is the batch's. Runs forward on shapes alone.
std::vector<std::int64_t> layer_input_numels(const Model& model, const ModelLayout& layout,
                                             const BatchSource& source, std::int64_t samples,
                                             DType parameter_dtype);

/// The same training step with a snapshot of the state as it is before the step: copies to host
/// memory on a lane of their own, beside the step's work, in the order of the updates, each of
/// which waits for what it would overwrite. Of every state tensor, this rank's part if all axes
/// shard it. Parameters that are kept beside their fp32 master weights follow from these and are
/// not copied, unless `rounded_at_random`.
Schedule with_snapshot(const Schedule& step, bool rounded_at_random);

}  // namespace tessera

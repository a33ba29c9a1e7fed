#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/autograd/tape.h"
#include "tessera/core/dtype.h"
#include "tessera/core/mesh.h"
#include "tessera/kernels/factored_moments.h"
#include "tessera/sharding/pipeline.h"
#include "tessera/sharding/strategies.h"

namespace tessera {

/// The effect of a schedule on the training state.
enum class Purpose : std::uint8_t {
  kTrain,     ///< one optimizer step: every trainable tensor ends one version on
  kEvaluate,  ///< forward passes: the state stays as it is
};
std::string_view to_string(Purpose purpose);

/// A tensor that the optimizer keeps beside each trainable parameter; see OptimizerState.
struct OptimizerTensor {
  std::string name;
  DType format = DType::kFloat32;
  std::int64_t block = 1;  ///< elements of a parameter that it has one element for
  bool operator==(const OptimizerTensor&) const = default;

  /// Whether it has one for each row and column of a matrix instead; all ranks have the whole.
  bool is_factored() const { return block == kFactoredBlock; }
};
/// Whether an optimizer keeps such a tensor.
bool is_factored(const std::vector<OptimizerTensor>& tensors);

/// The options that decide which training state a rank keeps, and which shards of it.
struct StateOptions {
  Mesh mesh;
  Placement placement;
  PipelineOptions pipeline{};  ///< which layers' state it is
  DType parameter_dtype = DType::kFloat32;
  /// The tensors that the optimizer keeps for each trainable parameter.
  std::vector<OptimizerTensor> optimizer_tensors{{"first-moment"}, {"second-moment"}};
  /// Share of the units whose optimizer state is on the host: the last ones, to the nearest number
  /// of those that have something to train. The optimizer updates units in forward order, so these
  /// are the ones whose gradients are there first and whose parameters are needed last.
  double offload_optimizer = 0.0;
  /// Share of the units whose parameters are on the host, frozen ones among them, and with them
  /// their optimizer state: the last ones again. Layers read them from slots on the device. Where
  /// frozen parameters are sharded and trainable ones are not, the frozen ones are meant alone.
  double offload_parameters = 0.0;
  /// Share of the units whose master weights and optimizer tensors are on disk: the last ones, as
  /// with offload_optimizer. The optimizer updates them on the host.
  double disk_optimizer = 0.0;
  /// Share of the units whose parameters are on disk, as with offload_parameters, and read to the
  /// host ahead of use. Their optimizer state is on the host, or on disk as `disk_optimizer` says.
  double disk_parameters = 0.0;
};

/// How far a step keeps things in memory to save time, and computes them again to save memory.
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
  bool operator==(const StepPolicy&) const = default;
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
  PipelineOptions pipeline{};
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
  /// Matrices that layers can read in E4M3 (FlatParameter::fp8) are gathered as codes in training,
  /// where they are cut and on the device.
  bool gather_codes = false;
  int scale_units = 8;  ///< units whose scales are joined by one message
  /// Steps whose largest magnitudes decide the scales of fp8 in training; see HistoryTable. 0: none
  /// does, a scale is made of the tensor as it is.
  int fp8_history = 0;
  /// Optimizer steps begin when the results are there, the gradient norm among them, which clipping
  /// and loss scaling need. If not, when their own gradient is summed: ranks of a pipeline whose
  /// passes are over do not wait for the others' gradients.
  bool updates_wait_for_norm = true;
  /// The tensors that the optimizer keeps; see StateOptions.
  std::vector<OptimizerTensor> optimizer_tensors{{"first-moment"}, {"second-moment"}};
  /// Learning rates are scaled by the root mean squares of parameters; with a factored optimizer.
  bool scale_parameter = false;

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

  bool operator==(const PlanOptions&) const = default;

  /// The part of these that decides which state a rank keeps.
  StateOptions state() const {
    return {mesh,
            placement,
            pipeline,
            parameter_dtype,
            optimizer_tensors,
            offload_optimizer,
            offload_parameters,
            disk_optimizer,
            disk_parameters};
  }
};

}  // namespace tessera

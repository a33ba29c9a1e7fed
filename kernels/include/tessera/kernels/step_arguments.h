#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "tessera/core/tensor.h"
#include "tessera/kernels/layer_arguments.h"
#include "tessera/kernels/loss_scaler.h"

namespace tessera {

// Arguments of the kernels of a step beside its layers: optimizer, norm, loss scaling, sums, casts;
// see kernel_table.h for what holds for all.

/// The numbers of an optimizer step that are not the same for all parameters.
struct SegmentRates {
  float weight_decay = 0.0F;
  float learning_rate_scale = 1.0F;  ///< times the learning rate of OptimizerStepArgs::scalars
  bool operator==(const SegmentRates&) const = default;
};

/// A range of a flat shard with its rates; disjoint ones. It begins with a block of states.
struct OptimizerSegment {
  std::int64_t begin = 0, end = 0;  ///< elements, relative to the views
  SegmentRates rates{};
};

/// Scalars that an optimizer step reads from device memory, the learning rate among them, so that a
/// captured step can be replayed with other values: Optimizer::scalars makes them.
inline constexpr int kOptimizerScalars = 8;
using OptimizerScalars = std::array<float, kOptimizerScalars>;

struct Optimizer;  // optimizer.h

/// One step of an optimizer on a flat shard. Elements outside of every segment are left alone.
struct OptimizerStepArgs {
  const Optimizer* optimizer = nullptr;  ///< a row of optimizers()
  TensorView master{};                   // (n); fp32; updated
  TensorView gradient{};                 // (n); fp32, bf16 or fp16
  std::span<const TensorView>
      states{};            // each (n / its block, rounded up); updated: those of optimizer_states
  TensorView parameter{};  // (n); bf16 or fp16; optional: receives the rounded master
  std::span<const OptimizerSegment> segments{};
  TensorView scalars{};         // (kOptimizerScalars); fp32
  TensorView gradient_scale{};  // (1); fp32; the clip factor: multiplies the gradient
  TensorView skip{};            // (1); int64; optional: not 0: everything is left as it is

  /// Round `parameter` up or down at random (bf16_rounded_at_random in philox.h) instead of to the
  /// nearest: so small updates move it too, on average. Element i draws word first_index + i of
  /// rounding_key, whose stream should be another one in every step.
  bool stochastic_rounding = false;
  TensorView rounding_key{};     // (kRandomKeyWords); int64; with stochastic_rounding
  std::int64_t first_index = 0;  ///< global index of element 0
};

/// Adds squares of x to an exact sum (exact_sum.h). The squares of each block of kNormBlock
/// elements are first added in fp64, in an order that depends on nothing else.
inline constexpr std::int64_t kNormBlock = 64;
struct ExactSquaresArgs {
  TensorView x{};      // (n), n a multiple of kNormBlock; fp32, bf16 or fp16
  TensorView words{};  // (kExactSumWords); int64; updated
};

/// Adds x to an exact sum.
struct ExactSumArgs {
  TensorView x{};      // (n); fp32
  TensorView words{};  // (kExactSumWords); int64; updated
};

/// scale = 1 / count, 0 if that is 0: the only averaging of the loss. With a scaler, times its
/// scale; its kFirstBadWord becomes kNoElement.
struct LossScaleArgs {
  TensorView count{};   // (1); int64
  TensorView scale{};   // (1); fp32
  TensorView scaler{};  // (kLossScalerWords); int64; optional; updated
};

/// Rounds the sums of a step, over all ranks, and makes the clip factor of them. With a scaler, the
/// gradient is its scale too large: the norm is divided by it, and so is the clip factor that was
/// made of that norm.
struct StepResultsArgs {
  TensorView losses{};       // (kExactSumWords); int64: the sum of the losses
  TensorView squares{};      // (kExactSumWords); int64: the squared gradient norm
  double clip_norm = 0.0;    ///< 0: no clipping
  TensorView results{};      // (2); fp64: the sum of the losses, the gradient norm
  TensorView clip_factor{};  // (1); fp32: min(1, clip_norm / (norm + 1e-6)); NaN stays NaN
  TensorView scaler{};       // (kLossScalerWords); int64; optional
};

/// Lowers kFirstBadWord of a scaler to the place of the first element of x that is not finite:
/// first_index + i. Reads x only if `squares` has seen such an element.
struct FindNonFiniteArgs {
  TensorView x{};                // (n); fp32, bf16 or fp16
  TensorView squares{};          // (kExactSumWords); int64: what x was added to
  std::int64_t first_index = 0;  ///< global index of element 0
  TensorView scaler{};           // (kLossScalerWords); int64; updated
};

/// Judges a step, once its gradient norm is known: it is skipped if an element of the gradient is
/// not finite. Updates the scaler by its rule (loss_scaler.h), and chooses the optimizer's scalars
/// by the number of steps that were skipped before: row i of `candidates` if `base` + i were.
struct UpdateLossScalerArgs {
  LossScalerRule rule{};
  TensorView squares{};     // (kExactSumWords); int64: the squared gradient norm, of all ranks
  TensorView scaler{};      // (kLossScalerWords); int64; updated
  TensorView candidates{};  // (rows, kOptimizerScalars); fp32
  TensorView base{};        // (1); int64
  TensorView scalars{};     // (kOptimizerScalars); fp32; out
};

/// dst = [dst +] src_0 + src_1 + ..., added in that order in fp32, rounded once to dst's dtype.
struct OrderedSumArgs {
  std::span<const TensorView> sources{};  // each (n); fp32, bf16 or fp16
  TensorView dst{};                       // (n); fp32, bf16 or fp16
  bool accumulate = false;                ///< dst is the first summand
};

/// dst = src, converted; any pair of fp32, bf16 and fp16.
struct CastArgs {
  TensorView src{};
  TensorView dst{};  // may be src
  float scale = 1.0F;
};

/// dst += src, in fp32, rounded to dst's dtype.
struct AddArgs {
  TensorView src{};  // fp32, bf16 or fp16
  TensorView dst{};  // fp32, bf16 or fp16
};

/// dst = value * factor.
struct FillArgs {
  TensorView dst{};  // fp32, bf16 or fp16
  float value = 0.0F;
  TensorView factor{};  // (1); fp32; optional: 1
};

/// dst[i] = mean + stddev * normal(key, first_index + i).
struct FillNormalArgs {
  TensorView dst{};  // fp32
  float mean = 0.0F, stddev = 1.0F;
  RandomKey key{};
  std::int64_t first_index = 0;
};

}  // namespace tessera

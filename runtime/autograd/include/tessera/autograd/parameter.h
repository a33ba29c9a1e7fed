#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/core/tensor.h"
#include "tessera/kernels/fp8.h"
#include "tessera/kernels/weight_format.h"

namespace tessera {

/// How a parameter starts. Random numbers are keyed by (seed, name, element), so that neither world
/// size nor sharding changes them.
struct Initializer {
  enum class Kind { kConstant, kNormal, kUniform };
  Kind kind = Kind::kConstant;
  float mean = 0.0F;    ///< the value, for kConstant
  float spread = 0.0F;  ///< kNormal: standard deviation; kUniform: half the width, around 0

  static Initializer constant(float value) { return {Kind::kConstant, value, 0.0F}; }
  static Initializer normal(float stddev) { return {Kind::kNormal, 0.0F, stddev}; }
  /// In (-bound, bound).
  static Initializer uniform(float bound) { return {Kind::kUniform, 0.0F, bound}; }
};

/// A layer's declaration of one of its parameters.
struct ParameterSpec {
  std::string name;  ///< unique in the model, e.g. "h.0.attn.c_attn.weight"
  Shape shape;
  Initializer initializer;
  float weight_decay_scale = 1;  ///< multiplies the run's weight decay: 0 for biases and norms
  bool trainable = true;         ///< false: no gradient, no optimizer state, never updated
  /// Its flat parameter goes on behind it with zeros up to a multiple of so many rows, which
  /// kernels may take for rows of it. They are no part of the parameter: its shape, counts,
  /// checkpoints and hashes do not have them.
  std::int64_t row_multiple = 1;
  /// How a parameter that is not trained is stored. Layers read it as any other.
  WeightFormat format = WeightFormat::kNone;
  /// The type that it is kept and read in, whatever the run's precision; unset: the run's. Those of
  /// a unit that are kept alike are one flat parameter.
  std::optional<DType> dtype{};
  /// The rows of each published matrix that it joins, which are quantised one by one, and have
  /// their own root mean squares and moments with an optimizer that is_factored(). Empty: it is
  /// one.
  std::vector<std::int64_t> joined{};
  /// The matrix of a linear layer that a run in fp8 multiplies in fp8.
  bool fp8 = false;
};

/// Sizes of a quantised parameter.
inline QuantizedSizes quantized_sizes(const ParameterSpec& spec) {
  return quantized_sizes(spec.format, spec.shape, spec.joined);
}

/// Writes the values of one unsharded parameter, row-major.
using ReadParameter = std::function<void(const ParameterSpec&, std::span<float> values)>;

/// Rows of a parameter and of the zeros behind it.
inline std::int64_t padded_rows(const ParameterSpec& spec) {
  return (spec.shape[0] + spec.row_multiple - 1) / spec.row_multiple * spec.row_multiple;
}

/// The products of a linear layer in training whose operands are rounded to fp8, each tensor by the
/// scale of its largest magnitude: inputs and weights to E4M3. The other products take bf16.
struct Fp8Products {
  bool forward = false, input_gradient = false, weight_gradient = false;
  Fp8Format gradient_format = Fp8Format::kE5M2;  ///< of gradients of outputs
  Fp8Scales scales = Fp8Scales::kPowerOfTwo;

  bool any() const { return forward || input_gradient || weight_gradient; }
};

/// The tensors of a linear layer that are rounded to fp8.
enum class Fp8Tensor : std::uint8_t { kWeight, kInput, kOutputGradient };
inline constexpr int kFp8Tensors = 3;

/// A parameter as a layer sees it while it runs: unsharded, in compute precision, wherever the
/// sharding engine has put it for now. The engine re-points the views between forward and backward,
/// so operations keep the address of this struct and read the views when they run.
struct Parameter {
  TensorView value;     ///< without data where `codes` are there in its place
  TensorView gradient;  ///< empty when frozen or when nothing is recorded
  /// Later writes of this micro-step add to it. In Tape::backward_input(): whether it will have
  /// been written by another layer when backward_weights() runs.
  bool gradient_written = false;
  /// ParameterSpec::trainable: what only its gradient would read need not be kept for backward.
  bool trainable = true;
  /// Rows in memory of `value` and `gradient`, if there are more than their shape has: zeros, which
  /// must stay zeros (ParameterSpec::row_multiple).
  std::int64_t padded_rows = 0;
  Fp8Products fp8{};  ///< of the matrix of a linear layer, which is bf16 then
  /// Such a matrix in E4M3, and the word of its largest magnitude, which its scale is made of;
  /// empty where `value` has it. Forward and the gradient of the input take products in fp8 then.
  TensorView codes{}, amax{};
  /// With delayed scaling: the words of the matrix, of the layer's input and of its output's
  /// gradient, see Fp8Tensor. Scales are made of `scale_words`, which stay as they are in a step;
  /// passes take the largest magnitudes to `maxima`, unless these are empty.
  TensorView scale_words{}, maxima{};  // (kFp8Tensors); int32
};

}  // namespace tessera

#include <utility>

#include "fp8_linear.h"
#include "linear_parts.h"

// A linear layer whose products take operands in fp8 (Micikevicius et al. 2022), with the scale of
// each tensor made of its largest magnitude at this moment, or with delayed scaling of those in
// earlier steps, which Parameter::scale_words says:
//
//   y = x8 W8^T + b;  dx = dy8 W8;  dW = dy8^T x8;  db = column sums of dy
//
// x8 and W8 are E4M3, dy8 is E5M2. Codes are decoded and multiplied by the GEMMs of bf16 or fp32,
// whose sums are fp32. With scales that are powers of two, decoded numbers fit bf16. With exact
// scales they do not: then products are of fp32 and rounded to bf16 once. Backward keeps the codes
// of x, a byte for an element. Where ranks have gathered the weight's codes, these are decoded;
// else the weight is encoded in each pass, which gives the same codes.

namespace tessera::ops {
namespace {

constexpr const char* kFp8Op = "linear in fp8";

/// A tensor's codes, and the word of the magnitude that its scale is made of.
struct Fp8Codes {
  Tensor codes{}, own_word{};  ///< with current scaling
  TensorView word{};
  Fp8Format format = Fp8Format::kE4M3;
};

Fp8Format format_of(const Parameter& weight, Fp8Operand operand) {
  return operand == Fp8Operand::kOutputGradient ? weight.fp8.gradient_format : Fp8Format::kE4M3;
}

/// Takes the largest magnitude of a tensor to the maxima of the step.
void observe(Tape& tape, const TensorView& x, const Parameter& weight, Fp8Operand operand) {
  if (!weight.maxima) return;
  tape.kernels().amax({.x = x,
                       .amax = weight.maxima.narrow(0, static_cast<std::int64_t>(operand), 1),
                       .accumulate = true},
                      tape.stream());
  tape.charge(elementwise_cost(x, 1, 1));
}

/// The scale is that of the tensor as it is, or with delayed scaling that of its history, for which
/// the tensor is observed, unless another pass has done so.
Fp8Codes encode(Tape& tape, const TensorView& x, const Parameter& weight, Fp8Operand operand,
                bool observes = true) {
  Fp8Codes result{.codes = tape.activation(x.shape, DType::kUInt8, "fp8 codes"),
                  .format = format_of(weight, operand)};
  if (weight.scale_words) {
    result.word = weight.scale_words.narrow(0, static_cast<std::int64_t>(operand), 1);
    if (observes) observe(tape, x, weight, operand);
  } else {
    result.own_word = tape.activation(Shape{1}, DType::kInt32, "largest magnitude");
    result.word = result.own_word;
    tape.kernels().amax({.x = x, .amax = result.word}, tape.stream());
    tape.charge(elementwise_cost(x, 1, 1));
  }
  tape.kernels().fp8_encode({.x = x,
                             .amax = result.word,
                             .codes = result.codes,
                             .format = result.format,
                             .scales = weight.fp8.scales},
                            tape.stream());
  const Cost once = elementwise_cost(x, 3, 1);
  tape.charge({.flops = once.flops, .bytes = once.bytes + static_cast<double>(x.numel())});
  return result;
}

/// The numbers that codes stand for, as the GEMM takes them.
Tensor decode(Tape& tape, const TensorView& codes, const TensorView& amax, Fp8Format format,
              Fp8Scales scales) {
  const DType dtype = scales == Fp8Scales::kExact ? DType::kFloat32 : DType::kBFloat16;
  Tensor y = tape.activation(codes.shape, dtype, "decoded fp8 operand");
  tape.kernels().fp8_decode(
      {.codes = codes, .amax = amax, .y = y, .format = format, .scales = scales}, tape.stream());
  const Cost once = elementwise_cost(y, 4, 1);
  tape.charge({.flops = once.flops, .bytes = once.bytes + static_cast<double>(y.numel())});
  return y;
}

Tensor decode(Tape& tape, const Fp8Codes& from, Fp8Scales scales) {
  return decode(tape, from.codes, from.word, from.format, scales);
}

/// A tensor rounded to fp8.
Tensor rounded(Tape& tape, const TensorView& x, const Parameter& weight, Fp8Operand operand,
               bool observes = true) {
  return decode(tape, encode(tape, x, weight, operand, observes), weight.fp8.scales);
}

/// The matrix as products take it: of its codes where ranks have gathered these, which are the same
/// as those of the gathered matrix.
Tensor rounded_weight(Tape& tape, const Parameter& weight, bool observes) {
  if (!weight.codes) return rounded(tape, weight.value, weight, Fp8Operand::kWeight, observes);
  return decode(tape, weight.codes, weight.amax, Fp8Format::kE4M3, weight.fp8.scales);
}

void charge_product(Tape& tape, const GemmArgs& args) {
  const std::int64_t k = args.a.shape[args.transpose_a ? 0 : 1];
  tape.charge(gemm_cost(args.c.shape[0], args.c.shape[1], k, args.a.dtype, args.c.dtype));
}

/// The GEMM of decoded operands. Where they are fp32 and C is not, the product is rounded to C
/// behind it.
void multiply_decoded(Tape& tape, GemmArgs args) {
  const TensorView c = args.c;
  if (args.a.dtype != DType::kFloat32 || c.dtype == DType::kFloat32) {
    tape.kernels().gemm(args, tape.stream());
    charge_product(tape, args);
    return;
  }
  Tensor wide_bias, product = tape.activation(c.shape, DType::kFloat32, "product in fp32");
  if (args.bias) {
    wide_bias = tape.activation(args.bias.shape, DType::kFloat32, "bias in fp32");
    tape.kernels().cast({.src = args.bias, .dst = wide_bias}, tape.stream());
    args.bias = wide_bias;
  }
  const TensorView residual = std::exchange(args.residual, TensorView());
  const bool accumulate = std::exchange(args.accumulate, false);
  args.c = product;
  tape.kernels().gemm(args, tape.stream());
  charge_product(tape, args);
  if (accumulate) {
    tape.kernels().add({.src = product, .dst = c}, tape.stream());
  } else {
    tape.kernels().cast({.src = product, .dst = c}, tape.stream());
  }
  if (residual) tape.kernels().add({.src = residual, .dst = c}, tape.stream());
  tape.charge(elementwise_cost(product, 1, residual ? 3 : 2));
}

/// Backward reads the codes of the layer's input, or the input itself where it is computed again or
/// the product takes bf16.
struct SavedInput {
  Fp8Codes codes;
  Saved whole;
};

/// The gradient of the output as the weight gradient's product takes it.
struct OutputOperand {
  Fp8Codes codes;  ///< to be decoded, where the product waits
  Tensor ready;    ///< else

  Tensor get(Tape& tape, Fp8Scales scales) const {
    return ready ? ready : decode(tape, codes, scales);
  }
};

void write_bias_gradient(Tape& tape, const TensorView& dy, Parameter& bias) {
  if (!bias.gradient) return;
  check_gradient(kFp8Op, "bias", bias);
  const GradientTarget db = gradient_target(bias);
  tape.kernels().bias_gradient({.dy = dy, .db = db.view, .accumulate = db.accumulate},
                               tape.stream());
  tape.charge(elementwise_cost(dy, 1, 1));
}

void write_weight_gradient(Tape& tape, const OutputOperand& dy, const SavedInput& x,
                           Parameter& weight) {
  if (!weight.gradient) return;
  check_gradient(kFp8Op, "weight", weight);
  const Fp8Scales scales = weight.fp8.scales;
  const Tensor left = dy.get(tape, scales);
  const Tensor right = x.codes.codes ? decode(tape, x.codes, scales) : x.whole.get();
  const GradientTarget dw = gradient_target(weight);
  multiply_decoded(tape, {.a = as_matrix(left),
                          .b = as_matrix(right),
                          .c = dw.view,
                          .transpose_a = true,
                          .accumulate = dw.accumulate});
}

/// The layer's forward pass; gives what backward keeps of x.
SavedInput run_fp8_forward(Tape& tape, const Value& x, const Parameter& weight,
                           const Parameter* bias, const TensorView& y, const TensorView& residual) {
  const Fp8Products& products = weight.fp8;
  const bool keeps = tape.recording() && weight.trainable;
  const bool keeps_codes = keeps && products.weight_gradient && x.remake == nullptr;
  SavedInput saved;
  if (keeps && !keeps_codes) saved.whole = Saved(x);
  Fp8Codes codes;
  if (products.forward || keeps_codes) {
    codes = encode(tape, x.tensor, weight, Fp8Operand::kInput);
  }
  if (keeps_codes) saved.codes = codes;
  if (!products.forward) {
    run_linear(tape, as_matrix(x.tensor), weight, bias, y, {.residual = residual});
    return saved;
  }
  const Tensor left = decode(tape, codes, products.scales);
  codes = {};
  const Tensor right = rounded_weight(tape, weight, true);
  multiply_decoded(tape, {.a = as_matrix(left),
                          .b = right,
                          .c = y,
                          .bias = bias == nullptr ? TensorView() : bias->value,
                          .transpose_b = true,
                          .residual = residual});
  return saved;
}

/// The gradients of parameters, now or in Tape::backward_weights(). Gives the decoded gradient of
/// the output, if it is at hand.
Tensor write_fp8_gradients(Tape& tape, const Tensor& dy, SavedInput saved, Parameter& weight,
                           Parameter* bias) {
  const Fp8Products& products = weight.fp8;
  const bool writes_bias = bias != nullptr && bias->trainable;
  OutputOperand operand;
  if (weight.trainable && !products.weight_gradient) operand.ready = dy;
  if (weight.trainable && products.weight_gradient) {
    operand.codes = encode(tape, dy, weight, Fp8Operand::kOutputGradient);
    if (!saved.codes.codes) {
      const Tensor x = std::exchange(saved.whole, {}).get();
      saved.codes = encode(tape, x, weight, Fp8Operand::kInput, !products.forward);
    }
    if (!tape.is_split()) {
      operand.ready = decode(tape, operand.codes, products.scales);
      operand.codes = {};
    }
  } else if (tape.is_split() && weight.trainable) {
    saved.whole = saved.whole.computed();
  }
  Tensor decoded = products.weight_gradient ? operand.ready : Tensor();
  if (weight.trainable || writes_bias) {
    tape.write_gradients({&weight, bias},
                         [dy = writes_bias ? dy : Tensor(), operand = std::move(operand),
                          saved = std::move(saved), &weight, bias](Tape& t) {
                           if (dy) write_bias_gradient(t, as_matrix(dy), *bias);
                           if (weight.trainable) write_weight_gradient(t, operand, saved, weight);
                         });
  }
  return decoded;
}

void run_fp8_input_gradient(Tape& tape, const Tensor& dy, Tensor decoded, const Parameter& weight,
                            const TensorView& dx) {
  const Fp8Products& products = weight.fp8;
  if (!products.input_gradient) return run_input_gradient(tape, as_matrix(dy), weight, dx);
  if (!decoded) decoded = rounded(tape, dy, weight, Fp8Operand::kOutputGradient);
  const Tensor right = rounded_weight(tape, weight, !products.forward);
  multiply_decoded(tape, {.a = as_matrix(decoded), .b = right, .c = dx});
}

}  // namespace

Value fp8_linear(Tape& tape, const Value& x, Parameter& weight, Parameter* bias,
                 const Value* residual) {
  require(x.dtype() == DType::kBFloat16, ErrorCode::kInvalidArgument, kFp8Op, ": x is ",
          to_string(x.dtype()), ", but products in fp8 take bf16 tensors");
  Tensor y =
      tape.activation(with_last_dim(x.shape(), weight.value.shape[0]), x.dtype(), "linear output");
  SavedInput kept =
      run_fp8_forward(tape, x, weight, bias, as_matrix(y), checked_residual(kFp8Op, residual, y));

  auto backward = [x_id = x.id, residual_id = residual != nullptr ? residual->id : -1,
                   x_shape = x.shape(), kept = std::move(kept), &weight,
                   bias](Tape& t, Tensor dy) mutable {
    t.add_gradient(residual_id, dy);
    Tensor decoded = write_fp8_gradients(t, dy, std::exchange(kept, {}), weight, bias);
    if (x_id < 0) return;
    Tensor dx = t.activation(x_shape, dy.dtype(), "linear input gradient");
    run_fp8_input_gradient(t, dy, std::move(decoded), weight, as_matrix(dx));
    t.add_gradient(x_id, std::move(dx));
  };
  return tape.split_output(std::move(y), std::move(backward));
}

}  // namespace tessera::ops

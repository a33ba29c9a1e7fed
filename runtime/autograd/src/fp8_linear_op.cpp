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
//
// [Note: products of codes] On a GPU the codes themselves are multiplied, along the rows of both
// matrices: dx = dy8 (W8^T)^T and dW = dy8^T (x8^T)^T read transposed codes, which are written
// where a tensor is encoded, or made of gathered codes. Backward then keeps x8^T in the place of
// x8. Sides of the weight must be multiples of 16, and for dW the rows of x as well; other products
// are of decoded operands. The choice depends on shapes alone, so that it is the same for each
// strategy.

namespace tessera::ops {
namespace {

constexpr const char* kFp8Op = "linear in fp8";

/// A tensor's codes, as it lies or transposed or both, and the word of the magnitude that its scale
/// is made of.
struct Fp8Codes {
  Tensor codes{}, transposed{};
  Tensor own_word{};  ///< with current scaling; kept as long as it is read
  TensorView word{};
  Fp8Format format = Fp8Format::kE4M3;
};

/// The codes that are wanted of a matrix.
struct WantedCodes {
  bool in_rows = true, transposed = false;
  Tensor magnitude{};  ///< of the matrix, if it is known
};

Fp8Format format_of(const Parameter& weight, Fp8Tensor tensor) {
  return tensor == Fp8Tensor::kOutputGradient ? weight.fp8.gradient_format : Fp8Format::kE4M3;
}

/// Takes the largest magnitude of a tensor to the maxima of the step.
void observe(Tape& tape, const TensorView& x, const Parameter& weight, Fp8Tensor tensor) {
  if (!weight.maxima) return;
  tape.kernels().amax({.x = x,
                       .amax = weight.maxima.narrow(0, static_cast<std::int64_t>(tensor), 1),
                       .accumulate = true},
                      tape.stream());
  tape.charge(elementwise_cost(x, 1, 1));
}

/// The scale is that of the tensor as it is, whose magnitude the kernel that wrote it may have
/// left, or with delayed scaling that of its history, for which the tensor is observed, unless
/// another pass has done so.
Fp8Codes encode(Tape& tape, const TensorView& x, const Parameter& weight, Fp8Tensor tensor,
                WantedCodes wanted = {}, bool observes = true) {
  Fp8Codes result{.format = format_of(weight, tensor)};
  if (wanted.in_rows) result.codes = tape.activation(x.shape, DType::kUInt8, "fp8 codes");
  if (wanted.transposed) {
    result.transposed =
        tape.activation({x.shape[1], x.shape[0]}, DType::kUInt8, "transposed fp8 codes");
  }
  if (weight.scale_words) {
    result.word = weight.scale_words.narrow(0, static_cast<std::int64_t>(tensor), 1);
    if (observes) observe(tape, x, weight, tensor);
  } else if (wanted.magnitude) {
    result.own_word = std::move(wanted.magnitude);
    result.word = result.own_word;
  } else {
    result.own_word = tape.activation(Shape{1}, DType::kInt32, "largest magnitude");
    result.word = result.own_word;
    tape.kernels().amax({.x = x, .amax = result.word}, tape.stream());
    tape.charge(elementwise_cost(x, 1, 1));
  }
  tape.kernels().fp8_encode({.x = x,
                             .amax = result.word,
                             .codes = result.codes,
                             .transposed = result.transposed,
                             .format = result.format,
                             .scales = weight.fp8.scales},
                            tape.stream());
  const Cost once = elementwise_cost(x, 3, 1);
  const double copies = wanted.in_rows && wanted.transposed ? 2.0 : 1.0;
  tape.charge({.flops = once.flops, .bytes = once.bytes + copies * static_cast<double>(x.numel())});
  return result;
}

constexpr std::int64_t kCodesMultiple = 16;  // elements; see [Note: products of codes]

/// Whether products of this weight's codes run on tensor cores.
bool multiplies_codes(const Tape& tape, const Parameter& weight) {
  const TapeOptions& options = tape.options();
  const Shape& sides = weight.value.shape;
  return options.device == DeviceKind::kCuda && options.cuda_kernels.fp8_gemms &&
         sides[0] % kCodesMultiple == 0 && sides[1] % kCodesMultiple == 0;
}
bool multiplies_gradient_codes(const Tape& tape, const Parameter& weight, std::int64_t rows) {
  return multiplies_codes(tape, weight) && rows % kCodesMultiple == 0;
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
Tensor rounded(Tape& tape, const TensorView& x, const Parameter& weight, Fp8Tensor tensor,
               WantedCodes wanted, bool observes = true) {
  return decode(tape, encode(tape, x, weight, tensor, std::move(wanted), observes),
                weight.fp8.scales);
}

/// The matrix as products take it: of its codes where ranks have gathered these, which are the same
/// as those of the gathered matrix.
Tensor rounded_weight(Tape& tape, const Parameter& weight, bool observes) {
  if (!weight.codes) return rounded(tape, weight.value, weight, Fp8Tensor::kWeight, {}, observes);
  return decode(tape, weight.codes, weight.amax, Fp8Format::kE4M3, weight.fp8.scales);
}

void charge_product(Tape& tape, const GemmArgs& args) {
  const std::int64_t k = args.a.shape[args.transpose_a ? 0 : 1];
  tape.charge(gemm_cost(args.c.shape[0], args.c.shape[1], k, args.a.dtype, args.c.dtype));
}

/// One side of a product of codes, which are multiplied along rows.
struct CodesSide {
  TensorView codes;
  Fp8Operand operand;
};

CodesSide side_of(const Fp8Codes& of, const Tensor& codes, Fp8Scales scales) {
  return {as_matrix(codes), {.amax = of.word, .format = of.format, .scales = scales}};
}

/// C = A B^T of codes, with what `more` adds.
void multiply_codes(Tape& tape, const CodesSide& a, const CodesSide& b, GemmArgs more) {
  more.a = a.codes;
  more.a_fp8 = a.operand;
  more.b = b.codes;
  more.b_fp8 = b.operand;
  more.transpose_b = true;
  tape.kernels().gemm(more, tape.stream());
  charge_product(tape, more);
  if (more.residual) tape.charge(elementwise_cost(more.c, 1, 1));
}

/// The matrix for a product of codes, of gathered codes if they are there; `made` holds what is
/// made here.
CodesSide weight_side(Tape& tape, const Parameter& weight, bool transposed, Fp8Codes& made,
                      bool observes) {
  const Fp8Scales scales = weight.fp8.scales;
  if (!weight.codes) {
    made = encode(tape, weight.value, weight, Fp8Tensor::kWeight,
                  {.in_rows = !transposed, .transposed = transposed}, observes);
    return side_of(made, transposed ? made.transposed : made.codes, scales);
  }
  CodesSide side{weight.codes, {.amax = weight.amax, .scales = scales}};
  if (!transposed) return side;
  const Shape& sides = weight.codes.shape;
  made.transposed = tape.activation({sides[1], sides[0]}, DType::kUInt8, "transposed fp8 codes");
  tape.kernels().fp8_transpose({.codes = weight.codes, .transposed = made.transposed},
                               tape.stream());
  tape.charge(elementwise_cost(made.transposed, 0, 2));
  side.codes = made.transposed;
  return side;
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
  Tensor magnitude;  ///< of `whole`, if it is known
};

/// The gradient of the output as the weight gradient's product takes it.
struct OutputOperand {
  Fp8Codes codes;  ///< transposed, or to be decoded, where the product waits
  Tensor ready;    ///< else

  Tensor get(Tape& tape, Fp8Scales scales) const {
    return ready ? ready : decode(tape, codes, scales);
  }
};

void write_weight_gradient(Tape& tape, const OutputOperand& dy, const SavedInput& x,
                           Parameter& weight) {
  if (!weight.gradient) return;
  check_gradient(kFp8Op, "weight", weight);
  const Fp8Scales scales = weight.fp8.scales;
  if (dy.codes.transposed) {
    const GradientTarget dw = gradient_target(weight);
    return multiply_codes(tape, side_of(dy.codes, dy.codes.transposed, scales),
                          side_of(x.codes, x.codes.transposed, scales),
                          {.c = dw.view, .accumulate = dw.accumulate});
  }
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
  const TensorView rows = as_matrix(x.tensor);
  const bool transposes = keeps_codes && multiplies_gradient_codes(tape, weight, rows.shape[0]);
  SavedInput saved;
  if (keeps && !keeps_codes) {
    saved.whole = Saved(x);
    saved.magnitude = x.magnitude;
  }
  Fp8Codes codes;
  if (products.forward || keeps_codes) {
    codes = encode(tape, rows, weight, Fp8Tensor::kInput,
                   {.in_rows = products.forward || !transposes,
                    .transposed = transposes,
                    .magnitude = x.magnitude});
  }
  if (keeps_codes) saved.codes = codes;
  if (transposes) saved.codes.codes = {};
  if (!products.forward) {
    run_linear(tape, rows, weight, bias, y, {.residual = residual});
    return saved;
  }
  if (multiplies_codes(tape, weight)) {
    Fp8Codes made;
    const CodesSide right = weight_side(tape, weight, false, made, true);
    multiply_codes(tape, side_of(codes, codes.codes, products.scales), right,
                   {.c = y,
                    .bias = bias == nullptr ? TensorView() : bias->value,
                    .residual = residual,
                    .fast_accumulation = tape.options().cuda_kernels.fp8_fast_accumulation});
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

/// The gradient of the output as the product of the input's gradient may take it: decoded or as
/// codes, if it is at hand.
struct AtHand {
  Tensor decoded;
  Fp8Codes codes;
};

/// Codes for the weight gradient: of the output's gradient, and of the input where they were not
/// kept. `also_rows`: the first are wanted in rows in any case.
OutputOperand encode_for_gradient(Tape& tape, const Tensor& dy, bool also_rows, SavedInput& saved,
                                  const Parameter& weight) {
  const Fp8Products& products = weight.fp8;
  const TensorView rows = as_matrix(dy);
  const bool transposed = multiplies_gradient_codes(tape, weight, rows.shape[0]);
  OutputOperand operand;
  operand.codes = encode(tape, rows, weight, Fp8Tensor::kOutputGradient,
                         {.in_rows = !transposed || also_rows,
                          .transposed = transposed,
                          .magnitude = tape.gradient_extras().magnitude});
  if (!saved.codes.word) {
    const Tensor x = std::exchange(saved.whole, {}).get();
    saved.codes = encode(tape, as_matrix(x), weight, Fp8Tensor::kInput,
                         {.in_rows = !transposed,
                          .transposed = transposed,
                          .magnitude = std::exchange(saved.magnitude, {})},
                         !products.forward);
  }
  return operand;
}

/// The gradients of parameters, now or in Tape::backward_weights().
AtHand write_fp8_gradients(Tape& tape, const Tensor& dy, bool wants_input, SavedInput saved,
                           Parameter& weight, Parameter* bias) {
  const Fp8Products& products = weight.fp8;
  const bool writes_bias = bias != nullptr && bias->trainable;
  OutputOperand operand;
  AtHand at_hand;
  if (weight.trainable && !products.weight_gradient) operand.ready = dy;
  if (weight.trainable && products.weight_gradient) {
    const bool takes_codes =
        wants_input && products.input_gradient && multiplies_codes(tape, weight);
    operand = encode_for_gradient(tape, dy, takes_codes, saved, weight);
    if (takes_codes) at_hand.codes = operand.codes;
    at_hand.codes.transposed = {};
    if (operand.codes.transposed) {
      operand.codes.codes = {};
    } else if (!tape.is_split()) {
      operand.ready = decode(tape, operand.codes, products.scales);
      operand.codes = {};
    }
  } else if (tape.is_split() && weight.trainable) {
    saved.whole = saved.whole.computed();
  }
  if (products.weight_gradient) at_hand.decoded = operand.ready;
  if (weight.trainable || writes_bias) {
    tape.write_gradients([dy = writes_bias ? dy : Tensor(),
                          sums = tape.gradient_extras().column_sums, operand = std::move(operand),
                          saved = std::move(saved), &weight, bias](Tape& t) {
      if (dy) write_bias_gradient(kFp8Op, t, as_matrix(dy), sums, *bias);
      if (weight.trainable) write_weight_gradient(t, operand, saved, weight);
    });
  }
  return at_hand;
}

void run_fp8_input_gradient(Tape& tape, const Tensor& dy, AtHand at_hand, const Parameter& weight,
                            const TensorView& dx) {
  const Fp8Products& products = weight.fp8;
  if (!products.input_gradient) return run_input_gradient(tape, as_matrix(dy), weight, dx);
  if (multiplies_codes(tape, weight)) {
    Fp8Codes& codes = at_hand.codes;
    if (!codes.codes) {
      codes = encode(tape, as_matrix(dy), weight, Fp8Tensor::kOutputGradient,
                     {.magnitude = tape.gradient_extras().magnitude});
    }
    Fp8Codes made;
    const CodesSide right = weight_side(tape, weight, true, made, !products.forward);
    return multiply_codes(tape, side_of(codes, codes.codes, products.scales), right, {.c = dx});
  }
  Tensor decoded = std::move(at_hand.decoded);
  if (!decoded) {
    decoded = rounded(tape, as_matrix(dy), weight, Fp8Tensor::kOutputGradient,
                      {.magnitude = tape.gradient_extras().magnitude});
  }
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
    t.add_gradient(residual_id, dy, t.gradient_extras());
    AtHand at_hand = write_fp8_gradients(t, dy, x_id >= 0, std::exchange(kept, {}), weight, bias);
    if (x_id < 0) return;
    Tensor dx = t.activation(x_shape, dy.dtype(), "linear input gradient");
    run_fp8_input_gradient(t, dy, std::move(at_hand), weight, as_matrix(dx));
    t.add_gradient(x_id, std::move(dx));
  };
  Value output = tape.split_output(std::move(y), std::move(backward));
  want_bias_gradient(tape, output, bias);
  return output;
}

}  // namespace tessera::ops

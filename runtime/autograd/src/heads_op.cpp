#include <utility>

#include "op_support.h"

namespace tessera::ops {
namespace {

constexpr const char* kHeadsOp = "heads";

struct HeadShapes {
  Shape packed, qkv;
};

HeadShapes shapes_of(const Value& packed, const HeadsOptions& o) {
  const Shape& shape = packed.shape();
  const bool sizes = o.heads > 0 && o.kv_heads > 0 && o.width > 0 && o.heads % o.kv_heads == 0;
  const std::int64_t packed_heads = o.heads + 2 * o.kv_heads;
  require(sizes && shape.rank() == 3 && shape[2] == packed_heads * o.width,
          ErrorCode::kInvalidArgument, kHeadsOp, ": got ", shape, " for ", o.heads,
          " heads of queries and ", o.kv_heads, " of keys and values, ", o.width,
          " wide; wanted (batch, length, ", packed_heads * o.width,
          ") and heads that are a multiple of kv_heads");
  check_compute_dtype(kHeadsOp, "packed", packed.tensor, packed.dtype());
  require((o.q_gamma == nullptr) == (o.k_gamma == nullptr), ErrorCode::kInvalidArgument, kHeadsOp,
          ": give both q_gamma and k_gamma, or none");
  if (o.q_gamma != nullptr) {
    check_operand(kHeadsOp, "q_gamma", o.q_gamma->value, Shape{o.width}, packed.dtype());
    check_operand(kHeadsOp, "k_gamma", o.k_gamma->value, Shape{o.width}, packed.dtype());
  }
  return {.packed = {shape[0], shape[1], packed_heads, o.width},
          .qkv = {shape[0], shape[1], 3, o.heads, o.width}};
}

TensorView value_of(const Parameter* parameter) {
  return parameter == nullptr ? TensorView{} : parameter->value;
}

void run_forward(Tape& tape, const HeadShapes& shapes, const HeadsOptions& o,
                 const TensorView& packed, const TensorView& qkv) {
  tape.kernels().heads_forward({.packed = packed.reshape(shapes.packed),
                                .qkv = qkv.reshape(shapes.qkv),
                                .q_gamma = value_of(o.q_gamma),
                                .k_gamma = value_of(o.k_gamma),
                                .frequencies = o.frequencies,
                                .amplitude = o.amplitude,
                                .epsilon = o.epsilon,
                                .starts = o.starts,
                                .first_position = o.first_position,
                                .gamma_offset = o.gamma_offset},
                               tape.stream());
  tape.charge(elementwise_cost(packed, 4, 1));
  tape.charge(elementwise_cost(qkv, 0, 1));
}

struct HeadsBackward {
  HeadShapes shapes;
  HeadsOptions options;
  int packed_id;
  Saved packed;  ///< of norms only
  Shape packed_shape;

  void operator()(Tape& tape, Tensor d_qkv) {
    if (packed_id < 0) return;
    Tensor d_packed = tape.activation(packed_shape, d_qkv.dtype(), "heads input gradient");
    if (options.q_gamma == nullptr) {
      run(tape, {}, d_qkv, {}, d_packed, nullptr);
      tape.add_gradient(packed_id, std::move(d_packed));
      return;
    }
    SmallGradients sums = small_gradients(tape);
    const Gammas gammas{options.q_gamma->value, options.k_gamma->value};
    run(tape, packed.get(), d_qkv, gammas, d_packed, &sums);
    tape.add_gradient(packed_id, std::move(d_packed));
  }

 private:
  struct Gammas {
    TensorView query{}, key{};
  };

  SmallGradients small_gradients(Tape& tape) const {
    return SmallGradients(tape, kHeadsOp, {"q_gamma", options.q_gamma},
                          {"k_gamma", options.k_gamma});
  }

  /// `from` and `sums` of norms only.
  void run(Tape& tape, const Tensor& from, const Tensor& d_qkv, const Gammas& gammas,
           const Tensor& d_packed, SmallGradients* sums) const {
    tape.kernels().heads_backward(
        {.d_qkv = d_qkv.view().reshape(shapes.qkv),
         .packed = from ? from.view().reshape(shapes.packed) : TensorView{},
         .d_packed = d_packed.view().reshape(shapes.packed),
         .q_gamma = gammas.query,
         .k_gamma = gammas.key,
         .dq_gamma = sums != nullptr ? sums->first : TensorView{},
         .dk_gamma = sums != nullptr ? sums->second : TensorView{},
         .frequencies = options.frequencies,
         .amplitude = options.amplitude,
         .epsilon = options.epsilon,
         .accumulate_parameters = sums != nullptr && sums->accumulate,
         .starts = options.starts,
         .gamma_offset = options.gamma_offset},
        tape.stream());
    if (sums != nullptr) sums->finish(tape);
    tape.charge(elementwise_cost(d_packed, from ? 14 : 4, from ? 2 : 1));
    tape.charge(elementwise_cost(d_qkv, 1, 1));
  }
};

}  // namespace

Value heads(Tape& tape, const Value& packed, const HeadsOptions& options) {
  const HeadShapes shapes = shapes_of(packed, options);
  require(!tape.recording() || options.first_position == 0, ErrorCode::kInvalidArgument, kHeadsOp,
          ": while recording a sequence begins at position 0, not ", options.first_position);
  const Shape out_shape = with_last_dim(packed.shape(), 3 * options.heads * options.width);
  Tensor qkv = tape.activation(out_shape, packed.dtype(), "heads output");
  run_forward(tape, shapes, options, packed.tensor, qkv);
  if (!tape.recording()) return tape.split_output(std::move(qkv), nullptr);

  auto remake =
      tape.rematerialization([shapes, options, out_shape, saved = Saved(packed)](Tape& t) {
        const Tensor packed_tensor = saved.get();
        Tensor remade = t.activation(out_shape, packed_tensor.dtype(), "recomputed heads output");
        run_forward(t, shapes, options, packed_tensor, remade);
        return remade;
      });
  HeadsBackward backward{.shapes = shapes,
                         .options = options,
                         .packed_id = packed.id,
                         .packed = options.q_gamma == nullptr ? Saved() : Saved(packed),
                         .packed_shape = packed.shape()};
  return tape.split_output(std::move(qkv), std::move(backward), std::move(remake));
}

}  // namespace tessera::ops

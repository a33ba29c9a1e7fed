#include <utility>

#include "scale_parts.h"

// (IA)^3 multiplies an input or an output of a linear layer by a scale:
//
//   y[:, columns] = x[:, columns] * scale;  dx = dy * scale;  d scale = column sums of dy * x
//
// Backward reads x. Of all columns it is the tensor that came in, which selective recomputation may
// have dropped; of some, which are scaled in place, a copy of these alone.

namespace tessera::ops {
namespace {

constexpr const char* kScaleOp = "scale_columns";

/// Neighbouring columns of a matrix.
struct Columns {
  std::int64_t first = 0, count = 0;
  TensorView of(const TensorView& y) const { return as_matrix(y).narrow(1, first, count); }
  bool are_all_of(const Shape& shape) const { return first == 0 && count == last_dim(shape); }
};

void check_scale(const Value& x, const Parameter& scale, const Columns& columns) {
  check_compute_dtype(kScaleOp, "x", x.tensor, x.dtype());
  check_compute_dtype(kScaleOp, "scale", scale.value, x.dtype());
  require(columns.first >= 0 && columns.first + columns.count <= last_dim(x.shape()),
          ErrorCode::kInvalidArgument, kScaleOp, ": columns ", columns.first, " to ",
          columns.first + columns.count, " do not fit x ", x.shape());
}

/// In place of dy, whose other columns are as they are in dx.
Tensor input_gradient_memory(Tape& tape, const Tensor& dy, const Columns& columns) {
  if (dy.use_count() == 1) return dy;
  Tensor dx = tape.activation(dy.shape(), dy.dtype(), "scale input gradient");
  if (columns.are_all_of(dy.shape())) return dx;
  tape.kernels().cast({.src = dy, .dst = dx}, tape.stream());
  tape.charge(elementwise_cost(dx, 0, 2));
  return dx;
}

struct ScaleBackward {
  int x_id;
  Saved x;
  Columns columns;
  Parameter& scale;

  void operator()(Tape& tape, Tensor dy) {
    SmallGradients sums(tape, kScaleOp, {"scale", &scale});
    Tensor dx = input_gradient_memory(tape, dy, columns);
    run(tape, sums.first ? x.get() : Tensor(), dy, scale.value, columns.of(dx), sums);
    dy = {};  // now dx has its memory to itself
    x = {};
    tape.add_gradient(x_id, std::move(dx));
  }

 private:
  void run(Tape& tape, const Tensor& from, const Tensor& dy, const TensorView& scales,
           const TensorView& dx, SmallGradients& sums) const {
    tape.kernels().scale_columns_backward({.dy = columns.of(dy),
                                           .x = from ? as_matrix(from) : TensorView(),
                                           .scale = scales.flat(),
                                           .dx = dx,
                                           .d_scale = sums.first ? sums.first.flat() : TensorView(),
                                           .accumulate = sums.accumulate},
                                          tape.stream());
    tape.charge(elementwise_cost(dx, 3, sums.first ? 3 : 2));
    sums.finish(tape);
  }
};

}  // namespace

Value scale_columns(Tape& tape, Value x, Parameter& scale, std::int64_t first_column) {
  const Columns columns{first_column, scale.value.numel()};
  check_scale(x, scale, columns);
  const bool all = columns.are_all_of(x.shape()), keeps = tape.recording() && scale.trainable;
  Tensor y = !all    ? x.tensor
             : keeps ? tape.activation(x.shape(), x.dtype(), "scale output")
                     : reuse_or_allocate(tape, x.tensor, "scale output");
  Tensor kept;
  if (keeps && !all) {
    kept = tape.activation(Shape{leading_rows(x.shape()), columns.count}, x.dtype(), "scale input");
  }
  tape.kernels().scale_columns_forward(
      {.x = columns.of(x.tensor), .scale = scale.value.flat(), .y = columns.of(y), .kept = kept},
      tape.stream());
  tape.charge(elementwise_cost(columns.of(y), 1, kept ? 3 : 2));

  Saved saved = !keeps ? Saved() : all ? Saved(x) : Saved(kept, nullptr);
  return tape.split_output(std::move(y), ScaleBackward{x.id, std::move(saved), columns, scale});
}

Value scale_columns_by(Tape& tape, Value x, Tensor scale, std::int64_t first_column) {
  const Columns columns{first_column, scale.numel()};
  const TensorView place = columns.of(x.tensor);
  tape.kernels().scale_columns_forward({.x = place, .scale = scale, .y = place}, tape.stream());
  tape.charge(elementwise_cost(place, 1, 2));
  auto backward = [x_id = x.id, columns, scale = std::move(scale)](Tape& t, Tensor dy) {
    Tensor dx = input_gradient_memory(t, dy, columns);
    t.kernels().scale_columns_backward({.dy = columns.of(dy), .scale = scale, .dx = columns.of(dx)},
                                       t.stream());
    t.charge(elementwise_cost(columns.of(dx), 1, 2));
    dy = {};
    t.add_gradient(x_id, std::move(dx));
  };
  return tape.split_output(std::move(x.tensor), std::move(backward));
}

}  // namespace tessera::ops

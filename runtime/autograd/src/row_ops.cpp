#include <utility>

#include "op_support.h"

// Operations over the rows of a matrix or of a sequence: softmax, mean pooling.
namespace tessera::ops {

Value softmax(Tape& tape, Value x) {
  require(x.shape().rank() >= 1, ErrorCode::kInvalidArgument, "softmax: x is a scalar");
  check_compute_dtype("softmax", "x", x.tensor, x.dtype());
  Tensor y = reuse_or_allocate(tape, x.tensor, "softmax output");
  tape.kernels().softmax_forward({.x = as_matrix(x.tensor), .y = as_matrix(y)}, tape.stream());
  tape.charge(elementwise_cost(y, 5, 2));
  auto backward = [x_id = x.id, saved = y](Tape& t, Tensor dy) mutable {
    if (x_id < 0) return;
    Tensor dx = reuse_or_allocate(t, dy, "softmax input gradient");
    t.kernels().softmax_backward({.y = as_matrix(saved), .dy = as_matrix(dy), .dx = as_matrix(dx)},
                                 t.stream());
    t.charge(elementwise_cost(dx, 4, 3));
    dy = {};
    saved = {};
    t.add_gradient(x_id, std::move(dx));
  };
  return tape.split_output(std::move(y), std::move(backward));
}

Value mean_rows(Tape& tape, const Value& x) {
  const Shape& shape = x.shape();
  require(shape.rank() == 3 && shape[1] > 0, ErrorCode::kInvalidArgument, "mean_rows: x has shape ",
          shape, " and must have (batch, length, channels), length at least 1");
  check_compute_dtype("mean_rows", "x", x.tensor, x.dtype());
  Tensor y = tape.activation({shape[0], shape[2]}, x.dtype(), "mean over a sequence");
  tape.kernels().mean_rows_forward({.x = x.tensor, .y = y}, tape.stream());
  tape.charge(elementwise_cost(x.tensor, 1, 1));
  return tape.split_output(std::move(y), [x_id = x.id, shape](Tape& t, const Tensor& dy) {
    if (x_id < 0) return;
    Tensor dx = t.activation(shape, dy.dtype(), "mean input gradient");
    t.kernels().mean_rows_backward({.dy = dy, .dx = dx}, t.stream());
    t.charge(elementwise_cost(dx, 1, 1));
    t.add_gradient(x_id, std::move(dx));
  });
}

Value add_row(Tape& tape, Value y, Parameter& table, std::int64_t row) {
  constexpr const char* kOp = "add_row";
  check_compute_dtype(kOp, "y", y.tensor, y.dtype());
  const std::int64_t rows = leading_rows(y.shape()), channels = last_dim(y.shape());
  require(table.value.shape.rank() == 2 && row >= 0 && row < table.value.shape[0],
          ErrorCode::kInvalidArgument, kOp, ": the table ", table.value.shape, " has no row ", row);
  check_operand(kOp, "table", table.value, Shape{table.value.shape[0], channels}, y.dtype());
  check_gradient(kOp, "table", table);
  const Tensor ones = tape.activation(Shape{rows, 1}, y.dtype(), "ones");
  tape.kernels().fill({.dst = ones, .value = 1.0F}, tape.stream());
  tape.kernels().gemm(
      {.a = ones, .b = table.value.narrow(0, row, 1), .c = as_matrix(y.tensor), .accumulate = true},
      tape.stream());
  tape.charge(elementwise_cost(y.tensor, 1, 2));
  auto backward = [y_id = y.id, &table, row](Tape& t, Tensor dy) {
    if (table.trainable) {
      t.write_gradients([dy, &table, row, channels = last_dim(dy.shape())](Tape& later) {
        if (!table.gradient) return;
        const GradientTarget target = gradient_target(table);
        if (!target.accumulate) later.kernels().fill({.dst = target.view}, later.stream());
        later.kernels().bias_gradient({.dy = as_matrix(dy),
                                       .db = target.view.narrow(0, row, 1).reshape(Shape{channels}),
                                       .accumulate = target.accumulate},
                                      later.stream());
        later.charge(elementwise_cost(dy, 1, 1));
      });
    }
    t.add_gradient(y_id, std::move(dy));
  };
  return tape.split_output(std::move(y.tensor), std::move(backward));
}

}  // namespace tessera::ops

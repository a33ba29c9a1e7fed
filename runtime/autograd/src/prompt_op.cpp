#include <utility>

#include "op_support.h"

// Rows in front of those of each sequence, made of copies alone: the rows of a sequence lie one
// behind the other. A prompt of trained rows is in front of embeddings (prompt tuning: Lester et
// al. 2021), or of keys and values (prefix tuning: Li and Liang 2021).
//
//   x[b] = prompt | scale wte[tokens[b]]  [+ wpe]         dprompt [+]= sum over b of dx[b, first P
//   rows] y[b] = x[b, rows from `count` on]               dx[b] = 0 | dy[b]

namespace tessera::ops {
namespace {

constexpr const char* kPromptOp = "prompted_embedding";

/// Rows [begin, begin + rows) of sequence b of x (B, L, C), as they lie in memory.
TensorView sequence_rows(const TensorView& x, std::int64_t b, std::int64_t begin,
                         std::int64_t rows) {
  const std::int64_t width = x.shape[2];
  return x.flat().narrow(0, (b * x.shape[1] + begin) * width, rows * width);
}

void copy_rows(Tape& tape, const TensorView& from, const TensorView& to) {
  tape.kernels().cast({.src = from.flat(), .dst = to.flat()}, tape.stream());
  tape.charge(elementwise_cost(to, 0, 2));
}

/// The first `rows` rows of each sequence of dx (B, L, C), one sequence behind the other.
Tensor first_rows(Tape& tape, const TensorView& dx, std::int64_t rows) {
  const std::int64_t batch = dx.shape[0];
  Tensor first = tape.activation(Shape{batch, rows * dx.shape[2]}, dx.dtype, "prompt gradients");
  for (std::int64_t b = 0; b < batch; ++b) {
    copy_rows(tape, sequence_rows(dx, b, 0, rows), first.view().narrow(0, b, 1));
  }
  return first;
}

/// gradient [+]= the sum of the rows of `parts`.
void add_to_gradient(Tape& tape, const char* op, const char* what, const TensorView& parts,
                     Parameter& parameter) {
  check_gradient(op, what, parameter);
  if (!parameter.gradient) return;
  const GradientTarget target = gradient_target(parameter);
  tape.kernels().bias_gradient(
      {.dy = parts, .db = target.view.flat(), .accumulate = target.accumulate}, tape.stream());
  tape.charge(elementwise_cost(parts, 1, 1));
}

bool wants_gradient(const Tape& tape, const Parameter& parameter) {
  return parameter.trainable && (tape.is_split() || parameter.gradient);
}

/// Keeps the prompt's rows of dx alone.
void add_prompt_gradient(Tape& tape, const TensorView& dx, Parameter& prompt) {
  if (!wants_gradient(tape, prompt)) return;
  Tensor first = first_rows(tape, dx, prompt.value.shape[0]);
  tape.write_gradients([first = std::move(first), &prompt](Tape& t) {
    add_to_gradient(t, kPromptOp, "prompt", first, prompt);
  });
}

Tensor embed_behind(Tape& tape, const TensorView& tokens, const Parameter& wte,
                    const Parameter* wpe, const TensorView& prompt, float scale) {
  require(tokens.shape.rank() == 2 && tokens.dtype == DType::kInt32, ErrorCode::kInvalidArgument,
          kPromptOp, ": tokens must be (batch, length) int32, got ", tokens.shape, " ",
          to_string(tokens.dtype));
  const std::int64_t batch = tokens.shape[0], length = tokens.shape[1];
  const std::int64_t rows = prompt.shape[0], width = wte.value.shape[1];
  check_operand(kPromptOp, "prompt", prompt, Shape{rows, width}, wte.value.dtype);
  require(!wte.gradient && (wpe == nullptr || !wpe->gradient), ErrorCode::kInvalidArgument,
          kPromptOp, ": the embeddings must be frozen");
  require(wpe == nullptr || rows + length <= wpe->value.shape[0], ErrorCode::kInvalidArgument,
          kPromptOp, ": a prompt of ", rows, " and ", length,
          " tokens are longer than the context of ", wpe == nullptr ? 0 : wpe->value.shape[0]);
  Tensor x = tape.activation(Shape{batch, rows + length, width}, wte.value.dtype,
                             "embedding output with prompt");
  const Tensor words =
      tape.activation(Shape{batch, length, width}, wte.value.dtype, "embedding output");
  tape.kernels().embedding_forward({.tokens = tokens,
                                    .wte = wte.value,
                                    .wpe = {},
                                    .x = words,
                                    .scale = rounded_to(wte.value.dtype, scale)},
                                   tape.stream());
  tape.charge(elementwise_cost(words, 0, 2));
  for (std::int64_t b = 0; b < batch; ++b) {
    copy_rows(tape, prompt, sequence_rows(x, b, 0, rows));
    copy_rows(tape, sequence_rows(words, b, 0, length), sequence_rows(x, b, rows, length));
    if (wpe == nullptr) continue;
    tape.kernels().add({.src = wpe->value.narrow(0, 0, rows + length).flat(),
                        .dst = sequence_rows(x, b, 0, rows + length)},
                       tape.stream());
    tape.charge(elementwise_cost(sequence_rows(x, b, 0, rows + length), 1, 3));
  }
  return x;
}

}  // namespace

Value prompted_embedding(Tape& tape, const TensorView& tokens, const Parameter& wte,
                         const Parameter* wpe, Parameter& prompt, float scale) {
  return tape.split_output(
      embed_behind(tape, tokens, wte, wpe, prompt.value, scale),
      [&prompt](Tape& t, const Tensor& dx) { add_prompt_gradient(t, dx, prompt); });
}

Value prompted_embedding(Tape& tape, const TensorView& tokens, const Parameter& wte,
                         const Parameter* wpe, const Value& prompt, float scale) {
  return tape.split_output(embed_behind(tape, tokens, wte, wpe, prompt.tensor, scale),
                           [id = prompt.id, shape = prompt.shape()](Tape& t, const Tensor& dx) {
                             if (id < 0) return;
                             const Tensor first = first_rows(t, dx, shape[0]);
                             Tensor sum = t.activation(shape, dx.dtype(), "prompt gradient");
                             t.kernels().bias_gradient({.dy = first, .db = sum.view().flat()},
                                                       t.stream());
                             t.charge(elementwise_cost(first, 1, 1));
                             t.add_gradient(id, std::move(sum));
                           });
}

Value value_of(Tape& tape, Parameter& parameter) {
  constexpr const char* kOp = "value_of";
  Tensor copy = tape.activation(parameter.value.shape, parameter.value.dtype, "parameter value");
  copy_rows(tape, parameter.value, copy);
  return tape.split_output(std::move(copy), [&parameter](Tape& t, const Tensor& gradient) {
    if (!wants_gradient(t, parameter)) return;
    t.write_gradients([gradient, &parameter](Tape& later) {
      const TensorView row = gradient.view().reshape(Shape{1, gradient.view().numel()});
      add_to_gradient(later, kOp, "parameter", row, parameter);
    });
  });
}

Value rows_in_front(Tape& tape, const Value& rows, const Value& x, std::int64_t replaced) {
  constexpr const char* kOp = "rows_in_front";
  const Shape shape = x.shape(), front = rows.shape();
  require(shape.rank() == 3 && front.rank() == 3 && replaced >= 0 && replaced <= shape[1],
          ErrorCode::kInvalidArgument, kOp, ": ", front, " in place of ", replaced,
          " rows of each sequence of ", shape,
          "; wanted (1, rows, width) and (batch, length, width)");
  check_operand(kOp, "rows", rows.tensor, Shape{1, front[1], shape[2]}, x.dtype());
  const std::int64_t kept = shape[1] - replaced, count = front[1];
  Tensor y = tape.activation(shape.with(1, count + kept), x.dtype(), "rows with those in front");
  for (std::int64_t b = 0; b < shape[0]; ++b) {
    copy_rows(tape, rows.tensor, sequence_rows(y, b, 0, count));
    copy_rows(tape, sequence_rows(x.tensor, b, replaced, kept), sequence_rows(y, b, count, kept));
  }
  auto backward = [shape, front, replaced, kept, count, rows_id = rows.id, id = x.id](
                      Tape& t, const Tensor& dy) {
    if (rows_id >= 0) {
      const Tensor first = first_rows(t, dy, count);
      Tensor sum = t.activation(front, dy.dtype(), "gradient of rows in front");
      t.kernels().bias_gradient({.dy = first, .db = sum.view().flat()}, t.stream());
      t.charge(elementwise_cost(first, 1, 1));
      t.add_gradient(rows_id, std::move(sum));
    }
    if (id < 0) return;
    Tensor dx = t.activation(shape, dy.dtype(), "gradient without rows in front");
    for (std::int64_t b = 0; b < shape[0]; ++b) {
      if (replaced > 0) t.kernels().fill({.dst = sequence_rows(dx, b, 0, replaced)}, t.stream());
      copy_rows(t, sequence_rows(dy, b, count, kept), sequence_rows(dx, b, replaced, kept));
    }
    t.add_gradient(id, std::move(dx));
  };
  return tape.split_output(std::move(y), std::move(backward));
}

Value zeros_in_front(Tape& tape, const Value& x, std::int64_t count) {
  const Shape shape = x.shape();
  require(shape.rank() == 3 && count >= 0, ErrorCode::kInvalidArgument, "zeros_in_front: ", count,
          " rows in front of ", shape, "; wanted (batch, length, width)");
  Tensor y = tape.activation(shape.with(1, count + shape[1]), x.dtype(), "rows behind zeros");
  for (std::int64_t b = 0; b < shape[0]; ++b) {
    tape.kernels().fill({.dst = sequence_rows(y, b, 0, count)}, tape.stream());
    copy_rows(tape, sequence_rows(x.tensor, b, 0, shape[1]), sequence_rows(y, b, count, shape[1]));
  }
  return tape.split_output(std::move(y), [shape, count, id = x.id](Tape& t, const Tensor& dy) {
    if (id < 0) return;
    Tensor dx = t.activation(shape, dy.dtype(), "gradient without that of zeros");
    for (std::int64_t b = 0; b < shape[0]; ++b) {
      copy_rows(t, sequence_rows(dy, b, count, shape[1]), sequence_rows(dx, b, 0, shape[1]));
    }
    t.add_gradient(id, std::move(dx));
  });
}

Value zeros_beside(Tape& tape, const Value& x, std::int64_t columns) {
  const Shape shape = x.shape();
  require(shape.rank() == 2 && columns >= 0, ErrorCode::kInvalidArgument, "zeros_beside: ", columns,
          " columns beside ", shape, "; wanted a matrix");
  const std::int64_t width = shape[1], whole = columns + width;
  const auto row_of = [columns, width, whole](const Tensor& y, std::int64_t row) {
    return y.view().flat().narrow(0, row * whole + columns, width);
  };
  Tensor y = tape.activation(Shape{1, shape[0], whole}, x.dtype(), "rows beside zeros");
  tape.kernels().fill({.dst = y}, tape.stream());
  for (std::int64_t row = 0; row < shape[0]; ++row) {
    copy_rows(tape, x.tensor.view().narrow(0, row, 1), row_of(y, row));
  }
  return tape.split_output(std::move(y), [shape, row_of, id = x.id](Tape& t, const Tensor& dy) {
    if (id < 0) return;
    Tensor dx = t.activation(shape, dy.dtype(), "gradient beside that of zeros");
    for (std::int64_t row = 0; row < shape[0]; ++row) {
      copy_rows(t, row_of(dy, row), dx.view().narrow(0, row, 1));
    }
    t.add_gradient(id, std::move(dx));
  });
}

Value without_first(Tape& tape, const Value& x, std::int64_t count) {
  const Shape shape = x.shape();
  require(shape.rank() == 3 && count >= 0 && count <= shape[1], ErrorCode::kInvalidArgument,
          "without_first: there are no ", count, " rows in each sequence of ", shape);
  const std::int64_t batch = shape[0], kept = shape[1] - count;
  Tensor y = tape.activation(Shape{batch, kept, shape[2]}, x.dtype(), "rows behind the prompt");
  for (std::int64_t b = 0; b < batch; ++b) {
    copy_rows(tape, sequence_rows(x.tensor, b, count, kept), sequence_rows(y, b, 0, kept));
  }
  return tape.split_output(
      std::move(y), [shape, count, kept, id = x.id](Tape& t, const Tensor& dy) {
        if (id < 0) return;
        Tensor dx = t.activation(shape, dy.dtype(), "gradient with that of the prompt");
        for (std::int64_t b = 0; b < shape[0]; ++b) {
          const TensorView first = sequence_rows(dx, b, 0, count);
          t.kernels().fill({.dst = first}, t.stream());
          copy_rows(t, sequence_rows(dy, b, 0, kept), sequence_rows(dx, b, count, kept));
        }
        t.add_gradient(id, std::move(dx));
      });
}

}  // namespace tessera::ops

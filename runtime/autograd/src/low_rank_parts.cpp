#include "low_rank_parts.h"

#include <algorithm>
#include <utility>

namespace tessera::ops {
namespace {

void check_low_rank(const char* op, const Value& y, const Value& x, const LowRank& p) {
  check_compute_dtype(op, "y", y.tensor, y.dtype());
  check_linear(op, x.shape(), y.dtype(), p.a, nullptr);
  check_linear(op, Shape{leading_rows(x.shape()), p.a.value.shape[0]}, y.dtype(), p.b, nullptr);
  require(p.first_column >= 0 && p.first_column + p.b.value.shape[0] <= last_dim(y.shape()) &&
              leading_rows(y.shape()) == leading_rows(x.shape()),
          ErrorCode::kInvalidArgument, op, ": columns ", p.first_column, " to ",
          p.first_column + p.b.value.shape[0], " of ", leading_rows(x.shape()),
          " rows do not fit y ", y.shape());
}

/// Whether `next` begins where `view` ends.
bool is_neighbour(const TensorView& view, const TensorView& next) {
  return view && view.data + view.bytes() == next.data;
}

/// Neighbours, of which this is the first, as one matrix.
TensorView joined(const TensorView& first, std::int64_t rows) {
  return {first.data, first.dtype, Shape{rows, first.shape[1]}};
}

/// Columns of y, or of its gradient, that a product is added to.
TensorView columns_of(const TensorView& y, const LowRank& p) {
  return as_matrix(y).narrow(1, p.first_column, p.b.value.shape[0]);
}

/// Calls `run` for each product, with its columns of h or dh.
template <typename Run>
void for_each_part(const std::vector<LowRank>& products, const TensorView& hidden, Run run) {
  std::int64_t first = 0;
  for (const LowRank& p : products) {
    const std::int64_t rank = p.a.value.shape[0];
    run(p, as_matrix(hidden).narrow(1, first, rank));
    first += rank;
  }
}

void run_gemm(Tape& tape, const GemmArgs& args) {
  tape.kernels().gemm(args, tape.stream());
  const std::int64_t k = args.a.shape[args.transpose_a ? 0 : 1];
  tape.charge(gemm_cost(args.c.shape[0], args.c.shape[1], k, args.a.dtype, args.c.dtype));
  if (args.accumulate) tape.charge(elementwise_cost(args.c, 1, 1));
}

/// dw (O, I) [+]= dy^T x.
void write_gradient(const char* op, Tape& tape, const TensorView& dy, const TensorView& x,
                    Parameter& weight) {
  if (!weight.gradient) return;
  check_gradient(op, "weight", weight);
  const GradientTarget dw = gradient_target(weight);
  run_gemm(tape, {.a = dy, .b = x, .c = dw.view, .transpose_a = true, .accumulate = dw.accumulate});
}

/// Whether these views of all a's are one matrix.
bool are_neighbours(const std::vector<LowRank>& products, TensorView Parameter::*view) {
  for (std::size_t i = 1; i < products.size(); ++i) {
    if (!is_neighbour(products[i - 1].a.*view, products[i].a.*view)) return false;
  }
  return true;
}

void write_a_gradients(const char* op, Tape& tape, const std::vector<LowRank>& products,
                       const TensorView& d_hidden, const TensorView& x) {
  const TensorView rows = as_matrix(d_hidden);
  const bool are_alike = std::ranges::all_of(products, [&](const LowRank& p) {
    return p.a.gradient_written == products.front().a.gradient_written;
  });
  if (!are_alike || !are_neighbours(products, &Parameter::gradient)) {
    for_each_part(products, d_hidden, [&](const LowRank& p, const TensorView& dh) {
      write_gradient(op, tape, dh, x, p.a);
    });
    return;
  }
  Parameter& first = products.front().a;
  if (!first.gradient) return;
  for (const LowRank& p : products) check_gradient(op, "a", p.a);
  const bool accumulate = first.gradient_written;
  for (const LowRank& p : products) p.a.gradient_written = true;
  run_gemm(tape, {.a = rows,
                  .b = x,
                  .c = joined(first.gradient, rows.shape[1]),
                  .transpose_a = true,
                  .accumulate = accumulate});
}

}  // namespace

void scale_in_place(Tape& tape, const TensorView& x, float scale) {
  if (scale == 1.0F) return;
  tape.kernels().cast({.src = x, .dst = x, .scale = scale}, tape.stream());
  tape.charge(elementwise_cost(x, 1, 2));
}

std::vector<LowRankGroup> low_rank_groups(const char* op, const Value& y, const Value& x,
                                          std::span<const LowRank> products) {
  std::vector<LowRankGroup> groups;
  for (const LowRank& p : products) {
    check_low_rank(op, y, x, p);
    const LowRank* const before = groups.empty() ? nullptr : &groups.back().products_.back();
    if (before == nullptr || before->scale != p.scale ||
        !is_neighbour(before->a.value, p.a.value)) {
      groups.emplace_back();
    }
    groups.back().products_.push_back(p);
  }
  return groups;
}

std::int64_t LowRankGroup::rank() const {
  std::int64_t sum = 0;
  for (const LowRank& p : products_) sum += p.a.value.shape[0];
  return sum;
}

void LowRankGroup::run_forward(Tape& tape, const TensorView& x, const TensorView& y) {
  const LowRank& first = products_.front();
  hidden_ = tape.activation(with_last_dim(x.shape, rank()), x.dtype, "low-rank hidden");
  run_gemm(tape, {.a = as_matrix(x),
                  .b = joined(first.a.value, rank()),
                  .c = as_matrix(hidden_),
                  .transpose_b = true});
  scale_in_place(tape, hidden_, first.scale);
  for_each_part(products_, hidden_, [&](const LowRank& p, const TensorView& h) {
    run_gemm(
        tape,
        {.a = h, .b = p.b.value, .c = columns_of(y, p), .transpose_b = true, .accumulate = true});
  });
}

void LowRankGroup::run_backward(const char* op, Tape& tape, const Tensor& dy, Saved x) {
  for_each_part(products_, hidden_, [&](const LowRank& p, const TensorView& h) {
    if (!p.b.trainable) return;
    tape.write_gradients([op, dy, p, h, hidden = hidden_](Tape& t) {
      write_gradient(op, t, columns_of(dy, p), h, p.b);
    });
  });
  const Shape hidden_shape = std::exchange(hidden_, {}).shape();
  d_hidden_ = tape.activation(hidden_shape, dy.dtype(), "low-rank hidden gradient");
  for_each_part(products_, d_hidden_, [&](const LowRank& p, const TensorView& dh) {
    run_gemm(tape, {.a = columns_of(dy, p), .b = p.b.value, .c = dh});
  });
  scale_in_place(tape, d_hidden_, products_.front().scale);
  if (std::ranges::none_of(products_, [](const LowRank& p) { return p.a.trainable; })) return;
  if (tape.is_split()) x = x.computed();
  tape.write_gradients([op, d_hidden = d_hidden_, x = std::move(x), products = products_](Tape& t) {
    if (!products.front().a.gradient) return;
    const Tensor tensor = x.get();
    write_a_gradients(op, t, products, d_hidden, as_matrix(tensor));
  });
}

void LowRankGroup::add_input_gradient(Tape& tape, const TensorView& dx, bool accumulate) {
  const Tensor d_hidden = std::exchange(d_hidden_, {});
  if (!are_neighbours(products_, &Parameter::value)) {  // they were in forward
    for_each_part(products_, d_hidden, [&](const LowRank& p, const TensorView& dh) {
      run_gemm(tape, {.a = dh, .b = p.a.value, .c = dx, .accumulate = accumulate});
      accumulate = true;
    });
    return;
  }
  run_gemm(tape, {.a = as_matrix(d_hidden),
                  .b = joined(products_.front().a.value, rank()),
                  .c = dx,
                  .accumulate = accumulate});
}

}  // namespace tessera::ops

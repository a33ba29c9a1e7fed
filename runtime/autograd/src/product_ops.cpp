#include <utility>

#include "op_support.h"

namespace tessera::ops {
namespace {

/// Products of activations, batch by batch.
struct Products {
  std::int64_t batch, m, n, k;
  bool transpose_b;

  /// Matrix i of a (rows, columns) stack.
  static TensorView matrix(const TensorView& stack, std::int64_t i, std::int64_t rows,
                           std::int64_t columns) {
    return stack.flat().narrow(0, i * rows * columns, rows * columns).reshape({rows, columns});
  }
  TensorView a_of(const TensorView& a, std::int64_t i) const { return matrix(a, i, m, k); }
  TensorView b_of(const TensorView& b, std::int64_t i) const {
    return transpose_b ? matrix(b, i, n, k) : matrix(b, i, k, n);
  }
  TensorView c_of(const TensorView& c, std::int64_t i) const { return matrix(c, i, m, n); }

  /// Calls args_of(i) for the GEMM of each batch.
  template <typename ArgsOf>
  void run(Tape& tape, DType dtype, const ArgsOf& args_of) const {
    for (std::int64_t i = 0; i < batch; ++i) tape.kernels().gemm(args_of(i), tape.stream());
    const Cost one = gemm_cost(m, n, k, dtype, dtype);
    const auto times = static_cast<double>(batch);
    tape.charge({.flops = times * one.flops, .bytes = times * one.bytes});
  }
};

Products products_of(const Shape& a, const Shape& b, bool transpose_b) {
  const int rank = a.rank();
  bool fits = rank >= 2 && b.rank() == rank;
  std::int64_t batch = 1;
  for (int i = 0; fits && i + 2 < rank; ++i) {
    fits = a[i] == b[i];
    batch *= a[i];
  }
  fits = fits && a[rank - 1] == b[transpose_b ? rank - 1 : rank - 2];
  require(fits, ErrorCode::kInvalidArgument, "matmul: a ", a, " does not fit b ", b,
          transpose_b ? ", expected (..., M, K) and (..., N, K)"
                      : ", expected (..., M, K) and (..., K, N)",
          " with equal leading dimensions");
  return {.batch = batch,
          .m = a[rank - 2],
          .n = b[transpose_b ? rank - 2 : rank - 1],
          .k = a[rank - 1],
          .transpose_b = transpose_b};
}

}  // namespace

Value multiply(Tape& tape, const Value& a, const Value& b) {
  check_compute_dtype("multiply", "a", a.tensor, a.dtype());
  check_operand("multiply", "b", b.tensor, a.shape(), a.dtype());
  Tensor y = tape.activation(a.shape(), a.dtype(), "product");
  tape.kernels().multiply({.a = a.tensor, .b = b.tensor, .y = y}, tape.stream());
  tape.charge(elementwise_cost(y, 1, 3));
  auto backward = [a = Saved(a), b = Saved(b), a_id = a.id, b_id = b.id](Tape& t, Tensor dy) {
    const auto gradient_by = [&](const Tensor& other, bool last) {
      Tensor gradient = last ? reuse_or_allocate(t, dy, "product input gradient")
                             : t.activation(dy.shape(), dy.dtype(), "product input gradient");
      t.kernels().multiply({.a = dy, .b = other, .y = gradient}, t.stream());
      t.charge(elementwise_cost(gradient, 1, 3));
      return gradient;
    };
    if (a_id >= 0) t.add_gradient(a_id, gradient_by(b.get(), false));
    if (b_id < 0) return;
    Tensor gradient = gradient_by(a.get(), true);
    dy = {};
    t.add_gradient(b_id, std::move(gradient));
  };
  return tape.split_output(std::move(y), std::move(backward));
}

Value matmul(Tape& tape, const Value& a, const Value& b, bool transpose_b) {
  check_compute_dtype("matmul", "a", a.tensor, a.dtype());
  check_compute_dtype("matmul", "b", b.tensor, a.dtype());
  const Products products = products_of(a.shape(), b.shape(), transpose_b);
  Tensor c = tape.activation(with_last_dim(a.shape(), products.n), a.dtype(), "product");
  const TensorView left = a.tensor, right = b.tensor, result = c;
  products.run(tape, a.dtype(), [&](std::int64_t i) {
    return GemmArgs{.a = products.a_of(left, i),
                    .b = products.b_of(right, i),
                    .c = products.c_of(result, i),
                    .bias = {},
                    .transpose_b = transpose_b};
  });
  auto backward = [products, a = Saved(a), b = Saved(b), a_id = a.id, b_id = b.id](
                      Tape& t, const Tensor& dc) {
    const Tensor of_a = a.get(), of_b = b.get();
    const bool transposed = products.transpose_b;
    if (a_id >= 0) {  // dc b^T, or dc b
      Tensor da = t.activation(of_a.shape(), of_a.dtype(), "product input gradient");
      products.run(t, of_a.dtype(), [&](std::int64_t i) {
        return GemmArgs{.a = products.c_of(dc, i),
                        .b = products.b_of(of_b, i),
                        .c = products.a_of(da, i),
                        .bias = {},
                        .transpose_b = !transposed};
      });
      t.add_gradient(a_id, std::move(da));
    }
    if (b_id < 0) return;
    Tensor db = t.activation(of_b.shape(), of_b.dtype(), "product input gradient");
    products.run(t, of_b.dtype(), [&](std::int64_t i) {  // a^T dc, or dc^T a
      return GemmArgs{.a = transposed ? products.c_of(dc, i) : products.a_of(of_a, i),
                      .b = transposed ? products.a_of(of_a, i) : products.c_of(dc, i),
                      .c = products.b_of(db, i),
                      .bias = {},
                      .transpose_a = true};
    });
    t.add_gradient(b_id, std::move(db));
  };
  return tape.split_output(std::move(c), std::move(backward));
}

}  // namespace tessera::ops

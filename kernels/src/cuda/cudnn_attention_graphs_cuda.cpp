#include "cuda/cudnn_attention_graphs_cuda.h"

#include <limits>

#include "tessera/kernels/kernel_table.h"

// The fused kernels are found by pattern: operations, their order and the strides of values
// between them are as cuDNN's own frontend writes them. Deviations find no engine or, for the
// strides of lse, delta and the dq accumulator, which must be dense, give wrong numbers.
namespace tessera::cuda {
namespace {

using Sizes = CudnnGraph::Sizes;
using Tensor = CudnnGraph::Tensor;
constexpr cudnnDataType_t kFloat = CUDNN_DATA_FLOAT;

Sizes transposed(Sizes sizes) {
  std::swap(sizes[2], sizes[3]);
  return sizes;
}

/// A graph and the sizes and strides that its tensors have, all as (B, H, L, D) or (B, H, L, L).
struct AttentionGraph {
  AttentionGraph(const CudnnLibrary& library, const CudnnAttentionShape& shape)
      : half(shape.dtype == DType::kFloat16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16),
        graph(library),
        causal(shape.causal),
        head{shape.batch, shape.heads, shape.length, shape.head_dim},
        scores{shape.batch, shape.heads, shape.length, shape.length},
        row{shape.batch, shape.heads, shape.length, 1} {
    const std::int64_t b = shape.heads * shape.length, l = shape.length, d = shape.head_dim;
    packed = {3 * b * d, d, 3 * shape.heads * d, 1};
    plain = {b * d, d, shape.heads * d, 1};
    dense = {b * d, l * d, d, 1};
    score_strides = {b * l, l * l, l, 1};
    row_strides = {b, l, 1, 1};
    scale = graph.scalar(AttentionScores{.scale = shape.scale}.scale_of(d));
  }

  Tensor score_value(cudnnDataType_t type = kFloat) {
    return graph.value(type, scores, score_strides);
  }
  Tensor row_value() { return graph.value(kFloat, row, row_strides); }
  Tensor row_tensor(std::int64_t id) { return graph.tensor(id, kFloat, row, row_strides); }
  Tensor head_tensor(std::int64_t id, const Sizes& strides) {
    return graph.tensor(id, half, head, strides);
  }
  /// K or V as (B, H, D, L).
  Tensor transposed_tensor(std::int64_t id) {
    return graph.tensor(id, half, transposed(head), transposed(packed));
  }

  Tensor apply(cudnnPointwiseMode_t mode, Tensor x) {
    const Tensor y = score_value();
    graph.pointwise(mode, x, y);
    return y;
  }
  Tensor apply(cudnnPointwiseMode_t mode, Tensor x, Tensor b) {
    const Tensor y = score_value();
    graph.pointwise(mode, x, b, y);
    return y;
  }
  Tensor product_of_scores(Tensor a, Tensor b) {
    const Tensor y = score_value();
    graph.multiply(a, b, y);
    return y;
  }
  /// Scores with those of keys after the query at minus infinity, if it is causal.
  Tensor masked(Tensor s) {
    if (!causal) return s;
    const Tensor query = score_value(CUDNN_DATA_INT32), key = score_value(CUDNN_DATA_INT32);
    graph.index(s, 2, query);
    graph.index(s, 3, key);
    const Tensor visible = score_value(CUDNN_DATA_BOOLEAN);
    graph.pointwise(CUDNN_POINTWISE_CMP_GE, query, key, visible);
    const Tensor y = score_value();
    graph.select(visible, s, graph.scalar(-std::numeric_limits<float>::infinity()), y);
    return y;
  }
  /// Transposed and rounded to 16 bits, as the left operand of a product over the queries.
  Tensor transposed_scores(Tensor s) {
    const Tensor y = graph.value(half, scores, transposed(score_strides));
    graph.reshape(s, y);
    return y;
  }

  cudnnDataType_t half;  // of what is in memory, but for statistics
  CudnnGraph graph;
  bool causal;
  Sizes head, scores, row;           // sizes
  Sizes packed{}, plain{}, dense{};  // strides of head: in qkv, in out, on its own
  Sizes score_strides{}, row_strides{};
  Tensor scale{};
};

void add_forward(AttentionGraph& a) {
  const Tensor q = a.head_tensor(kQ, a.packed), k = a.transposed_tensor(kK),
               v = a.head_tensor(kV, a.packed), out = a.head_tensor(kOut, a.plain),
               lse = a.row_tensor(kLse);
  const Tensor s = a.masked(a.apply(CUDNN_POINTWISE_MUL, a.product_of_scores(q, k), a.scale));
  const Tensor maximum = a.row_value(), sum = a.row_value(), log_sum = a.row_value();
  a.graph.reduce(CUDNN_REDUCE_TENSOR_MAX, s, maximum);
  const Tensor e = a.apply(CUDNN_POINTWISE_EXP, a.apply(CUDNN_POINTWISE_SUB, s, maximum));
  a.graph.reduce(CUDNN_REDUCE_TENSOR_ADD, e, sum);
  a.graph.pointwise(CUDNN_POINTWISE_LOG, sum, log_sum);
  a.graph.pointwise(CUDNN_POINTWISE_ADD, maximum, log_sum, lse);
  const Tensor p = a.score_value(a.half);
  a.graph.pointwise(CUDNN_POINTWISE_DIV, e, sum, p);
  a.graph.multiply(p, v, out);
}

/// delta = rowsum(d_out * out).
Tensor add_delta(AttentionGraph& a, Tensor d_out, Tensor out) {
  const Tensor products = a.graph.value(kFloat, a.head, a.dense), sum = a.row_value(),
               delta = a.row_tensor(kDelta);
  a.graph.pointwise(CUDNN_POINTWISE_MUL, d_out, out, products);
  a.graph.reduce(CUDNN_REDUCE_TENSOR_ADD, products, sum);
  a.graph.pointwise(CUDNN_POINTWISE_MUL, sum, a.graph.scalar(1.0F), delta);
  return delta;
}

void add_backward(AttentionGraph& a, bool deterministic) {
  const Tensor q = a.head_tensor(kQ, a.packed), k = a.transposed_tensor(kK),
               v = a.transposed_tensor(kV), out = a.head_tensor(kOut, a.plain),
               lse = a.row_tensor(kLse), d_out = a.head_tensor(kDOut, a.plain),
               dq = a.head_tensor(kDQ, a.packed), dk = a.head_tensor(kDK, a.packed),
               dv = a.head_tensor(kDV, a.packed);
  const Tensor delta = add_delta(a, d_out, out);

  const Tensor s = a.apply(CUDNN_POINTWISE_MUL, a.product_of_scores(q, k), a.scale);
  const Tensor p = a.apply(CUDNN_POINTWISE_EXP, a.masked(a.apply(CUDNN_POINTWISE_SUB, s, lse)));
  a.graph.multiply(a.transposed_scores(p), d_out, dv);

  const Tensor dp = a.apply(CUDNN_POINTWISE_SUB, a.product_of_scores(d_out, v), delta);
  const Tensor ds = a.apply(CUDNN_POINTWISE_MUL, a.apply(CUDNN_POINTWISE_MUL, dp, p), a.scale);
  a.graph.multiply(a.transposed_scores(ds), q, dk);

  const Tensor keys = a.graph.value(kFloat, a.head, a.packed);
  a.graph.reshape(k, keys);
  if (deterministic) {
    a.graph.multiply(ds, keys, dq);
  } else {
    const Tensor accumulator = a.graph.tensor(kDQAccumulator, kFloat, a.head, a.dense);
    a.graph.multiply(ds, keys, accumulator);
    a.graph.pointwise(CUDNN_POINTWISE_IDENTITY, accumulator, dq);
  }
}

}  // namespace

std::unique_ptr<CudnnPlan> make_cudnn_attention_plan(const CudnnLibrary& library,
                                                     const CudnnTarget& target,
                                                     const CudnnAttentionShape& shape) {
  AttentionGraph attention(library, shape);
  if (shape.pass == CudnnPass::kForward) {
    add_forward(attention);
  } else {
    add_backward(attention, shape.pass == CudnnPass::kBackwardDeterministic);
  }
  return attention.graph.build(target, shape.pass != CudnnPass::kBackward);
}

}  // namespace tessera::cuda

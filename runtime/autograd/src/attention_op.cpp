#include <algorithm>
#include <utility>

#include "op_support.h"

namespace tessera::ops {
namespace {

struct Sizes {
  std::int64_t batch, length, heads, head_dim, window;
  TensorView starts{};
  bool causal = true;
  AttentionScores scores{};

  Shape qkv() const { return {batch, length, 3, heads, head_dim}; }
  Shape out() const { return {batch, length, heads, head_dim}; }
};

Sizes sizes_of(const Value& qkv, std::int64_t heads, std::int64_t window) {
  const Shape& shape = qkv.shape();
  require(shape.rank() == 3, ErrorCode::kInvalidArgument, "attention: qkv has shape ", shape,
          " and must have (batch, length, 3 * channels)");
  require(heads > 0 && shape[2] % (3 * heads) == 0, ErrorCode::kInvalidArgument,
          "attention: the last dimension of qkv ", shape,
          " is not a multiple of 3 * heads = ", 3 * heads);
  check_compute_dtype("attention", "qkv", qkv.tensor, qkv.dtype());
  require(window >= 0, ErrorCode::kInvalidArgument, "attention: a window of ", window);
  return {.batch = shape[0],
          .length = shape[1],
          .heads = heads,
          .head_dim = shape[2] / (3 * heads),
          .window = window};
}

Tensor scratch(Tape& tape, const Sizes& sizes, DType dtype, bool backward) {
  const TapeOptions& options = tape.options();
  const std::int64_t bytes =
      options.device == DeviceKind::kCuda
          ? cuda_attention_workspace_bytes({.batch = sizes.batch,
                                            .length = sizes.length,
                                            .heads = sizes.heads,
                                            .head_dim = sizes.head_dim,
                                            .dtype = dtype,
                                            .backward = backward,
                                            .window = sizes.window,
                                            .documents = static_cast<bool>(sizes.starts),
                                            .causal = sizes.causal,
                                            .soft_cap = sizes.scores.soft_cap != 0.0F},
                                           options.cuda_kernels)
          : attention_workspace_bytes(sizes.batch, sizes.length, sizes.heads, sizes.head_dim, dtype,
                                      options.threads);
  return tape.workspace(bytes, "attention scratch");
}

/// `products` matrix products over the scores that are not masked: if attention is causal, half of
/// them, less what lies before the windows.
Cost attention_cost(const Sizes& s, DType dtype, double products, double tensors) {
  const auto tokens = static_cast<double>(s.batch * s.length);
  const auto channels = static_cast<double>(s.heads * s.head_dim);
  const auto length = static_cast<double>(s.length);
  const double outside =
      s.window == 0 || s.window >= s.length ? 0.0 : static_cast<double>(s.length - s.window);
  const double all = s.causal ? length : 2.0 * length;
  const double keys = all - (outside == 0.0 ? 0.0 : outside * outside / length);
  return {.flops = products * tokens * keys * channels,
          .bytes = tensors * tokens * channels * static_cast<double>(size_of(dtype))};
}

void run_forward(Tape& tape, const Sizes& sizes, const TensorView& qkv, const TensorView& out,
                 const TensorView& lse) {
  const Tensor workspace = scratch(tape, sizes, qkv.dtype, false);
  tape.kernels().attention_forward({.qkv = qkv.reshape(sizes.qkv()),
                                    .out = out.reshape(sizes.out()),
                                    .lse = lse,
                                    .workspace = workspace,
                                    .window = sizes.window,
                                    .starts = sizes.starts,
                                    .causal = sizes.causal,
                                    .scores = sizes.scores},
                                   tape.stream());
  tape.charge(attention_cost(sizes, qkv.dtype, 2, 4));
}

struct AttentionBackward {
  Sizes sizes;
  int qkv_id;
  Saved qkv, out;
  Tensor lse;

  void operator()(Tape& tape, Tensor d_out) {
    if (qkv_id < 0) return;
    const Tensor qkv_tensor = qkv.get();
    const Tensor out_tensor = out.get();
    Tensor d_qkv =
        tape.activation(qkv_tensor.shape(), qkv_tensor.dtype(), "attention input gradient");
    {
      const Tensor workspace = scratch(tape, sizes, qkv_tensor.dtype(), true);
      tape.kernels().attention_backward({.d_out = d_out.view().reshape(sizes.out()),
                                         .qkv = qkv_tensor.view().reshape(sizes.qkv()),
                                         .out = out_tensor.view().reshape(sizes.out()),
                                         .lse = lse,
                                         .d_qkv = d_qkv.view().reshape(sizes.qkv()),
                                         .workspace = workspace,
                                         .window = sizes.window,
                                         .starts = sizes.starts,
                                         .causal = sizes.causal,
                                         .scores = sizes.scores},
                                        tape.stream());
    }
    tape.charge(attention_cost(sizes, qkv_tensor.dtype(), 5, 8));
    tape.add_gradient(qkv_id, std::move(d_qkv));
  }
};

}  // namespace

Value attention(Tape& tape, const Value& qkv, std::int64_t heads, std::int64_t window,
                const TensorView& starts, bool causal, const AttentionScores& scores) {
  Sizes sizes = sizes_of(qkv, heads, window);
  sizes.starts = starts;
  sizes.causal = causal;
  sizes.scores = scores;
  Tensor lse = tape.activation(Shape{sizes.batch, sizes.heads, sizes.length}, DType::kFloat32,
                               "attention log-sum-exp");
  constexpr const char* kWhat = "attention output";
  const Shape out_shape = with_last_dim(qkv.shape(), sizes.heads * sizes.head_dim);
  Tensor out = tape.activation(out_shape, qkv.dtype(), kWhat);
  run_forward(tape, sizes, qkv.tensor, out, lse);
  if (!tape.recording()) return tape.split_output(std::move(out), nullptr);

  // The log-sum-exp is small and kept; remaking the output writes the same bits into it again.
  auto remake = tape.rematerialization([sizes, out_shape, saved = Saved(qkv), lse](Tape& t) {
    const Tensor qkv_tensor = saved.get();
    Tensor remade = t.activation(out_shape, qkv_tensor.dtype(), "recomputed attention output");
    run_forward(t, sizes, qkv_tensor, remade, lse);
    return remade;
  });
  AttentionBackward backward{.sizes = sizes,
                             .qkv_id = qkv.id,
                             .qkv = Saved(qkv),
                             .out = Saved(out, remake),
                             .lse = std::move(lse)};
  return tape.split_output(std::move(out), std::move(backward), std::move(remake));
}

Value cached_attention(Tape& tape, const Value& qkv, std::int64_t heads, std::int64_t window,
                       const KeyValueCache& cache, const AttentionScores& scores) {
  require(!tape.recording(), ErrorCode::kInvalidArgument,
          "cached_attention: keys and values are kept while nothing is recorded");
  const Sizes sizes = sizes_of(qkv, heads, window);
  require(sizes.batch == 1, ErrorCode::kInvalidArgument, "cached_attention: qkv ", qkv.shape(),
          " is of more than one sequence");
  const bool is_first = cache.positions == 0;
  const std::int64_t length = cache.positions + sizes.length;
  Tensor out;
  if (!is_first) {
    out = tape.activation(with_last_dim(qkv.shape(), sizes.heads * sizes.head_dim), qkv.dtype(),
                          "attention output");
  }
  const Shape rows{sizes.length, sizes.heads, sizes.head_dim};
  tape.kernels().cached_attention(
      {.qkv = qkv.tensor.view().reshape(Shape{sizes.length, 3, sizes.heads, sizes.head_dim}),
       .keys = cache.keys.narrow(1, 0, length),
       .values = cache.values.narrow(1, 0, length),
       .out = is_first ? TensorView() : out.view().reshape(rows),
       .window = window,
       .scores = scores},
      tape.stream());
  // Nothing was there: attention of a whole sequence is made for many rows.
  if (is_first) return attention(tape, qkv, heads, window, {}, true, scores);
  const auto keys = static_cast<double>(window == 0 ? length : std::min(window, length));
  const auto channels = static_cast<double>(sizes.heads * sizes.head_dim);
  tape.charge({.flops = 4.0 * static_cast<double>(sizes.length) * keys * channels,
               .bytes = 2.0 * keys * static_cast<double>(cache.keys.shape[0] * sizes.head_dim) *
                        static_cast<double>(size_of(qkv.dtype()))});
  return tape.output(std::move(out), nullptr);
}

}  // namespace tessera::ops

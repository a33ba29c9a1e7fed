#include "bench/kernel_cases.h"

#include <array>
#include <memory>
#include <utility>

#include "bench/gemm_cases.h"
#include "tessera/core/error.h"
#include "tessera/kernels/cuda_options.h"
#include "tessera/kernels/exact_sum.h"
#include "tessera/kernels/optimizer.h"

namespace tessera::bench {
namespace {

constexpr DType kFloat = DType::kFloat32;
constexpr std::int64_t kTokens = 1024, kChannels = 768, kHeads = 12, kHeadDim = 64;
constexpr std::int64_t kVocabulary = 50257, kVocabularyStride = 50304;
constexpr std::int64_t kLossRows = 256;                 // the head runs in chunks
constexpr std::int64_t kShard = std::int64_t{8} << 20;  // elements of a flat shard

/// Of a type of operands: what `make` gives for the lab.
using Prepare = std::function<PreparedKernel(KernelLab&)>;

Prepare layer_norm_forward(DType t) {
  return [t](KernelLab& lab) -> PreparedKernel {
    const auto rows = [&] { return lab.random({kTokens, kChannels}, t); };
    const Tensor x = rows(), residual = rows(), sum = rows(), y = rows();
    const Tensor gamma = lab.random({kChannels}, t), beta = lab.random({kChannels}, t);
    const Tensor mean = lab.empty({kTokens}, kFloat), rstd = lab.empty({kTokens}, kFloat);
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().layer_norm_forward({.x = x,
                                        .residual = residual,
                                        .sum = sum,
                                        .gamma = gamma,
                                        .beta = beta,
                                        .y = y,
                                        .mean = mean,
                                        .rstd = rstd},
                                       stream);
    };
    return {call, bytes_of({x, residual, sum, y, gamma, beta, mean, rstd})};
  };
}

Prepare layer_norm_backward(DType t) {
  return [t](KernelLab& lab) -> PreparedKernel {
    const auto rows = [&] { return lab.random({kTokens, kChannels}, t); };
    const Tensor dy = rows(), x = rows(), residual = rows(), dx = rows();
    const Tensor gamma = lab.random({kChannels}, t);
    const Tensor mean = lab.constant({kTokens}, kFloat, 0.0F);
    const Tensor rstd = lab.constant({kTokens}, kFloat, 1.0F);
    const Tensor dgamma = lab.empty({kChannels}, kFloat), dbeta = lab.empty({kChannels}, kFloat);
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().layer_norm_backward({.dy = dy,
                                         .x = x,
                                         .mean = mean,
                                         .rstd = rstd,
                                         .gamma = gamma,
                                         .d_residual = residual,
                                         .dx = dx,
                                         .dgamma = dgamma,
                                         .dbeta = dbeta},
                                        stream);
    };
    return {call, bytes_of({dy, x, residual, dx, gamma, mean, rstd, dgamma, dbeta})};
  };
}

/// GELU, SiLU: backward reads the input. ReLU's reads the output, in the same place.
template <typename Args>
Prepare activation_forward(void (*KernelTable::*kernel)(const Args&, Stream&), DType t) {
  return [=](KernelLab& lab) -> PreparedKernel {
    const Tensor x = lab.random({kTokens, 4 * kChannels}, t);
    const Tensor y = lab.random({kTokens, 4 * kChannels}, t);
    const auto call = [=, &lab](Stream& stream) {
      (lab.kernels().*kernel)(Args{.x = x, .y = y}, stream);
    };
    return {call, bytes_of({x, y})};
  };
}

template <typename Args>
Prepare activation_backward(void (*KernelTable::*kernel)(const Args&, Stream&), DType t) {
  return [=](KernelLab& lab) -> PreparedKernel {
    const auto rows = [&] { return lab.random({kTokens, 4 * kChannels}, t); };
    const Tensor saved = rows(), dy = rows(), dx = rows();
    const auto call = [=, &lab](Stream& stream) {
      (lab.kernels().*kernel)(Args{saved, dy, dx}, stream);
    };
    return {call, bytes_of({saved, dy, dx})};
  };
}

/// x (kTokens, 4 C) of gate and up.
Prepare swiglu(DType t, bool backward) {
  return [=](KernelLab& lab) -> PreparedKernel {
    const Tensor x = lab.random({kTokens, 4 * kChannels}, t);
    const Tensor y = lab.random({kTokens, 2 * kChannels}, t), dx = lab.random(x.shape(), t);
    const auto forward = [=, &lab](Stream& stream) {
      lab.kernels().swiglu_forward({.x = x, .y = y}, stream);
    };
    if (!backward) return {forward, bytes_of({x, y})};
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().swiglu_backward({.x = x, .dy = y, .dx = dx}, stream);
    };
    return {call, bytes_of({x, y, dx})};
  };
}

/// Of the input of an MLP's projection.
Prepare scale_columns(DType t, bool backward) {
  return [=](KernelLab& lab) -> PreparedKernel {
    const Tensor x = lab.random({kTokens, 4 * kChannels}, t), y = lab.random(x.shape(), t);
    const Tensor scale = lab.random({4 * kChannels}, t), dx = lab.empty(x.shape(), t);
    const Tensor d_scale = lab.empty({4 * kChannels}, kFloat);
    const auto forward = [=, &lab](Stream& stream) {
      lab.kernels().scale_columns_forward({.x = x, .scale = scale, .y = y}, stream);
    };
    if (!backward) return {forward, bytes_of({x, scale, y})};
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().scale_columns_backward(
          {.dy = y, .x = x, .scale = scale, .dx = dx, .d_scale = d_scale}, stream);
    };
    return {call, bytes_of({y, x, scale, dx, d_scale})};
  };
}

/// Three queries to a key, with norms or without.
Prepare heads(DType t, bool norms, bool backward) {
  return [=](KernelLab& lab) -> PreparedKernel {
    const Tensor packed = lab.random({1, kTokens, kHeads / 3 * 5, kHeadDim}, t);
    const Tensor qkv = lab.random({1, kTokens, 3, kHeads, kHeadDim}, t);
    const Tensor d_packed = lab.random(packed.shape(), t), gamma = lab.random({kHeadDim}, t);
    const Tensor dq_gamma = lab.empty({kHeadDim}, kFloat), dk_gamma = lab.empty({kHeadDim}, kFloat);
    const auto frequencies = std::make_shared<std::vector<float>>(kHeadDim / 2, 0.5F);
    const TensorView weight = norms ? gamma.view() : TensorView{};
    const auto forward = [=, &lab](Stream& stream) {
      lab.kernels().heads_forward({.packed = packed,
                                   .qkv = qkv,
                                   .q_gamma = weight,
                                   .k_gamma = weight,
                                   .frequencies = *frequencies},
                                  stream);
    };
    if (!backward) return {forward, bytes_of({packed, qkv})};
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().heads_backward({.d_qkv = qkv,
                                    .packed = packed,
                                    .d_packed = d_packed,
                                    .q_gamma = weight,
                                    .k_gamma = weight,
                                    .dq_gamma = norms ? dq_gamma.view() : TensorView{},
                                    .dk_gamma = norms ? dk_gamma.view() : TensorView{},
                                    .frequencies = *frequencies},
                                   stream);
    };
    return {call, bytes_of({qkv, d_packed}) + (norms ? bytes_of({packed}) : 0.0)};
  };
}

/// One query over keys and values that are kept, three queries to a key.
Prepare cached_attention(DType t, std::int64_t length) {
  return [=](KernelLab& lab) -> PreparedKernel {
    const Tensor qkv = lab.random({1, 3, kHeads, kHeadDim}, t);
    const Tensor keys = lab.random({kHeads / 3, length, kHeadDim}, t);
    const Tensor values = lab.random(keys.shape(), t);
    const Tensor out = lab.empty({1, kHeads, kHeadDim}, t);
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().cached_attention({.qkv = qkv, .keys = keys, .values = values, .out = out},
                                     stream);
    };
    return {call, bytes_of({qkv, keys, values, out})};
  };
}

Prepare attention(DType t, std::int64_t length, bool backward) {
  return [=](KernelLab& lab) -> PreparedKernel {
    const Shape qkv_shape{1, length, 3, kHeads, kHeadDim}, shape{1, length, kHeads, kHeadDim};
    const Tensor qkv = lab.random(qkv_shape, t), out = lab.random(shape, t);
    const Tensor lse = lab.empty({1, kHeads, length}, kFloat);
    const std::int64_t scratch =
        lab.on_gpu() ? cuda_attention_workspace_bytes({.batch = 1,
                                                       .length = length,
                                                       .heads = kHeads,
                                                       .head_dim = kHeadDim,
                                                       .dtype = t,
                                                       .backward = backward},
                                                      {})
                     : attention_workspace_bytes(1, length, kHeads, kHeadDim, t, lab.threads());
    const Tensor workspace = lab.empty({scratch}, DType::kUInt8);
    const auto forward = [=, &lab](Stream& stream) {
      lab.kernels().attention_forward({.qkv = qkv, .out = out, .lse = lse, .workspace = workspace},
                                      stream);
    };
    const double product = static_cast<double>(length * (length + 1) * kHeads * kHeadDim);
    if (!backward) return {forward, bytes_of({qkv, out, lse}), 2.0 * product, t};
    lab.seconds(forward, 1);
    const Tensor d_out = lab.random(shape, t), d_qkv = lab.empty(qkv_shape, t);
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().attention_backward({.d_out = d_out,
                                        .qkv = qkv,
                                        .out = out,
                                        .lse = lse,
                                        .d_qkv = d_qkv,
                                        .workspace = workspace},
                                       stream);
    };
    return {call, bytes_of({d_out, qkv, out, lse, d_qkv}), 5.0 * product, t};
  };
}

Prepare embedding_forward(DType t) {
  return [t](KernelLab& lab) -> PreparedKernel {
    const Tensor tokens = lab.tokens({1, kTokens}, kVocabulary);
    const Tensor wte = lab.random({kVocabulary, kChannels}, t);
    const Tensor wpe = lab.random({kTokens, kChannels}, t);
    const Tensor x = lab.empty({1, kTokens, kChannels}, t);
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().embedding_forward({.tokens = tokens, .wte = wte, .wpe = wpe, .x = x}, stream);
    };
    return {call, bytes_of({tokens, x, x, wpe})};  // of wte as many rows as x has
  };
}

/// As after the head, which has written all of dwte: to which the tokens' rows are added.
Prepare embedding_backward(DType t) {
  return [t](KernelLab& lab) -> PreparedKernel {
    const Tensor tokens = lab.tokens({1, kTokens}, kVocabulary);
    const Tensor dx = lab.random({1, kTokens, kChannels}, t);
    const Tensor dwte = lab.random({kVocabulary, kChannels}, kFloat);
    const Tensor dwpe = lab.random({kTokens, kChannels}, kFloat);
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().embedding_backward(
          {.tokens = tokens, .dx = dx, .dwte = dwte, .dwpe = dwpe, .accumulate_wte = true}, stream);
    };
    return {call, bytes_of({tokens, dx, dwpe, dwpe, dwpe})};
  };
}

Prepare dequantize(WeightFormat format, DType t) {
  return [=](KernelLab& lab) -> PreparedKernel {
    const Shape shape{8192, 4096};  // larger than caches: weights are read once per step
    const std::int64_t bytes = quantized_sizes(format, shape).bytes;
    const Tensor codes = lab.integers((bytes + 7) / 8, 0x3c3c3c3c3c3c3c3c);  // scales of 0.0115
    const Tensor dst = lab.empty(shape, t);
    const auto call = [=, &lab](Stream& stream) {
      const TensorView src(codes.view().data, DType::kUInt8, Shape{bytes});
      lab.kernels().dequantize({.format = format, .src = src, .dst = dst}, stream);
    };
    return {.call = call,
            .bytes = bytes_of({dst}) + static_cast<double>(bytes),
            .written = bytes_of({dst})};
  };
}

Prepare bias_gradient(DType t) {
  return [t](KernelLab& lab) -> PreparedKernel {
    const Tensor dy = lab.random({kTokens, 4 * kChannels}, t);
    const Tensor db = lab.constant({4 * kChannels}, kFloat, 0.0F);
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().bias_gradient({.dy = dy, .db = db, .accumulate = true}, stream);
    };
    return {call, bytes_of({dy, db, db})};
  };
}

Prepare dropout(DType t) {
  return [t](KernelLab& lab) -> PreparedKernel {
    const Tensor x = lab.random({kTokens, 4 * kChannels}, t);
    const Tensor y = lab.empty({kTokens, 4 * kChannels}, t);
    const Tensor key = lab.integers(kRandomKeyWords, 3);
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().dropout({.x = x, .y = y, .probability = 0.1F, .key = key}, stream);
    };
    return {call, bytes_of({x, y})};
  };
}

Prepare cross_entropy(DType t) {
  return [t](KernelLab& lab) -> PreparedKernel {
    const Tensor logits = lab.random({kLossRows, kVocabularyStride}, t);
    const Tensor targets = lab.tokens({kLossRows}, kVocabulary);
    const Tensor losses = lab.empty({kLossRows}, kFloat);
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().cross_entropy(
          {.logits = logits, .targets = targets, .losses = losses, .vocab_size = kVocabulary},
          stream);
    };
    return {call, bytes_of({logits, logits, targets, losses})};
  };
}

Prepare squared_error(DType t) {
  return [t](KernelLab& lab) -> PreparedKernel {
    const Tensor x = lab.random({kTokens, kChannels}, t);
    const Tensor targets = lab.random({kTokens, kChannels}, kFloat);
    const Tensor losses = lab.empty({kTokens}, kFloat);
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().squared_error({.x = x, .targets = targets, .losses = losses}, stream);
    };
    return {call, bytes_of({x, x, targets, losses})};
  };
}

/// The tensors of an optimizer's step on a flat shard.
struct OptimizerOperands {
  OptimizerOperands(KernelLab& lab, const Optimizer& optimizer, DType parameter_dtype)
      : master(lab.random({kShard}, kFloat, 0.02F)),
        gradient(lab.random({kShard}, kFloat, 1e-3F)),
        scale(lab.constant({1}, kFloat, 1.0F)),
        scalars(lab.constant({kOptimizerScalars}, kFloat, 1e-6F)) {
    if (parameter_dtype != kFloat) parameter = lab.empty({kShard}, parameter_dtype);
    const auto values = hyperparameter_values(optimizer);
    for (const OptimizerState& state : optimizer_states(optimizer, values)) {
      const Shape shape{kShard / state.block};
      states.push_back(state.dtype == kFloat ? lab.constant(shape, kFloat, 1e-6F)
                                             : lab.empty(shape, state.dtype));
      views.push_back(states.back());
    }
  }

  /// Master and states are read and written, the gradient is read, the parameter written.
  double bytes() const {
    double sum = bytes_of({master, master, gradient, parameter});
    for (const TensorView& state : views) sum += bytes_of({state, state});
    return sum;
  }

  Tensor master, gradient, parameter, scale, scalars;
  std::vector<Tensor> states;
  std::vector<TensorView> views;
  OptimizerSegment all{0, kShard, 0.1F};
};

Prepare optimizer_step(const Optimizer& optimizer, DType parameter_dtype) {
  return [&optimizer, parameter_dtype](KernelLab& lab) -> PreparedKernel {
    const auto o = std::make_shared<OptimizerOperands>(lab, optimizer, parameter_dtype);
    const auto call = [o, &lab, &optimizer](Stream& stream) {
      lab.kernels().optimizer_step({.optimizer = &optimizer,
                                    .master = o->master,
                                    .gradient = o->gradient,
                                    .states = o->views,
                                    .parameter = o->parameter,
                                    .segments = std::span(&o->all, 1),
                                    .scalars = o->scalars,
                                    .gradient_scale = o->scale},
                                   stream);
    };
    return {call, o->bytes()};
  };
}

Prepare exact_squares(DType t) {
  return [t](KernelLab& lab) -> PreparedKernel {
    const Tensor x = lab.random({kShard}, t), words = lab.integers(kExactSumWords, 0);
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().exact_squares({.x = x, .words = words}, stream);
    };
    return {call, bytes_of({x})};
  };
}

Prepare exact_sum() {
  return [](KernelLab& lab) -> PreparedKernel {
    const Tensor x = lab.random({kTokens}, kFloat), words = lab.integers(kExactSumWords, 0);
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().exact_sum({.x = x, .words = words}, stream);
    };
    return {call, bytes_of({x, words, words})};
  };
}

Prepare loss_scale() {
  return [](KernelLab& lab) -> PreparedKernel {
    const Tensor count = lab.integers(1, kTokens), scale = lab.empty({1}, kFloat);
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().loss_scale({.count = count, .scale = scale}, stream);
    };
    return {call, bytes_of({count, scale})};
  };
}

Prepare find_non_finite(DType t) {
  return [t](KernelLab& lab) -> PreparedKernel {
    const Tensor x = lab.random({kShard}, t), scaler = lab.integers(kLossScalerWords, 0);
    const Tensor squares = lab.integers(kExactSumWords, 1);  // as if there were one
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().find_non_finite({.x = x, .squares = squares, .scaler = scaler}, stream);
    };
    return {call, bytes_of({x})};
  };
}

Prepare update_loss_scaler() {
  return [](KernelLab& lab) -> PreparedKernel {
    const Tensor squares = lab.integers(kExactSumWords, 0), base = lab.integers(1, 0);
    const Tensor scaler = lab.integers(kLossScalerWords, 0);
    const Tensor candidates = lab.constant({2 * kOptimizerScalars}, kFloat, 1.0F);
    const Tensor scalars = lab.empty({kOptimizerScalars}, kFloat);
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().update_loss_scaler({.rule = {},
                                        .squares = squares,
                                        .scaler = scaler,
                                        .candidates = candidates,
                                        .base = base,
                                        .scalars = scalars},
                                       stream);
    };
    return {call, bytes_of({squares, scaler, scaler, candidates, base, scalars})};
  };
}

Prepare step_results() {
  return [](KernelLab& lab) -> PreparedKernel {
    const Tensor losses = lab.integers(kExactSumWords, 1);
    const Tensor squares = lab.integers(kExactSumWords, 1);
    const Tensor results = lab.empty({2}, DType::kFloat64), clip = lab.empty({1}, kFloat);
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().step_results({.losses = losses,
                                  .squares = squares,
                                  .clip_norm = 1.0,
                                  .results = results,
                                  .clip_factor = clip},
                                 stream);
    };
    return {call, bytes_of({losses, squares, results, clip})};
  };
}

Prepare ordered_sum(DType t, std::size_t count) {
  return [=](KernelLab& lab) -> PreparedKernel {
    std::vector<Tensor> sources;
    for (std::size_t i = 0; i < count; ++i) sources.push_back(lab.random({kShard}, t));
    const Tensor dst = lab.empty({kShard}, t);
    const auto call = [=, &lab](Stream& stream) {
      const std::vector<TensorView> views(sources.begin(), sources.end());
      lab.kernels().ordered_sum({.sources = views, .dst = dst}, stream);
    };
    return {call, bytes_of({dst}) * static_cast<double>(count + 1)};
  };
}

Prepare cast(DType from, DType to) {
  return [=](KernelLab& lab) -> PreparedKernel {
    const Tensor src = lab.random({kShard}, from), dst = lab.empty({kShard}, to);
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().cast({.src = src, .dst = dst}, stream);
    };
    return {call, bytes_of({src, dst})};
  };
}

Prepare add(DType t) {
  return [t](KernelLab& lab) -> PreparedKernel {
    const Tensor src = lab.random({kShard}, t), dst = lab.random({kShard}, t);
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().add({.src = src, .dst = dst}, stream);
    };
    return {call, bytes_of({src, dst, dst})};
  };
}

Prepare fill(DType t) {
  return [t](KernelLab& lab) -> PreparedKernel {
    const Tensor dst = lab.empty({kShard}, t);
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().fill({.dst = dst, .value = 2.0F}, stream);
    };
    return {.call = call, .bytes = bytes_of({dst}), .written = bytes_of({dst})};
  };
}

Prepare fill_normal() {
  return [](KernelLab& lab) -> PreparedKernel {
    const Tensor dst = lab.empty({kShard}, kFloat);
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().fill_normal({.dst = dst, .key = {1, 2}}, stream);
    };
    return {.call = call, .bytes = bytes_of({dst}), .written = bytes_of({dst})};
  };
}

Prepare multiply(DType t) {
  return [t](KernelLab& lab) -> PreparedKernel {
    const Tensor a = lab.random({kShard}, t), b = lab.random({kShard}, t),
                 y = lab.empty({kShard}, t);
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().multiply({.a = a, .b = b, .y = y}, stream);
    };
    return {call, bytes_of({a, b, y})};
  };
}

/// Of the scores of attention over 512 positions.
Prepare softmax(DType t, bool backward) {
  constexpr std::int64_t kColumns = 512;
  return [=](KernelLab& lab) -> PreparedKernel {
    const Shape shape{kShard / kColumns, kColumns};
    const Tensor x = lab.random(shape, t), y = lab.empty(shape, t);
    if (!backward) {
      const auto call = [=, &lab](Stream& stream) {
        lab.kernels().softmax_forward({.x = x, .y = y}, stream);
      };
      return {call, bytes_of({x, y})};
    }
    const Tensor dy = lab.random(shape, t);
    const auto call = [=, &lab](Stream& stream) {
      lab.kernels().softmax_backward({.y = x, .dy = dy, .dx = y}, stream);
    };
    return {call, bytes_of({x, dy, y})};
  };
}

Prepare mean_rows(DType t, bool backward) {
  constexpr std::int64_t kLength = 128, kWidth = 512;
  return [=](KernelLab& lab) -> PreparedKernel {
    const std::int64_t batch = kShard / (kLength * kWidth);
    const Tensor x = lab.random({batch, kLength, kWidth}, t), y = lab.random({batch, kWidth}, t);
    const auto call = [=, &lab](Stream& stream) {
      if (backward) {
        lab.kernels().mean_rows_backward({.dy = y, .dx = x}, stream);
      } else {
        lab.kernels().mean_rows_forward({.x = x, .y = y}, stream);
      }
    };
    return {call, bytes_of({x, y})};
  };
}

void add_layers(std::vector<KernelCase>& cases, DType t) {
  const std::string type = "/" + std::string(to_string(t));
  cases.insert(cases.end(),
               {{"bias_gradient" + type, bias_gradient(t)},
                {"layer_norm_forward" + type, layer_norm_forward(t)},
                {"layer_norm_backward" + type, layer_norm_backward(t)},
                {"gelu_forward" + type, activation_forward(&KernelTable::gelu_forward, t)},
                {"gelu_backward" + type, activation_backward(&KernelTable::gelu_backward, t)},
                {"silu_forward" + type, activation_forward(&KernelTable::silu_forward, t)},
                {"silu_backward" + type, activation_backward(&KernelTable::silu_backward, t)},
                {"relu_forward" + type, activation_forward(&KernelTable::relu_forward, t)},
                {"relu_backward" + type, activation_backward(&KernelTable::relu_backward, t)},
                {"multiply" + type, multiply(t)},
                {"softmax_forward" + type, softmax(t, false)},
                {"softmax_backward" + type, softmax(t, true)},
                {"mean_rows_forward" + type, mean_rows(t, false)},
                {"mean_rows_backward" + type, mean_rows(t, true)},
                {"swiglu_forward" + type, swiglu(t, false)},
                {"swiglu_backward" + type, swiglu(t, true)},
                {"scale_columns_forward" + type, scale_columns(t, false)},
                {"scale_columns_backward" + type, scale_columns(t, true)}});
  for (const bool norms : {false, true}) {
    const std::string with = norms ? "/norms" : "";
    cases.push_back({"heads_forward" + type + with, heads(t, norms, false)});
    cases.push_back({"heads_backward" + type + with, heads(t, norms, true)});
  }
  for (const std::int64_t length : {256, 1024, 4096}) {
    const std::string size = concat(type, "/length:", length);
    cases.push_back({"attention_forward" + size, attention(t, length, false)});
    cases.push_back({"attention_backward" + size, attention(t, length, true)});
    cases.push_back({"cached_attention" + size, cached_attention(t, length)});
  }
  cases.insert(cases.end(),
               {{"embedding_forward" + type, embedding_forward(t)},
                {"embedding_backward" + type, embedding_backward(t)},
                {"dropout" + type, dropout(t)},
                {"cross_entropy" + type, cross_entropy(t)},
                {"squared_error" + type, squared_error(t)},
                {"dequantize/nf4" + type, dequantize(WeightFormat::kNf4, t)},
                {"dequantize/nf4-double" + type, dequantize(WeightFormat::kNf4Double, t)},
                {"dequantize/int8" + type, dequantize(WeightFormat::kInt8, t)}});
}

/// Kernels of the training state, on flat shards.
void add_state(std::vector<KernelCase>& cases, DType t) {
  const std::string type = "/" + std::string(to_string(t));
  for (const Optimizer& optimizer : optimizers()) {
    cases.push_back({concat("optimizer_step/", optimizer.name, "/parameter:", to_string(t)),
                     optimizer_step(optimizer, t)});
  }
  cases.insert(cases.end(), {{"exact_squares" + type, exact_squares(t)},
                             {"find_non_finite" + type, find_non_finite(t)},
                             {"ordered_sum" + type + "/sources:2", ordered_sum(t, 2)},
                             {"ordered_sum" + type + "/sources:4", ordered_sum(t, 4)},
                             {"add" + type, add(t)},
                             {"fill" + type, fill(t)}});
}

}  // namespace

std::vector<KernelCase> kernel_cases() {
  std::vector<KernelCase> cases;
  for (const DType t : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (KernelCase& gemm : gemm_cases(kTokens, t)) cases.push_back(std::move(gemm));
    add_layers(cases, t);
  }
  for (const DType t : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) add_state(cases, t);
  cases.insert(cases.end(), {{"cast/fp32->bf16", cast(kFloat, DType::kBFloat16)},
                             {"cast/bf16->fp32", cast(DType::kBFloat16, kFloat)},
                             {"cast/fp32->fp16", cast(kFloat, DType::kFloat16)},
                             {"cast/fp16->fp32", cast(DType::kFloat16, kFloat)},
                             {"exact_sum/fp32", exact_sum()},
                             {"loss_scale/fp32", loss_scale()},
                             {"step_results/fp64", step_results()},
                             {"update_loss_scaler/fp32", update_loss_scaler()},
                             {"fill_normal/fp32", fill_normal()}});
  return cases;
}

}  // namespace tessera::bench

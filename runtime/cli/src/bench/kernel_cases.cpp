#include "bench/kernel_cases.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "bench/gemm_cases.h"
#include "tessera/core/error.h"
#include "tessera/kernels/cuda_options.h"
#include "tessera/kernels/exact_sum.h"
#include "tessera/kernels/optimizer.h"
#include "tessera/lab/kernel_calls.h"

namespace tessera::bench {
namespace {

constexpr DType kFloat = DType::kFloat32;
constexpr std::int64_t kTokens = 1024, kChannels = 768, kHeads = 12, kHeadDim = 64;
constexpr std::int64_t kVocabulary = 50257, kVocabularyStride = 50304;
constexpr std::int64_t kLossRows = 256;                 // the head runs in chunks
constexpr std::int64_t kShard = std::int64_t{8} << 20;  // elements of a flat shard

/// Tensors on a lab's device, which live as long as a copy of this.
struct Operands {
  KernelLab& lab;
  std::shared_ptr<std::vector<Tensor>> all = std::make_shared<std::vector<Tensor>>();

  TensorView keep(Tensor tensor) { return all->emplace_back(std::move(tensor)); }
  TensorView random(const Shape& shape, DType t, float stddev = 1.0F) {
    return keep(lab.random(shape, t, stddev));
  }
  TensorView empty(const Shape& shape, DType t) { return keep(lab.empty(shape, t)); }
  TensorView constant(const Shape& shape, float value) {
    return keep(lab.constant(shape, kFloat, value));
  }
  TensorView tokens(const Shape& shape) { return keep(lab.tokens(shape, kVocabulary)); }
  TensorView integers(std::int64_t n, std::int64_t value) { return keep(lab.integers(n, value)); }
};

template <typename Args>
using Kernel = KernelFunction<Args> KernelTable::*;

/// A call of a kernel whose bytes are given, of which `written` as in PreparedKernel.
template <typename Args>
PreparedKernel call_of(const Operands& o, Kernel<Args> kernel, const Args& args, double bytes,
                       double written = 0.0) {
  const auto call = [o, kernel, args](Stream& stream) { (o.lab.kernels().*kernel)(args, stream); };
  return {.call = call, .bytes = bytes, .written = written};
}

/// A call of a kernel of layers, whose bytes are those that the lab counts in a step.
template <typename Args>
PreparedKernel counted_call(const Operands& o, Kernel<Args> kernel, const Args& args) {
  double bytes = 0.0;
  const KernelTable recording = recording_kernels([&](const KernelCall& c) { bytes = c.bytes; });
  (recording.*kernel)(args, o.lab.stream());
  return call_of(o, kernel, args, bytes);
}

/// Makes a kernel's operands on a lab's device.
using Prepare = std::function<PreparedKernel(KernelLab&)>;

/// A kernel of layers; `make` gives its arguments of operands.
template <typename Args, typename Make>
Prepare counted(Kernel<Args> kernel, const Make& make) {
  return [=](KernelLab& lab) {
    Operands o{lab};
    return counted_call<Args>(o, kernel, make(o));
  };
}

const Shape kPacked{1, kTokens, kHeads / 3 * 5, kHeadDim};  // three queries to a key
const Shape kQkv{1, kTokens, 3, kHeads, kHeadDim};
const std::vector<float> kFrequencies(kHeadDim / 2, 0.5F);

/// One query over keys and values that are kept, three queries to a key.
Prepare cached_attention(DType t, std::int64_t length) {
  return [=](KernelLab& lab) {
    Operands o{lab};
    const Shape kept{kHeads / 3, length, kHeadDim};
    const CachedAttentionArgs args{.qkv = o.random({1, 3, kHeads, kHeadDim}, t),
                                   .keys = o.random(kept, t),
                                   .values = o.random(kept, t),
                                   .out = o.empty({1, kHeads, kHeadDim}, t)};
    return call_of(o, &KernelTable::cached_attention, args,
                   bytes_of({args.qkv, args.keys, args.values, args.out}));
  };
}

Prepare attention(DType t, std::int64_t length, bool backward) {
  return [=](KernelLab& lab) {
    Operands o{lab};
    const std::int64_t scratch =
        lab.on_gpu() ? cuda_attention_workspace_bytes({.batch = 1,
                                                       .length = length,
                                                       .heads = kHeads,
                                                       .head_dim = kHeadDim,
                                                       .dtype = t,
                                                       .backward = backward},
                                                      {})
                     : attention_workspace_bytes(1, length, kHeads, kHeadDim, t, lab.threads());
    const Shape qkv{1, length, 3, kHeads, kHeadDim}, out{1, length, kHeads, kHeadDim};
    const AttentionForwardArgs of{.qkv = o.random(qkv, t),
                                  .out = o.random(out, t),
                                  .lse = o.empty({1, kHeads, length}, kFloat),
                                  .workspace = o.empty({scratch}, DType::kUInt8)};
    PreparedKernel prepared = counted_call(o, &KernelTable::attention_forward, of);
    if (backward) {
      lab.seconds(prepared.call, 1);
      const AttentionBackwardArgs args{.d_out = o.random(out, t),
                                       .qkv = of.qkv,
                                       .out = of.out,
                                       .lse = of.lse,
                                       .d_qkv = o.empty(qkv, t),
                                       .workspace = of.workspace};
      prepared = counted_call(o, &KernelTable::attention_backward, args);
    }
    const double product = static_cast<double>(length * (length + 1) * kHeads * kHeadDim);
    prepared.flops = (backward ? 5.0 : 2.0) * product;
    prepared.dtype = t;
    return prepared;
  };
}

Prepare dequantize(WeightFormat format, DType t) {
  return [=](KernelLab& lab) {
    Operands o{lab};
    const Shape shape{8192, 4096};  // larger than caches: weights are read once per step
    const std::int64_t bytes = quantized_sizes(format, shape).bytes;
    const TensorView codes = o.integers((bytes + 7) / 8, 0x3c3c3c3c3c3c3c3c);  // scales of 0.0115
    const DequantizeArgs args{.format = format,
                              .src = TensorView(codes.data, DType::kUInt8, Shape{bytes}),
                              .dst = o.empty(shape, t)};
    return call_of(o, &KernelTable::dequantize, args, bytes_of({args.src, args.dst}),
                   bytes_of({args.dst}));
  };
}

Prepare bias_gradient(DType t) {
  return [=](KernelLab& lab) {
    Operands o{lab};
    const BiasGradientArgs args{.dy = o.random({kTokens, 4 * kChannels}, t),
                                .db = o.constant({4 * kChannels}, 0.0F),
                                .accumulate = true};
    return call_of(o, &KernelTable::bias_gradient, args, bytes_of({args.dy, args.db, args.db}));
  };
}

Prepare squared_error(DType t) {
  return [=](KernelLab& lab) {
    Operands o{lab};
    const SquaredErrorArgs args{.x = o.random({kTokens, kChannels}, t),
                                .targets = o.random({kTokens, kChannels}, kFloat),
                                .losses = o.empty({kTokens}, kFloat)};
    return call_of(o, &KernelTable::squared_error, args,
                   bytes_of({args.x, args.x, args.targets, args.losses}));
  };
}

/// A step on a flat shard: master and states are read and written, the gradient is read, the
/// parameter written.
Prepare optimizer_step(const Optimizer& optimizer, DType parameter_dtype) {
  return [&optimizer, parameter_dtype](KernelLab& lab) {
    Operands o{lab};
    static const OptimizerSegment all{0, kShard, 0.1F};
    OptimizerStepArgs args{.optimizer = &optimizer,
                           .master = o.random({kShard}, kFloat, 0.02F),
                           .gradient = o.random({kShard}, kFloat, 1e-3F),
                           .segments = std::span(&all, 1),
                           .scalars = o.constant({kOptimizerScalars}, 1e-6F),
                           .gradient_scale = o.constant({1}, 1.0F)};
    if (parameter_dtype != kFloat) args.parameter = o.empty({kShard}, parameter_dtype);
    double bytes = bytes_of({args.master, args.master, args.gradient, args.parameter});
    const auto views = std::make_shared<std::vector<TensorView>>();
    for (const OptimizerState& state :
         optimizer_states(optimizer, hyperparameter_values(optimizer))) {
      const Shape shape{kShard / state.block};
      views->push_back(state.dtype == kFloat ? o.constant(shape, 1e-6F)
                                             : o.empty(shape, state.dtype));
      bytes += 2.0 * bytes_of({views->back()});
    }
    args.states = *views;
    PreparedKernel prepared = call_of(o, &KernelTable::optimizer_step, args, bytes);
    prepared.call = [views, call = std::move(prepared.call)](Stream& stream) { call(stream); };
    return prepared;
  };
}

Prepare exact_squares(DType t) {
  return [=](KernelLab& lab) {
    Operands o{lab};
    const ExactSquaresArgs args{.x = o.random({kShard}, t), .words = o.integers(kExactSumWords, 0)};
    return call_of(o, &KernelTable::exact_squares, args, bytes_of({args.x}));
  };
}

Prepare exact_sum() {
  return [](KernelLab& lab) {
    Operands o{lab};
    const ExactSumArgs args{.x = o.random({kTokens}, kFloat),
                            .words = o.integers(kExactSumWords, 0)};
    return call_of(o, &KernelTable::exact_sum, args, bytes_of({args.x, args.words, args.words}));
  };
}

Prepare loss_scale() {
  return [](KernelLab& lab) {
    Operands o{lab};
    const LossScaleArgs args{.count = o.integers(1, kTokens), .scale = o.empty({1}, kFloat)};
    return call_of(o, &KernelTable::loss_scale, args, bytes_of({args.count, args.scale}));
  };
}

Prepare find_non_finite(DType t) {
  return [=](KernelLab& lab) {
    Operands o{lab};
    const FindNonFiniteArgs args{.x = o.random({kShard}, t),
                                 .squares = o.integers(kExactSumWords, 1),  // as if there were one
                                 .scaler = o.integers(kLossScalerWords, 0)};
    return call_of(o, &KernelTable::find_non_finite, args, bytes_of({args.x}));
  };
}

Prepare update_loss_scaler() {
  return [](KernelLab& lab) {
    Operands o{lab};
    const UpdateLossScalerArgs a{.rule = {},
                                 .squares = o.integers(kExactSumWords, 0),
                                 .scaler = o.integers(kLossScalerWords, 0),
                                 .candidates = o.constant({2 * kOptimizerScalars}, 1.0F),
                                 .base = o.integers(1, 0),
                                 .scalars = o.empty({kOptimizerScalars}, kFloat)};
    return call_of(o, &KernelTable::update_loss_scaler, a,
                   bytes_of({a.squares, a.scaler, a.scaler, a.candidates, a.base, a.scalars}));
  };
}

Prepare step_results() {
  return [](KernelLab& lab) {
    Operands o{lab};
    const StepResultsArgs a{.losses = o.integers(kExactSumWords, 1),
                            .squares = o.integers(kExactSumWords, 1),
                            .clip_norm = 1.0,
                            .results = o.empty({2}, DType::kFloat64),
                            .clip_factor = o.empty({1}, kFloat)};
    return call_of(o, &KernelTable::step_results, a,
                   bytes_of({a.losses, a.squares, a.results, a.clip_factor}));
  };
}

Prepare ordered_sum(DType t, std::size_t count) {
  return [=](KernelLab& lab) -> PreparedKernel {
    Operands o{lab};
    std::vector<TensorView> sources;
    for (std::size_t i = 0; i < count; ++i) sources.push_back(o.random({kShard}, t));
    const TensorView dst = o.empty({kShard}, t);
    const auto call = [o, sources, dst](Stream& stream) {
      o.lab.kernels().ordered_sum({.sources = sources, .dst = dst}, stream);
    };
    return {call, bytes_of({dst}) * static_cast<double>(count + 1)};
  };
}

Prepare cast(DType from, DType to) {
  return counted(&KernelTable::cast, [=](Operands& o) {
    return CastArgs{.src = o.random({kShard}, from), .dst = o.empty({kShard}, to)};
  });
}

Prepare fill(DType t) {
  return [t](KernelLab& lab) {
    Operands o{lab};
    const FillArgs args{.dst = o.empty({kShard}, t), .value = 2.0F};
    return call_of(o, &KernelTable::fill, args, bytes_of({args.dst}), bytes_of({args.dst}));
  };
}

const Shape kSequences{kShard / (128 * 512), 128, 512}, kMeans{kShard / (128 * 512), 512};

/// A list of kernels of layers, to which those of one type of operands are added.
struct Cases {
  std::vector<KernelCase>& all;
  DType t;

  /// `make` gives the kernel's arguments of operands.
  template <typename Args, typename Make>
  void add(const std::string& name, Kernel<Args> kernel, const Make& make) const {
    all.push_back({name, counted(kernel, make)});
    all.back().name.insert(std::min(name.find('/'), name.size()), concat("/", to_string(t)));
  }
};

void add_rows(Cases to, DType t) {
  to.add("layer_norm_forward", &KernelTable::layer_norm_forward, [t](Operands& o) {
    const auto rows = [&] { return o.random({kTokens, kChannels}, t); };
    return LayerNormForwardArgs{.x = rows(),
                                .residual = rows(),
                                .sum = rows(),
                                .gamma = o.random({kChannels}, t),
                                .beta = o.random({kChannels}, t),
                                .y = rows(),
                                .mean = o.empty({kTokens}, kFloat),
                                .rstd = o.empty({kTokens}, kFloat)};
  });
  to.add("layer_norm_backward", &KernelTable::layer_norm_backward, [t](Operands& o) {
    const auto rows = [&] { return o.random({kTokens, kChannels}, t); };
    return LayerNormBackwardArgs{.dy = rows(),
                                 .x = rows(),
                                 .mean = o.constant({kTokens}, 0.0F),
                                 .rstd = o.constant({kTokens}, 1.0F),
                                 .gamma = o.random({kChannels}, t),
                                 .d_residual = rows(),
                                 .dx = rows(),
                                 .dgamma = o.empty({kChannels}, kFloat),
                                 .dbeta = o.empty({kChannels}, kFloat)};
  });
  // The columns of an MLP's projection input are scaled.
  to.add("scale_columns_forward", &KernelTable::scale_columns_forward, [t](Operands& o) {
    const Shape shape{kTokens, 4 * kChannels};
    return ScaleColumnsForwardArgs{
        .x = o.random(shape, t), .scale = o.random({4 * kChannels}, t), .y = o.random(shape, t)};
  });
  to.add("scale_columns_backward", &KernelTable::scale_columns_backward, [t](Operands& o) {
    const Shape shape{kTokens, 4 * kChannels};
    return ScaleColumnsBackwardArgs{.dy = o.random(shape, t),
                                    .x = o.random(shape, t),
                                    .scale = o.random({4 * kChannels}, t),
                                    .dx = o.empty(shape, t),
                                    .d_scale = o.empty({4 * kChannels}, kFloat)};
  });
  // The rows are scores of attention over 512 positions.
  to.add("softmax_forward", &KernelTable::softmax_forward, [t](Operands& o) {
    return SoftmaxForwardArgs{.x = o.random({kShard / 512, 512}, t),
                              .y = o.empty({kShard / 512, 512}, t)};
  });
  to.add("softmax_backward", &KernelTable::softmax_backward, [t](Operands& o) {
    const Shape shape{kShard / 512, 512};
    return SoftmaxBackwardArgs{
        .y = o.random(shape, t), .dy = o.random(shape, t), .dx = o.empty(shape, t)};
  });
  to.add("mean_rows_forward", &KernelTable::mean_rows_forward, [t](Operands& o) {
    return MeanRowsForwardArgs{.x = o.random(kSequences, t), .y = o.random(kMeans, t)};
  });
  to.add("mean_rows_backward", &KernelTable::mean_rows_backward, [t](Operands& o) {
    return MeanRowsBackwardArgs{.dy = o.random(kMeans, t), .dx = o.random(kSequences, t)};
  });
}

/// Backward reads the input; ReLU's the output, in the same place.
void add_activations(Cases to, DType t) {
  const Shape shape{kTokens, 4 * kChannels};
  const auto forward = [&]<typename Args>(const char* name, Kernel<Args> kernel) {
    to.add(name, kernel, [=](Operands& o) { return Args{o.random(shape, t), o.random(shape, t)}; });
  };
  const auto backward = [&]<typename Args>(const char* name, Kernel<Args> kernel) {
    to.add(name, kernel, [=](Operands& o) {
      return Args{o.random(shape, t), o.random(shape, t), o.random(shape, t)};
    });
  };
  forward("gelu_forward", &KernelTable::gelu_forward);
  backward("gelu_backward", &KernelTable::gelu_backward);
  forward("silu_forward", &KernelTable::silu_forward);
  backward("silu_backward", &KernelTable::silu_backward);
  forward("relu_forward", &KernelTable::relu_forward);
  backward("relu_backward", &KernelTable::relu_backward);
  // x (kTokens, 4 C) has gate and up.
  to.add("swiglu_forward", &KernelTable::swiglu_forward, [t](Operands& o) {
    return SwigluForwardArgs{.x = o.random({kTokens, 4 * kChannels}, t),
                             .y = o.random({kTokens, 2 * kChannels}, t)};
  });
  to.add("swiglu_backward", &KernelTable::swiglu_backward, [t](Operands& o) {
    const Shape wide{kTokens, 4 * kChannels};
    return SwigluBackwardArgs{.x = o.random(wide, t),
                              .dy = o.random({kTokens, 2 * kChannels}, t),
                              .dx = o.random(wide, t)};
  });
  to.add("soft_cap", &KernelTable::soft_cap, [=](Operands& o) {
    return SoftCapArgs{.x = o.random(shape, t), .y = o.empty(shape, t), .cap = 30.0F};
  });
  to.add("dropout", &KernelTable::dropout, [t](Operands& o) {
    return DropoutArgs{.x = o.random({kTokens, 4 * kChannels}, t),
                       .y = o.empty({kTokens, 4 * kChannels}, t),
                       .probability = 0.1F,
                       .key = o.integers(kRandomKeyWords, 3)};
  });
  to.add("multiply", &KernelTable::multiply, [t](Operands& o) {
    return MultiplyArgs{
        .a = o.random({kShard}, t), .b = o.random({kShard}, t), .y = o.empty({kShard}, t)};
  });
}

void add_heads(Cases to, DType t, bool norms) {
  const std::string with = norms ? "/norms" : "";
  to.add("heads_forward" + with, &KernelTable::heads_forward, [=](Operands& o) {
    HeadsForwardArgs args{
        .packed = o.random(kPacked, t), .qkv = o.random(kQkv, t), .frequencies = kFrequencies};
    if (norms) args.q_gamma = args.k_gamma = o.random({kHeadDim}, t);
    return args;
  });
  to.add("heads_backward" + with, &KernelTable::heads_backward, [=](Operands& o) {
    HeadsBackwardArgs args{
        .d_qkv = o.random(kQkv, t), .d_packed = o.random(kPacked, t), .frequencies = kFrequencies};
    if (!norms) return args;
    args.packed = o.random(kPacked, t);
    args.q_gamma = args.k_gamma = o.random({kHeadDim}, t);
    args.dq_gamma = o.empty({kHeadDim}, kFloat);
    args.dk_gamma = o.empty({kHeadDim}, kFloat);
    return args;
  });
}

void add_ends(Cases to, DType t) {
  to.add("embedding_forward", &KernelTable::embedding_forward, [t](Operands& o) {
    return EmbeddingForwardArgs{.tokens = o.tokens({1, kTokens}),
                                .wte = o.random({kVocabulary, kChannels}, t),
                                .wpe = o.random({kTokens, kChannels}, t),
                                .x = o.empty({1, kTokens, kChannels}, t)};
  });
  // The head has written all of dwte before, and the tokens' rows are added to it.
  to.add("embedding_backward", &KernelTable::embedding_backward, [t](Operands& o) {
    return EmbeddingBackwardArgs{.tokens = o.tokens({1, kTokens}),
                                 .dx = o.random({1, kTokens, kChannels}, t),
                                 .dwte = o.random({kVocabulary, kChannels}, kFloat),
                                 .dwpe = o.random({kTokens, kChannels}, kFloat),
                                 .accumulate_wte = true};
  });
  to.add("cross_entropy", &KernelTable::cross_entropy, [t](Operands& o) {
    return CrossEntropyArgs{.logits = o.random({kLossRows, kVocabularyStride}, t),
                            .targets = o.tokens({kLossRows}),
                            .losses = o.empty({kLossRows}, kFloat),
                            .vocab_size = kVocabulary};
  });
}

void add_layers(std::vector<KernelCase>& cases, DType t) {
  const std::string type = "/" + std::string(to_string(t));
  const Cases to{cases, t};
  add_rows(to, t);
  add_activations(to, t);
  for (const bool norms : {false, true}) add_heads(to, t, norms);
  for (const std::int64_t length : {256, 1024, 4096}) {
    const std::string size = concat(type, "/length:", length);
    cases.push_back({"attention_forward" + size, attention(t, length, false)});
    cases.push_back({"attention_backward" + size, attention(t, length, true)});
    cases.push_back({"cached_attention" + size, cached_attention(t, length)});
  }
  add_ends(to, t);
  cases.insert(cases.end(),
               {{"bias_gradient" + type, bias_gradient(t)},
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
  Cases{cases, t}.add("add", &KernelTable::add, [t](Operands& o) {
    return AddArgs{.src = o.random({kShard}, t), .dst = o.random({kShard}, t)};
  });
  cases.insert(cases.end(), {{"exact_squares" + type, exact_squares(t)},
                             {"find_non_finite" + type, find_non_finite(t)},
                             {"ordered_sum" + type + "/sources:2", ordered_sum(t, 2)},
                             {"ordered_sum" + type + "/sources:4", ordered_sum(t, 4)},
                             {"fill" + type, fill(t)}});
}

}  // namespace

std::vector<KernelCase> kernel_cases() {
  std::vector<KernelCase> cases;
  for (const DType t : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (KernelCase& gemm : gemm_cases(kTokens, t)) cases.push_back(std::move(gemm));
    add_layers(cases, t);
    add_state(cases, t);
  }
  cases.insert(cases.end(),
               {{"cast/fp32->bf16", cast(kFloat, DType::kBFloat16)},
                {"cast/bf16->fp32", cast(DType::kBFloat16, kFloat)},
                {"cast/fp32->fp16", cast(kFloat, DType::kFloat16)},
                {"cast/fp16->fp32", cast(DType::kFloat16, kFloat)},
                {"exact_sum/fp32", exact_sum()},
                {"loss_scale/fp32", loss_scale()},
                {"step_results/fp64", step_results()},
                {"update_loss_scaler/fp32", update_loss_scaler()},
                {"fill_normal/fp32", [](KernelLab& lab) {
                   Operands o{lab};
                   const FillNormalArgs args{.dst = o.empty({kShard}, kFloat), .key = {1, 2}};
                   const double bytes = bytes_of({args.dst});
                   return call_of(o, &KernelTable::fill_normal, args, bytes, bytes);
                 }}});
  return cases;
}

}  // namespace tessera::bench

#include "bench/kernel_cases.h"

#include <algorithm>
#include <utility>

#include "bench/kernel_operands.h"
#include "tessera/kernels/cuda_options.h"

namespace tessera::bench {
namespace {

constexpr DType kFloat = DType::kFloat32;
constexpr std::int64_t kHeadDim = 64;
const std::vector<float> kFrequencies(kHeadDim / 2, 0.5F);

Shape packed(const Operands& o) {  // three queries to a key
  return {o.size.batch, o.size.length, o.size.heads / 3 * 5, kHeadDim};
}
Shape qkv(const Operands& o, std::int64_t length) {
  return {o.size.batch, length, 3, o.size.heads, kHeadDim};
}
Shape scores(const Operands& o) { return {o.size.shard / 512, 512}; }  // over 512 positions
Shape sequences(const Operands& o) { return {o.size.shard / (128 * 512), 128, 512}; }
Shape means(const Operands& o) { return {o.size.shard / (128 * 512), 512}; }
Shape token_ids(const Operands& o) { return {o.size.batch, o.size.length}; }
Shape embedded(const Operands& o) { return {o.size.batch, o.size.length, o.size.channels}; }
Shape turned(const Operands& o) { return {4 * o.size.channels, o.size.tokens()}; }  // hidden()
Shape half_hidden(const Operands& o) { return {o.size.tokens(), 2 * o.size.channels}; }

/// The scratch of a pass of attention, as the device's kernels are set to run it.
std::int64_t attention_scratch(KernelLab& lab, DType t, std::int64_t length, bool backward,
                               bool documents) {
  const KernelSizes& size = lab.sizes();
  auto* const stream = dynamic_cast<CudaStream*>(&lab.stream());
  if (stream == nullptr) {
    return attention_workspace_bytes(size.batch, length, size.heads, kHeadDim, t, lab.threads());
  }
  return cuda_attention_workspace_bytes({.batch = size.batch,
                                         .length = length,
                                         .heads = size.heads,
                                         .head_dim = kHeadDim,
                                         .dtype = t,
                                         .backward = backward,
                                         .documents = documents},
                                        cuda_attention(*stream).options);
}

/// Products of scores over the documents of packed sequences, each causal.
double attention_flops(const std::vector<std::vector<std::int64_t>>& documents, std::int64_t heads,
                       double products) {
  double squares = 0.0;
  for (const std::vector<std::int64_t>& of_sequence : documents) {
    for (const std::int64_t n : of_sequence) squares += static_cast<double>(n * n);
  }
  return products * squares * static_cast<double>(heads * kHeadDim);
}

/// Attention of decoders is causal, over whole sequences or over the documents that are packed into
/// them: then FLOPs are those of the documents' own scores. Of encoders it is not, and knows where
/// texts end: here behind the last position, so that nothing is left out.
enum class AttentionOver { kSequences, kDocuments, kTextsOfEncoder };

PreparedKernel attention(KernelLab& lab, DType t, std::int64_t length, bool backward,
                         AttentionOver over) {
  Operands o{lab};
  const bool documents = over == AttentionOver::kDocuments;
  const bool causal = over != AttentionOver::kTextsOfEncoder;
  const std::int64_t scratch = attention_scratch(lab, t, length, backward, documents);
  const auto packed = packed_documents(o.size.batch, length);
  TensorView starts;
  if (documents) starts = o.keep(lab.document_starts(packed));
  if (!causal) {  // zeros, as fp32 and as int32
    const TensorView zeros = o.constant({o.size.batch, length}, 0.0F);
    starts = TensorView(zeros.data, DType::kInt32, zeros.shape);
  }
  const Shape in = qkv(o, length), out{o.size.batch, length, o.size.heads, kHeadDim};
  const AttentionForwardArgs of{.qkv = o.random(in, t),
                                .out = o.random(out, t),
                                .lse = o.empty({o.size.batch, o.size.heads, length}, kFloat),
                                .workspace = o.empty({scratch}, DType::kUInt8),
                                .starts = starts,
                                .causal = causal};
  const auto of_documents = [&](PreparedKernel kernel, double products) {
    if (!documents) return kernel;
    kernel.flops = attention_flops(packed, o.size.heads, products);
    kernel.bytes += bytes_of({starts});
    return kernel;
  };
  const PreparedKernel forward =
      of_documents(counted_call(o, &KernelTable::attention_forward, of), 2.0);
  if (!backward) return forward;
  lab.seconds(forward.call, 1);
  return of_documents(counted_call(o, &KernelTable::attention_backward,
                                   AttentionBackwardArgs{.d_out = o.random(out, t),
                                                         .qkv = of.qkv,
                                                         .out = of.out,
                                                         .lse = of.lse,
                                                         .d_qkv = o.empty(in, t),
                                                         .workspace = of.workspace,
                                                         .starts = starts,
                                                         .causal = causal}),
                      5.0);
}

void add_attention(Cases to, DType t) {
  for (const std::int64_t length : {2048, 4096}) {
    for (const bool backward : {false, true}) {
      to.add(concat(backward ? "attention_backward" : "attention_forward", "/length:", length,
                    "/documents"),
             [=](KernelLab& lab) {
               return attention(lab, t, length, backward, AttentionOver::kDocuments);
             });
    }
  }
  for (const std::int64_t length : {256, 1024, 4096}) {
    for (const bool backward : {false, true}) {
      to.add(concat(backward ? "attention_backward" : "attention_forward", "/length:", length),
             [=](KernelLab& lab) {
               return attention(lab, t, length, backward, AttentionOver::kSequences);
             });
      to.add(concat("encoder_attention_", backward ? "backward" : "forward", "/length:", length),
             [=](KernelLab& lab) {
               return attention(lab, t, length, backward, AttentionOver::kTextsOfEncoder);
             });
    }
    // One query over keys and values that are kept, three queries to a key.
    to.add(
        concat("cached_attention/length:", length), &KernelTable::cached_attention,
        [=](Operands& o) {
          const Shape kept{o.size.heads / 3, length, kHeadDim};
          return CachedAttentionArgs{.qkv = o.random({1, 3, o.size.heads, kHeadDim}, t),
                                     .keys = o.random(kept, t),
                                     .values = o.random(kept, t),
                                     .out = o.empty({1, o.size.heads, kHeadDim}, t)};
        },
        [](const CachedAttentionArgs& a) {
          return bytes_of({a.qkv, a.keys, a.values, a.out});
        });
  }
}

PreparedKernel dequantize(KernelLab& lab, WeightFormat format, DType t) {
  Operands o{lab};
  const Shape shape{8192, 4096};  // larger than caches: weights are read once per step
  const std::int64_t bytes = quantized_sizes(format, shape).bytes;
  const TensorView codes = o.integers((bytes + 7) / 8, 0x3c3c3c3c3c3c3c3c);  // scales of 0.0115
  const DequantizeArgs args{.format = format,
                            .src = TensorView(codes.data, DType::kUInt8, Shape{bytes}),
                            .dst = o.empty(shape, t)};
  return call_of(o, &KernelTable::dequantize, args, bytes_of({args.src, args.dst}),
                 bytes_of({args.dst}));
}

/// Where a largest magnitude is: that of 1.0.
TensorView magnitude_word(Operands& o) {
  return TensorView(o.integers(1, 0x3f800000).data, DType::kInt32, Shape{1});
}

/// `leaves`: with what fp8 and biases need of their results.
void add_norms(Cases to, DType t, bool leaves) {
  const std::string amax = leaves ? "/amax" : "", sums = leaves ? "/amax,sums" : "";
  to.add("layer_norm_forward" + amax, &KernelTable::layer_norm_forward, [=](Operands& o) {
    const auto rows = [&] { return o.random(o.rows(), t); };
    return LayerNormForwardArgs{.x = rows(),
                                .residual = rows(),
                                .sum = rows(),
                                .gamma = o.random({o.size.channels}, t),
                                .beta = o.random({o.size.channels}, t),
                                .y = rows(),
                                .mean = o.empty({o.size.tokens()}, kFloat),
                                .rstd = o.empty({o.size.tokens()}, kFloat),
                                .amax = leaves ? magnitude_word(o) : TensorView()};
  });
  to.add("layer_norm_backward" + sums, &KernelTable::layer_norm_backward, [=](Operands& o) {
    const auto rows = [&] { return o.random(o.rows(), t); };
    return LayerNormBackwardArgs{
        .dy = rows(),
        .x = rows(),
        .mean = o.constant({o.size.tokens()}, 0.0F),
        .rstd = o.constant({o.size.tokens()}, 1.0F),
        .gamma = o.random({o.size.channels}, t),
        .d_residual = rows(),
        .dx = rows(),
        .dgamma = o.empty({o.size.channels}, kFloat),
        .dbeta = o.empty({o.size.channels}, kFloat),
        .amax = leaves ? magnitude_word(o) : TensorView(),
        .dx_sums = leaves ? o.empty({o.size.channels}, kFloat) : TensorView()};
  });
}

void add_rows(Cases to, DType t) {
  for (const bool leaves : {false, true}) add_norms(to, t, leaves);
  // The columns of an MLP's projection input are scaled.
  to.add("scale_columns_forward", &KernelTable::scale_columns_forward, [t](Operands& o) {
    const Shape shape = o.hidden();
    return ScaleColumnsForwardArgs{.x = o.random(shape, t),
                                   .scale = o.random({4 * o.size.channels}, t),
                                   .y = o.random(shape, t)};
  });
  to.add("scale_columns_backward", &KernelTable::scale_columns_backward, [t](Operands& o) {
    const Shape shape = o.hidden();
    return ScaleColumnsBackwardArgs{.dy = o.random(shape, t),
                                    .x = o.random(shape, t),
                                    .scale = o.random({4 * o.size.channels}, t),
                                    .dx = o.empty(shape, t),
                                    .d_scale = o.empty({4 * o.size.channels}, kFloat)};
  });
  to.add("softmax_forward", &KernelTable::softmax_forward, [t](Operands& o) {
    return SoftmaxForwardArgs{.x = o.random(scores(o), t), .y = o.empty(scores(o), t)};
  });
  to.add("softmax_backward", &KernelTable::softmax_backward, [t](Operands& o) {
    const Shape shape = scores(o);
    return SoftmaxBackwardArgs{
        .y = o.random(shape, t), .dy = o.random(shape, t), .dx = o.empty(shape, t)};
  });
  to.add("mean_rows_forward", &KernelTable::mean_rows_forward, [t](Operands& o) {
    return MeanRowsForwardArgs{.x = o.random(sequences(o), t), .y = o.random(means(o), t)};
  });
  to.add("mean_rows_backward", &KernelTable::mean_rows_backward, [t](Operands& o) {
    return MeanRowsBackwardArgs{.dy = o.random(means(o), t), .dx = o.random(sequences(o), t)};
  });
}

/// Backward reads the input; ReLU's the output, in the same place.
void add_activations(Cases to, DType t) {
  const auto forward = [&]<typename Args>(const char* name, Kernel<Args> kernel) {
    to.add(name, kernel, [=](Operands& o) {
      return Args{o.random(o.hidden(), t), o.random(o.hidden(), t)};
    });
  };
  const auto backward = [&]<typename Args>(const char* name, Kernel<Args> kernel) {
    to.add(name, kernel, [=](Operands& o) {
      return Args{o.random(o.hidden(), t), o.random(o.hidden(), t), o.random(o.hidden(), t)};
    });
  };
  forward("gelu_forward", &KernelTable::gelu_forward);
  backward("gelu_backward", &KernelTable::gelu_backward);
  to.add("gelu_backward/amax", &KernelTable::gelu_backward, [=](Operands& o) {
    const auto hidden = [&] { return o.random(o.hidden(), t); };
    return GeluBackwardArgs{
        .x = hidden(), .dy = hidden(), .dx = hidden(), .amax = magnitude_word(o)};
  });
  forward("silu_forward", &KernelTable::silu_forward);
  backward("silu_backward", &KernelTable::silu_backward);
  forward("relu_forward", &KernelTable::relu_forward);
  backward("relu_backward", &KernelTable::relu_backward);
  // x (T, 4 C) has gate and up.
  to.add("swiglu_forward", &KernelTable::swiglu_forward, [t](Operands& o) {
    return SwigluForwardArgs{.x = o.random(o.hidden(), t), .y = o.random(half_hidden(o), t)};
  });
  to.add("swiglu_backward", &KernelTable::swiglu_backward, [t](Operands& o) {
    const Shape wide = o.hidden();
    return SwigluBackwardArgs{
        .x = o.random(wide, t), .dy = o.random(half_hidden(o), t), .dx = o.random(wide, t)};
  });
  to.add("soft_cap", &KernelTable::soft_cap, [=](Operands& o) {
    return SoftCapArgs{.x = o.random(o.hidden(), t), .y = o.empty(o.hidden(), t), .cap = 30.0F};
  });
  to.add("dropout", &KernelTable::dropout, [t](Operands& o) {
    return DropoutArgs{.x = o.random(o.hidden(), t),
                       .y = o.empty(o.hidden(), t),
                       .probability = 0.1F,
                       .key = o.integers(kRandomKeyWords, 3)};
  });
  to.add("multiply", &KernelTable::multiply, [t](Operands& o) {
    return MultiplyArgs{
        .a = o.random(o.shard(), t), .b = o.random(o.shard(), t), .y = o.empty(o.shard(), t)};
  });
}

/// An activation's largest magnitude, its codes in E4M3, and back.
void add_fp8(Cases to, DType t) {
  const auto magnitude = magnitude_word;
  to.add("amax", &KernelTable::amax,
         [=](Operands& o) { return AmaxArgs{.x = o.random(o.hidden(), t), .amax = magnitude(o)}; });
  to.add("fp8_encode", &KernelTable::fp8_encode, [=](Operands& o) {
    return Fp8EncodeArgs{.x = o.random(o.hidden(), t),
                         .amax = magnitude(o),
                         .codes = o.empty(o.hidden(), DType::kUInt8)};
  });
  to.add("fp8_encode/transposed", &KernelTable::fp8_encode, [=](Operands& o) {
    return Fp8EncodeArgs{.x = o.random(o.hidden(), t),
                         .amax = magnitude(o),
                         .codes = o.empty(o.hidden(), DType::kUInt8),
                         .transposed = o.empty(turned(o), DType::kUInt8)};
  });
  to.add("fp8_decode", &KernelTable::fp8_decode, [=](Operands& o) {
    return Fp8DecodeArgs{.codes = o.empty(o.hidden(), DType::kUInt8),
                         .amax = magnitude(o),
                         .y = o.empty(o.hidden(), t)};
  });
}

void add_heads(Cases to, DType t, bool norms) {
  const std::string with = norms ? "/norms" : "";
  to.add("heads_forward" + with, &KernelTable::heads_forward, [=](Operands& o) {
    HeadsForwardArgs args{.packed = o.random(packed(o), t),
                          .qkv = o.random(qkv(o, o.size.length), t),
                          .frequencies = kFrequencies};
    if (norms) args.q_gamma = args.k_gamma = o.random({kHeadDim}, t);
    return args;
  });
  to.add("heads_backward" + with, &KernelTable::heads_backward, [=](Operands& o) {
    HeadsBackwardArgs args{.d_qkv = o.random(qkv(o, o.size.length), t),
                           .d_packed = o.random(packed(o), t),
                           .frequencies = kFrequencies};
    if (!norms) return args;
    args.packed = o.random(packed(o), t);
    args.q_gamma = args.k_gamma = o.random({kHeadDim}, t);
    args.dq_gamma = o.empty({kHeadDim}, kFloat);
    args.dk_gamma = o.empty({kHeadDim}, kFloat);
    return args;
  });
}

void add_ends(Cases to, DType t) {
  to.add("embedding_forward", &KernelTable::embedding_forward, [t](Operands& o) {
    return EmbeddingForwardArgs{.tokens = o.tokens(token_ids(o)),
                                .wte = o.random({kVocabulary, o.size.channels}, t),
                                .wpe = o.random({o.size.length, o.size.channels}, t),
                                .x = o.empty(embedded(o), t)};
  });
  // The head has written all of dwte before, and the tokens' rows are added to it.
  to.add("embedding_backward", &KernelTable::embedding_backward, [t](Operands& o) {
    return EmbeddingBackwardArgs{.tokens = o.tokens(token_ids(o)),
                                 .dx = o.random(embedded(o), t),
                                 .dwte = o.random({kVocabulary, o.size.channels}, kFloat),
                                 .dwpe = o.random({o.size.length, o.size.channels}, kFloat),
                                 .accumulate_wte = true};
  });
  to.add("cross_entropy", &KernelTable::cross_entropy, [t](Operands& o) {
    return CrossEntropyArgs{.logits = o.random({o.size.loss_rows, kVocabularyStride}, t),
                            .targets = o.tokens({o.size.loss_rows}),
                            .losses = o.empty({o.size.loss_rows}, kFloat),
                            .vocab_size = kVocabulary};
  });
}

void add_gradients(Cases to, DType t) {
  to.add("bias_gradient", &KernelTable::bias_gradient, [t](Operands& o) {
    return BiasGradientArgs{.dy = o.random(o.hidden(), t),
                            .db = o.constant({4 * o.size.channels}, 0.0F),
                            .accumulate = true};
  });
  to.add(
      "squared_error", &KernelTable::squared_error,
      [t](Operands& o) {
        return SquaredErrorArgs{.x = o.random(o.rows(), t),
                                .targets = o.random(o.rows(), kFloat),
                                .losses = o.empty({o.size.tokens()}, kFloat)};
      },
      [](const SquaredErrorArgs& a) {
        return bytes_of({a.x, a.x, a.targets, a.losses});
      });
}

void add_layers(std::vector<KernelCase>& cases, DType t) {
  const Cases to{cases, t};
  add_rows(to, t);
  add_activations(to, t);
  add_fp8(to, t);
  for (const bool norms : {false, true}) add_heads(to, t, norms);
  add_attention(to, t);
  add_ends(to, t);
  add_gradients(to, t);
  const std::pair<const char*, WeightFormat> formats[] = {{"nf4", WeightFormat::kNf4},
                                                          {"nf4-double", WeightFormat::kNf4Double},
                                                          {"int8", WeightFormat::kInt8}};
  for (const auto& [name, format] : formats) {
    cases.push_back({concat("dequantize/", name, "/", to_string(t)),
                     [=, format = format](KernelLab& lab) { return dequantize(lab, format, t); }});
  }
}

}  // namespace

std::vector<KernelCase> kernel_cases() {
  std::vector<KernelCase> cases;
  for (const DType t : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (KernelCase& gemm : gemm_cases(KernelSizes{}.tokens(), t)) cases.push_back(std::move(gemm));
    add_layers(cases, t);
    add_state_cases(cases, t);
  }
  add_scalar_cases(cases);
  return cases;
}

KernelCase kernel_case(const std::string& name) {
  std::vector<KernelCase> cases = kernel_cases();
  const auto found = std::ranges::find(cases, name, &KernelCase::name);
  require(found != cases.end(), ErrorCode::kInternal, "the table has no kernel ", name);
  return std::move(*found);
}

}  // namespace tessera::bench

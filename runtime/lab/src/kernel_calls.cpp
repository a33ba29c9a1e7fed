#include "tessera/lab/kernel_calls.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/core/sim_device.h"
#include "tessera/sharding/operation.h"

namespace tessera {
namespace {

double bytes_of(std::initializer_list<const TensorView*> views) {
  double sum = 0.0;
  for (const TensorView* view : views) {
    if (*view) sum += static_cast<double>(view->bytes());
  }
  return sum;
}

KernelCall noted(const char* kernel, const TensorView& shape, double bytes, double flops = 0.0) {
  std::vector<std::int64_t> dims;
  for (int i = 0; i < shape.shape.rank(); ++i) dims.push_back(shape.shape[i]);
  return {kernel, std::move(dims), shape.dtype, flops, bytes};
}

KernelCall gemm(const GemmArgs& a) {
  const std::int64_t m = a.c.shape[0], n = a.c.shape[1], k = a.a.shape[a.transpose_a ? 0 : 1];
  const auto elements = [](std::int64_t rows, std::int64_t columns) {
    return static_cast<double>(rows) * static_cast<double>(columns);
  };
  const double operands =
      (elements(m, k) + elements(k, n)) * static_cast<double>(size_of(a.a.dtype));
  const double result = elements(m, n) * static_cast<double>(size_of(a.c.dtype));
  return {"gemm",
          {m, n, k},
          is_fp8(a) ? DType::kBFloat16 : a.a.dtype,  // whose rates are known
          2.0 * elements(m, n) * static_cast<double>(k),
          operands + result * (a.accumulate ? 2.0 : 1.0) + gemm_epilogue_bytes(a),
          a};
}
KernelCall bias_gradient(const BiasGradientArgs& a) {
  return noted("bias_gradient", a.dy, bytes_of({&a.dy, &a.db}));
}
KernelCall layer_norm_forward(const LayerNormForwardArgs& a) {
  return noted(a.residual ? "layer_norm_forward, residual" : "layer_norm_forward", a.x,
               bytes_of({&a.x, &a.residual, &a.sum, &a.gamma, &a.beta, &a.y, &a.mean, &a.rstd}));
}
KernelCall layer_norm_backward(const LayerNormBackwardArgs& a) {
  return noted(a.d_residual ? "layer_norm_backward, residual" : "layer_norm_backward", a.x,
               bytes_of({&a.dy, &a.x, &a.mean, &a.rstd, &a.gamma, &a.d_residual, &a.dx, &a.dgamma,
                         &a.dbeta}));
}
KernelCall gelu_forward(const GeluForwardArgs& a) {
  return noted(a.form == GeluForm::kErf ? "gelu_forward, erf" : "gelu_forward", a.x,
               bytes_of({&a.x, &a.y}));
}
KernelCall gelu_backward(const GeluBackwardArgs& a) {
  return noted(a.form == GeluForm::kErf ? "gelu_backward, erf" : "gelu_backward", a.x,
               bytes_of({&a.x, &a.dy, &a.dx}));
}
/// `products` matrix products over the scores that are not masked: of causal attention half of
/// them, less what lies before the windows.
double attention_flops(const TensorView& out, std::int64_t window, bool causal, double products) {
  const auto length = static_cast<double>(out.shape[1]);
  const double outside = window == 0 ? 0.0 : std::max(0.0, length - static_cast<double>(window));
  const double all = causal ? length : 2.0 * length;
  const double keys = outside == 0.0 ? all : all - outside * outside / length;
  return products * static_cast<double>(out.numel()) * keys;
}
KernelCall attention_forward(const AttentionForwardArgs& a) {
  return noted("attention_forward", a.out, bytes_of({&a.qkv, &a.out, &a.lse}),
               attention_flops(a.out, a.window, a.causal, 2.0));
}
KernelCall attention_backward(const AttentionBackwardArgs& a) {
  return noted("attention_backward", a.out, bytes_of({&a.d_out, &a.qkv, &a.out, &a.lse, &a.d_qkv}),
               attention_flops(a.out, a.window, a.causal, 5.0));
}
KernelCall embedding_forward(const EmbeddingForwardArgs& a) {
  return noted("embedding_forward", a.x, 2.0 * bytes_of({&a.x}) + bytes_of({&a.tokens, &a.wpe}));
}
/// Rows of the gradient are read and written, in its dtype, once for each token.
KernelCall embedding_backward(const EmbeddingBackwardArgs& a) {
  const double rows =
      static_cast<double>(a.dwte ? a.dx.numel() : 0) * static_cast<double>(size_of(a.dwte.dtype));
  return noted("embedding_backward", a.dx, bytes_of({&a.dx, &a.tokens, &a.dwpe}) + 2.0 * rows);
}
KernelCall dropout(const DropoutArgs& a) { return noted("dropout", a.x, bytes_of({&a.x, &a.y})); }
KernelCall cross_entropy(const CrossEntropyArgs& a) {
  return noted(
      "cross_entropy", a.logits,
      bytes_of({&a.logits, &a.targets, &a.losses}) + (a.gradient ? bytes_of({&a.logits}) : 0.0));
}
KernelCall cast(const CastArgs& a) { return noted("cast", a.src, bytes_of({&a.src, &a.dst})); }
KernelCall add(const AddArgs& a) { return noted("add", a.src, bytes_of({&a.src, &a.dst, &a.dst})); }

KernelCall silu_forward(const SiluForwardArgs& a) {
  return noted("silu_forward", a.x, bytes_of({&a.x, &a.y}));
}
KernelCall silu_backward(const SiluBackwardArgs& a) {
  return noted("silu_backward", a.x, bytes_of({&a.x, &a.dy, &a.dx}));
}
KernelCall swiglu_forward(const SwigluForwardArgs& a) {
  return noted("swiglu_forward", a.x, bytes_of({&a.x, &a.y}));
}
KernelCall swiglu_backward(const SwigluBackwardArgs& a) {
  return noted("swiglu_backward", a.x, bytes_of({&a.x, &a.dy, &a.dx}));
}
KernelCall soft_cap(const SoftCapArgs& a) { return noted("soft_cap", a.x, bytes_of({&a.x, &a.y})); }
KernelCall scale_columns_forward(const ScaleColumnsForwardArgs& a) {
  return noted("scale_columns_forward", a.x, bytes_of({&a.x, &a.scale, &a.y, &a.kept}));
}
KernelCall scale_columns_backward(const ScaleColumnsBackwardArgs& a) {
  return noted("scale_columns_backward", a.dy,
               bytes_of({&a.dy, &a.x, &a.scale, &a.dx, &a.d_scale}));
}
KernelCall heads_forward(const HeadsForwardArgs& a) {
  return noted("heads_forward", a.packed, bytes_of({&a.packed, &a.qkv}));
}
KernelCall heads_backward(const HeadsBackwardArgs& a) {
  return noted("heads_backward", a.d_packed, bytes_of({&a.d_qkv, &a.packed, &a.d_packed}));
}
KernelCall relu_forward(const ReluForwardArgs& a) {
  const bool is_tanh = a.function == OutputActivation::kTanh;
  return noted(is_tanh ? "relu_forward, tanh" : "relu_forward", a.x, bytes_of({&a.x, &a.y}));
}
KernelCall relu_backward(const ReluBackwardArgs& a) {
  const bool is_tanh = a.function == OutputActivation::kTanh;
  return noted(is_tanh ? "relu_backward, tanh" : "relu_backward", a.y,
               bytes_of({&a.y, &a.dy, &a.dx}));
}
KernelCall multiply(const MultiplyArgs& a) {
  return noted("multiply", a.a, bytes_of({&a.a, &a.b, &a.y}));
}
KernelCall softmax_forward(const SoftmaxForwardArgs& a) {
  return noted("softmax_forward", a.x, bytes_of({&a.x, &a.y}));
}
KernelCall softmax_backward(const SoftmaxBackwardArgs& a) {
  return noted("softmax_backward", a.y, bytes_of({&a.y, &a.dy, &a.dx}));
}
KernelCall mean_rows_forward(const MeanRowsForwardArgs& a) {
  return noted("mean_rows_forward", a.x, bytes_of({&a.x, &a.y}));
}
KernelCall mean_rows_backward(const MeanRowsBackwardArgs& a) {
  return noted("mean_rows_backward", a.dx, bytes_of({&a.dy, &a.dx}));
}
KernelCall amax(const AmaxArgs& a) { return noted("amax", a.x, bytes_of({&a.x})); }
KernelCall fp8_encode(const Fp8EncodeArgs& a) {
  return noted("fp8_encode", a.x, bytes_of({&a.x, &a.codes, &a.transposed}));
}
KernelCall fp8_transpose(const Fp8TransposeArgs& a) {
  return noted("fp8_transpose", a.codes, bytes_of({&a.codes, &a.transposed}));
}
KernelCall fp8_decode(const Fp8DecodeArgs& a) {
  return noted("fp8_decode", a.y, bytes_of({&a.codes, &a.y}));
}
KernelCall fill(const FillArgs& a) { return noted("fill", a.dst, bytes_of({&a.dst})); }

std::int64_t rows_of(const std::vector<std::int64_t>& dims) {
  return std::accumulate(dims.begin(), dims.end() - 1, std::int64_t{1}, std::multiplies<>());
}

}  // namespace

std::string rates_name(const KernelCall& call) {
  if (call.kernel != "gemm" || !call.gemm) return call.kernel;
  if (is_fp8(*call.gemm)) return "gemm nt, fp8";
  return concat("gemm ", call.gemm->transpose_a ? 't' : 'n', call.gemm->transpose_b ? 't' : 'n',
                call.gemm->bias ? ", bias" : "");
}

std::string step_name(const KernelCall& call) {
  std::string name = rates_name(call);
  if (!call.gemm) return name;
  const GemmArgs& args = *call.gemm;
  if (args.residual) name += ", residual";
  if (args.gelu) name += ", gelu";
  if (args.gelu_backward_input) name += ", gelu_backward";
  return args.accumulate ? name + ", accumulate" : name;
}

std::vector<double> rates_size(const KernelCall& call) {
  const auto number = [](std::int64_t n) {
    return static_cast<double>(std::max<std::int64_t>(n, 1));
  };
  const std::vector<std::int64_t>& d = call.dims;
  if (call.kernel == "gemm") return {number(d[0]), number(d[1]), number(d[2])};
  if (call.kernel.starts_with("attention")) {  // (B, L, H, D)
    return {number(d[0] * d[2]), number(d[1]), number(d[3])};
  }
  constexpr std::string_view kByRows[] = {"layer_norm", "bias_gradient", "cross_entropy",
                                          "embedding", "scale_columns"};
  const bool by_rows = std::ranges::any_of(
      kByRows, [&](std::string_view name) { return call.kernel.starts_with(name); });
  if (by_rows) return {number(rows_of(d)), number(d.back())};
  return {number(d.empty() ? 1 : rows_of(d) * d.back())};
}

std::vector<KernelCall> cpu_kernels_of(const KernelCall& call) {
  if (!call.gemm) return {call};
  const GemmArgs& args = *call.gemm;
  KernelCall product = call;
  product.bytes -= gemm_epilogue_bytes(args);
  std::vector<KernelCall> calls{std::move(product)};
  const auto add = [&](const char* kernel, const TensorView& shape, double bytes) {
    calls.push_back({.kernel = kernel,
                     .dims = {shape.shape[0], shape.shape[1]},
                     .dtype = shape.dtype,
                     .bytes = bytes});
  };
  const auto result =
      static_cast<double>(args.c.numel()) * static_cast<double>(size_of(args.c.dtype));
  if (args.residual) add("add", args.c, 3.0 * result);
  if (args.gelu) add("gelu_forward", args.c, 2.0 * result);
  if (args.gelu_backward_input) add("gelu_backward", args.c, 3.0 * result);
  return calls;
}

double gemm_epilogue_bytes(const GemmArgs& a) {
  return bytes_of({&a.bias, &a.residual, &a.gelu_input, &a.gelu_backward_input});
}

KernelTable observed_kernels(KernelTable table, KernelObserver observe) {
  const auto observe_calls = [&]<typename Args>(KernelFunction<Args>& kernel,
                                                KernelCall (*describe)(const Args&)) {
    kernel = [observe, describe, real = kernel](const Args& args, Stream& stream) {
      observe([&] { return describe(args); }, [&] { real(args, stream); }, stream);
    };
  };
  observe_calls(table.gemm, gemm);
  observe_calls(table.bias_gradient, bias_gradient);
  observe_calls(table.layer_norm_forward, layer_norm_forward);
  observe_calls(table.layer_norm_backward, layer_norm_backward);
  observe_calls(table.gelu_forward, gelu_forward);
  observe_calls(table.gelu_backward, gelu_backward);
  observe_calls(table.attention_forward, attention_forward);
  observe_calls(table.attention_backward, attention_backward);
  observe_calls(table.embedding_forward, embedding_forward);
  observe_calls(table.embedding_backward, embedding_backward);
  observe_calls(table.dropout, dropout);
  observe_calls(table.cross_entropy, cross_entropy);
  observe_calls(table.cast, cast);
  observe_calls(table.add, add);
  observe_calls(table.silu_forward, silu_forward);
  observe_calls(table.silu_backward, silu_backward);
  observe_calls(table.swiglu_forward, swiglu_forward);
  observe_calls(table.swiglu_backward, swiglu_backward);
  observe_calls(table.soft_cap, soft_cap);
  observe_calls(table.scale_columns_forward, scale_columns_forward);
  observe_calls(table.scale_columns_backward, scale_columns_backward);
  observe_calls(table.heads_forward, heads_forward);
  observe_calls(table.heads_backward, heads_backward);
  observe_calls(table.relu_forward, relu_forward);
  observe_calls(table.relu_backward, relu_backward);
  observe_calls(table.multiply, multiply);
  observe_calls(table.softmax_forward, softmax_forward);
  observe_calls(table.softmax_backward, softmax_backward);
  observe_calls(table.mean_rows_forward, mean_rows_forward);
  observe_calls(table.mean_rows_backward, mean_rows_backward);
  observe_calls(table.amax, amax);
  observe_calls(table.fp8_encode, fp8_encode);
  observe_calls(table.fp8_decode, fp8_decode);
  observe_calls(table.fp8_transpose, fp8_transpose);
  observe_calls(table.fill, fill);
  return table;
}

KernelTable recording_kernels(std::function<void(KernelCall)> take) {
  return observed_kernels(kernels_for(SimDevice()),
                          [take = std::move(take)](const std::function<KernelCall()>& call,
                                                   const std::function<void()>& /*run*/,
                                                   Stream& /*stream*/) { take(call()); });
}

KernelCall call_of(const Schedule& schedule, const Action& action,
                   const OptimizerOptions& optimizer) {
  const bool updates = action.operation == &operations::kOptimizerStep;
  const auto bytes = operand_bytes(schedule, action);
  return {.kernel = updates ? optimizer.name : std::string(action.operation->name),
          .dims = {bytes},
          .dtype = schedule.parameter_dtype,
          .bytes = static_cast<double>(bytes)};
}

std::vector<std::vector<KernelCall>> record_kernels(const Program& program,
                                                    const ModelLayout& layout, const Model& model,
                                                    const ExecutorOptions& options) {
  std::vector<std::vector<KernelCall>> by_action(program.schedule->actions.size());
  std::vector<KernelCall> outside;
  std::vector<KernelCall>* recording = &outside;
  const KernelTable kernels =
      recording_kernels([&](KernelCall call) { recording->push_back(std::move(call)); });
  ExecutorOptions noting = options;
  noting.layer_kernels = &kernels;
  // An action is charged just before it runs, on this thread.
  noting.cost = [&](const Schedule& schedule, const Action& action) {
    const auto index = &action - schedule.actions.data();
    recording = action.operation->is_pass ? &by_action[static_cast<std::size_t>(index)] : &outside;
    recording->clear();
    return 0.0;
  };
  simulate(std::span(&program, 1), layout, model, state_options(*program.schedule), noting);
  const Schedule& schedule = *program.schedule;
  for (std::size_t i = 0; i < schedule.actions.size(); ++i) {
    const Action& action = schedule.actions[i];
    if (action.operation->is_pass || is_collective(action)) continue;
    if (action.operation->run != nullptr) {
      by_action[i].push_back(call_of(schedule, action, options.optimizer));
    }
  }
  return by_action;
}

}  // namespace tessera

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

// A kernel is a plain function: this is where it finds the list.
thread_local std::vector<KernelCall>* recording = nullptr;

double bytes_of(std::initializer_list<const TensorView*> views) {
  double sum = 0.0;
  for (const TensorView* view : views) {
    if (*view) sum += static_cast<double>(view->bytes());
  }
  return sum;
}

void record(const char* kernel, const TensorView& shape, double bytes, double flops = 0.0) {
  std::vector<std::int64_t> dims;
  for (int i = 0; i < shape.shape.rank(); ++i) dims.push_back(shape.shape[i]);
  recording->push_back({kernel, std::move(dims), shape.dtype, flops, bytes});
}

void gemm(const GemmArgs& a, Stream& /*stream*/) {
  const std::int64_t m = a.c.shape[0], n = a.c.shape[1], k = a.a.shape[a.transpose_a ? 0 : 1];
  const auto elements = [](std::int64_t rows, std::int64_t columns) {
    return static_cast<double>(rows) * static_cast<double>(columns);
  };
  const double operands =
      (elements(m, k) + elements(k, n)) * static_cast<double>(size_of(a.a.dtype));
  const double result = elements(m, n) * static_cast<double>(size_of(a.c.dtype));
  recording->push_back({"gemm",
                        {m, n, k},
                        a.a.dtype,
                        2.0 * elements(m, n) * static_cast<double>(k),
                        operands + result * (a.accumulate ? 2.0 : 1.0) + gemm_epilogue_bytes(a),
                        a});
}
void bias_gradient(const BiasGradientArgs& a, Stream& /*stream*/) {
  record("bias_gradient", a.dy, bytes_of({&a.dy, &a.db}));
}
void layer_norm_forward(const LayerNormForwardArgs& a, Stream& /*stream*/) {
  record(a.residual ? "layer_norm_forward, residual" : "layer_norm_forward", a.x,
         bytes_of({&a.x, &a.residual, &a.sum, &a.gamma, &a.beta, &a.y, &a.mean, &a.rstd}));
}
void layer_norm_backward(const LayerNormBackwardArgs& a, Stream& /*stream*/) {
  record(a.d_residual ? "layer_norm_backward, residual" : "layer_norm_backward", a.x,
         bytes_of(
             {&a.dy, &a.x, &a.mean, &a.rstd, &a.gamma, &a.d_residual, &a.dx, &a.dgamma, &a.dbeta}));
}
void gelu_forward(const GeluForwardArgs& a, Stream& /*stream*/) {
  record("gelu_forward", a.x, bytes_of({&a.x, &a.y}));
}
void gelu_backward(const GeluBackwardArgs& a, Stream& /*stream*/) {
  record("gelu_backward", a.x, bytes_of({&a.x, &a.dy, &a.dx}));
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
void attention_forward(const AttentionForwardArgs& a, Stream& /*stream*/) {
  record("attention_forward", a.out, bytes_of({&a.qkv, &a.out, &a.lse}),
         attention_flops(a.out, a.window, a.causal, 2.0));
}
void attention_backward(const AttentionBackwardArgs& a, Stream& /*stream*/) {
  record("attention_backward", a.out, bytes_of({&a.d_out, &a.qkv, &a.out, &a.lse, &a.d_qkv}),
         attention_flops(a.out, a.window, a.causal, 5.0));
}
void embedding_forward(const EmbeddingForwardArgs& a, Stream& /*stream*/) {
  record("embedding_forward", a.x, 2.0 * bytes_of({&a.x}) + bytes_of({&a.tokens, &a.wpe}));
}
/// Rows of the gradient are read and written, in its dtype, once for each token.
void embedding_backward(const EmbeddingBackwardArgs& a, Stream& /*stream*/) {
  const double rows =
      static_cast<double>(a.dwte ? a.dx.numel() : 0) * static_cast<double>(size_of(a.dwte.dtype));
  record("embedding_backward", a.dx, bytes_of({&a.dx, &a.tokens, &a.dwpe}) + 2.0 * rows);
}
void dropout(const DropoutArgs& a, Stream& /*stream*/) {
  record("dropout", a.x, bytes_of({&a.x, &a.y}));
}
void cross_entropy(const CrossEntropyArgs& a, Stream& /*stream*/) {
  record("cross_entropy", a.logits,
         bytes_of({&a.logits, &a.targets, &a.losses}) + (a.gradient ? bytes_of({&a.logits}) : 0.0));
}
void cast(const CastArgs& a, Stream& /*stream*/) {
  record("cast", a.src, bytes_of({&a.src, &a.dst}));
}
void add(const AddArgs& a, Stream& /*stream*/) {
  record("add", a.src, bytes_of({&a.src, &a.dst, &a.dst}));
}

void silu_forward(const SiluForwardArgs& a, Stream& /*stream*/) {
  record("silu_forward", a.x, bytes_of({&a.x, &a.y}));
}
void silu_backward(const SiluBackwardArgs& a, Stream& /*stream*/) {
  record("silu_backward", a.x, bytes_of({&a.x, &a.dy, &a.dx}));
}
void swiglu_forward(const SwigluForwardArgs& a, Stream& /*stream*/) {
  record("swiglu_forward", a.x, bytes_of({&a.x, &a.y}));
}
void swiglu_backward(const SwigluBackwardArgs& a, Stream& /*stream*/) {
  record("swiglu_backward", a.x, bytes_of({&a.x, &a.dy, &a.dx}));
}
void soft_cap(const SoftCapArgs& a, Stream& /*stream*/) {
  record("soft_cap", a.x, bytes_of({&a.x, &a.y}));
}
void scale_columns_forward(const ScaleColumnsForwardArgs& a, Stream& /*stream*/) {
  record("scale_columns_forward", a.x, bytes_of({&a.x, &a.scale, &a.y, &a.kept}));
}
void scale_columns_backward(const ScaleColumnsBackwardArgs& a, Stream& /*stream*/) {
  record("scale_columns_backward", a.dy, bytes_of({&a.dy, &a.x, &a.scale, &a.dx, &a.d_scale}));
}
void heads_forward(const HeadsForwardArgs& a, Stream& /*stream*/) {
  record("heads_forward", a.packed, bytes_of({&a.packed, &a.qkv}));
}
void heads_backward(const HeadsBackwardArgs& a, Stream& /*stream*/) {
  record("heads_backward", a.d_packed, bytes_of({&a.d_qkv, &a.packed, &a.d_packed}));
}
void relu_forward(const ReluForwardArgs& a, Stream& /*stream*/) {
  record("relu_forward", a.x, bytes_of({&a.x, &a.y}));
}
void relu_backward(const ReluBackwardArgs& a, Stream& /*stream*/) {
  record("relu_backward", a.y, bytes_of({&a.y, &a.dy, &a.dx}));
}
void multiply(const MultiplyArgs& a, Stream& /*stream*/) {
  record("multiply", a.a, bytes_of({&a.a, &a.b, &a.y}));
}
void softmax_forward(const SoftmaxForwardArgs& a, Stream& /*stream*/) {
  record("softmax_forward", a.x, bytes_of({&a.x, &a.y}));
}
void softmax_backward(const SoftmaxBackwardArgs& a, Stream& /*stream*/) {
  record("softmax_backward", a.y, bytes_of({&a.y, &a.dy, &a.dx}));
}
void mean_rows_forward(const MeanRowsForwardArgs& a, Stream& /*stream*/) {
  record("mean_rows_forward", a.x, bytes_of({&a.x, &a.y}));
}
void mean_rows_backward(const MeanRowsBackwardArgs& a, Stream& /*stream*/) {
  record("mean_rows_backward", a.dx, bytes_of({&a.dy, &a.dx}));
}
void fill(const FillArgs& a, Stream& /*stream*/) { record("fill", a.dst, bytes_of({&a.dst})); }

/// The one kernel of an action that is no pass.
KernelCall call_of(const Schedule& schedule, const Action& action, const ExecutorOptions& options) {
  const bool updates = action.operation == &operations::kOptimizerStep;
  const auto bytes = operand_bytes(schedule, action);
  KernelCall call{.kernel = updates ? options.optimizer.name : std::string(action.operation->name),
                  .dims = {bytes},
                  .dtype = schedule.parameter_dtype,
                  .bytes = static_cast<double>(bytes)};
  return call;
}

std::int64_t rows_of(const std::vector<std::int64_t>& dims) {
  return std::accumulate(dims.begin(), dims.end() - 1, std::int64_t{1}, std::multiplies<>());
}

}  // namespace

std::string rates_name(const KernelCall& call) {
  if (call.kernel != "gemm" || !call.gemm) return call.kernel;
  return concat("gemm ", call.gemm->transpose_a ? 't' : 'n', call.gemm->transpose_b ? 't' : 'n',
                call.gemm->bias ? ", bias" : "");
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
  if (args.bias_gradient) add("bias_gradient", args.a, bytes_of({&args.a, &args.bias_gradient}));
  return calls;
}

double gemm_epilogue_bytes(const GemmArgs& a) {
  return bytes_of({&a.bias, &a.residual, &a.gelu_input, &a.gelu_backward_input, &a.bias_gradient});
}

KernelRecording::KernelRecording(std::vector<KernelCall>& calls) { recording = &calls; }
KernelRecording::~KernelRecording() { recording = nullptr; }

KernelTable recording_kernels() {
  KernelTable table = kernels_for(SimDevice());
  table.gemm = gemm;
  table.bias_gradient = bias_gradient;
  table.layer_norm_forward = layer_norm_forward;
  table.layer_norm_backward = layer_norm_backward;
  table.gelu_forward = gelu_forward;
  table.gelu_backward = gelu_backward;
  table.attention_forward = attention_forward;
  table.attention_backward = attention_backward;
  table.embedding_forward = embedding_forward;
  table.embedding_backward = embedding_backward;
  table.dropout = dropout;
  table.cross_entropy = cross_entropy;
  table.cast = cast;
  table.add = add;
  table.silu_forward = silu_forward;
  table.silu_backward = silu_backward;
  table.swiglu_forward = swiglu_forward;
  table.swiglu_backward = swiglu_backward;
  table.soft_cap = soft_cap;
  table.scale_columns_forward = scale_columns_forward;
  table.scale_columns_backward = scale_columns_backward;
  table.heads_forward = heads_forward;
  table.heads_backward = heads_backward;
  table.relu_forward = relu_forward;
  table.relu_backward = relu_backward;
  table.multiply = multiply;
  table.softmax_forward = softmax_forward;
  table.softmax_backward = softmax_backward;
  table.mean_rows_forward = mean_rows_forward;
  table.mean_rows_backward = mean_rows_backward;
  table.fill = fill;
  return table;
}

std::vector<std::vector<KernelCall>> record_kernels(const Program& program,
                                                    const ModelLayout& layout, const Model& model,
                                                    const ExecutorOptions& options) {
  const KernelTable kernels = recording_kernels();
  std::vector<std::vector<KernelCall>> by_action(program.schedule->actions.size());
  std::vector<KernelCall> outside;
  const KernelRecording until_the_end(outside);
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
      by_action[i].push_back(call_of(schedule, action, options));
    }
  }
  return by_action;
}

}  // namespace tessera

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support.h"
#include "support/model_run.h"
#include "tessera/core/error.h"
#include "tessera/core/memory.h"
#include "tessera/core/sim_device.h"
#include "tessera/kernels/optimizer.h"
#include "tessera/model/gpt.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/plan.h"

// The kernels of a training step of a GPT on one GPU, by shape, as JSON, without a GPU: what
// report.py --predict charges time for, and what a profile of the step is compared with.
//
//   step_kernels [--model gpt2-1558m] [--micro-batch 8,16,32] [--sequence-length 1024]
//
// Forward and backward are recorded from the model's own pass, on the sim device, as a GPU would
// run it (bf16, gradients in fp32, one micro-step); gradient norm and optimizer are those of the
// plan of one rank. Bytes are what a kernel must move, each tensor once. Scalars are left out.
namespace tessera::bench {
namespace {

/// A kernel call; equal ones are counted.
struct Call {
  std::string kernel;  ///< as KernelTable names it
  nlohmann::ordered_json shape;
  double flops = 0.0, bytes = 0.0;
  bool operator==(const Call&) const = default;
};

// A kernel is a plain function: this is where it finds the list.
thread_local std::vector<Call>* recording = nullptr;

double bytes_of(std::initializer_list<const TensorView*> views) {
  double sum = 0.0;
  for (const TensorView* view : views) {
    if (*view) sum += static_cast<double>(view->bytes());
  }
  return sum;
}

nlohmann::ordered_json dims(const TensorView& view) {
  auto result = nlohmann::ordered_json::array();
  for (int i = 0; i < view.shape.rank(); ++i) result.push_back(view.shape[i]);
  return {{"dims", result}};
}

void record(const char* kernel, const TensorView& shape, double bytes, double flops = 0.0) {
  recording->push_back({kernel, dims(shape), flops, bytes});
}

/// As tables of GEMMs name it.
std::string epilogue_of(const GemmArgs& a) {
  if (a.bias_gradient) return "bias_gradient";
  if (a.gelu_backward_input) return "gelu_backward";
  if (!a.gelu) return a.bias ? "bias" : "none";
  return concat("gelu", a.gelu_input ? "_aux" : "", a.bias ? "_bias" : "");
}

void gemm(const GemmArgs& a, Stream& /*stream*/) {
  const std::int64_t m = a.c.shape[0], n = a.c.shape[1], k = a.a.shape[a.transpose_a ? 0 : 1];
  const auto elements = [](std::int64_t rows, std::int64_t columns) {
    return static_cast<double>(rows) * static_cast<double>(columns);
  };
  const double operands =
      (elements(m, k) + elements(k, n)) * static_cast<double>(size_of(a.a.dtype));
  const double result = elements(m, n) * static_cast<double>(size_of(a.c.dtype));
  const double beside =
      bytes_of({&a.bias, &a.residual, &a.gelu_input, &a.gelu_backward_input, &a.bias_gradient});
  recording->push_back({"gemm",
                        {{"m", m},
                         {"n", n},
                         {"k", k},
                         {"transpose_a", a.transpose_a},
                         {"transpose_b", a.transpose_b},
                         {"accumulate", a.accumulate},
                         {"dtype", to_string(a.a.dtype)},
                         {"c_dtype", to_string(a.c.dtype)},
                         {"epilogue", epilogue_of(a)},
                         {"residual", static_cast<bool>(a.residual)},
                         {"epilogue_bytes", beside}},
                        2.0 * elements(m, n) * static_cast<double>(k),
                        operands + result * (a.accumulate ? 2.0 : 1.0) + beside});
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
/// `products` matrix products over the causal half of the scores.
double attention_flops(const TensorView& out, double products) {
  return products * static_cast<double>(out.numel()) * static_cast<double>(out.shape[1]);
}
void attention_forward(const AttentionForwardArgs& a, Stream& /*stream*/) {
  record("attention_forward", a.out, bytes_of({&a.qkv, &a.out, &a.lse}),
         attention_flops(a.out, 2.0));
}
void attention_backward(const AttentionBackwardArgs& a, Stream& /*stream*/) {
  record("attention_backward", a.out, bytes_of({&a.d_out, &a.qkv, &a.out, &a.lse, &a.d_qkv}),
         attention_flops(a.out, 5.0));
}
void embedding_forward(const EmbeddingForwardArgs& a, Stream& /*stream*/) {
  record("embedding_forward", a.x, 2.0 * bytes_of({&a.x}) + bytes_of({&a.tokens, &a.wpe}));
}
/// Rows of the gradient are read and written, in its dtype, once for each token.
void embedding_backward(const EmbeddingBackwardArgs& a, Stream& /*stream*/) {
  const double rows =
      static_cast<double>(a.dx.numel()) * static_cast<double>(size_of(a.dwte.dtype));
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

/// A table that notes what a GPT's pass launches.
KernelTable recording_kernels(const Device& sim) {
  KernelTable table = kernels_for(sim);
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
  return table;
}

void record_passes(const Model& model, const BatchSource& source, std::int64_t micro_batch) {
  SimDevice device;
  Memory memory(device);
  const auto stream = device.create_stream({});
  const KernelTable kernels = recording_kernels(device);
  const auto data = [&](const Shape& shape, DType type) {
    return Tensor::empty(memory, shape, type, MemoryCategory::kData, "data");
  };
  const Batch batch{.inputs = data(source.input_shape(micro_batch), source.input_dtype()),
                    .targets = data(source.target_shape(micro_batch), source.target_dtype()),
                    .items = source.target_shape(micro_batch).numel()};
  test::WholeModel(model, memory, DType::kBFloat16, DType::kFloat32)
      .forward_backward(memory, *stream, batch,
                        {.tape = {.device = DeviceKind::kCuda, .kernels = &kernels}});
}

/// Gradient norm and optimizer, as a plan for one rank has them.
void record_update(const Model& model) {
  const ModelLayout layout = make_layout(model, {}, 1);
  const Strategy& strategy = find_strategy("full_shard");
  const Schedule schedule = plan(layout, {.mesh = make_mesh(1, default_replicas(strategy, 1)),
                                          .placement = strategy.placement,
                                          .reshard_after_forward = strategy.reshard_after_forward,
                                          .parameter_dtype = DType::kBFloat16});
  for (const Action& action : schedule.actions) {
    const bool norm = action.operation == &operations::kNormPartial;
    if (!norm && action.operation != &operations::kOptimizerStep) continue;
    const ScheduleBuffer& gradient =
        schedule.buffer(*std::ranges::find_if(action.reads, [&](const Operand& operand) {
          return schedule.role(operand.buffer) == Role::kGradient;
        }));
    double bytes =
        static_cast<double>(gradient.numel) * static_cast<double>(size_of(gradient.format));
    if (!norm) {
      for (const Operand& operand : action.writes) {
        const ScheduleBuffer& state = schedule.buffer(operand);
        const bool rounded = state.format == DType::kBFloat16;  // the parameter: written only
        bytes += static_cast<double>(state.numel) * static_cast<double>(size_of(state.format)) *
                 (rounded ? 1.0 : 2.0);
      }
    }
    recording->push_back(
        {norm ? "exact_squares" : "optimizer_step", {{"dims", {gradient.numel}}}, 0.0, bytes});
  }
}

nlohmann::ordered_json step_of(const Model& model, std::int64_t micro_batch, std::int64_t length,
                               std::int64_t vocab_size) {
  std::vector<Call> calls;
  recording = &calls;
  record_passes(model, RandomTokens(length, vocab_size), micro_batch);
  record_update(model);
  recording = nullptr;
  std::vector<std::pair<Call, int>> counted;
  for (const Call& call : calls) {
    const auto known =
        std::ranges::find_if(counted, [&](const auto& entry) { return entry.first == call; });
    if (known != counted.end()) {
      ++known->second;
    } else {
      counted.emplace_back(call, 1);
    }
  }
  auto rows = nlohmann::ordered_json::array();
  for (const auto& [call, count] : counted) {
    nlohmann::ordered_json row{{"kernel", call.kernel}, {"count", count}};
    row.update(call.shape);
    row["flops"] = call.flops;
    row["bytes"] = call.bytes;
    rows.push_back(std::move(row));
  }
  return {{"micro_batch", micro_batch}, {"tokens", micro_batch * length}, {"kernels", rows}};
}

void print(const std::string& name, const std::vector<std::int64_t>& micro_batches,
           std::int64_t length) {
  const GptConfig gpt = gpt_preset(name);
  require(length <= gpt.context_length, ErrorCode::kConfig, "--sequence-length ", length,
          " is longer than the model's context of ", gpt.context_length);
  const Model model = make_gpt(gpt);
  nlohmann::ordered_json result{{"model", name},
                                {"sequence_length", length},
                                {"flops_per_token", model.flops_per_item},
                                {"steps", nlohmann::ordered_json::array()}};
  for (const std::int64_t micro_batch : micro_batches) {
    result["steps"].push_back(step_of(model, micro_batch, length, gpt.vocab_size));
  }
  std::puts(result.dump(1).c_str());
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  std::string model = "gpt2-1558m";
  std::vector<std::int64_t> micro_batches{8, 16, 32};
  std::int64_t length = 1024;
  Program program(
      "step_kernels",
      "The kernels of a training step of a GPT on one GPU, by shape, as JSON; needs none.");
  program.add_option("--model", model, "a GPT-2 preset")
      ->check(CLI::IsMember(tessera::gpt_preset_names()));
  program.add_option("--micro-batch", micro_batches, "samples of a step, several of them: 8,16,32")
      ->delimiter(',')
      ->check(positive());
  program.add_option("--sequence-length", length, "tokens per sample")->check(positive());
  return program.run(argc, argv, [&] { print(model, micro_batches, length); });
}

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
#include "tessera/lab/kernel_calls.h"
#include "tessera/model/gpt.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/planner.h"

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

/// The epilogue by the name that tables of GEMMs have for it.
std::string epilogue_of(const GemmArgs& a) {
  if (a.gelu_backward_input) return "gelu_backward";
  if (!a.gelu) return a.bias ? "bias" : "none";
  return concat("gelu", a.gelu_input ? "_aux" : "", a.bias ? "_bias" : "");
}

Call call_of(const KernelCall& call) {
  nlohmann::ordered_json shape{{"dims", call.dims}};
  if (call.gemm) {
    const GemmArgs& a = *call.gemm;
    shape = {{"m", call.dims[0]},
             {"n", call.dims[1]},
             {"k", call.dims[2]},
             {"transpose_a", a.transpose_a},
             {"transpose_b", a.transpose_b},
             {"accumulate", a.accumulate},
             {"dtype", to_string(a.a.dtype)},
             {"c_dtype", to_string(a.c.dtype)},
             {"epilogue", epilogue_of(a)},
             {"residual", static_cast<bool>(a.residual)},
             {"epilogue_bytes", gemm_epilogue_bytes(a)}};
  }
  return {call.kernel, std::move(shape), call.flops, call.bytes};
}

void record_passes(const Model& model, const BatchSource& source, std::int64_t micro_batch,
                   std::vector<KernelCall>& calls) {
  SimDevice device;
  Memory memory(device);
  const auto stream = device.create_stream({});
  const KernelTable kernels =
      recording_kernels([&](KernelCall call) { calls.push_back(std::move(call)); });
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
void record_update(const Model& model, std::vector<KernelCall>& calls) {
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
    calls.push_back({.kernel = norm ? "exact_squares" : "optimizer_step",
                     .dims = {gradient.numel},
                     .bytes = bytes});
  }
}

nlohmann::ordered_json step_of(const Model& model, std::int64_t micro_batch, std::int64_t length,
                               std::int64_t vocab_size) {
  std::vector<KernelCall> calls;
  record_passes(model, RandomTokens(length, vocab_size), micro_batch, calls);
  record_update(model, calls);
  std::vector<std::pair<Call, int>> counted;
  for (const KernelCall& kernel : calls) {
    const Call call = call_of(kernel);
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
  program.option("--model", &model, "a GPT-2 preset", one_of(tessera::gpt_preset_names()));
  program.option("--micro-batch", &micro_batches, "samples of a step, several of them: 8,16,32",
                 positive());
  program.option("--sequence-length", &length, "tokens per sample", positive());
  return program.run(argc, argv, [&] { print(model, micro_batches, length); });
}

#include <gtest/gtest.h>

#include "support/model_run.h"
#include "support/small_run.h"
#include "tessera/core/cpu_device.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/sharding/layout.h"
#include "tessera/sharding/state_buffers.h"

// LoRA's A's of one matrix: neighbours in the layout, and one GEMM in each pass.
namespace tessera::test::adapter_calls_test {
namespace {

GptConfig llama(int layers, const LoraOptions& lora, std::vector<std::string> targets = {}) {
  GptConfig config = small_gpt(0.0F, GptFamily::kLlama);
  config.layers = layers;
  config.width = 32;
  config.adapter = {.kind = lora, .targets = std::move(targets)};
  if (config.adapter.targets.empty()) config.adapter.target_pattern = "all-linear";
  return config;
}

struct Calls {
  int gemms = 0, casts = 0, adds = 0;
  bool operator==(const Calls&) const = default;
  Calls operator-(const Calls& o) const {
    return {gemms - o.gemms, casts - o.casts, adds - o.adds};
  }
};

std::ostream& operator<<(std::ostream& out, const Calls& calls) {
  return out << calls.gemms << " GEMMs, " << calls.casts << " casts, " << calls.adds << " adds";
}

/// Of forward and backward of a micro-batch.
Calls calls_of(const GptConfig& config) {
  Calls calls;
  KernelTable kernels = planning(cpu_kernels());
  kernels.gemm = [&](const GemmArgs&, Stream&) { ++calls.gemms; };
  kernels.cast = [&](const CastArgs&, Stream&) { ++calls.casts; };
  kernels.add = [&](const AddArgs&, Stream&) { ++calls.adds; };
  const Model model = make_gpt(config);
  const auto device = make_cpu_device();
  Memory memory(*device);
  const auto stream = device->create_stream({.name = "compute"});
  const auto data = [&] {
    return Tensor::empty(memory, Shape{2, 8}, DType::kInt32, MemoryCategory::kData, "data");
  };
  const Batch batch{.inputs = data(), .targets = data(), .items = 16};
  WholeModel whole(model, memory, DType::kFloat32, DType::kFloat32);
  run_on(*stream,
         [&] { whole.forward_backward(memory, *stream, batch, {.tape = {.kernels = &kernels}}); });
  return calls;
}

Calls calls_of_a_block(const LoraOptions& lora, const std::vector<std::string>& targets = {}) {
  return calls_of(llama(2, lora, targets)) - calls_of(llama(1, lora, targets));
}

// A frozen block has 4 GEMMs forward and 4 backward. Adapters of its matrices read 4 different
// inputs: for each there is one GEMM for h, da and dx, and two scalings. For each of the 7 there is
// one that adds to y, one for db and one for dh.
TEST(AdapterCalls, AreAsFewAsThereAreInputs) {
  const LoraOptions lora{.rank = 16, .alpha = 8.0};
  EXPECT_EQ(calls_of_a_block(lora), (Calls{.gemms = 8 + 4 * 3 + 7 * 3, .casts = 4 * 2}));
  EXPECT_EQ(calls_of_a_block(lora, {"q_proj", "v_proj"}),
            (Calls{.gemms = 8 + 1 * 3 + 2 * 3, .casts = 2}));
  // With a scale of 1 nothing is scaled.
  EXPECT_EQ(calls_of_a_block({.rank = 16, .alpha = 16.0}), (Calls{.gemms = 8 + 4 * 3 + 7 * 3}));
}

// Adapters whose A's are no neighbours, or whose scales differ.
TEST(AdapterCalls, AreOnesOwnWhereAdaptersShareNothing) {
  const Calls apart{.gemms = 8 + 7 * 6, .casts = 7 * 2};
  EXPECT_EQ(calls_of_a_block({.rank = 3, .alpha = 8.0}), apart);  // 96 elements
  LoraOptions scales{.rank = 16, .alpha = 8.0};
  scales.alpha_pattern = {{"k_proj", 4.0}, {"up_proj", 4.0}};
  EXPECT_EQ(calls_of_a_block(scales), apart);
}

// A mask of dropout is an adapter's own, so that it reads an input of its own.
TEST(AdapterCalls, AreOnesOwnBehindDropout) {
  const Calls calls = calls_of_a_block({.rank = 16, .alpha = 8.0, .dropout = 0.1F});
  EXPECT_EQ(calls.gemms, 8 + 7 * 6);
}

TEST(AdapterLayout, HasTheMatricesOfOneInputBesideEachOther) {
  const LoraOptions lora{.rank = 16};
  for (const std::int64_t alignment : {std::int64_t{64}, std::int64_t{256}}) {
    const ModelLayout layout = make_layout(make_gpt(llama(1, lora)), {}, 2, alignment);
    const FlatParameter* const flat = layout.units[1].find("parameter");
    ASSERT_NE(flat, nullptr);
    const auto place = [&](const std::string& module) -> const FlatTensor& {
      const std::string name = "layers.0." + module + ".lora_A.weight";
      return *std::ranges::find_if(
          flat->tensors, [&](const FlatTensor& tensor) { return tensor.spec.name == name; });
    };
    const auto end = [](const FlatTensor& tensor) { return tensor.offset + tensor.numel(); };
    EXPECT_EQ(place("self_attn.k_proj").offset, end(place("self_attn.q_proj")));
    EXPECT_EQ(place("self_attn.v_proj").offset, end(place("self_attn.k_proj")));
    EXPECT_EQ(place("mlp.up_proj").offset, end(place("mlp.gate_proj")));
  }
}

}  // namespace
}  // namespace tessera::test::adapter_calls_test

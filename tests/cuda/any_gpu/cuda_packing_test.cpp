#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "cuda/cuda_run.h"
#include "tessera/core/error.h"

// Steps on a GPU with several documents in a sample: what the CPU's are held to. Compiled twice,
// for an emulated GPU and for a real one.
namespace tessera::cuda_packing_test {
namespace {

using test::counting_gpt;
using test::CountingTokens;
using test::cuda_options;
using test::expect_same_bits;
using test::kLength;
using test::Trained;

/// CountingTokens with the places where their documents begin.
class PackedTokens : public CountingTokens {
 public:
  explicit PackedTokens(bool several = true) : several_(several) {}
  Shape input_shape(std::int64_t n) const override { return {2, n, kLength}; }
  std::int64_t fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                    TensorView targets) const override {
    const std::int64_t tokens =
        CountingTokens::fill(first, micro_batch, inputs.narrow(0, 0, 1), targets);
    std::int32_t* const starts = inputs.narrow(0, 1, 1).as<std::int32_t>();
    for (std::int64_t i = 0; i < tokens; ++i) {
      const std::int64_t document = several_ ? 1 + (first + i / kLength) % 5 : kLength;
      starts[i] = static_cast<std::int32_t>(i % kLength / document * document);
    }
    return tokens;
  }

 private:
  bool several_;
};

/// Positions by rotation, norms of queries and keys, and a window.
Model small_qwen() {
  return make_gpt({.vocab_size = test::kVocabulary,
                   .context_length = kLength,
                   .layers = 2,
                   .heads = 2,
                   .width = 16,
                   .family = GptFamily::kQwen3,
                   .kv_heads = 1,
                   .window = 4});
}

/// Soft caps of scores and logits, and a window in each second layer.
Model small_gemma() {
  return make_gpt({.vocab_size = test::kVocabulary,
                   .context_length = kLength,
                   .layers = 2,
                   .heads = 2,
                   .width = 16,
                   .family = GptFamily::kGemma2,
                   .kv_heads = 1,
                   .window = 4,
                   .window_period = 2,
                   .attention_cap = 2.0,
                   .logit_cap = 3.0});
}

Trained run(const Model& model, const TrainerOptions& options,
            const BatchSource& data = PackedTokens()) {
  Trained result;
  result.summary = Trainer(model, data, options).train([&](const StepRecord& record) {
    result.losses.push_back(record.loss);
    result.norms.push_back(record.gradient_norm);
    return true;
  });
  result.parameters = result.summary.parameters_sha256;
  return result;
}

TEST(CudaPacking, StrategiesAndGraphsGiveTheSameBits) {
  for (const auto& [model, precision] : {std::pair{counting_gpt(), DType::kFloat32},
                                         {counting_gpt(), DType::kBFloat16},
                                         {small_qwen(), DType::kBFloat16},
                                         {small_gemma(), DType::kBFloat16}}) {
    SCOPED_TRACE(concat(model.name, " ", to_string(precision)));
    TrainerOptions options = cuda_options("full_shard", 1);
    options.precision = precision;
    options.accumulate = 2;
    options.policy.recompute = Recompute::kSelective;
    options.cuda_graph = false;
    const Trained reference = run(model, options);
    EXPECT_LT(reference.losses.back(), reference.losses.front());
    options.cuda_graph = true;
    expect_same_bits(run(model, options), reference);
    for (const char* const strategy : {"zero2", "full_shard"}) {
      TrainerOptions sharded = cuda_options(strategy, 2);
      sharded.precision = precision;
      sharded.policy.recompute = Recompute::kSelective;
      const Trained trained = run(model, sharded);
      expect_same_bits(trained, reference);
      EXPECT_EQ(trained.summary.measured_memory, trained.summary.predicted_memory);
    }
  }
}

TEST(CudaPacking, OneDocumentIsASampleThatIsNotPacked) {
  for (const Model& model : {counting_gpt(), small_qwen(), small_gemma()}) {
    const TrainerOptions options = cuda_options("full_shard", 2);
    const Trained plain = run(model, options, CountingTokens());
    expect_same_bits(run(model, options, PackedTokens(false)), plain);
    EXPECT_NE(run(model, options).losses, plain.losses);
  }
}

TEST(CudaPacking, LossesAreNearThoseOfTheCpu) {
  for (const Model& model : {counting_gpt(), small_qwen(), small_gemma()}) {
    TrainerOptions options = cuda_options("full_shard", 2);
    const Trained on_gpu = run(model, options);
    options.device = DeviceChoice::kCpu;
    options.group = GroupChoice::kAuto;
    const Trained on_cpu = run(model, options);
    ASSERT_EQ(on_gpu.losses.size(), on_cpu.losses.size());
    for (std::size_t i = 0; i < on_cpu.losses.size(); ++i) {
      // Sums in other orders, a few roundings of fp32 in each of a few steps.
      EXPECT_NEAR(on_gpu.losses[i], on_cpu.losses[i], 2e-5 * std::abs(on_cpu.losses[i])) << i;
      EXPECT_NEAR(on_gpu.norms[i], on_cpu.norms[i], 2e-4 * std::abs(on_cpu.norms[i])) << i;
    }
  }
}

}  // namespace
}  // namespace tessera::cuda_packing_test

#include "cuda/cuda_run.h"
#include "tessera/core/error.h"

// Steps on a GPU of DoRA's adapters. Compiled twice, for an emulated GPU and for a real one.
namespace tessera::cuda_dora_test {
namespace {

using test::cuda_options;
using test::kLength;
using test::run;
using test::Trained;

/// GPT-2 has biases, which come behind the rescaling; Llama's modules are some of a matrix's rows.
Model small_model(GptFamily family) {
  GptConfig config{.vocab_size = test::kVocabulary,
                   .context_length = kLength,
                   .layers = 2,
                   .heads = 2,
                   .width = 16,
                   .family = family};
  config.tie_embedding = family == GptFamily::kGpt2;
  config.adapter = parse_adapter("lora",
                                 family == GptFamily::kGpt2
                                     ? "r=3,targets=c_attn,c_fc,c_proj,dora=true,save=ln_f"
                                     : "r=3,targets=q_proj,v_proj,down_proj,dora=true,save=lm_head",
                                 config);
  return make_gpt(config);
}

TEST(CudaDora, StepsAreNearThoseOfTheCpuAndTheSameWithEveryStrategy) {
  for (const GptFamily family : {GptFamily::kGpt2, GptFamily::kLlama}) {
    for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
      const Model model = small_model(family);
      SCOPED_TRACE(concat(family == GptFamily::kGpt2 ? "gpt2 " : "llama ", to_string(precision)));
      TrainerOptions options = cuda_options("full_shard", 1);
      options.precision = precision;
      options.accumulate = 2;
      const Trained on_gpu = run(model, options);
      EXPECT_NE(on_gpu.losses.back(), on_gpu.losses.front());
      for (const char* const strategy : {"zero2", "full_shard"}) {
        TrainerOptions sharded = cuda_options(strategy, 2);
        sharded.precision = precision;
        const Trained trained = run(model, sharded);
        test::expect_same_bits(trained, on_gpu);
        EXPECT_EQ(trained.summary.measured_memory, trained.summary.predicted_memory);
      }
      options.device = DeviceChoice::kCpu;
      const Trained on_cpu = run(model, options);
      const double tolerance = precision == DType::kFloat32 ? 1e-5 : 2e-2;
      ASSERT_EQ(on_cpu.losses.size(), on_gpu.losses.size());
      for (std::size_t i = 0; i < on_cpu.losses.size(); ++i) {
        EXPECT_NEAR(on_gpu.losses[i], on_cpu.losses[i], tolerance * on_cpu.losses[i]) << i;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::cuda_dora_test

#include "cuda/cuda_run.h"

// Steps whose attention is cuDNN's, as in all larger models. Only on a GPU: there is no substitute
// for cuDNN's kernels.
namespace tessera {
namespace {

using test::cuda_options;
using test::expect_same_bits;
using test::run;
using test::Trained;

constexpr std::int64_t kLength = 64;

/// Heads of 64, which cuDNN takes.
Model model_for_cudnn() {
  return make_gpt({.vocab_size = test::kVocabulary,
                   .context_length = kLength,
                   .layers = 2,
                   .heads = 2,
                   .width = 128});
}

/// kCudnn throws where kAuto would take our own.
TrainerOptions cudnn_options(const std::string& strategy, int ranks) {
  TrainerOptions options = cuda_options(strategy, ranks);
  options.precision = DType::kBFloat16;
  options.attention = AttentionBackend::kCudnn;
  return options;
}

TEST(CudnnSteps, AllStrategiesGiveTheSameBits) {
  const Model model = model_for_cudnn();
  const Trained reference = run(model, cudnn_options("no_shard", 4), kLength);
  EXPECT_LT(reference.losses.back(), reference.losses.front());
  for (const Strategy& strategy : strategies()) {
    if (strategy.name == "no_shard") continue;
    SCOPED_TRACE(strategy.name);
    const Trained sharded = run(model, cudnn_options(strategy.name, 4), kLength);
    expect_same_bits(sharded, reference);
    EXPECT_EQ(sharded.summary.measured_memory, sharded.summary.predicted_memory);
  }
}

TEST(CudnnSteps, StrategiesGiveTheSameBitsInFp16) {
  const Model model = model_for_cudnn();
  const auto in_fp16 = [](const char* strategy) {
    TrainerOptions options = cudnn_options(strategy, 2);
    options.precision = DType::kFloat16;
    options.loss_scale.initial = 1024.0;
    return options;
  };
  const Trained reference = run(model, in_fp16("no_shard"), kLength);
  EXPECT_LT(reference.losses.back(), reference.losses.front());
  expect_same_bits(run(model, in_fp16("full_shard"), kLength), reference);
}

TEST(CudnnSteps, AGraphReplaysTheSameBits) {
  const Model model = model_for_cudnn();
  TrainerOptions options = cudnn_options("full_shard", 1);
  options.steps = 6;
  options.cuda_graph = false;
  const Trained eager = run(model, options, kLength);
  options.cuda_graph = true;
  expect_same_bits(run(model, options, kLength), eager);
}

}  // namespace
}  // namespace tessera

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "cuda/cuda_run.h"
#include "tessera/core/error.h"
#include "tessera/lab/kernel_calls.h"
#include "tessera/trainer/training_plan.h"

// Gradients of biases on a GPU: the norm that follows a linear layer, in the same layer of the
// model or in the next one, sums them on its way; where it cannot, a pass gives the same bits.
namespace tessera {
namespace {

constexpr int kBlocks = 2, kBiases = 4;  // of counting_gpt()

TrainerOptions options_of(DType precision, Recompute recompute) {
  TrainerOptions options = test::cuda_options("full_shard", 1);
  options.precision = precision;
  options.policy.recompute = recompute;
  return options;
}

/// Passes over gradients of activations in a step, only to sum their columns.
std::int64_t passes_over_gradients(const TrainerOptions& options) {
  const test::CountingTokens data;
  const Model model = test::counting_gpt();
  const TrainingPlan plan = make_training_plan({model, data}, options);
  std::int64_t passes = 0;
  for (const auto& kernels : record_kernels({&plan.schedule(), &data}, plan.layout, model,
                                            executor_options(plan.options))) {
    passes += std::ranges::count(kernels, "bias_gradient", &KernelCall::kernel);
  }
  return passes;
}

TEST(CudaColumnSums, AreThoseOfTheNextNormWhileItsLayerIsRecorded) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective}) {
    EXPECT_EQ(passes_over_gradients(options_of(DType::kBFloat16, recompute)), kBlocks * 2)
        << "of queries, keys and values, and of the MLP's first product";
  }
  // The layer before is not recorded by then.
  EXPECT_EQ(passes_over_gradients(options_of(DType::kBFloat16, Recompute::kFull)), kBlocks * 3);
  EXPECT_EQ(passes_over_gradients(options_of(DType::kFloat32, Recompute::kNone)),
            kBlocks * kBiases);
}

TEST(CudaColumnSums, AreThoseOfAPass) {
  for (const DType precision : {DType::kBFloat16, DType::kFloat16}) {
    for (const int accumulate : {1, 3}) {
      SCOPED_TRACE(concat(to_string(precision), ", ", accumulate, " micro-batches"));
      TrainerOptions options = options_of(precision, Recompute::kNone);
      options.accumulate = accumulate;
      const test::Trained handed_on = test::run(test::counting_gpt(), options);
      options.policy.recompute = Recompute::kFull;
      test::expect_same_bits(test::run(test::counting_gpt(), options), handed_on);
    }
  }
}

// A message between stages has the gradient alone.
TEST(CudaColumnSums, AreThoseOfAPassBehindAMessage) {
  TrainerOptions options = options_of(DType::kBFloat16, Recompute::kNone);
  options.accumulate = 4;
  options.pipeline.tied_apart = true;
  const test::Trained alone = test::run(test::counting_gpt(), options);
  options.ranks = 2;
  options.pipeline.ranks = 2;
  for (const PipelineOrder order :
       {PipelineOrder::kOneForwardOneBackward, PipelineOrder::kZeroBubbleV}) {
    SCOPED_TRACE(to_string(order));
    options.pipeline.schedule.order = order;
    test::expect_same_bits(test::run(test::counting_gpt(), options), alone);
  }
}

}  // namespace
}  // namespace tessera

#include "cuda/cuda_run.h"

#include <cmath>

#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"

// Steps on an emulated GPU: what the CPU's tests hold the executor to, held on CUDA streams.
namespace tessera {
namespace {

using test::cuda_options;
using test::expect_same_bits;
using test::run;
using test::small_gpt;
using test::Trained;

class CudaStep : public test::EmulatedGpu {};

TEST_F(CudaStep, AllStrategiesGiveTheSameBitsOnFourRanksOfOneGpu) {
  const Model model = small_gpt();
  const Trained reference = run(model, cuda_options("no_shard", 4));
  EXPECT_LT(reference.losses.back(), reference.losses.front());
  for (const Strategy& strategy : strategies()) {
    if (strategy.name == "no_shard") continue;
    SCOPED_TRACE(strategy.name);
    const Trained sharded = run(model, cuda_options(strategy.name, 4));
    expect_same_bits(sharded, reference);
    EXPECT_EQ(sharded.summary.measured_memory, sharded.summary.predicted_memory);
    for (const Traffic& counted : sharded.summary.counted_traffic) {
      EXPECT_EQ(counted, sharded.summary.predicted_traffic);
    }
  }
}

TEST_F(CudaStep, FourRanksEqualOneThatAccumulates) {
  const Model model = small_gpt();
  TrainerOptions alone = cuda_options("full_shard", 1);
  alone.accumulate = 3;
  expect_same_bits(run(model, cuda_options("zero2", 3)), run(model, alone));
}

TEST_F(CudaStep, AGraphReplaysTheSameBits) {
  const Model model = small_gpt();
  for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
    TrainerOptions options = cuda_options("full_shard", 1);
    options.precision = precision;
    options.cuda_graph = false;
    const Trained eager = run(model, options);
    const std::int64_t before = fake_cuda::counters().graph_launches;
    options.cuda_graph = true;
    expect_same_bits(run(model, options), eager);
    EXPECT_EQ(fake_cuda::counters().graph_launches - before, options.steps - 1);
  }
}

TEST_F(CudaStep, AGraphFollowsTheKeysOfDropout) {
  const Model model = small_gpt(0.2F);
  TrainerOptions options = cuda_options("zero2", 1);
  options.cuda_graph = false;
  const Trained eager = run(model, options);
  options.cuda_graph = true;
  expect_same_bits(run(model, options), eager);
}

TEST_F(CudaStep, LossesAreNearThoseOfTheCpu) {
  const Model model = small_gpt();
  const Trained on_gpu = run(model, cuda_options("full_shard", 2));
  TrainerOptions options = cuda_options("full_shard", 2);
  options.device = DeviceChoice::kCpu;
  options.group = GroupChoice::kAuto;
  const Trained on_cpu = run(model, options);
  ASSERT_EQ(on_gpu.losses.size(), on_cpu.losses.size());
  for (std::size_t i = 0; i < on_cpu.losses.size(); ++i) {
    // Sums in other orders, a few roundings of fp32 in each of a few steps.
    EXPECT_NEAR(on_gpu.losses[i], on_cpu.losses[i], 2e-5 * std::abs(on_cpu.losses[i])) << i;
  }
}

TEST_F(CudaStep, TheHostWaitsOncePerLaneAndStep) {
  const Model model = small_gpt();
  TrainerOptions options = cuda_options("full_shard", 1);
  options.gather_parameters = false;
  const test::CountingTokens data;
  const Trainer trainer(model, data, options);
  std::vector<std::int64_t> waits;
  trainer.train([&](const StepRecord&) {
    waits.push_back(fake_cuda::counters().host_waits);
    return true;
  });
  for (std::size_t step = 2; step < waits.size(); ++step) {
    EXPECT_EQ(waits[step] - waits[step - 1], kLanes) << "step " << step;
  }
}

class DelayedCudaStep : public test::EmulatedGpu {
 protected:
  DelayedCudaStep() : EmulatedGpu({.max_delay_us = 300, .seed = 7}) {}
};

TEST_F(DelayedCudaStep, DelaysOfAnyTaskChangeNoBit) {
  const Model model = small_gpt();
  const Trained delayed = run(model, cuda_options("full_shard", 2));
  fake_cuda::configure({});
  expect_same_bits(delayed, run(model, cuda_options("full_shard", 2)));
}

}  // namespace
}  // namespace tessera

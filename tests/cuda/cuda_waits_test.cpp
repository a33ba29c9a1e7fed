#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "cuda/cuda_run.h"
#include "cuda/emulated_gpu.h"
#include "emulator_blas/fake_cublaslt.h"
#include "simt.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"

// Counts of an emulated GPU in a step, and results that its delays must not change.
namespace tessera {
namespace {

using test::counting_gpt;
using test::cuda_options;
using test::expect_same_bits;
using test::run;
using test::Trained;

class CudaWaits : public test::EmulatedGpu {
 protected:
  /// The counter after each step.
  static std::vector<std::int64_t> after_steps(const TrainerOptions& options,
                                               std::int64_t fake_cuda::Counters::*counter,
                                               const Model& model = counting_gpt()) {
    const test::CountingTokens data;
    const Trainer trainer(model, data, options);
    std::vector<std::int64_t> counts;
    trainer.train([&](const StepRecord&) {
      counts.push_back(fake_cuda::counters().*counter);
      return true;
    });
    return counts;
  }
};

/// The lanes of a schedule whose optimizer steps run on the compute lane, and which copies nothing:
/// compute, gather, reduce.
constexpr int kLanesInTurn = 3;

TEST_F(CudaWaits, TheHostWaitsOncePerLaneAndStep) {
  TrainerOptions options = cuda_options("full_shard", 1);
  options.gather_parameters = false;
  options.overlap_steps = false;
  // A rank alone gathers nothing.
  constexpr int kLanesAlone = kLanesInTurn - 1;
  for (const bool graph : {false, true}) {
    options.cuda_graph = graph;
    const auto waits = after_steps(options, &fake_cuda::Counters::host_waits);
    // The first step also allocates; a graph is captured in the second.
    for (std::size_t step = 2; step < waits.size(); ++step) {
      EXPECT_EQ(waits[step] - waits[step - 1], kLanesAlone)
          << "step " << step << (graph ? ", replayed" : ", eager");
    }
  }
}

/// For its results, when the next one has begun.
TEST_F(CudaWaits, TheHostWaitsOnceForAStepThatOverlaps) {
  TrainerOptions options = cuda_options("full_shard", 1);
  options.steps = 6;
  options.gather_parameters = false;
  options.overlap_steps = true;
  for (const bool graph : {false, true}) {
    options.cuda_graph = graph;
    const auto waits = after_steps(options, &fake_cuda::Counters::host_waits);
    // The last step has none behind it: the lanes are waited for.
    for (std::size_t step = 2; step + 1 < waits.size(); ++step) {
      EXPECT_EQ(waits[step] - waits[step - 1], 1)
          << "step " << step << (graph ? ", replayed" : ", eager");
    }
  }
}

/// Every rank waits for its own lanes, and for no other rank's.
TEST_F(CudaWaits, RanksThatShareAGpuDoNotWaitForEachOther) {
  constexpr int kRanks = 4;
  TrainerOptions options = cuda_options("full_shard", kRanks);
  options.gather_parameters = false;
  options.steps = 6;
  const auto waits = after_steps(options, &fake_cuda::Counters::host_waits);
  // Rank 0 counts while the others may still be in the step before, or wait for it.
  const std::int64_t steps = static_cast<std::int64_t>(waits.size()) - 2;
  EXPECT_NEAR(static_cast<double>(waits.back() - waits[1]),
              static_cast<double>(steps * kRanks * kLanesInTurn), (kRanks - 1) * kLanesInTurn);
}

/// Plans and allocations there are when a step first asks for its samples.
class PlansSoFar : public test::CountingTokens {
 public:
  std::int64_t fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                    TensorView targets) const override {
    if (!plans) {
      plans = fake_cublaslt::heuristics();
      allocations = fake_cuda::counters().allocations;
      launches = fake_cuda::counters().launches;
    }
    return CountingTokens::fill(first, micro_batch, inputs, targets);
  }
  mutable std::optional<std::int64_t> plans, allocations, launches;
};

/// With every way to recompute, and a second micro-step, which adds to gradients.
TEST_F(CudaWaits, NoStepPlansOrTakesMemory) {
  const Model model = counting_gpt(0.1F);
  for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      SCOPED_TRACE(concat(to_string(precision), ", recompute ", to_string(recompute)));
      TrainerOptions options = cuda_options("full_shard", 1);
      options.precision = precision;
      options.policy.recompute = recompute;
      options.accumulate = 2;
      options.hash_parameters = false;
      options.gather_parameters = false;
      const std::int64_t before = fake_cublaslt::heuristics();
      const PlansSoFar data;
      const TrainingSummary summary = Trainer(model, data, options).train();
      EXPECT_GT(*data.plans, before);
      EXPECT_EQ(fake_cublaslt::heuristics(), *data.plans);
      EXPECT_EQ(fake_cuda::counters().allocations, *data.allocations);
      EXPECT_GT(fake_cuda::counters().launches, *data.launches);
      EXPECT_EQ(summary.measured_memory, summary.predicted_memory);
    }
  }
}

TEST_F(CudaWaits, CommunicationGoesBeforeComputation) {
  constexpr int kRanks = 2;
  const auto before = fake_cuda::counters();
  run(counting_gpt(), cuda_options("full_shard", kRanks));
  EXPECT_EQ(fake_cuda::counters().streams - before.streams, kRanks * kLanesInTurn);
  EXPECT_EQ(fake_cuda::counters().urgent_streams - before.urgent_streams,
            kRanks * (kLanesInTurn - 1));
}

// Updates that leave multiprocessors to the next forward pass do not go before it.
TEST_F(CudaWaits, AnOptimizerOfFewBlocksGoesBehindComputation) {
  TrainerOptions options = cuda_options("full_shard", 2);
  options.overlap_steps = true;
  const auto urgent_streams = [&] {
    const auto before = fake_cuda::counters();
    run(counting_gpt(), options);
    return fake_cuda::counters().urgent_streams - before.urgent_streams;
  };
  const std::int64_t usual = urgent_streams();
  options.optimizer_blocks = 3;
  EXPECT_EQ(urgent_streams(), usual - options.ranks);
  // One block after the other gives the bits of all at once.
  for (const char* optimizer : {"adamw", "adamw8bit", "adafactor"}) {
    options.optimizer.name = optimizer;
    const auto hash_by = [&](int blocks) {
      options.optimizer_blocks = blocks;
      const Model model = counting_gpt();
      const test::CountingTokens data;
      return Trainer(model, data, options).train().parameters_sha256;
    };
    EXPECT_EQ(hash_by(1), hash_by(0)) << optimizer;
  }
  // Without a next step beside it there is nothing to leave room for.
  options.overlap_steps = false;
  options.optimizer_blocks = 3;
  const std::int64_t limited = urgent_streams();
  options.optimizer_blocks = 0;
  EXPECT_EQ(urgent_streams(), limited);
}

/// Keeps the GPU until it is let go; then counts turns.
struct Turns {
  std::atomic<bool> held = false, go = false;
  int taken = 0;
};
__global__ void hold(Turns* turns) {
  turns->held = true;
  while (!turns->go) std::this_thread::yield();
}
__global__ void take_turn(Turns* turns, int* turn) { *turn = ++turns->taken; }

TEST_F(CudaWaits, CommunicationGoesBeforeComputationInAReplayToo) {
  fake_cuda::configure({.one_kernel_at_a_time = true});
  const auto device = make_cuda_device();
  const auto stream = [&](const char* name, bool urgent) {
    return device->create_stream(
        {.name = name, .priority = urgent ? StreamPriority::kUrgent : StreamPriority::kNormal});
  };
  const auto first = stream("compute", false), second = stream("gather", true),
             other = stream("other", false);
  const auto handle = [](Stream& of) { return dynamic_cast<CudaStream&>(of).handle(); };
  auto& compute = dynamic_cast<CudaStream&>(*first);
  Turns turns;
  int turn_of_compute = 0, turn_of_gather = 0;
  compute.begin_capture();
  second->wait(compute.record());
  simt::launch(&take_turn, dim3(1), dim3(1), 0, compute.handle(), &turns, &turn_of_compute);
  simt::launch(&take_turn, dim3(1), dim3(1), 0, handle(*second), &turns, &turn_of_gather);
  compute.wait(second->record());
  const auto graph = compute.end_capture(nullptr);

  simt::launch(&hold, dim3(1), dim3(1), 0, handle(*other), &turns);
  while (!turns.held) std::this_thread::yield();
  compute.launch(*graph);
  while (fake_cuda::counters().waiting_kernels < 2) std::this_thread::yield();
  turns.go = true;
  compute.synchronize();
  other->synchronize();
  EXPECT_EQ(turn_of_gather, 1);
  EXPECT_EQ(turn_of_compute, 2);
}

/// Two where steps overlap: one of them runs beside the next step's other.
TEST_F(CudaWaits, AGraphIsLaunchedOncePerStep) {
  for (const bool overlap : {false, true}) {
    for (const bool graph : {false, true}) {
      TrainerOptions options = cuda_options("full_shard", 1);
      options.cuda_graph = graph;
      options.overlap_steps = overlap;
      const std::int64_t before = fake_cuda::counters().graph_launches;
      const auto launches = after_steps(options, &fake_cuda::Counters::graph_launches);
      EXPECT_EQ(launches.back() - before, graph ? (options.steps - 1) * (overlap ? 2 : 1) : 0);
    }
  }
}

/// The keys of their random numbers are in device memory.
TEST_F(CudaWaits, StepsThatDrawRandomNumbersAreCapturedOnce) {
  TrainerOptions options = cuda_options("full_shard", 1);
  options.steps = 6;
  options.accumulate = 2;
  options.precision = DType::kBFloat16;
  options.cuda_graph = true;
  for (const float dropout : {0.0F, 0.2F}) {
    for (const bool stochastic_rounding : {false, true}) {
      SCOPED_TRACE(concat("dropout ", dropout, stochastic_rounding ? ", stochastic rounding" : ""));
      options.optimizer.stochastic_rounding = stochastic_rounding;
      const std::int64_t before = fake_cuda::counters().captures;
      after_steps(options, &fake_cuda::Counters::captures, counting_gpt(dropout));
      EXPECT_EQ(fake_cuda::counters().captures - before, 2)
          << "the updates are a graph of their own";
    }
  }
}

TEST_F(CudaWaits, AGraphKeepsTheScratchThatItCaptured) {
  constexpr std::size_t kSmall = 1024, kLarge = 4096;
  const auto device = make_cuda_device();
  const auto stream = device->create_stream({.name = "test"});
  auto& cuda = dynamic_cast<CudaStream&>(*stream);
  void* const captured = cuda.scratch(kSmall);
  cuda.begin_capture();
  EXPECT_EQ(cuda.scratch(kSmall), captured);
  const auto graph = cuda.end_capture(nullptr);
  const auto bytes_of_growing_to = [&](std::size_t bytes) {
    const std::int64_t before = fake_cuda::counters().live_bytes;
    cuda.scratch(bytes);
    return fake_cuda::counters().live_bytes - before;
  };
  EXPECT_EQ(bytes_of_growing_to(kLarge), kLarge);
  EXPECT_EQ(bytes_of_growing_to(2 * kLarge), kLarge) << "scratch of no graph was kept";
}

class DelayedCudaStep : public test::EmulatedGpu {
 protected:
  DelayedCudaStep() : EmulatedGpu({.max_delay_us = 300, .seed = 7}) {}
};

TEST_F(DelayedCudaStep, DelaysOfAnyTaskChangeNoBit) {
  const Model model = counting_gpt();
  const Trained delayed = run(model, cuda_options("full_shard", 2));
  fake_cuda::configure({});
  expect_same_bits(delayed, run(model, cuda_options("full_shard", 2)));
}

/// All lanes but compute are slow: passes would run ahead of the updates that they need.
class SlowUpdates : public test::EmulatedGpu {
 protected:
  SlowUpdates() : EmulatedGpu({.max_delay_us = 2000, .delays_urgent_only = true}) {}
};

TEST_F(SlowUpdates, AreWaitedForWhereStepsOverlap) {
  const Model model = counting_gpt();
  TrainerOptions options = cuda_options("no_shard", 1);
  options.overlap_steps = true;
  std::vector<Trained> slow;
  for (const bool graph : {false, true}) {
    options.cuda_graph = graph;
    slow.push_back(run(model, options));
  }
  fake_cuda::configure({});
  options.overlap_steps = false;
  const Trained in_turn = run(model, options);
  for (const Trained& trained : slow) expect_same_bits(trained, in_turn);
}

}  // namespace
}  // namespace tessera

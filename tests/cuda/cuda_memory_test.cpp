#include <gmock/gmock.h>

#include "cuda/cuda_run.h"
#include "cuda/emulated_gpu.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/trainer/auto_batch.h"
#include "tessera/trainer/gpu_overhead.h"
#include "tessera/trainer/session.h"

// The memory of a GPU that a run takes beside what its plan counts.
namespace tessera {
namespace {

using test::cuda_options;
using test::notes_of;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

struct Sizes {
  std::int64_t vocabulary, width, length, micro_batch;
  std::int64_t heads = 1;
  int accumulate = 1;
  DType precision = DType::kFloat32;
  Recompute recompute = Recompute::kNone;
};

Model model_of(const Sizes& sizes) {
  return make_gpt({.vocab_size = sizes.vocabulary,
                   .context_length = sizes.length,
                   .layers = 2,
                   .heads = sizes.heads,
                   .width = sizes.width});
}

TrainerOptions options_of(const Sizes& sizes) {
  TrainerOptions options = cuda_options("full_shard", 1);
  options.micro_batch = sizes.micro_batch;
  options.accumulate = sizes.accumulate;
  options.precision = sizes.precision;
  options.policy.recompute = sizes.recompute;
  options.steps = 3;
  options.evaluation_samples = 2 * sizes.micro_batch;
  return options;
}

std::int64_t bytes_of(const std::vector<OverheadItem>& items, const std::string& name) {
  for (const OverheadItem& item : items) {
    if (item.name == name) return item.bytes;
  }
  ADD_FAILURE() << "no " << name;
  return 0;
}

class CudaMemory : public test::EmulatedGpu {
 protected:
  static std::int64_t live_bytes() { return fake_cuda::counters().live_bytes; }
};

const Sizes kTiny{.vocabulary = 19, .width = 16, .length = 8, .micro_batch = 1};

TEST_F(CudaMemory, OfTheHostIsTakenOnceAndCanBeEnded) {
  constexpr std::int64_t kBytes = std::int64_t{8} << 20;
  HostWork work;
  const auto device = make_cuda_device({.pinned_bytes = kBytes, .host_work = &work});
  void* const first = device->allocate_host(1000);
  void* const second = device->allocate_host(kBytes / 2);
  const HostWork::Extent taken = work.of(HostTask::kTouchPages);
  EXPECT_EQ(taken.total_bytes, kBytes);
  EXPECT_EQ(taken.done_bytes, kBytes);
  device->deallocate_host(first, 1000);
  device->deallocate_host(second, kBytes / 2);

  HostWork ended([] { return true; });
  const auto other = make_cuda_device({.pinned_bytes = kBytes, .host_work = &ended});
  try {
    other->allocate_host(1000);
    ADD_FAILURE() << "it went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kAborted) << error.what();
  }
}
const Sizes kTinyRecomputed{.vocabulary = 19,
                            .width = 16,
                            .length = 8,
                            .micro_batch = 1,
                            .accumulate = 2,
                            .precision = DType::kBFloat16,
                            .recompute = Recompute::kFull};

/// Trains on an emulated GPU for each rank, or on one that they share.
void expect_pools_as_planned(const Sizes& sizes, const TrainerOptions& options, int ranks_of_pool) {
  const Model model = model_of(sizes);
  const test::CountingTokens data(sizes.length);
  const std::int64_t before = fake_cuda::counters().live_bytes;
  Session session(model, data, options, &data);
  while (session.step()) session.evaluate();
  session.parameters([](const FullParameter&) {});
  const MemoryPeak handed_out = session.use().front().memory;
  const std::int64_t taken = fake_cuda::counters().live_bytes - before;
  EXPECT_EQ(handed_out, session.plan().memory);
  EXPECT_EQ(taken, ranks_of_pool * session.plan().pool_bytes);
  EXPECT_EQ(session.plan().pool_bytes - handed_out.total,
            bytes_of(gpu_overhead(session.plan()), "memory pool"));
}

/// Nothing is taken beside the pool, and it takes what the plan simulates: where tensors have
/// segments of their own; where the most is taken between steps, for gathered parameters; and where
/// the first to take a segment is the chunk in which parameters are initialised.
TEST_F(CudaMemory, ThePoolTakesWhatThePlanSimulates) {
  expect_pools_as_planned(kTiny, options_of(kTiny), 1);
  fake_cuda::configure({.computes = false});
  for (const Sizes& sizes :
       {Sizes{.vocabulary = 10'000,
       .width = 256,
       .length = 128,
       .micro_batch = 12,
       .heads = 4,
       .accumulate = 2,
       .precision = DType::kBFloat16,
       .recompute = Recompute::kSelective},
        Sizes{.vocabulary = 400'000, .width = 24, .length = 8, .micro_batch = 2, .accumulate = 2},
        Sizes{.vocabulary = 1'543'346,
        .width = 8,
        .length = 8,
        .micro_batch = 1,
        .recompute = Recompute::kFull}}) {
    SCOPED_TRACE(sizes.vocabulary);
    expect_pools_as_planned(sizes, options_of(sizes), 1);
  }
}

TEST_F(CudaMemory, ThePoolOfEachRankTakesWhatThePlanSimulates) {
  fake_cuda::configure({.devices = 2});
  TrainerOptions options = options_of(kTiny);
  options.ranks = 2;
  for (const GroupChoice group : {GroupChoice::kThread, GroupChoice::kNccl}) {
    SCOPED_TRACE(to_string(group));
    options.group = group;
    expect_pools_as_planned(kTiny, options, 2);
  }
}

/// One arena for what is offloaded, for the copies of checkpoints, and for what steps exchange with
/// the host.
TEST_F(CudaMemory, HostMemoryIsPinnedOnceForEachRank) {
  const Sizes sizes{.vocabulary = 100'000, .width = 16, .length = 8, .micro_batch = 1};
  TrainerOptions options = options_of(sizes);
  options.offload_optimizer = parse_offload("host");
  options.ranks = 2;
  options.hash_parameters = false;  // which gathers them in host memory of its own, after the steps
  const std::int64_t before = fake_cuda::counters().registrations;
  const Model model = model_of(sizes);
  const test::CountingTokens data(sizes.length);
  const TrainingSummary summary = Trainer(model, data, options).train();
  EXPECT_GT(summary.measured_host_memory.total, std::int64_t{4} << 20);
  EXPECT_EQ(fake_cuda::counters().registrations - before, 2);
}

TEST_F(CudaMemory, AGraphHasNoMoreNodesThanThePlanAllowsFor) {
  for (const Sizes& sizes : {kTiny, kTinyRecomputed}) {
    const Model model = model_of(sizes);
    const test::CountingTokens data(sizes.length);
    TrainerOptions options = options_of(sizes);
    options.overlap_steps = false;
    const Trainer trainer(model, data, options);
    std::vector<std::int64_t> launches;
    trainer.train([&](const StepRecord&) {
      launches.push_back(fake_cuda::counters().launches);
      return true;
    });
    constexpr std::int64_t kNodeBytes = 8192;
    const std::int64_t replayed = launches.at(2) - launches.at(1);
    EXPECT_GT(replayed, 20);
    EXPECT_LE(replayed * kNodeBytes, bytes_of(gpu_overhead(trainer.plan()), "CUDA graph"));
  }
}

TEST_F(CudaMemory, AGpuWithThePlanAndWhatIsBesideItTrains) {
  const Sizes& sizes = kTiny;
  const Model model = model_of(sizes);
  const test::CountingTokens data(sizes.length);
  const TrainingPlan plan = make_training_plan({model, data}, options_of(sizes));
  const auto with_memory = [&](std::int64_t bytes) {
    fake_cuda::configure({.memory_bytes = static_cast<std::size_t>(bytes + live_bytes())});
    return Trainer(model, data, options_of(sizes));
  };
  const std::int64_t beside = total_bytes(gpu_overhead(plan));
  const auto tight = Contains(HasSubstr("the run may end for want of memory"));
  EXPECT_THAT(notes_of(with_memory(plan.memory.total + beside)), Not(tight));
  // Nothing but the pool takes memory of an emulated GPU: with that it trains, and is warned.
  EXPECT_THAT(notes_of(with_memory(plan.pool_bytes)), tight);
  EXPECT_THAT(with_memory(plan.memory.total + beside - 1).plan().notes, tight);
  const std::int64_t launches = fake_cuda::counters().launches;
  try {
    with_memory(plan.memory.total - 1);
    FAIL() << "was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.what(), HasSubstr("more than"));
  }
  EXPECT_EQ(fake_cuda::counters().launches, launches);
}

TEST_F(CudaMemory, AutoBatchLeavesRoomForWhatIsBesideThePlan) {
  const Sizes sizes{
      .vocabulary = 150'000, .width = 8, .length = 8, .micro_batch = 1, .accumulate = 16};
  const Model model = model_of(sizes);
  const test::CountingTokens data(sizes.length);
  const auto plan_of = [&](std::int64_t micro_batch) {
    Sizes changed = sizes;
    changed.micro_batch = micro_batch;
    changed.accumulate = static_cast<int>(16 / micro_batch);
    return make_training_plan({model, data}, options_of(changed));
  };
  const auto needs = [&](std::int64_t micro_batch) {
    const TrainingPlan plan = plan_of(micro_batch);
    return plan.memory.total + total_bytes(gpu_overhead(plan));
  };
  ASSERT_LT(needs(4), needs(8));
  for (const std::int64_t given : {needs(4), needs(8) - 1}) {
    const BatchChoice choice = choose_batch({model, data}, options_of(sizes), given);
    EXPECT_EQ(choice.micro_batch, 4);
    EXPECT_EQ(choice.budget_bytes, given - total_bytes(gpu_overhead(plan_of(4))));
    EXPECT_EQ(choice.next_micro_batch, 8);
    EXPECT_THAT(describe_room(choice), HasSubstr("CUDA context 640 MiB"));
  }
  EXPECT_EQ(choose_batch({model, data}, options_of(sizes), needs(8)).micro_batch, 8);
  try {
    choose_batch({model, data}, options_of(sizes), needs(1) - 1);
    FAIL() << "fitted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("that a GPU holds beside the plan (memory pool"));
  }
}

TEST_F(CudaMemory, AutoBatchKnowsWhetherRanksShareAGpu) {
  TrainerOptions options = options_of(kTiny);
  options.group = GroupChoice::kAuto;
  options.ranks = 2;
  for (const int gpus : {1, 2}) {
    fake_cuda::configure({.devices = gpus});
    const BatchChoice choice =
        choose_batch({model_of(kTiny), test::CountingTokens()}, options, std::int64_t{8} << 30);
    const std::string room = describe_room(choice);
    EXPECT_EQ(room.find("NCCL") != std::string::npos, gpus == 2) << room;
    EXPECT_EQ(room.find("CUDA graph") != std::string::npos, gpus == 2) << room;
  }
}

}  // namespace
}  // namespace tessera

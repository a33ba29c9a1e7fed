#include <gmock/gmock.h>

#include <chrono>
#include <thread>
#include <utility>

#include "cuda/cuda_run.h"
#include "cuda/emulated_gpu.h"
#include "emulator_nccl/fake_nccl.h"
#include "tessera/collectives/nccl_group.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/trainer/rank_device.h"

// Steps on four emulated GPUs of one process, over the substitute for NCCL.
namespace tessera::cuda_nccl_test {
namespace {

using test::counting_gpt;
using test::cuda_options;
using test::expect_same_bits;
using test::run;
using test::Trained;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = 4;

TrainerOptions nccl_options(const std::string& strategy) {
  TrainerOptions options = cuda_options(strategy, kRanks);
  options.group = GroupChoice::kAuto;  // a GPU for each rank: NCCL
  options.cuda_graph = false;
  return options;
}

class CudaNccl : public test::EmulatedGpu {
 protected:
  CudaNccl() : EmulatedGpu({.devices = kRanks}) {}
};

TEST_F(CudaNccl, InRankOrderGivesTheBitsOfThreads) {
  const Model model = counting_gpt();
  for (const char* strategy : {"zero2", "hybrid_shard"}) {
    SCOPED_TRACE(strategy);
    TrainerOptions options = nccl_options(strategy);
    options.deterministic_collectives = true;
    const Trained over_nccl = run(model, options);
    expect_same_bits(over_nccl, run(model, cuda_options(strategy, kRanks)));
    EXPECT_EQ(over_nccl.summary.measured_memory, over_nccl.summary.predicted_memory);
  }
}

TrainerOptions in_halves(DType dtype, TrainerOptions options) {
  options.precision = dtype;
  options.reduce_dtype = dtype;
  return options;
}

TEST_F(CudaNccl, GradientsInFp16GiveTheBitsOfThreads) {
  const Model model = counting_gpt();
  const Trained expected =
      run(model, in_halves(DType::kFloat16, cuda_options("full_shard", kRanks)));
  for (const char* strategy : {"no_shard", "full_shard"}) {
    SCOPED_TRACE(strategy);
    expect_same_bits(run(model, in_halves(DType::kFloat16, nccl_options(strategy))), expected);
  }
}

// Sums of what travels in bf16 are taken by us, in rank order, whatever order NCCL adds in.
TEST_F(CudaNccl, GradientsInBf16GiveTheBitsOfThreads) {
  const Model model = counting_gpt();
  const auto in_bf16 = [](const TrainerOptions& options) {
    return in_halves(DType::kBFloat16, options);
  };
  const Trained expected = run(model, in_bf16(cuda_options("full_shard", kRanks)));
  for (const char* strategy : {"no_shard", "zero1", "zero2", "full_shard"}) {
    SCOPED_TRACE(strategy);
    const Trained over_nccl = run(model, in_bf16(nccl_options(strategy)));
    expect_same_bits(over_nccl, expected);
    EXPECT_EQ(over_nccl.summary.measured_memory, over_nccl.summary.predicted_memory);
    for (const Traffic& counted : over_nccl.summary.counted_traffic) {
      EXPECT_EQ(counted.sent_bytes, over_nccl.summary.predicted_traffic.sent_bytes);
    }
  }
  const auto twice = [&](TrainerOptions options) {
    options.accumulate = 2;
    return run(model, in_bf16(options));
  };
  expect_same_bits(twice(nccl_options("no_shard")), twice(cuda_options("zero1", kRanks)));
}

TEST_F(CudaNccl, AGraphReplaysTheSameBits) {
  const Model model = counting_gpt();
  TrainerOptions options = nccl_options("full_shard");
  const Trained eager = run(model, options);
  const fake_cuda::Counters before = fake_cuda::counters();
  options.cuda_graph = true;
  expect_same_bits(run(model, options), eager);
  const fake_cuda::Counters after = fake_cuda::counters();
  EXPECT_EQ(after.graph_launches - before.graph_launches, 2 * kRanks * (options.steps - 1));
  // The thread of a rank launches all that the rank launches: see [Note: blocking calls].
  EXPECT_EQ(after.foreign_captures, before.foreign_captures);
  EXPECT_EQ(emulator::nccl_background_launches(), 0);
}

TEST_F(CudaNccl, EveryCollectiveOfALaneIsGivenRegisteredMemory) {
  const Model model = counting_gpt();
  for (const auto& [strategy, checked] :
       {std::pair{"zero1", false}, {"hybrid_shard", false}, {"hybrid_shard", true}}) {
    SCOPED_TRACE(concat(strategy, checked ? ", checked" : ""));
    TrainerOptions options = nccl_options(strategy);
    options.reduction_order = ReductionOrder::kHierarchical;
    options.check_collectives = checked;  // whose own go through scratch, and are not counted
    const long before = emulator::nccl_registered_collectives();
    const Trained trained = run(model, options);
    // Scalars, twice a step, are exchanged by the control group: some hundred bytes.
    std::int64_t calls = -2 * kRanks * options.steps;
    for (const Traffic& traffic : trained.summary.counted_traffic) {
      for (const std::int64_t n : traffic.calls) calls += n;
      EXPECT_EQ(traffic.copied_bytes, 0);
    }
    EXPECT_GT(calls, 0);
    EXPECT_EQ(emulator::nccl_registered_collectives() - before, calls);
    EXPECT_EQ(emulator::nccl_registrations(), 0);  // all taken back
  }
}

/// It is no reason to fail, and none to be silent.
TEST_F(CudaNccl, BuffersThatCannotBeRegisteredAreTold) {
  const Model model = counting_gpt();
  const TrainerOptions options = nccl_options("full_shard");
  const Trained expected = run(model, options);
  emulator::refuse_nccl_registrations(true);
  const test::CountingTokens data;
  const auto notes = test::notes_of(Trainer(model, data, options));
  expect_same_bits(run(model, options), expected);
  emulator::refuse_nccl_registrations(false);
  EXPECT_THAT(notes, Contains(AllOf(HasSubstr("NCCL has not registered"),
                                    HasSubstr("NCCL reports 'some NCCL error'"))));
  EXPECT_THAT(test::notes_of(Trainer(model, data, options)),
              Not(Contains(HasSubstr("registered"))));
}

/// As is memory that NCCL cannot use in place, though it takes the registration.
TEST_F(CudaNccl, MemoryThatIsNotOfNcclIsTold) {
  const Model model = counting_gpt();
  const TrainerOptions options = nccl_options("full_shard");
  const Trained expected = run(model, options);
  emulator::refuse_nccl_memory(true);
  const long before = emulator::nccl_registered_collectives();
  const test::CountingTokens data;
  const auto notes = test::notes_of(Trainer(model, data, options));
  expect_same_bits(run(model, options), expected);
  EXPECT_EQ(emulator::nccl_registered_collectives(), before);
  emulator::refuse_nccl_memory(false);
  EXPECT_THAT(notes, Contains(HasSubstr("ncclMemAlloc gave no memory ('some NCCL error'")));
}

TEST_F(CudaNccl, SegmentsAreWholePages) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  fake_cuda::configure({.memory_bytes = 80 * kMiB});
  const std::int64_t before = fake_cuda::counters().live_bytes;
  {
    const auto device = make_cuda_device({.segments = nccl_segments(0)});
    const auto reserved_with = [&](std::int64_t bytes) {
      void* const memory = device->allocate(static_cast<std::size_t>(bytes));
      EXPECT_TRUE(fake_cuda::is_virtual(memory, static_cast<std::size_t>(bytes)));
      EXPECT_EQ(device->reserved_bytes(), fake_cuda::counters().live_bytes - before);
      return device->reserved_bytes() / kMiB;
    };
    EXPECT_EQ(reserved_with(100), 32);
    EXPECT_EQ(reserved_with(32 * kMiB), 32 + 32);
    EXPECT_EQ(reserved_with(31 * kMiB), 32 + 32);  // in what the first has left
    EXPECT_EQ(reserved_with(3 * kMiB), 32 + 32 + 4) << "the last of it, in whole pages";
    EXPECT_EQ(reserved_with(kMiB), 32 + 32 + 4);
    try {
      device->allocate(13 * kMiB);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("GPU 0 has 12582912 of its 83886080 bytes left"),
                                      HasSubstr("this rank holds 71303168")));
    }
  }
  EXPECT_EQ(fake_cuda::counters().live_bytes, before);
}

/// Runs until the test makes rank 1 fail after the second step; all must end in time.
void expect_end_of_all(const TrainerOptions& options) {
  const Model model = counting_gpt();
  const test::CountingTokens data;
  const Trainer trainer(model, data, options);  // whose timeout is two minutes
  const auto begin = std::chrono::steady_clock::now();
  try {
    trainer.train([](const StepRecord& record) {
      if (record.step == 2) emulator::fail_next_nccl_operation(1);
      return true;
    });
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("remote process exited"), std::string::npos)
        << error.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
  EXPECT_EQ(emulator::nccl_registrations(), 0);
}

TEST_F(CudaNccl, ARankThatFailsEndsTheOthersAtOnce) {
  expect_end_of_all(nccl_options("full_shard"));
}

/// Rank 1 reads the samples of its third step only when others should have given up.
class LateTokens : public test::CountingTokens {
 public:
  static constexpr std::chrono::seconds kTimeout{3};
  std::int64_t fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                    TensorView targets) const override {
    if (first == 2 * kRanks + 1) {
      const auto longest_step = std::chrono::steady_clock::now() - begin_;  // at most
      std::this_thread::sleep_for(longest_step + 2 * kTimeout);
    }
    return CountingTokens::fill(first, micro_batch, inputs, targets);
  }

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

TEST_F(CudaNccl, AReplayedStepHasADeadline) {
  const Model model = counting_gpt();
  const LateTokens data;
  TrainerOptions options = nccl_options("full_shard");
  options.cuda_graph = true;
  options.timeout = LateTokens::kTimeout;
  const std::int64_t before = fake_cuda::counters().graph_launches;
  try {
    Trainer(model, data, options).train();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_THAT(error.what(), HasSubstr("step 3, replayed as a CUDA graph, on rank"));
    EXPECT_THAT(error.what(), HasSubstr("not all ranks came within"));
  }
  EXPECT_GT(fake_cuda::counters().graph_launches, before);
}

/// Process 1 of two on this machine, with two ranks each.
class SecondOfTwo : public World {
 public:
  int size() const override { return 4; }
  int process() const override { return 1; }
  int processes() const override { return 2; }
  int first_rank() const override { return 2; }
  int local_ranks() const override { return 2; }
  int ranks_on_host() const override { return 4; }
  int first_local_rank() const override { return 2; }
  int machine_of(int) const override { return 0; }
  const std::vector<std::unique_ptr<ProcessGroup>>& groups() const override { return none_; }
  std::unique_ptr<Device> make_device() override { return nullptr; }
  std::string failure() const override { return ""; }

 private:
  std::vector<std::unique_ptr<ProcessGroup>> none_;
};

TEST_F(CudaNccl, ARankOfSeveralProcessesTakesTheGpuOfItsPlace) {
  TrainerOptions options = nccl_options("full_shard");
  options.world = std::make_shared<SecondOfTwo>();
  const auto gpu_of = [&](int rank) {
    return dynamic_cast<CudaDevice&>(*make_rank_device(options, rank)).ordinal();
  };
  EXPECT_EQ(gpu_of(2), 2);  // all GPUs can be seen
  EXPECT_EQ(gpu_of(3), 3);
  fake_cuda::configure({.devices = 2});  // the launcher hides those of process 0
  EXPECT_EQ(gpu_of(2), 0);
  EXPECT_EQ(gpu_of(3), 1);
}

}  // namespace
}  // namespace tessera::cuda_nccl_test

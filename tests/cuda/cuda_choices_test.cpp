#include <gmock/gmock.h>

#include "cuda/cuda_run.h"
#include "cuda/emulated_gpu.h"
#include "tessera/core/error.h"
#include "tessera/trainer/auto_batch.h"

// What a run on GPUs decides by itself, and tells: whether ranks share GPUs, whether steps are
// replayed as a graph.
namespace tessera {
namespace {

using test::counting_gpt;
using test::cuda_options;
using test::expect_same_bits;
using test::notes_of;
using test::run;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class CudaChoices : public test::EmulatedGpu {
 protected:
  CudaChoices() : EmulatedGpu({.devices = 2}) {}

  Trainer trainer(const TrainerOptions& options) const { return {model_, data_, options}; }

  const Model model_ = counting_gpt();
  const test::CountingTokens data_;
};

TEST_F(CudaChoices, MoreRanksThanGpusShareThemAndAreTold) {
  TrainerOptions options = cuda_options("full_shard", 4);
  options.group = GroupChoice::kAuto;
  const Trainer shared = trainer(options);
  EXPECT_EQ(shared.plan().options.group, GroupChoice::kThread);
  EXPECT_THAT(notes_of(shared), Contains(HasSubstr("4 ranks share 2 GPUs")));
  expect_same_bits(run(model_, options), run(model_, cuda_options("full_shard", 4)));
  fake_cuda::configure({});
  EXPECT_THAT(notes_of(trainer(options)), Contains(HasSubstr("4 ranks share GPU 0")));
}

TEST_F(CudaChoices, AsManyRanksAsGpusUseNccl) {
  TrainerOptions options = cuda_options("full_shard", 2);
  options.group = GroupChoice::kAuto;
  const Trainer apart = trainer(options);
  EXPECT_EQ(apart.plan().options.group, GroupChoice::kNccl);
  EXPECT_THAT(notes_of(apart), Not(Contains(HasSubstr("share"))));
}

/// Expects steps to be replayed, or a note that says why not.
void expect_graph(const Trainer& trainer, const std::string& why_not) {
  const std::int64_t before = fake_cuda::counters().graph_launches;
  const auto notes = notes_of(trainer);
  const std::int64_t replays = fake_cuda::counters().graph_launches - before;
  const TrainingPlan& plan = trainer.plan();
  EXPECT_EQ(plan.cuda_graph, why_not.empty());
  // The updates are a graph of their own, beside the next step's forward.
  EXPECT_EQ(*plan.options.overlap_steps, plan.cuda_graph);
  EXPECT_EQ(replays, plan.cuda_graph ? 2 * plan.options.ranks * (plan.options.steps - 1) : 0);
  if (why_not.empty()) {
    EXPECT_THAT(notes, Not(Contains(HasSubstr("graph"))));
  } else {
    EXPECT_THAT(notes, Contains(HasSubstr("not replayed as a CUDA graph: " + why_not)));
  }
}

TEST_F(CudaChoices, AGraphIsReplayedOrTheReasonTold) {
  TrainerOptions options = cuda_options("full_shard", 1);
  options.time_actions.reset();
  expect_graph(trainer(options), "");  // a thread group of one rank has nothing to exchange
  options.time_actions = true;
  expect_graph(trainer(options), "`time_actions`");
  options = cuda_options("full_shard", 2);
  expect_graph(trainer(options), "the ranks of a thread group");
  options.group = GroupChoice::kNccl;
  expect_graph(trainer(options), "");
  options.check_collectives = true;
  expect_graph(trainer(options), "`check_collectives`");
}

TEST_F(CudaChoices, StepsAreTracedUnlessTheyAreGraphs) {
  TrainerOptions options = cuda_options("full_shard", 2);
  options.time_actions.reset();
  const Trainer shared = trainer(options);
  EXPECT_TRUE(*shared.plan().options.time_actions);
  EXPECT_TRUE(shared.train().timeline.has_value());
  options.group = GroupChoice::kNccl;
  const Trainer apart = trainer(options);
  EXPECT_FALSE(*apart.plan().options.time_actions);
  EXPECT_FALSE(apart.train().timeline.has_value());
}

TEST_F(CudaChoices, AttentionIsWhoseTheUserSays) {
  TrainerOptions options = cuda_options("full_shard", 1);
  options.precision = DType::kBFloat16;
  const Model model = test::cudnn_gpt();
  const test::CountingTokens data(test::kCudnnLength);
  const auto trainer_of = [&] { return Trainer(model, data, options); };
  const auto expected = run(model, options, test::kCudnnLength);
  options.deterministic_attention = false;
  EXPECT_THAT(notes_of(trainer_of()), Contains(HasSubstr("nor one of any order")));
  options.attention = AttentionBackend::kOwn;
  EXPECT_THAT(notes_of(trainer_of()), Not(Contains(HasSubstr("attention"))));
  expect_same_bits(run(model, options, test::kCudnnLength), expected);
  options.attention = AttentionBackend::kCudnn;
  try {
    trainer_of().train();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(error.what(), HasSubstr("cuDNN only: the emulator has none"));
  }
}

TEST_F(CudaChoices, NotesComeBeforeTheFirstStep) {
  TrainerOptions options = cuda_options("full_shard", 2);
  options.precision = DType::kBFloat16;
  options.steps = 2;
  for (const DType precision : {DType::kBFloat16, DType::kFloat32}) {
    options.precision = precision;
    const std::int64_t before = fake_cuda::counters().launches;
    std::vector<std::string> told;
    std::vector<std::int64_t> launches;
    bool stepped = false;
    trainer(options).train(
        [&](const StepRecord&) {
          stepped = true;
          return true;
        },
        [&](const std::string& note) {
          EXPECT_FALSE(stepped) << note;
          told.push_back(note);
          launches.push_back(fake_cuda::counters().launches - before);
        });
    ASSERT_FALSE(told.empty());
    EXPECT_EQ(launches.front(), 0) << told.front();  // of the plan: before there is an executor
    const char* const why = precision == DType::kFloat32 ? "takes bf16 and fp16 only" : "not 8";
    EXPECT_THAT(told,
                Contains(AllOf(HasSubstr("attention runs on our own kernels"), HasSubstr(why))));
  }
}

/// 110 MiB of logits are one chunk on a GPU, and two on a CPU: the simulation must know which.
TEST_F(CudaChoices, TheLossTakesChunksThatSuitAGpu) {
  constexpr std::int64_t kWords = 300'000;
  const Model wide = make_gpt(
      {.vocab_size = kWords, .context_length = test::kLength, .layers = 1, .heads = 1, .width = 8});
  TrainerOptions options = cuda_options("full_shard", 1);
  options.device = DeviceChoice::kAuto;
  options.micro_batch = 12;  // 96 rows: on a CPU two chunks
  options.steps = 1;
  const Trainer on_gpu(wide, data_, options);
  const TrainingSummary summary = on_gpu.train();
  EXPECT_EQ(summary.measured_memory, summary.predicted_memory);
  EXPECT_GE(summary.measured_memory.by_category[MemoryCategory::kWorkspace],
            96 * kWords * static_cast<std::int64_t>(sizeof(float)));
  EXPECT_EQ(choose_batch({wide, data_}, options, std::int64_t{4} << 30).predicted_bytes,
            summary.measured_memory.total);
}

TEST_F(CudaChoices, AttentionOfCudnnNeedsAGpuAndSixteenBits) {
  TrainerOptions options = cuda_options("full_shard", 1);
  options.attention = AttentionBackend::kCudnn;
  const auto error_of = [](const TrainerOptions& wrong) -> std::string {
    try {
      resolved(wrong);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(error_of(options), HasSubstr("bf16 and fp16 only"));
  for (const DType precision : {DType::kFloat16, DType::kBFloat16}) {
    options.precision = precision;
    EXPECT_NO_THROW(resolved(options));
  }
  options.device = DeviceChoice::kCpu;
  EXPECT_THAT(error_of(options), HasSubstr("leave `attention` out"));
}

TEST_F(CudaChoices, WhatWasNotAskedForIsNotExplained) {
  TrainerOptions options = cuda_options("full_shard", 1);
  options.cuda_graph = false;
  EXPECT_THAT(notes_of(trainer(options)), Not(Contains(HasSubstr("graph"))));
  EXPECT_FALSE(trainer(options).plan().cuda_graph);
}

}  // namespace
}  // namespace tessera

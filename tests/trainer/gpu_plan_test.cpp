#include <gmock/gmock.h>

#include "tessera/model/gpt.h"
#include "tessera/trainer/gpu_overhead.h"

// Plans of runs on GPUs, made without one.
namespace tessera {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class Tokens : public BatchSource {
 public:
  Shape input_shape(std::int64_t n) const override { return {n, kLength}; }
  DType input_dtype() const override { return DType::kInt32; }
  Shape target_shape(std::int64_t n) const override { return {n, kLength}; }
  DType target_dtype() const override { return DType::kInt32; }
  std::int64_t fill(std::int64_t, std::int64_t, TensorView, TensorView) const override { return 0; }

 private:
  static constexpr std::int64_t kLength = 1024;
};

TrainingPlan plan_of(std::int64_t micro_batch, TrainerOptions options = {}) {
  GptConfig config = gpt_preset("gpt2-1558m");
  config.layers = 2;  // all are alike
  if (options.device == DeviceChoice::kAuto) options.device = DeviceChoice::kCuda;
  options.precision = DType::kBFloat16;
  options.micro_batch = micro_batch;
  return make_training_plan({make_gpt(config), Tokens()}, options);
}

// 2 B H L^2 bytes with 25 heads: 1 GiB is reached between 20 and 21 samples.
TEST(GpuPlan, SaysWhichPassesOfAttentionAreOurOwn) {
  const auto any = Contains(HasSubstr("attention"));
  EXPECT_THAT(plan_of(20).notes, Not(any));
  EXPECT_THAT(plan_of(21).notes,
              Contains(AllOf(HasSubstr("attention's backward pass runs on our own kernels"),
                             HasSubstr("`micro_batch` 20 or less"),
                             HasSubstr("`deterministic_attention` false"),
                             HasSubstr("`attention` cudnn"))));
  EXPECT_THAT(plan_of(21, {.deterministic_attention = false}).notes, Not(any));
  EXPECT_THAT(plan_of(21, {.attention = AttentionBackend::kOwn}).notes, Not(any));
  EXPECT_THAT(plan_of(21, {.attention = AttentionBackend::kCudnn}).notes, Not(any));
  // In any order the limit is reached later: 8 B H L D bytes, and 4 for each row
  EXPECT_THAT(plan_of(82, {.deterministic_attention = false}).notes,
              Contains(AllOf(HasSubstr("`micro_batch` 81"), Not(HasSubstr("false")))));
}

TEST(GpuPlan, SaysThatWindowsAreOurOwn) {
  GptConfig config = gpt_preset("mistral-7b");
  config.layers = 1;
  const auto notes = [&](std::int64_t window) {
    config.window = window;
    TrainerOptions options;
    options.device = DeviceChoice::kCuda;
    options.precision = DType::kBFloat16;
    options.micro_batch = 1;
    return make_training_plan({make_gpt(config), Tokens()}, options).notes;
  };
  EXPECT_THAT(notes(1024), Not(Contains(HasSubstr("attention"))));
  EXPECT_THAT(notes(1023), Contains(AllOf(HasSubstr("attention runs on our own kernels"),
                                          HasSubstr("without a window"))));
}

/// Tokens, and where their documents begin.
class PackedTokens : public Tokens {
 public:
  Shape input_shape(std::int64_t n) const override {
    const Shape tokens = Tokens::input_shape(n);
    return {2, tokens[0], tokens[1]};
  }
};

TEST(GpuPlan, SaysThatDocumentsOfPackedSamplesAreOurOwn) {
  GptConfig config = gpt_preset("gpt2-124m");
  config.layers = 1;
  TrainerOptions options;
  options.device = DeviceChoice::kCuda;
  options.precision = DType::kBFloat16;
  options.micro_batch = 1;
  const TrainingPlan plan = make_training_plan({make_gpt(config), PackedTokens()}, options);
  EXPECT_THAT(plan.notes, Contains(AllOf(HasSubstr("attention runs on our own kernels"),
                                         HasSubstr("the documents of packed samples"))));
}

TEST(GpuPlan, TheScratchOfAPassIsThatOfWhoRunsIt) {
  const auto workspace = [](const TrainingPlan& plan) {
    return plan.memory.by_category[MemoryCategory::kWorkspace];
  };
  EXPECT_GT(workspace(plan_of(20)), std::int64_t{1} << 30);
  EXPECT_EQ(
      workspace(plan_of(21, {.attention = AttentionBackend::kCudnn})) - workspace(plan_of(20)),
      25 * 1024 * (2 * 1024 + 4));
}

TEST(GpuPlan, SumsUpWhatAGpuHoldsBesideIt) {
  const auto names = [](const TrainingPlan& plan) {
    std::vector<std::string> all;
    std::int64_t sum = 0;
    for (const OverheadItem& item : gpu_overhead(plan)) {
      EXPECT_GT(item.bytes, 0) << item.name;
      EXPECT_NE(item.source, "") << item.name;
      all.push_back(item.name);
      sum += item.bytes;
    }
    EXPECT_EQ(total_bytes(gpu_overhead(plan)), sum);
    return all;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(plan_of(1)), (Names{"memory pool", "CUDA context", "kernels", "CUDA graph"}));
  EXPECT_EQ(names(plan_of(1, {.cuda_graph = false})),
            (Names{"memory pool", "CUDA context", "kernels"}));
  EXPECT_EQ(names(plan_of(1, {.ranks = 8, .group = GroupChoice::kNccl})),
            (Names{"memory pool", "CUDA context", "kernels", "CUDA graph", "NCCL"}));
  EXPECT_EQ(names(plan_of(1, {.ranks = 2, .group = GroupChoice::kThread})),
            (Names{"memory pool", "CUDA context", "kernels"}));
  const TrainingPlan cpu = plan_of(1, {.device = DeviceChoice::kCpu});
  EXPECT_TRUE(gpu_overhead(cpu).empty());
  EXPECT_EQ(cpu.pool_bytes, 0);
}

}  // namespace
}  // namespace tessera

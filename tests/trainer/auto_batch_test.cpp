#include "tessera/trainer/auto_batch.h"

#include <gtest/gtest.h>

#include <string>

#include "tessera/core/error.h"
#include "tessera/model/gpt.h"
#include "tessera/trainer/trainer.h"

namespace tessera {
namespace {

constexpr std::int64_t kLength = 16;
constexpr std::int64_t kSamples = 24;  // per rank and step

/// Tokens that count up; all that matters is how many there are.
class CountingTokens : public BatchSource {
 public:
  Shape input_shape(std::int64_t n) const override { return {n, kLength}; }
  DType input_dtype() const override { return DType::kInt32; }
  Shape target_shape(std::int64_t n) const override { return {n, kLength}; }
  DType target_dtype() const override { return DType::kInt32; }
  std::int64_t fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                    TensorView targets) const override {
    for (std::int64_t i = 0; i < micro_batch * kLength; ++i) {
      inputs.as<std::int32_t>()[i] = static_cast<std::int32_t>((first * kLength + i) % 50);
      targets.as<std::int32_t>()[i] = static_cast<std::int32_t>((first * kLength + i + 1) % 50);
    }
    return micro_batch * kLength;
  }
};

GptConfig sizes(std::int64_t layers, std::int64_t width) {
  GptConfig config;
  config.vocab_size = 50;
  config.context_length = kLength;
  config.layers = layers;
  config.width = width;
  config.heads = 2;
  return config;
}

struct Case {
  std::string strategy;
  int ranks;
  std::int64_t layers, width;
  Recompute recompute;
  double room;  ///< memory given, between what one sample and what all samples need
  std::string offload_optimizer = "none", offload_parameters = "none";
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.strategy << " on " << c.ranks << " ranks, " << c.layers << " layers of " << c.width;
}

class AutoBatch : public testing::TestWithParam<Case> {
 protected:
  AutoBatch() : model_(make_gpt(sizes(GetParam().layers, GetParam().width))) {}

  TrainerOptions options(std::int64_t micro_batch) const {
    return {.strategy = GetParam().strategy,
            .ranks = GetParam().ranks,
            .offload_optimizer = parse_offload(GetParam().offload_optimizer),
            .offload_parameters = parse_offload(GetParam().offload_parameters),
            .steps = 1,
            .micro_batch = micro_batch,
            .accumulate = static_cast<int>(kSamples / micro_batch),
            .policy = {.recompute = GetParam().recompute},
            .threads_per_rank = 1};
  }
  std::int64_t predicted(std::int64_t micro_batch) const {
    return make_training_plan({model_, data_}, options(micro_batch)).memory.total;
  }
  std::int64_t measured(std::int64_t micro_batch) const {
    const Trainer trainer(model_, data_, options(micro_batch));
    return trainer.train().measured_memory.total;
  }

  CountingTokens data_;
  Model model_;
};

TEST_P(AutoBatch, TheChoiceFitsAndTheNextLargerOneDoesNot) {
  const double least = static_cast<double>(predicted(1));
  const double most = static_cast<double>(predicted(kSamples));
  const auto given = static_cast<std::int64_t>((least + GetParam().room * (most - least)) /
                                               (1.0 - kAutoBatchMargin));
  const BatchChoice choice = choose_batch({model_, data_}, options(1), given);
  EXPECT_EQ(choice.micro_batch * choice.accumulate, kSamples);
  const std::int64_t peak = measured(choice.micro_batch);
  EXPECT_EQ(peak, choice.predicted_bytes);
  EXPECT_LE(peak, choice.budget_bytes);
  ASSERT_TRUE(choice.next_micro_batch.has_value());
  EXPECT_GT(*choice.next_micro_batch, choice.micro_batch);
  const std::int64_t next = measured(*choice.next_micro_batch);
  EXPECT_EQ(next, choice.next_bytes);
  EXPECT_GT(next, choice.budget_bytes);
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return concat(c.strategy, '_', c.ranks, "_ranks_", c.layers, "_layers_of_", c.width,
                c.offload_optimizer == "host" ? "_on_host" : "");
}

INSTANTIATE_TEST_SUITE_P(Combinations, AutoBatch,
                         testing::Values(Case{"no_shard", 1, 2, 16, Recompute::kNone, 0.5},
                                         Case{"no_shard", 2, 1, 32, Recompute::kFull, 0.2},
                                         Case{"zero1", 2, 2, 16, Recompute::kNone, 0.9},
                                         Case{"zero2", 2, 2, 24, Recompute::kSelective, 0.1},
                                         Case{"zero2", 3, 1, 16, Recompute::kNone, 0.6},
                                         Case{"shard_grad_op", 2, 2, 16, Recompute::kNone, 0.3},
                                         Case{"full_shard", 1, 3, 16, Recompute::kSelective, 0.7},
                                         Case{"full_shard", 2, 2, 32, Recompute::kNone, 0.05},
                                         Case{"full_shard", 4, 2, 16, Recompute::kFull, 0.8},
                                         Case{"hybrid_shard", 4, 2, 16, Recompute::kNone, 0.4},
                                         Case{"zero1", 2, 2, 16, Recompute::kNone, 0.5, "host"},
                                         Case{"full_shard", 2, 2, 16, Recompute::kFull, 0.3, "host",
                                              "host:0.5"}),
                         name_of);

TEST(AutoBatchErrors, TakesTheWholeStepWhenItFitsAndSaysWhenNothingDoes) {
  const CountingTokens data;
  const Model model = make_gpt(sizes(1, 16));
  const TrainerOptions options{.micro_batch = 2, .accumulate = 3};
  const BatchChoice all = choose_batch({model, data}, options, std::int64_t{1} << 40);
  EXPECT_EQ(all.micro_batch, 6);
  EXPECT_EQ(all.accumulate, 1);
  EXPECT_FALSE(all.next_micro_batch.has_value());
  try {
    choose_batch({model, data}, options, 1000);
    FAIL() << "fitted into 1000 bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_NE(std::string(error.what()).find("`policy.recompute` full"), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera

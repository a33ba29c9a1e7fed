#include "support/evaluation_golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "support/golden.h"
#include "support/small_run.h"

// The executor's evaluation of a small GPT-2 against transformers, with every strategy.
namespace tessera::evaluation_golden_test {
namespace {

using test::EvaluationGolden;

/// The rows of all batches, one after the other; beyond them nothing counts.
class GoldenRows : public BatchSource {
 public:
  /// `classes`: targets are made some of so many classes; 0: they are tokens.
  explicit GoldenRows(const EvaluationGolden& golden, std::int32_t classes = 0)
      : length_(golden.length) {
    for (const EvaluationGolden::Batch& batch : golden.batches) {
      tokens_.insert(tokens_.end(), batch.tokens.begin(), batch.tokens.end());
      targets_.insert(targets_.end(), batch.targets.begin(), batch.targets.end());
    }
    for (std::int32_t& target : targets_) {
      if (classes > 0 && target > 0) target %= classes;
    }
  }
  std::int64_t count_of(std::int32_t target) const { return std::ranges::count(targets_, target); }
  std::int64_t samples() const { return static_cast<std::int64_t>(tokens_.size()) / length_; }
  Shape input_shape(std::int64_t n) const override { return Shape{n, length_}; }
  Shape target_shape(std::int64_t n) const override { return Shape{n, length_}; }
  DType input_dtype() const override { return DType::kInt32; }
  DType target_dtype() const override { return DType::kInt32; }
  std::int64_t fill(std::int64_t first, std::int64_t n, TensorView inputs,
                    TensorView targets) const override {
    std::int64_t counted = 0;
    for (std::int64_t i = 0; i < n * length_; ++i) {
      const auto at = static_cast<std::size_t>(first * length_ + i);
      const bool is_there = at < tokens_.size();
      inputs.as<std::int32_t>()[i] = is_there ? tokens_[at] : 0;
      targets.as<std::int32_t>()[i] = is_there ? targets_[at] : -1;
      counted += is_there && targets_[at] >= 0 ? 1 : 0;
    }
    return counted;
  }

 private:
  std::vector<std::int32_t> tokens_, targets_;
  std::int64_t length_;
};

struct GoldenEvaluation {
  const test::Golden& weights;
  const Model& model;
  const GoldenRows& rows;
};

StepResult evaluate(const GoldenEvaluation& run, const std::string& strategy, int ranks,
                    std::int64_t micro_batch) {
  const ModelLayout layout = make_layout(run.model, {}, ranks);
  PlanOptions options = test::plan_options({.ranks = ranks, .strategy = strategy});
  options.purpose = Purpose::kEvaluate;
  const Schedule schedule = plan(layout, options);
  require_valid(schedule);
  std::map<std::string, std::vector<float>> initial;
  for (const auto& layer : run.model.layers) {
    for (const ParameterSpec& spec : layer->parameters()) {
      if (spec.name == "score.weight") {  // of classes, which the golden model has not
        std::vector<float>& weight = initial[spec.name];
        for (std::int64_t i = 0; i < spec.shape.numel(); ++i) {
          weight.push_back(static_cast<float>(i * 7 % 11 - 5) / 8.0F);
        }
        continue;
      }
      initial[spec.name] = run.weights.floats("initial/" + spec.name);
    }
  }
  StepResult result;
  launch_ranks(make_thread_group(ranks), [&](int rank, ProcessGroup& group) {
    const auto device = make_cpu_device();
    Memory memory(*device);
    RankGroups groups = RankGroups::split_from(group, schedule);
    TrainingState state(layout, state_options(schedule), rank, memory);
    Executor executor(state, run.model, {{&schedule, &run.rows}}, groups, memory,
                      {.micro_batch = micro_batch});
    executor.set_parameters(
        [&](const std::string& name) -> std::span<const float> { return initial.at(name); });
    const StepResult own = executor.evaluate(0, run.rows.samples());
    if (rank == 0) result = own;
  });
  return result;
}

TEST(EvaluationGolden, TheExecutorHasTheLossOfTransformers) {
  const test::Golden weights(TESSERA_SOURCE_DIR "/tests/model/golden/gpt2");
  const auto golden =
      EvaluationGolden::read(TESSERA_SOURCE_DIR "/tests/model/golden/evaluation.json");
  const auto& c = weights.index().at("config");
  const Model model = make_gpt({.vocab_size = c.at("vocab_size"),
                                .context_length = c.at("context_length"),
                                .layers = c.at("layers"),
                                .heads = c.at("heads"),
                                .width = c.at("width")});
  const GoldenRows rows(golden);
  ASSERT_EQ(rows.samples(), 15);
  const GoldenEvaluation run{weights, model, rows};
  // Micro-batches of another size are GEMMs of another shape, which may round otherwise.
  for (const std::int64_t micro_batch : {1, 3, 4}) {  // of 4 the last is not full
    const StepResult first = evaluate(run, "no_shard", 1, micro_batch);
    EXPECT_EQ(first.items, golden.tokens);
    EXPECT_EQ(first.classified, golden.tokens);
    EXPECT_EQ(first.correct, golden.correct);
    EXPECT_NEAR(first.loss, golden.loss, 1e-5 * golden.loss);
    EXPECT_NEAR(std::exp(first.loss), golden.perplexity, 1e-4 * golden.perplexity);
    for (const Strategy& strategy : strategies()) {
      for (const int ranks : {1, 3}) {
        SCOPED_TRACE(concat(strategy.name, " on ", ranks, ", micro-batch ", micro_batch));
        const StepResult result = evaluate(run, strategy.name, ranks, micro_batch);
        EXPECT_EQ(result.items, golden.tokens);
        EXPECT_EQ(result.loss, first.loss);
        EXPECT_EQ(result.correct, golden.correct);
      }
    }
  }
}

/// What each class is counted for is exact, so it is the same of all strategies and ranks.
TEST(EvaluationGolden, ClassesAreCountedAlikeByAllStrategies) {
  const test::Golden weights(TESSERA_SOURCE_DIR "/tests/model/golden/gpt2");
  const auto golden =
      EvaluationGolden::read(TESSERA_SOURCE_DIR "/tests/model/golden/evaluation.json");
  const auto& c = weights.index().at("config");
  const Model model = make_gpt({.vocab_size = c.at("vocab_size"),
                                .context_length = c.at("context_length"),
                                .layers = c.at("layers"),
                                .heads = c.at("heads"),
                                .width = c.at("width"),
                                .labels = {"a", "b", "c"}});
  const GoldenRows rows(golden, 3);
  const GoldenEvaluation run{weights, model, rows};
  const StepResult first = evaluate(run, "no_shard", 1, 3);
  ASSERT_EQ(first.classes.size(), 3U);
  ClassCounts sum;
  for (std::int32_t label = 0; label < 3; ++label) {
    const ClassCounts& of_class = first.classes[static_cast<std::size_t>(label)];
    EXPECT_EQ(of_class.actual, rows.count_of(label));
    EXPECT_GT(of_class.predicted, 0);
    sum.add(of_class);
  }
  EXPECT_EQ(sum, (ClassCounts{first.correct, golden.tokens, golden.tokens}));
  EXPECT_GT(first.correct, 0);
  for (const Strategy& strategy : strategies()) {
    for (const int ranks : {1, 3}) {
      SCOPED_TRACE(concat(strategy.name, " on ", ranks));
      EXPECT_EQ(evaluate(run, strategy.name, ranks, 3).classes, first.classes);
    }
  }
}

}  // namespace
}  // namespace tessera::evaluation_golden_test

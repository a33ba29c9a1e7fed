#include <gtest/gtest.h>

#include "support/golden.h"
#include "support/small_run.h"

// Twenty AdamW steps of a small GPT-2 against PyTorch, with every strategy.
namespace tessera::test {
namespace {

constexpr double kBound = 1e-4;  // relative: largest difference over largest magnitude

class GoldenBatches : public BatchSource {
 public:
  explicit GoldenBatches(const Golden& golden)
      : tokens_(golden.ints("tokens")), targets_(golden.ints("targets")) {
    const Shape shape = golden.shape("tokens");
    length_ = shape[2];
  }
  Shape input_shape(std::int64_t n) const override { return Shape{n, length_}; }
  Shape target_shape(std::int64_t n) const override { return Shape{n, length_}; }
  DType input_dtype() const override { return DType::kInt32; }
  DType target_dtype() const override { return DType::kInt32; }
  std::int64_t fill(std::int64_t first, std::int64_t n, TensorView inputs,
                    TensorView targets) const override {
    std::copy_n(tokens_.begin() + first * length_, n * length_, inputs.as<std::int32_t>());
    std::copy_n(targets_.begin() + first * length_, n * length_, targets.as<std::int32_t>());
    return std::count_if(targets.as<std::int32_t>(), targets.as<std::int32_t>() + n * length_,
                         [](std::int32_t t) { return t >= 0; });
  }

 private:
  std::vector<std::int32_t> tokens_, targets_;
  std::int64_t length_ = 0;
};

struct Trained {
  std::vector<float> losses, norms;
  std::vector<FullParameter> parameters;
};

/// `ranks` divides the batch of the golden run.
Trained train_golden(const Golden& golden, const std::string& strategy, int ranks) {
  const auto& config = golden.index().at("config");
  const auto& optimizer = golden.index().at("optimizer");
  const Model model = make_gpt({.vocab_size = config.at("vocab_size"),
                                .context_length = config.at("context_length"),
                                .layers = config.at("layers"),
                                .heads = config.at("heads"),
                                .width = config.at("width")});
  const GoldenBatches source(golden);
  const Shape tokens = golden.shape("tokens");
  const ModelLayout layout = make_layout(model, {}, ranks);
  const Schedule schedule = plan(layout, plan_options({.ranks = ranks, .strategy = strategy}));
  ExecutorOptions options{.optimizer = {.hyperparameters = {{"beta1", optimizer.at("beta1")},
                                                            {"beta2", optimizer.at("beta2")},
                                                            {"epsilon", optimizer.at("epsilon")}},
                                        .weight_decay = optimizer.at("weight_decay"),
                                        .clip_norm = optimizer.at("clip_norm")},
                          .micro_batch = tokens[1] / ranks};
  std::map<std::string, std::vector<float>> initial;
  for (const auto& layer : model.layers) {
    for (const ParameterSpec& spec : layer->parameters()) {
      initial[spec.name] = golden.floats("initial/" + spec.name);
    }
  }
  Trained trained;
  launch_ranks(make_thread_group(ranks), [&](int rank, ProcessGroup& group) {
    const auto device = make_cpu_device();
    Memory memory(*device);
    RankGroups groups = RankGroups::split_from(group, schedule);
    TrainingState state(layout, state_options(schedule), rank, memory);
    Executor executor(state, model, {{&schedule, &source}}, groups, memory, options);
    executor.set_parameters(
        [&](const std::string& name) -> std::span<const float> { return initial.at(name); });
    for (std::int64_t step = 0; step < tokens[0]; ++step) {
      const StepResult r = executor.run_step(step, optimizer.at("learning_rate"));
      if (rank != 0) continue;
      trained.losses.push_back(static_cast<float>(r.loss));
      trained.norms.push_back(static_cast<float>(r.gradient_norm));
    }
    auto parameters = executor.gather_parameters();
    if (rank == 0) trained.parameters = std::move(parameters);
  });
  return trained;
}

/// A key's bias adds the same number to all scores of a query, which softmax ignores: its gradient
/// is zero, and what is computed is rounding error, which Adam blows up to steps of the learning
/// rate. PyTorch in fp32 is 0.8 % away from itself in fp64 there. So this part may drift by two
/// runs' worth of steps; it is checked for that and taken out of the comparison.
void settle_key_biases(std::vector<float>& actual, const std::vector<float>& expected,
                       double drift) {
  const std::size_t width = expected.size() / 3;
  for (std::size_t i = width; i < 2 * width; ++i) {
    EXPECT_NEAR(actual[i], expected[i], drift);
    actual[i] = expected[i];
  }
}

TEST(Golden, TwentyStepsStayWithPyTorchUnderEveryStrategy) {
  const Golden golden(TESSERA_SOURCE_DIR "/tests/model/golden/gpt2");
  const auto rate = golden.index().at("optimizer").at("learning_rate");
  const double drift = 2.0 * rate.get<double>() * static_cast<double>(golden.shape("tokens")[0]);
  for (const Strategy& strategy : strategies()) {
    for (const int ranks : {1, 3}) {
      SCOPED_TRACE(strategy.name);
      Trained trained = train_golden(golden, strategy.name, ranks);
      EXPECT_LT(relative_error(trained.losses, golden.floats("step_loss")), kBound);
      EXPECT_LT(relative_error(trained.norms, golden.floats("step_gradient_norm")), kBound);
      for (FullParameter& parameter : trained.parameters) {
        const std::vector<float> expected = golden.floats("final/" + parameter.name);
        if (parameter.name.ends_with("c_attn.bias")) {
          settle_key_biases(parameter.values, expected, drift);
        }
        EXPECT_LT(relative_error(parameter.values, expected), kBound) << parameter.name;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::test

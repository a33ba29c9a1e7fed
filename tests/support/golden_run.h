#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "support/golden.h"
#include "support/small_run.h"

namespace tessera::test {

/// The batches of a golden file, in order; with "starts" also where documents begin.
class GoldenBatches : public BatchSource {
 public:
  explicit GoldenBatches(const Golden& golden)
      : tokens_(golden.ints("tokens")), targets_(golden.ints("targets")) {
    const Shape shape = golden.shape("tokens");
    length_ = shape[2];
    if (golden.index().at("tensors").contains("starts")) starts_ = golden.ints("starts");
  }
  Shape input_shape(std::int64_t n) const override {
    return starts_.empty() ? Shape{n, length_} : Shape{2, n, length_};
  }
  Shape target_shape(std::int64_t n) const override { return Shape{n, length_}; }
  DType input_dtype() const override { return DType::kInt32; }
  DType target_dtype() const override { return DType::kInt32; }
  std::int64_t fill(std::int64_t first, std::int64_t n, TensorView inputs,
                    TensorView targets) const override {
    std::copy_n(tokens_.begin() + first * length_, n * length_, inputs.as<std::int32_t>());
    if (!starts_.empty()) {
      std::copy_n(starts_.begin() + first * length_, n * length_,
                  inputs.as<std::int32_t>() + n * length_);
    }
    std::copy_n(targets_.begin() + first * length_, n * length_, targets.as<std::int32_t>());
    return std::count_if(targets.as<std::int32_t>(), targets.as<std::int32_t>() + n * length_,
                         [](std::int32_t t) { return t >= 0; });
  }

 private:
  std::vector<std::int32_t> tokens_, targets_, starts_;
  std::int64_t length_ = 0;
};

struct Trained {
  std::vector<float> losses, norms;
  std::vector<float> scales;  ///< with loss scaling: each step's, and
  std::vector<std::int32_t> skipped;
  std::vector<FullParameter> parameters;
};

using InitialValues = std::map<std::string, std::vector<float>>;

/// Fills a rank's state.
using LoadState = std::function<void(TrainingState&, Stream&)>;

/// Trains on all of the golden's batches from `initial`, or from what `load` fills. `ranks` divides
/// the batch of the golden run; `dtype` is of parameters, activations and gradients.
inline Trained train_golden(const Golden& golden, const Model& model, const InitialValues& initial,
                            const std::string& strategy, int ranks, DType dtype = DType::kFloat32,
                            const std::optional<LossScaling>& loss_scaling = std::nullopt,
                            const LoadState& load = {}) {
  const auto& optimizer = golden.index().at("optimizer");
  const GoldenBatches source(golden);
  const Shape tokens = golden.shape("tokens");
  const ModelLayout layout = make_layout(model, {}, ranks);
  const Schedule schedule = plan(
      layout,
      plan_options({.ranks = ranks, .strategy = strategy, .dtype = dtype, .reduce_dtype = dtype}));
  ExecutorOptions options{.optimizer = {.hyperparameters = {{"beta1", optimizer.at("beta1")},
                                                            {"beta2", optimizer.at("beta2")},
                                                            {"epsilon", optimizer.at("epsilon")}},
                                        .weight_decay = optimizer.at("weight_decay"),
                                        .clip_norm = optimizer.at("clip_norm")},
                          .micro_batch = tokens[1] / ranks};
  options.loss_scaling = loss_scaling;
  Trained trained;
  launch_ranks(make_thread_group(ranks), [&](int rank, ProcessGroup& group) {
    const auto device = make_cpu_device();
    Memory memory(*device);
    RankGroups groups = RankGroups::split_from(group, schedule);
    TrainingState state(layout, state_options(schedule), rank, memory);
    Executor executor(state, model, {{&schedule, &source}}, groups, memory, options);
    if (load) {
      load(state, *device->create_stream({.name = "load"}));
    } else {
      executor.set_parameters(
          [&](const std::string& name) -> std::span<const float> { return initial.at(name); });
    }
    for (std::int64_t step = 0; step < tokens[0]; ++step) {
      const StepResult r = executor.run_step(step, optimizer.at("learning_rate"));
      if (rank != 0) continue;
      trained.losses.push_back(static_cast<float>(r.loss));
      trained.norms.push_back(static_cast<float>(r.gradient_norm));
      if (!r.loss_scale) continue;
      trained.scales.push_back(r.loss_scale->scale);
      trained.skipped.push_back(r.loss_scale->skipped ? 1 : 0);
    }
    auto parameters = executor.gather_parameters();
    if (rank == 0) trained.parameters = std::move(parameters);
  });
  return trained;
}

/// Expects that training under some strategies, on one and three ranks, has the losses and gradient
/// norms of the golden's steps.
inline void expect_golden_steps(const Golden& golden, const Model& model,
                                const InitialValues& initial) {
  for (const char* const strategy : {"no_shard", "zero2", "full_shard"}) {
    for (const int ranks : {1, 3}) {
      SCOPED_TRACE(strategy);
      const Trained trained = train_golden(golden, model, initial, strategy, ranks);
      EXPECT_LT(relative_error(trained.losses, golden.floats("step_loss")), 1e-5);
      EXPECT_LT(relative_error(trained.norms, golden.floats("step_gradient_norm")), 1e-4);
    }
  }
}

}  // namespace tessera::test

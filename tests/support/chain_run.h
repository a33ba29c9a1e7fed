#pragma once

#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "support/small_run.h"
#include "tessera/autograd/ops.h"
#include "tessera/core/error.h"

// A chain of small layers whose every corner a test can change, and one rank's way to train it.
namespace tessera::test {

inline constexpr std::int64_t kWidth = 9;  // odd, so that tensors end within alignment
inline constexpr int kChainLayers = 4;

/// What a layer is about to do; a hook may throw.
enum class Moment { kForward, kBackward };
using Hook = std::function<void(Moment, int layer, std::int64_t micro_batch)>;

struct ChainOptions {
  Hook hook{};
  /// Micro-batches from here on do not use "extra".
  std::int64_t unused_from = std::numeric_limits<std::int64_t>::max();
  int layers = kChainLayers;
  bool splits_backward = false;  ///< which is not so with a hook
  bool reads_batch = true;       ///< as it does
};

/// y = x W^T + b, and then y E^T with E "extra". The last layer goes on to the loss.
class ChainLayer : public Layer {
 public:
  ChainLayer(int index, ChainOptions chain)
      : Layer("l" + std::to_string(index), "Chain"), index_(index), chain_(std::move(chain)) {
    const auto normal = Initializer::normal(0.3F);
    parameters_ = {
        {.name = name() + ".weight", .shape = {kWidth, kWidth}, .initializer = normal},
        {.name = name() + ".bias",
         .shape = {kWidth},
         .initializer = Initializer::constant(0.125F),
         .weight_decay_scale = 0},
        {.name = name() + ".extra", .shape = {kWidth, kWidth}, .initializer = normal},
        {.name = name() + ".frozen",
         .shape = {3},
         .initializer = Initializer::constant(0.5F),
         .trainable = false},
    };
    splits_backward_ = chain_.splits_backward;
    reads_batch_ = chain_.reads_batch;
  }

  Value forward(Tape& tape, const Value& input, std::span<Parameter> parameters) const override {
    const std::int64_t batch = tape.batch().index;
    if (chain_.hook) chain_.hook(Moment::kForward, index_, batch);
    Value y = ops::linear(tape, input, parameters[0], &parameters[1]);
    if (batch < chain_.unused_from) y = ops::linear(tape, y, parameters[2], nullptr);
    if (tape.recording() && chain_.hook) {
      const int id = y.id;
      y = tape.output(y.tensor, [this, id, batch](Tape& t, Tensor gradient) {
        chain_.hook(Moment::kBackward, index_, batch);
        t.add_gradient(id, std::move(gradient));
      });
    }
    if (index_ < chain_.layers - 1) return y;
    return ops::cross_entropy(tape, std::move(y), tape.batch().targets);
  }

 private:
  int index_;
  ChainOptions chain_;
};

inline Model make_chain(const ChainOptions& chain = {}) {
  Model model{.name = "chain", .layers = {}};
  for (int l = 0; l < chain.layers; ++l) {
    model.layers.push_back(std::make_unique<ChainLayer>(l, chain));
  }
  return model;
}

/// Random vectors and classes; sample i is a pure function of i.
class RandomVectors : public BatchSource {
 public:
  explicit RandomVectors(DType dtype) : dtype_(dtype) {}

  std::int64_t ignored_from = std::numeric_limits<std::int64_t>::max();  ///< sample
  std::int64_t nan_from = std::numeric_limits<std::int64_t>::max();      ///< sample
  int sizes = 1;                          ///< inputs are multiplied by 1 to 2^(sizes - 1)
  std::map<std::int64_t, float> times{};  ///< inputs of these samples are multiplied by this
  std::function<void(std::int64_t first)> before_fill{};

  Shape input_shape(std::int64_t n) const override { return Shape{n, kWidth}; }
  DType input_dtype() const override { return dtype_; }
  Shape target_shape(std::int64_t n) const override { return Shape{n}; }
  DType target_dtype() const override { return DType::kInt32; }
  std::int64_t fill(std::int64_t first, std::int64_t n, TensorView inputs,
                    TensorView targets) const override {
    if (before_fill) before_fill(first);
    std::int64_t counted = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t sample = first + i;
      for (std::int64_t c = 0; c < kWidth; ++c) {
        const std::int64_t element = sample * kWidth + c;
        float value = random_normal({3, stream_of("inputs")}, element);
        if (const auto factor = times.find(sample); factor != times.end()) value *= factor->second;
        if (sample >= nan_from) value = std::numeric_limits<float>::quiet_NaN();
        if (sizes > 1) {
          const std::uint32_t size = random_word({3, stream_of("sizes")}, element);
          value = std::ldexp(value, static_cast<int>(size % static_cast<std::uint32_t>(sizes)));
        }
        const std::int64_t at = i * kWidth + c;
        if (dtype_ == DType::kFloat32) {
          inputs.as<float>()[at] = value;
        } else if (dtype_ == DType::kBFloat16) {
          inputs.as<bfloat16>()[at] = bfloat16(value);
        } else {
          inputs.as<float16>()[at] = float16(value);
        }
      }
      const auto target = random_word({3, stream_of("targets")}, sample) % std::uint32_t{kWidth};
      const bool ignored = sample >= ignored_from;
      targets.as<std::int32_t>()[i] = ignored ? -1 : static_cast<std::int32_t>(target);
      counted += ignored ? 0 : 1;
    }
    return counted;
  }

 private:
  DType dtype_;
};

inline constexpr std::int64_t kMicroBatch = 2;
inline constexpr double kRate = 1e-2;

inline ExecutorOptions chain_options() {
  ExecutorOptions options;
  options.optimizer.clip_norm = 0.5;
  options.seed = 42;
  options.micro_batch = kMicroBatch;
  return options;
}

/// What all ranks share.
struct ChainRun {
  SmallRun run;
  Model model = make_chain();
  RandomVectors source{run.dtype};
  ExecutorOptions options = chain_options();
  ModelLayout layout = make_layout(model, run.wrap, run.ranks);
  Schedule schedule = plan(layout, plan_options(run));
};

/// One rank's executor and all that must outlive it.
struct ChainRank {
  ChainRank(const ChainRun& chain, ProcessGroup& world, ExecutorOptions options)
      : groups(RankGroups::split_from(world, chain.schedule)),
        state(std::make_unique<TrainingState>(chain.layout, state_options(chain.schedule),
                                              world.rank(), memory)),
        executor(std::make_unique<Executor>(*state, chain.model,
                                            std::vector<Program>{{&chain.schedule, &chain.source}},
                                            groups, memory, std::move(options))) {}
  ChainRank(const ChainRun& chain, ProcessGroup& world) : ChainRank(chain, world, chain.options) {}

  std::unique_ptr<Device> device = make_cpu_device();
  Memory memory{*device};
  RankGroups groups;
  std::unique_ptr<TrainingState> state;
  std::unique_ptr<Executor> executor;
};

struct ChainResult {
  std::vector<double> losses, norms;
  std::vector<std::int64_t> items;
  std::vector<FullParameter> parameters;
};

/// Trains; every rank must see the same.
inline ChainResult train(const ChainRun& chain,
                         const std::vector<std::unique_ptr<ProcessGroup>>& world) {
  std::vector<ChainResult> results(static_cast<std::size_t>(chain.run.ranks));
  launch_ranks(world, [&](int rank, ProcessGroup& group) {
    ExecutorOptions options = chain.options;
    if (chain.run.delay_seed) options.before_task = random_delays(*chain.run.delay_seed, rank);
    ChainRank member(chain, group, std::move(options));
    ChainResult& result = results[static_cast<std::size_t>(rank)];
    for (int step = 0; step < chain.run.steps; ++step) {
      const StepResult r = member.executor->run_step(step, kRate);
      result.losses.push_back(r.loss);
      result.norms.push_back(r.gradient_norm);
      result.items.push_back(r.items);
    }
    result.parameters = member.executor->gather_parameters();
  });
  for (const ChainResult& result : results) {
    EXPECT_TRUE(std::ranges::equal(result.losses, results[0].losses, [](double a, double b) {
      return a == b || (std::isnan(a) && std::isnan(b));
    }));
    EXPECT_TRUE(same_bits(result.parameters, results[0].parameters));
  }
  return results[0];
}

inline ChainResult train(const ChainRun& chain) {
  return train(chain, make_thread_group(chain.run.ranks));
}

inline const FullParameter& named(const std::vector<FullParameter>& parameters,
                                  const std::string& name) {
  const auto found = std::ranges::find(parameters, name, &FullParameter::name);
  EXPECT_NE(found, parameters.end()) << name;
  return *found;
}
const FullParameter& named(std::vector<FullParameter>&&, const std::string&) = delete;

}  // namespace tessera::test

#include <gtest/gtest.h>

#include <cmath>

#include "tessera/autograd/ops.h"
#include "tessera/core/error.h"
#include "tessera/trainer/session.h"
#include "tessera/trainer/trainer.h"

// A small encoder that classifies sequences: attention without a causal mask, a gated layer of
// products of activations, mean pooling.
namespace tessera::encoder_test {
namespace {

constexpr std::int64_t kLength = 9, kWidth = 16, kHeads = 2, kTokens = 12, kClasses = 3;

class Embedding : public Layer {
 public:
  Embedding() : Layer("embedding", "Embedding") {
    parameters_ = {{"wte.weight", {kTokens, kWidth}, Initializer::normal(0.5F)},
                   {"wpe.weight", {kLength, kWidth}, Initializer::normal(0.1F)}};
  }
  bool backward_reads_parameters() const override { return false; }
  Value forward(Tape& tape, const Value& input, std::span<Parameter> p) const override {
    return ops::embedding(tape, input.tensor, p[0], &p[1]);
  }
};

class EncoderBlock : public Layer {
 public:
  explicit EncoderBlock(const std::string& name) : Layer(name, "EncoderBlock") {
    const auto weight = [&](const char* what, std::int64_t rows) {
      parameters_.push_back({name + "." + what, {rows, kWidth}, Initializer::normal(0.2F)});
    };
    weight("qkv", 3 * kWidth);
    weight("projection", kWidth);
    weight("value", kWidth);
    weight("gate", kWidth);
    weight("query", kWidth);
    parameters_.push_back({name + ".gamma", {kWidth}, Initializer::constant(1.0F), 0.0F});
  }
  Value forward(Tape& tape, const Value& x, std::span<Parameter> p) const override {
    const Value normal = ops::rms_norm(tape, x, p[5], 1e-5F);
    Value y = ops::attention(tape, ops::linear(tape, normal, p[0], nullptr), kHeads, 0, {}, false);
    y = ops::linear(tape, y, p[1], nullptr, &x);
    const Value value = ops::linear(tape, y, p[2], nullptr);
    const Value gated =
        ops::multiply(tape, value, ops::silu(tape, ops::linear(tape, y, p[3], nullptr)));
    // Each place takes from the others what resembles it.
    const Value query = ops::linear(tape, y, p[4], nullptr);
    const Value weights = ops::softmax(tape, ops::matmul(tape, query, gated, true));
    return ops::add(tape, ops::matmul(tape, weights, gated), y);
  }
};

class Classifier : public Layer {
 public:
  Classifier() : Layer("classifier", "Classifier") {
    parameters_ = {{"classifier.weight", {kClasses, kWidth}, Initializer::normal(0.2F)}};
  }
  Value forward(Tape& tape, const Value& x, std::span<Parameter> p) const override {
    Value y = ops::linear(tape, ops::mean_rows(tape, x), p[0], nullptr);
    return ops::cross_entropy(tape, std::move(y), tape.batch().targets);
  }
};

/// Of which kind the tokens are that a sequence has most of, wherever they are.
class Sequences : public BatchSource {
 public:
  Shape input_shape(std::int64_t b) const override { return {b, kLength}; }
  DType input_dtype() const override { return DType::kInt32; }
  Shape target_shape(std::int64_t b) const override { return {b}; }
  DType target_dtype() const override { return DType::kInt32; }
  std::int64_t fill(std::int64_t first, std::int64_t n, TensorView inputs,
                    TensorView targets) const override {
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t sample = first + i, kind = sample * 7 % kClasses;
      for (std::int64_t l = 0; l < kLength; ++l) {
        const bool stray = (l * 5 + sample) % 3 == 0;
        const std::int64_t of = stray ? (kind + l) % kClasses : kind;
        const std::int64_t token = of + kClasses * ((sample * 3 + l) % (kTokens / kClasses));
        inputs.as<std::int32_t>()[i * kLength + l] = static_cast<std::int32_t>(token);
      }
      targets.as<std::int32_t>()[i] = static_cast<std::int32_t>(kind);
    }
    return n;
  }
};

Model encoder() {
  Model model;
  model.name = "encoder";
  model.layers.push_back(std::make_unique<Embedding>());
  model.layers.push_back(std::make_unique<EncoderBlock>("h.0"));
  model.layers.push_back(std::make_unique<EncoderBlock>("h.1"));
  model.layers.push_back(std::make_unique<Classifier>());
  return model;
}

TrainerOptions options_for(const std::string& strategy, int ranks) {
  TrainerOptions options;
  options.strategy = strategy;
  options.ranks = ranks;
  options.steps = 30;
  options.micro_batch = 4;
  options.accumulate = 4 / ranks;
  options.learning_rate.peak = 0.02;
  options.threads_per_rank = 1;
  return options;
}

TEST(Encoder, TrainsToTheSameBitsWithEveryStrategyAndRecomputation) {
  const Model model = encoder();
  const Sequences data;
  std::string expected;
  for (const Strategy& strategy : strategies()) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      SCOPED_TRACE(concat(strategy.name, ", recompute ", to_string(recompute)));
      TrainerOptions options = options_for(strategy.name, 4);
      options.policy.recompute = recompute;
      const TrainingSummary summary = Trainer(model, data, options).train();
      if (expected.empty()) expected = summary.parameters_sha256;
      EXPECT_EQ(summary.parameters_sha256, expected);
      EXPECT_EQ(summary.measured_memory, summary.predicted_memory);
      EXPECT_LT(summary.last_loss, 0.3 * summary.first_loss);
    }
  }
}

TEST(Encoder, TrainsInBf16AndClassifiesWhatItIsGiven) {
  const Model model = encoder();
  const Sequences data;
  TrainerOptions options = options_for("full_shard", 2);
  options.precision = DType::kBFloat16;
  options.forward = true;
  Session session(model, data, options);
  while (session.step()) {
  }
  constexpr std::int64_t kSamples = 21;
  std::vector<std::int32_t> inputs(kSamples * kLength), targets(kSamples);
  const TensorView view(inputs.data(), DType::kInt32, Shape{kSamples, kLength});
  data.fill(5000, kSamples, view, {targets.data(), DType::kInt32, Shape{kSamples}});
  const Session::Outputs logits = session.forward(view);
  ASSERT_EQ(logits.shape, (Shape{kSamples, kClasses}));
  int right = 0;
  for (std::size_t i = 0; i < kSamples; ++i) {
    const auto row = logits.values.begin() + static_cast<std::ptrdiff_t>(i * kClasses);
    right += std::max_element(row, row + kClasses) - row == targets[i] ? 1 : 0;
  }
  EXPECT_GE(right, 20);
}

}  // namespace
}  // namespace tessera::encoder_test

// Trains a model of one's own on data of one's own: a classifier, with ZeRO-2 on two ranks.
#include <cmath>
#include <iostream>

#include "tessera/autograd/ops.h"
#include "tessera/trainer/trainer.h"
using namespace tessera;

struct Dense : Layer {  // a unit: parameters, and a forward made of differentiable operations
  Dense(const std::string& id, std::int64_t inputs, std::int64_t outputs) : Layer(id, "Dense") {
    parameters_ = {{id + ".weight", {outputs, inputs}, Initializer::normal(1.0F)},
                   {id + ".bias", {outputs}, Initializer::constant(0.0F)}};
  }
  Value forward(Tape& tape, const Value& x, std::span<Parameter> p) const override {
    Value y = ops::linear(tape, x, p[0], &p[1]);
    if (name() != "output") return ops::gelu(tape, std::move(y));
    return ops::cross_entropy(tape, std::move(y), tape.batch().targets);
  }
};

struct Waves : BatchSource {  // is the sine of a number positive?
  Shape input_shape(std::int64_t samples) const override { return {samples, 1}; }
  DType input_dtype() const override { return DType::kFloat32; }
  Shape target_shape(std::int64_t samples) const override { return {samples}; }
  DType target_dtype() const override { return DType::kInt32; }
  std::int64_t fill(std::int64_t first, std::int64_t n, TensorView x, TensorView y) const override {
    for (std::int64_t i = 0; i < n; ++i) {
      x.as<float>()[i] = std::fmod(static_cast<float>(first + i) * 0.618F, 6.0F) - 3.0F;
      y.as<std::int32_t>()[i] = std::sin(2.0F * x.as<float>()[i]) > 0.0F ? 1 : 0;
    }
    return n;
  }
};

int main() {
  Model model;
  model.layers.push_back(std::make_unique<Dense>("hidden", 1, 32));
  model.layers.push_back(std::make_unique<Dense>("output", 32, 2));
  const Waves data;
  TrainerOptions options{.strategy = "zero2", .ranks = 2, .steps = 200, .micro_batch = 64};
  options.learning_rate.peak = 0.03;
  const TrainingSummary summary = Trainer(model, data, options).train([](const StepRecord& r) {
    return static_cast<bool>(std::cout << "step " << r.step << "  loss " << r.loss << "\n");
  });
  return summary.last_loss < 0.5 * summary.first_loss ? 0 : 1;
}

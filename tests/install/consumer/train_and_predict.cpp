// Trains a classifier of one's own on two ranks, and asks it about inputs of one's own.
#include <cmath>
#include <iostream>

#include "tessera/tessera.h"
using namespace tessera;

struct Dense : Layer {
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
  TrainerOptions options{.ranks = 2, .steps = 200, .micro_batch = 64};
  options.learning_rate.peak = 0.03;
  options.forward = true;  // forward() will be asked for
  Session session(model, data, options);
  while (session.step()) {
  }
  std::vector<float> numbers{-2.5F, -0.7F, 0.8F, 1.2F, 2.2F};  // as many as one likes
  const Session::Outputs logits = session.forward({numbers.data(), DType::kFloat32, Shape{5, 1}});
  int wrong = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const bool positive = logits.values[2 * i + 1] > logits.values[2 * i];
    std::cout << "sin(2 * " << numbers[i] << ") is " << (positive ? "" : "not ") << "positive\n";
    if (positive != (std::sin(2.0F * numbers[i]) > 0.0F)) ++wrong;
  }
  return wrong == 0 && logits.shape == Shape{5, 2} ? 0 : 1;
}

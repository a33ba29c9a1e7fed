// Fits a function with a network of one's own: on four ranks, with every strategy, to the same
// bits.
#include <cmath>
#include <iostream>

#include "tessera/autograd/ops.h"
#include "tessera/trainer/trainer.h"
using namespace tessera;

struct Dense : Layer {
  Dense(const std::string& id, std::int64_t inputs, std::int64_t outputs) : Layer(id, "Dense") {
    parameters_ = {{id + ".weight", {outputs, inputs}, Initializer::normal(0.5F)},
                   {id + ".bias", {outputs}, Initializer::constant(0.0F), 0.0F}};
  }
  Value forward(Tape& tape, const Value& x, std::span<Parameter> p) const override {
    Value y = ops::linear(tape, x, p[0], &p[1]);
    if (name() != "output") return ops::silu(tape, std::move(y));
    return ops::squared_error(tape, std::move(y), tape.batch().targets);
  }
};

struct Function : BatchSource {  // y = sin(3 a) + a b
  Shape input_shape(std::int64_t samples) const override { return {samples, 2}; }
  DType input_dtype() const override { return DType::kFloat32; }
  Shape target_shape(std::int64_t samples) const override { return {samples, 1}; }
  DType target_dtype() const override { return DType::kFloat32; }
  std::int64_t fill(std::int64_t first, std::int64_t n, TensorView x, TensorView y) const override {
    for (std::int64_t i = 0; i < n; ++i) {
      const float a = x.as<float>()[2 * i] = std::sin(static_cast<float>(first + i));
      const float b = x.as<float>()[2 * i + 1] = std::cos(1.7F * static_cast<float>(first + i));
      y.as<float>()[i] = std::sin(3.0F * a) + a * b;
    }
    return n;  // each sample has one loss
  }
};

int main() {
  Model model;
  model.layers.push_back(std::make_unique<Dense>("hidden", 2, 32));
  model.layers.push_back(std::make_unique<Dense>("output", 32, 1));
  const Function data;
  TrainerOptions options{.ranks = 4, .steps = 400, .learning_rate = {.peak = 0.03}};
  std::string hash;  // of the parameters
  for (const Strategy& strategy : strategies()) {
    options.strategy = strategy.name;
    const TrainingSummary summary = Trainer(model, data, options).train();
    if (hash.empty()) hash = summary.parameters_sha256;
    if (hash != summary.parameters_sha256 || summary.last_loss > 0.1 * summary.first_loss) return 1;
    std::cout << strategy.name << ": loss " << summary.last_loss << ", " << hash << "\n";
  }
}

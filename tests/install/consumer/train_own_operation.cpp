// A differentiable operation of one's own: the activation x + sin(x)^2, trained with FSDP on two
// ranks.
#include <cmath>
#include <iostream>

#include "tessera/autograd/ops.h"
#include "tessera/core/error.h"
#include "tessera/trainer/trainer.h"
using namespace tessera;

/// y[i] = f(a[i], b[i]) at once, in the calling thread; nothing while a run is planned, which has
/// no memory.
template <typename Function>
void fill(Tape& tape, const Tensor& y, const Tensor& a, const Tensor& b, const Function& f) {
  const Device& device = tape.memory().device();
  if (device.kind() == DeviceKind::kSim) return;
  require(device.host_accessible(), ErrorCode::kConfig, "snake computes on CPUs: --device cpu");
  const float *const left = a.as<float>(), *const right = b.as<float>();
  for (std::int64_t i = 0; i < y.numel(); ++i) y.as<float>()[i] = f(left[i], right[i]);
}

Value snake(Tape& tape, const Value& x) {  // Liu et al. 2020
  const auto n = static_cast<double>(x.shape().numel());
  Tensor y = tape.activation(x.shape(), x.dtype(), "snake");
  fill(tape, y, x.tensor, x.tensor, [](float v, float) { return v + std::sin(v) * std::sin(v); });
  tape.charge({.flops = 3 * n, .bytes = 8 * n});  // what simulations take it to cost
  // Backward keeps a Saved of what it reads, and of a Value only the id.
  return tape.output(std::move(y), [x = Saved(x), id = x.id, n](Tape& t, const Tensor& dy) {
    if (id < 0) return;  // no gradient flows there
    Tensor dx = t.activation(dy.shape(), dy.dtype(), "snake input gradient");
    fill(t, dx, x.get(), dy, [](float v, float d) { return d * (1.0F + std::sin(2.0F * v)); });
    t.charge({.flops = 4 * n, .bytes = 12 * n});
    t.add_gradient(id, std::move(dx));
  });
}

struct Dense : Layer {
  Dense(const std::string& id, std::int64_t inputs, std::int64_t outputs) : Layer(id, "Dense") {
    parameters_ = {{id + ".weight", {outputs, inputs}, Initializer::normal(0.5F)},
                   {id + ".bias", {outputs}, Initializer::constant(0.0F), 0.0F}};
  }
  Value forward(Tape& tape, const Value& x, std::span<Parameter> p) const override {
    Value y = ops::linear(tape, x, p[0], &p[1]);
    if (name() != "output") return snake(tape, y);
    return ops::squared_error(tape, std::move(y), tape.batch().targets);
  }
};

struct Waves : BatchSource {  // y = sin(4 x)
  Shape input_shape(std::int64_t samples) const override { return {samples, 1}; }
  DType input_dtype() const override { return DType::kFloat32; }
  Shape target_shape(std::int64_t samples) const override { return {samples, 1}; }
  DType target_dtype() const override { return DType::kFloat32; }
  std::int64_t fill(std::int64_t first, std::int64_t n, TensorView x, TensorView y) const override {
    for (std::int64_t i = 0; i < n; ++i) {
      x.as<float>()[i] = std::fmod(static_cast<float>(first + i) * 0.618F, 2.0F) - 1.0F;
      y.as<float>()[i] = std::sin(4.0F * x.as<float>()[i]);
    }
    return n;
  }
};

int main() {
  Model model;
  model.layers.push_back(std::make_unique<Dense>("hidden", 1, 32));
  model.layers.push_back(std::make_unique<Dense>("output", 32, 1));
  const Waves data;
  const TrainerOptions options{
      .ranks = 2, .steps = 200, .micro_batch = 32, .learning_rate = {.peak = 0.03}};
  const TrainingSummary summary = Trainer(model, data, options).train();
  std::cout << "loss " << summary.first_loss << " -> " << summary.last_loss << "\n";
  return summary.last_loss < 0.1 * summary.first_loss ? 0 : 1;
}

#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "tessera/autograd/layer.h"
#include "tessera/autograd/ops.h"

namespace tessera::test {

// A classifier with sizes that divide by nothing: three layers, one of them an odd width.

class DenseLayer : public Layer {
 public:
  DenseLayer(std::string name, std::int64_t inputs, std::int64_t outputs, bool last)
      : Layer(std::move(name), "Dense"), last_(last) {
    parameters_ = {{this->name() + ".weight", {outputs, inputs}, Initializer::normal(0.5F)},
                   {this->name() + ".bias", {outputs}, Initializer::constant(0.0F), 0.0F}};
    splits_backward_ = true;
  }
  Value forward(Tape& tape, const Value& input, std::span<Parameter> parameters) const override {
    Value y = ops::linear(tape, input, parameters[0], &parameters[1]);
    return last_ ? ops::cross_entropy(tape, std::move(y), tape.batch().targets)
                 : ops::gelu(tape, std::move(y));
  }

 private:
  bool last_;
};

inline constexpr std::int64_t kFeatures = 5;
inline constexpr std::int64_t kClasses = 3;

inline Model tiny_model(std::int64_t width = 13) {
  Model model;
  model.name = "tiny";
  model.layers.push_back(std::make_unique<DenseLayer>("first", kFeatures, width, false));
  model.layers.push_back(std::make_unique<DenseLayer>("second", width, 7, false));
  model.layers.push_back(std::make_unique<DenseLayer>("last", 7, kClasses, true));
  model.flops_per_item = 6.0 * static_cast<double>(parameter_count(model));
  return model;
}

/// Sample i: its class shifts all features; a little noise besides.
class TinyData : public BatchSource {
 public:
  /// Called with each sample before it is made; may throw.
  std::function<void(std::int64_t)> before_sample;
  bool poison = false;  ///< features become nan

  Shape input_shape(std::int64_t b) const override { return {b, kFeatures}; }
  DType input_dtype() const override { return DType::kFloat32; }
  Shape target_shape(std::int64_t b) const override { return {b}; }
  DType target_dtype() const override { return DType::kInt32; }
  std::int64_t fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                    TensorView targets) const override {
    for (std::int64_t i = 0; i < micro_batch; ++i) {
      const std::int64_t sample = first + i;
      if (before_sample) before_sample(sample);
      const std::int64_t target = sample * 7 % kClasses;
      for (std::int64_t f = 0; f < kFeatures; ++f) {
        const double noise = 0.3 * std::sin(static_cast<double>(sample * kFeatures + f));
        const double value = (target == f % kClasses ? 1.0 : -0.5) + noise;
        inputs.as<float>()[i * kFeatures + f] = poison ? std::nanf("") : static_cast<float>(value);
      }
      targets.as<std::int32_t>()[i] = static_cast<std::int32_t>(target);
    }
    return micro_batch;
  }
};

}  // namespace tessera::test

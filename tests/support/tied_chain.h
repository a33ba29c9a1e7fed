#pragma once

#include <memory>
#include <string>
#include <utility>

#include "support/chain_run.h"

// A chain whose ends share a weight.
namespace tessera::test {

/// y = gelu(x W^T + b); the last layer multiplies with the first layer's weight and ends in the
/// loss. So the first unit's gradient has contributions of two layers, of a part of its tensors.
class TiedLayer : public Layer {
 public:
  TiedLayer(int index, int layers, bool trainable)
      : Layer("l" + std::to_string(index), "Tied"), is_last_(index == layers - 1) {
    parameters_ = {{.name = name() + ".weight",
                    .shape = {kWidth, kWidth},
                    .initializer = Initializer::normal(0.4F),
                    .trainable = trainable},
                   {.name = name() + ".bias",
                    .shape = {kWidth},
                    .initializer = Initializer::constant(0.125F),
                    .trainable = trainable},
                   {.name = name() + ".scale",
                    .shape = {kWidth, kWidth},
                    .initializer = Initializer::normal(0.4F),
                    .trainable = index != 1}};
    if (is_last_) tied_parameters_ = {"l0.weight"};
    splits_backward_ = true;
  }

  Value forward(Tape& tape, const Value& input, std::span<Parameter> parameters) const override {
    Value y = ops::linear(tape, input, parameters[0], &parameters[1]);
    y = ops::linear(tape, ops::gelu(tape, std::move(y)), parameters[2], nullptr);
    if (!is_last_) return y;
    y = ops::linear(tape, y, parameters[3], nullptr);
    return ops::cross_entropy(tape, std::move(y), tape.batch().targets);
  }

 private:
  bool is_last_;
};

inline Model make_tied(int layers, bool trains_first = true) {
  Model model{.name = "tied", .layers = {}};
  for (int l = 0; l < layers; ++l) {
    model.layers.push_back(std::make_unique<TiedLayer>(l, layers, l > 0 || trains_first));
  }
  return model;
}

}  // namespace tessera::test

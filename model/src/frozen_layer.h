#pragma once

#include <memory>
#include <span>
#include <utility>

#include "tessera/autograd/layer.h"

namespace tessera::gpt {

/// Another layer, none of whose parameters is trained.
class FrozenLayer : public Layer {
 public:
  explicit FrozenLayer(std::unique_ptr<Layer> layer)
      : Layer(layer->name(), layer->type()), layer_(std::move(layer)) {
    parameters_ = layer_->parameters();
    for (ParameterSpec& spec : parameters_) spec.trainable = false;
    tied_parameters_ = layer_->tied_parameters();
    reads_batch_ = layer_->reads_batch();
  }

  Value forward(Tape& tape, const Value& input, std::span<Parameter> parameters) const override {
    return layer_->forward(tape, input, parameters);
  }

 protected:
  /// A session's plan has a training step, too, for which there must be something to train: the
  /// last layer lets it be this one.
  void train_first_parameter() { parameters_.front().trainable = true; }
  const Layer& inner() const { return *layer_; }

  /// Options for a tape within this layer's, that only computes.
  static TapeOptions forward_only(TapeOptions options) {
    options.record = false;
    options.training = false;
    options.predicts = false;
    options.hits = {};
    return options;
  }

 private:
  std::unique_ptr<Layer> layer_;
};

}  // namespace tessera::gpt

#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/autograd/layer.h"

// Models of which some parameters are not trained.
namespace tessera::test {

inline bool contains_any(const std::string& name, const std::vector<std::string>& parts) {
  return std::ranges::any_of(parts, [&](const std::string& part) {  //
    return name.find(part) != std::string::npos;
  });
}

/// A layer whose parameters are frozen if their names contain one of these.
class FrozenLayer : public Layer {
 public:
  FrozenLayer(std::unique_ptr<Layer> inner, const std::vector<std::string>& names)
      : Layer(inner->name(), inner->type()), inner_(std::move(inner)) {
    parameters_ = inner_->parameters();
    tied_parameters_ = inner_->tied_parameters();
    splits_backward_ = inner_->splits_backward();
    reads_batch_ = inner_->reads_batch();
    for (ParameterSpec& spec : parameters_) {
      if (contains_any(spec.name, names)) spec.trainable = false;
    }
  }
  bool backward_reads_parameters() const override { return inner_->backward_reads_parameters(); }
  std::int64_t counted_classes() const override { return inner_->counted_classes(); }
  Value forward(Tape& tape, const Value& input, std::span<Parameter> parameters) const override {
    return inner_->forward(tape, input, parameters);
  }

 private:
  std::unique_ptr<Layer> inner_;
};

inline std::function<void(Model&)> freeze(const std::vector<std::string>& names) {
  return [names](Model& model) {
    for (auto& layer : model.layers) layer = std::make_unique<FrozenLayer>(std::move(layer), names);
  };
}

}  // namespace tessera::test

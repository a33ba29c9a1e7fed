#include "tessera/autograd/layer.h"

#include <unordered_set>

#include "tessera/core/error.h"

namespace tessera {

std::int64_t parameter_count(const Model& model) {
  std::int64_t count = 0;
  for (const auto& layer : model.layers) {
    for (const ParameterSpec& parameter : layer->parameters()) count += parameter.shape.numel();
  }
  return count;
}

void check(const Model& model) {
  require(!model.layers.empty(), ErrorCode::kInvalidArgument, "model '", model.name,
          "' has no layers");
  std::unordered_set<std::string> layers;
  std::unordered_set<std::string> parameters;
  for (const auto& layer : model.layers) {
    require(layers.insert(layer->name()).second, ErrorCode::kInvalidArgument, "model '", model.name,
            "' has two layers named '", layer->name(), "'");
    for (const ParameterSpec& parameter : layer->parameters()) {
      require(parameters.insert(parameter.name).second, ErrorCode::kInvalidArgument, "model '",
              model.name, "' has two parameters named '", parameter.name, "' (one in layer '",
              layer->name(), "')");
    }
  }
  for (const auto& layer : model.layers) {
    std::unordered_set<std::string> own;
    for (const ParameterSpec& parameter : layer->parameters()) own.insert(parameter.name);
    for (const std::string& name : layer->tied_parameters()) {
      require(parameters.contains(name) && !own.contains(name), ErrorCode::kInvalidArgument,
              "layer '", layer->name(), "' of model '", model.name, "' is tied to '", name,
              "', which is not a parameter of another layer");
    }
  }
}

}  // namespace tessera

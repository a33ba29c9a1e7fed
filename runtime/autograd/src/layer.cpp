#include "tessera/autograd/layer.h"

#include <unordered_set>

#include "tessera/core/error.h"

namespace tessera {

namespace {

std::int64_t count_parameters(const Model& model, bool trained_ones) {
  std::int64_t count = 0;
  for (const auto& layer : model.layers) {
    for (const ParameterSpec& parameter : layer->parameters()) {
      if (parameter.trainable || !trained_ones) count += parameter.shape.numel();
    }
  }
  return count;
}

}  // namespace

std::int64_t parameter_count(const Model& model) { return count_parameters(model, false); }
std::int64_t trained_count(const Model& model) { return count_parameters(model, true); }

namespace {

// 8.8 trillion: the bytes that a step keeps and sends then fit 64 bits.
constexpr std::int64_t kMaxParameters = std::int64_t{1} << 43;

void check_size(const Model& model) {
  std::int64_t count = 0;
  for (const auto& layer : model.layers) {
    for (const ParameterSpec& parameter : layer->parameters()) {
      const std::int64_t numel = parameter.shape.numel();
      require(numel <= kMaxParameters - count, ErrorCode::kConfig, "model '", model.name,
              "' has more than ", kMaxParameters, " parameters (up to '", parameter.name,
              "', which has ", numel, "); take a smaller width or vocabulary, or fewer layers");
      count += numel;
    }
  }
}

}  // namespace

void check(const Model& model) {
  require(!model.layers.empty(), ErrorCode::kInvalidArgument, "model '", model.name,
          "' has no layers");
  check_size(model);
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

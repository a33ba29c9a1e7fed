#include "prompt_encoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "block_prefix.h"
#include "gpt_layers.h"
#include "tessera/autograd/ops.h"
#include "tessera/core/error.h"

namespace tessera::gpt {
namespace {

/// The modules of PEFT's PromptEncoder, in order of the computation.
constexpr const char* kRows = "embedding.weight";
constexpr std::array<const char*, 3> kPromptLayers{"mlp_head.0.", "mlp_head.2.", "mlp_head.4."};

std::string named(std::string_view module, const char* tensor = "") {
  return concat(kPromptEncoder, module, tensor);
}

/// y = x W^T + b as torch's Linear has it, x (rows, inputs), in fp64.
std::vector<double> linear_of(const std::vector<double>& x, std::span<const float> weight,
                              std::span<const float> bias) {
  const std::size_t outputs = bias.size(), inputs = weight.size() / outputs;
  std::vector<double> y;
  for (std::size_t row = 0; row < x.size(); row += inputs) {
    for (std::size_t o = 0; o < outputs; ++o) {
      double sum = static_cast<double>(bias[o]);
      for (std::size_t i = 0; i < inputs; ++i) {
        sum += x[row + i] * static_cast<double>(weight[o * inputs + i]);
      }
      y.push_back(sum);
    }
  }
  return y;
}

std::vector<float> rounded(const std::vector<double>& x) {
  std::vector<float> values;
  for (const double value : x) values.push_back(static_cast<float>(value));
  return values;
}

}  // namespace

std::vector<ParameterSpec> prompt_parameters(const GptConfig& config) {
  const std::int64_t c = config.width, rows = config.adapter.prompt_rows();
  const PromptEncoderOptions* const encoder = config.adapter.prompt_encoder();
  if (encoder == nullptr || encoder->encoded) {
    return {matrix(std::string(kPromptParameter), rows, c, 1.0F)};
  }
  const std::int64_t hidden = encoder->hidden == 0 ? c : encoder->hidden;
  std::vector<ParameterSpec> parameters{matrix(named(kRows), rows, c, 1.0F)};
  std::int64_t inputs = c;
  for (const char* const layer : kPromptLayers) {
    const std::int64_t outputs = layer == kPromptLayers.back() ? c : hidden;
    const auto initializer = Initializer::uniform(1.0F / std::sqrt(static_cast<float>(inputs)));
    parameters.push_back(
        {.name = named(layer, "weight"), .shape = {outputs, inputs}, .initializer = initializer});
    parameters.push_back({.name = named(layer, "bias"),
                          .shape = {outputs},
                          .initializer = initializer,
                          .weight_decay_scale = 0.0F});
    inputs = outputs;
  }
  return parameters;
}

Value encoded_prompt(Tape& tape, std::span<Parameter> parameters) {
  Value x = ops::value_of(tape, parameters[0]);
  for (std::size_t p = 1; p < parameters.size(); p += 2) {
    if (p > 1) x = ops::relu(tape, std::move(x));
    x = ops::linear(tape, x, parameters[p], &parameters[p + 1]);
  }
  return x;
}

bool PromptFold::folds(const GptConfig& config) {
  return config.adapter.is_encoder() && !config.adapter.is_encoded();
}

PromptFold::PromptFold(const GptConfig& config) : is_prefix_(config.adapter.prefix() != nullptr) {
  for (const auto& layer : make_layers(config)) {
    for (const ParameterSpec& spec : layer->parameters()) {
      if (spec.trainable) shapes_[spec.name] = spec.shape;
    }
  }
}

void PromptFold::add(std::string_view name, std::span<const float> values) {
  const auto found = shapes_.find(name);
  require(found != shapes_.end() && std::ssize(values) == found->second.numel(),
          ErrorCode::kInvalidArgument, "parameter '", name, "' of a prompt's encoder has ",
          values.size(), " elements, which is another number than its shape's");
  const bool is_new = values_.try_emplace(std::string(name), values.begin(), values.end()).second;
  require(is_new, ErrorCode::kInvalidArgument, "parameter '", name, "' is written twice");
}

std::vector<float> PromptFold::prompt() const {
  const std::vector<float>& rows = values_.at(named(kRows));
  std::vector<double> x(rows.begin(), rows.end());
  for (const char* const layer : kPromptLayers) {
    if (layer != kPromptLayers.front()) {
      std::ranges::transform(x, x.begin(), [](double v) { return std::max(v, 0.0); });
    }
    x = linear_of(x, values_.at(named(layer, "weight")), values_.at(named(layer, "bias")));
  }
  return rounded(x);
}

std::map<std::string, std::vector<float>> PromptFold::made() const {
  if (!is_prefix_) return {{std::string(kPromptParameter), prompt()}};
  const std::vector<std::string> trunk = prefix_trunk_names();
  const std::vector<float>& rows = value(trunk[0]);
  std::vector<double> hidden =
      linear_of({rows.begin(), rows.end()}, value(trunk[1]), value(trunk[2]));
  for (double& x : hidden) x = std::tanh(x);
  std::map<std::string, std::vector<float>> prefixes;
  constexpr std::string_view kLast = "_transform.weight";
  for (const auto& [name, weight] : values_) {
    if (name.find(kPrefixParameter) == std::string::npos || !name.ends_with(kLast)) continue;
    const std::string own = name.substr(0, name.size() - kLast.size());
    prefixes[own] = rounded(linear_of(hidden, weight, value(own + "_transform.bias")));
  }
  return prefixes;
}

}  // namespace tessera::gpt

#pragma once

#include <memory>
#include <span>
#include <string>

#include "tessera/autograd/layer.h"
#include "tessera/model/gpt.h"

// What the layers of a GPT share, and its blocks.
namespace tessera::gpt {

inline constexpr float kInitialStddev = 0.02F;

ParameterSpec matrix(std::string name, std::int64_t outputs, std::int64_t inputs, float stddev);
/// Without weight decay.
ParameterSpec vector(std::string name, std::int64_t size, float value);

/// Throws Error{kInvalidArgument} unless there are as many as the layer has, tied ones included.
void check_parameters(const Layer& layer, std::span<const Parameter> parameters);

/// Block `index` of a GPT-2, and of any other family.
std::unique_ptr<Layer> make_gpt2_block(const GptConfig& config, std::int64_t index);
std::unique_ptr<Layer> make_llama_block(const GptConfig& config, std::int64_t index);

}  // namespace tessera::gpt

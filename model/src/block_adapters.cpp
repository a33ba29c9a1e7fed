#include <algorithm>
#include <cmath>

#include "gpt_layers.h"
#include "tessera/autograd/ops.h"
#include "tessera/core/error.h"

namespace tessera::gpt {
namespace {

/// A (rank, inputs) and B (outputs, rank) of a module; see LoraConfig::Initialization.
std::array<ParameterSpec, 2> specs_of(const LoraModule& module, const LoraConfig& lora,
                                      std::int64_t inputs) {
  const auto uniform = [](std::int64_t fan_in) {
    return Initializer::uniform(1.0F / std::sqrt(static_cast<float>(fan_in)));
  };
  using Kind = LoraConfig::Initialization;
  const bool gaussian = lora.initialization == Kind::kGaussian;
  const bool random_b = lora.initialization == Kind::kRandomB;
  return {ParameterSpec{
              .name = module.a(),
              .shape = {module.rank, inputs},
              .initializer = gaussian ? Initializer::normal(1.0F / static_cast<float>(module.rank))
                                      : uniform(inputs)},
          ParameterSpec{.name = module.b(),
                        .shape = {module.rows, module.rank},
                        .initializer = random_b ? uniform(module.rank) : Initializer::constant(0)}};
}

}  // namespace

void freeze(const GptConfig& config, std::vector<ParameterSpec>& parameters) {
  if (!config.lora.is_set()) return;
  for (ParameterSpec& spec : parameters) spec.trainable = is_saved(config, spec.name);
}

BlockAdapters::BlockAdapters(const GptConfig& config, std::vector<ParameterSpec>& parameters)
    : dropout_(config.lora.dropout) {
  freeze(config, parameters);
  const std::size_t own = parameters.size();
  for (std::size_t p = 0; p < own; ++p) {
    const ParameterSpec matrix = parameters[p];
    if (matrix.shape.rank() != 2) continue;
    for (const LoraModule& module : lora_modules(config, matrix.name, matrix.shape[0])) {
      adapters_.push_back({p, parameters.size(), module.first_row, module.scale});
      for (ParameterSpec& spec : specs_of(module, config.lora, matrix.shape[1])) {
        parameters.push_back(std::move(spec));
      }
    }
  }
}

bool BlockAdapters::adapt(std::size_t parameter) const {
  return std::ranges::find(adapters_, parameter, &Adapter::weight) != adapters_.end();
}

Value BlockAdapters::add(Tape& tape, Value y, const Value& x, const Parameter& weight,
                         std::span<Parameter> parameters) const {
  const auto index = static_cast<std::size_t>(&weight - parameters.data());
  for (const Adapter& adapter : adapters_) {
    if (adapter.weight != index) continue;
    const Value input = ops::dropout(tape, x, dropout_);
    y = ops::add_low_rank(tape, std::move(y), input,
                          {.a = parameters[adapter.a],
                           .b = parameters[adapter.a + 1],
                           .scale = adapter.scale,
                           .first_column = adapter.first_row});
  }
  return y;
}

}  // namespace tessera::gpt

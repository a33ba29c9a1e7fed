#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "gpt_layers.h"
#include "published_parts.h"
#include "tessera/autograd/ops.h"
#include "tessera/core/error.h"

namespace tessera::gpt {

using adapter::ModuleAdapter;

void freeze(const GptConfig& config, std::vector<ParameterSpec>& parameters) {
  if (!config.adapter.is_set()) return;
  for (ParameterSpec& spec : parameters) spec.trainable = adapter::is_saved(config, spec.name);
}

namespace {

/// Stores frozen matrices as config.base_format says. bitsandbytes' blocks begin anew in each
/// published matrix, and so do the groups of scales.
void quantize(const GptConfig& config, std::vector<ParameterSpec>& parameters) {
  if (config.base_format == WeightFormat::kNone) return;
  for (ParameterSpec& spec : parameters) {
    if (spec.trainable || spec.shape.rank() != 2) continue;
    if (std::ranges::find(config.unquantized, spec.name) != config.unquantized.end()) continue;
    spec.format = config.base_format;
    if (!has_short_codes(config.base_format)) continue;
    const auto parts = published_parts(config, spec.name, spec.shape[0]);
    for (const PublishedPart& part : parts) spec.joined.push_back(part.rows);
  }
}

/// Optimizers that treat matrices as a whole take the published ones.
void name_joined(const GptConfig& config, std::vector<ParameterSpec>& parameters) {
  for (ParameterSpec& spec : parameters) {
    const auto parts = published_parts(config, spec.name, spec.shape[0]);
    if (!spec.trainable || parts.size() == 1) continue;
    for (const PublishedPart& part : parts) spec.joined.push_back(part.rows);
  }
}

}  // namespace

BlockAdapters::BlockAdapters(const GptConfig& config, std::vector<ParameterSpec>& parameters) {
  for (ParameterSpec& spec : parameters) spec.fp8 = spec.shape.rank() == 2;
  freeze(config, parameters);
  name_joined(config, parameters);
  quantize(config, parameters);
  const std::size_t own = parameters.size();
  for (std::size_t p = 0; p < own; ++p) {
    const ParameterSpec matrix = parameters[p];
    if (matrix.shape.rank() != 2) continue;
    std::vector<ModuleAdapter> modules = adapter::module_adapters(config, matrix);
    const std::size_t first = adapters_.size();
    for (ModuleAdapter& adapter : modules) {
      adapters_.push_back({.weight = p,
                           .first = parameters.size(),
                           .place = adapter.place,
                           .first_row = adapter.module.first_row,
                           .scale = adapter.scale,
                           .dropout = adapter.dropout,
                           .has_magnitudes = adapter.has_magnitudes});
      parameters.push_back(std::move(adapter.parameters.front()));
    }
    for (std::size_t m = 0; m < modules.size(); ++m) {
      adapters_[first + m].rest = parameters.size();
      std::ranges::move(std::span(modules[m].parameters).subspan(1),
                        std::back_inserter(parameters));
    }
  }
}

bool BlockAdapters::adapt(std::size_t parameter) const {
  return std::ranges::find(adapters_, parameter, &Adapter::weight) != adapters_.end();
}

ops::LowRank BlockAdapters::product_of(const Adapter& adapter, std::span<Parameter> parameters) {
  return {.a = parameters[adapter.first],
          .b = parameters[adapter.rest],
          .scale = adapter.scale,
          .first_column = adapter.first_row};
}

/// Columns of y with scale * B A x, rescaled by DoRA.
Value BlockAdapters::add_product(Tape& tape, Value y, const Value& x, const Adapter& adapter,
                                 const Parameter& weight, std::span<Parameter> parameters) {
  const ops::LowRank product = product_of(adapter, parameters);
  y = ops::add_low_rank(tape, std::move(y), ops::dropout(tape, x, adapter.dropout), {&product, 1});
  if (!adapter.has_magnitudes) return y;
  const TensorView rows = weight.value.narrow(0, adapter.first_row, product.b.value.shape[0]);
  y = ops::divide_by_row_norms(tape, std::move(y), rows, product);
  return ops::scale_columns(tape, std::move(y), parameters[adapter.rest + 1], adapter.first_row);
}

Value BlockAdapters::linear(Tape& tape, Value x, Parameter& weight, Parameter* bias,
                            std::span<Parameter> parameters, const Value* residual) const {
  const auto index = static_cast<std::size_t>(&weight - parameters.data());
  std::vector<const Adapter*> here;
  std::vector<ops::LowRank> beside;
  bool scales_output = false, has_magnitudes = false;
  for (const Adapter& adapter : adapters_) {
    if (adapter.weight != index) continue;
    here.push_back(&adapter);
    scales_output = scales_output || adapter.scales_output();
    has_magnitudes = has_magnitudes || adapter.has_magnitudes;
    if (adapter.is_plain(tape)) beside.push_back(product_of(adapter, parameters));
    if (adapter.place != Place::kInput) continue;
    x = ops::scale_columns(tape, std::move(x), parameters[adapter.first]);
  }
  // A residual is not scaled: it is added behind what scales the output; nor is DoRA's bias.
  Value y = ops::linear(tape, x, weight, has_magnitudes ? nullptr : bias,
                        scales_output ? nullptr : residual, beside);
  for (const Adapter* adapter : here) {
    if (adapter->place == Place::kOutput) {
      y = ops::scale_columns(tape, std::move(y), parameters[adapter->first], adapter->first_row);
    } else if (adapter->place == Place::kBeside && !adapter->is_plain(tape)) {
      y = add_product(tape, std::move(y), x, *adapter, weight, parameters);
    }
  }
  if (has_magnitudes && bias != nullptr) y = ops::add_bias(tape, std::move(y), *bias);
  if (!scales_output || residual == nullptr) return y;
  return ops::add(tape, std::move(y), *residual);
}

}  // namespace tessera::gpt

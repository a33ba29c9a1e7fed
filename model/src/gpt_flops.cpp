#include <algorithm>

#include "gpt_layers.h"
#include "tessera/model/gpt.h"
#include "tessera/model/gpt_family.h"

namespace tessera {

namespace {

enum class CountedScores { kBelowDiagonal, kAll };

/// Twice the number of positions that a query is counted with.
double counted_positions(const GptConfig& config, std::int64_t layer, CountedScores counted) {
  const auto length = static_cast<double>(config.context_length);
  if (counted == CountedScores::kAll || family_of(config).encoder) return 2.0 * length;
  const std::int64_t window = config.window_of(layer);
  const double outside = window > 0 ? std::max(0.0, length - static_cast<double>(window)) : 0.0;
  return length - outside * outside / length;
}

double flops_per_token(const GptConfig& config, CountedScores counted) {
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  const double width = number(config.width);
  const double queries = number(config.heads * config.head_width_used());
  const double keys = number(config.kv_heads_used() * config.head_width_used());
  const bool encoder = family_of(config).encoder;
  const double mlp_matrices = config.family == GptFamily::kGpt2 || encoder ? 2.0 : 3.0;
  const double block_matrices =
      (2.0 * queries + 2.0 * keys) * width + mlp_matrices * number(config.mlp_width_used()) * width;
  const std::int64_t rows = config.labels.empty() ? config.vocab_size : std::ssize(config.labels);
  // An encoder's head has a layer before its logits.
  const double head_matrix = (number(rows) + (encoder ? width : 0.0)) * width;
  double attention = 0.0;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    attention += counted_positions(config, layer, counted) * queries;
  }
  const double matrices = number(config.layers) * block_matrices + head_matrix;
  if (!config.adapter.is_set()) return 6.0 * (matrices + attention);
  double adapters = 0.0, saved = 0.0;
  for (const auto& layer : gpt::make_layers(config)) {
    for (const ParameterSpec& spec : layer->parameters()) {
      if (!spec.trainable || spec.shape.rank() != 2) continue;
      const bool is_adapter = is_adapter_parameter(spec.name);
      if (is_adapter && config.adapter.lora() == nullptr) continue;  // no factors of GEMMs
      if (spec.name.ends_with(".lora_embedding_A")) continue;        // rows are looked up
      (is_adapter ? adapters : saved) += number(spec.shape.numel());
    }
  }
  return 4.0 * matrices + 6.0 * (adapters + attention) + 2.0 * saved;
}

}  // namespace

double gpt_flops_per_token(const GptConfig& config) {
  return flops_per_token(config, CountedScores::kBelowDiagonal);
}

double gpt_full_flops_per_token(const GptConfig& config) {
  return flops_per_token(config, CountedScores::kAll);
}

}  // namespace tessera

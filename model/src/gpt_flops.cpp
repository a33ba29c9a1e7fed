#include <algorithm>

#include "gpt_layers.h"

namespace tessera {

double gpt_flops_per_token(const GptConfig& config) {
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  const double width = number(config.width);
  const double queries = number(config.heads * config.head_width_used());
  const double keys = number(config.kv_heads_used() * config.head_width_used());
  const double mlp_matrices = config.family == GptFamily::kGpt2 ? 2.0 : 3.0;
  const double block_matrices =
      (2.0 * queries + 2.0 * keys) * width + mlp_matrices * number(config.mlp_width_used()) * width;
  const std::int64_t rows = config.labels.empty() ? config.vocab_size : std::ssize(config.labels);
  const double head_matrix = number(rows) * width;
  double attention = 0.0;  // twice the mean number of positions that a query attends to
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const double length = number(config.context_length);
    const std::int64_t window = config.window_of(layer);
    const double outside = window > 0 ? std::max(0.0, length - number(window)) : 0.0;
    attention += (length - outside * outside / length) * queries;
  }
  const double matrices = number(config.layers) * block_matrices + head_matrix;
  if (!config.adapter.is_set()) return 6.0 * (matrices + attention);
  double adapters = 0.0, saved = 0.0;
  for (const auto& layer : gpt::make_layers(config)) {
    for (const ParameterSpec& spec : layer->parameters()) {
      if (!spec.trainable || spec.shape.rank() != 2) continue;
      const bool is_adapter = is_adapter_parameter(spec.name);
      if (is_adapter && config.adapter.lora() == nullptr) continue;  // no factors of GEMMs
      (is_adapter ? adapters : saved) += number(spec.shape.numel());
    }
  }
  return 4.0 * matrices + 6.0 * (adapters + attention) + 2.0 * saved;
}

}  // namespace tessera

#include "pretrained/encoder_tensors.h"

#include <utility>

#include "gpt_config.h"

namespace tessera::pretrained {
namespace {

constexpr std::string_view kMaskedHead = "cls.";
constexpr std::string_view kMaskedBias = "cls.predictions.bias";
constexpr std::string_view kMaskedBiasToo = "cls.predictions.decoder.bias";

}  // namespace

std::string_view head_matrix(const GptConfig& config) {
  return is_encoder(config) ? "cls.predictions.decoder.weight" : "lm_head.weight";
}

std::string tensor_name(const StoredTensors& tensors, const GptConfig& config, std::string name) {
  if (!is_encoder(config) || tensors.contains(name)) return name;
  if (name == kMaskedBias) return std::string(kMaskedBiasToo);
  constexpr std::pair<std::string_view, std::string_view> kOld[] = {
      {"LayerNorm.weight", "LayerNorm.gamma"}, {"LayerNorm.bias", "LayerNorm.beta"}};
  for (const auto& [now, before] : kOld) {
    if (!name.ends_with(now)) continue;
    std::string old = name.substr(0, name.size() - now.size()) + std::string(before);
    if (tensors.contains(old)) return old;
  }
  return name;
}

bool is_beside_encoder(const GptConfig& config, std::string_view name) {
  if (!is_encoder(config)) return false;
  return name.starts_with("cls.seq_relationship.") || name.ends_with("embeddings.position_ids") ||
         name == kMaskedBiasToo ||
         (config.labels.empty() && name.find(kPooler) != std::string_view::npos);
}

bool begins_anew(const GptConfig& config, std::string_view parameter, bool has_head) {
  return is_encoder(config) && !has_head && parameter.starts_with(kMaskedHead);
}

std::vector<ParameterSpec> pooler_of(const GptConfig& config) {
  if (!is_encoder(config) || !config.labels.empty()) return {};
  GptConfig classifier = config;
  classifier.adapter = {};
  classifier.labels = {"0", "1"};
  std::vector<ParameterSpec> pooler;
  for (ParameterSpec& spec : parameters_of(classifier)) {
    if (spec.name.starts_with(kPooler)) pooler.push_back(std::move(spec));
  }
  return pooler;
}

}  // namespace tessera::pretrained

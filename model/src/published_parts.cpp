#include "published_parts.h"

#include <string_view>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/model/gpt_family.h"

namespace tessera {
namespace {

/// The cut of one of our matrices in families whose files have its parts apart.
struct Cut {
  std::string_view ours;
  std::vector<std::pair<std::string_view, std::int64_t>> parts;  ///< names and rows
};

std::vector<Cut> cuts_of(const GptConfig& config) {
  if (config.family == GptFamily::kGpt2 || family_of(config).fused_files) return {};
  const std::int64_t queries = config.heads * config.head_width_used();
  const std::int64_t keys = config.kv_heads_used() * config.head_width_used();
  const std::int64_t mlp = config.mlp_width_used();
  if (family_of(config).encoder) {
    return {{"qkv", {{"query", queries}, {"key", keys}, {"value", keys}}}};
  }
  return {{"qkv_proj", {{"q_proj", queries}, {"k_proj", keys}, {"v_proj", keys}}},
          {"gate_up_proj", {{"gate_proj", mlp}, {"up_proj", mlp}}}};
}

}  // namespace

std::vector<PublishedPart> published_parts(const GptConfig& config, const std::string& parameter,
                                           std::int64_t rows) {
  for (const Cut& cut : cuts_of(config)) {
    const std::size_t at = parameter.find(concat(".", cut.ours, "."));
    if (at == std::string::npos) continue;
    std::vector<PublishedPart> all;
    std::int64_t first = 0;
    for (const auto& [part_name, count] : cut.parts) {
      std::string name = parameter;
      name.replace(at + 1, cut.ours.size(), part_name);
      all.push_back({std::move(name), first, count});
      first += count;
    }
    return all;
  }
  return {{parameter, 0, rows}};
}

bool is_of_head(std::string_view name) {
  return name == "lm_head" || name.starts_with("lm_head.") || name == "score" ||
         name.starts_with("score.") || name == "classifier" || name.starts_with("classifier.") ||
         name.starts_with("cls.");
}

std::string published_name(const GptConfig& config, const std::string& name) {
  return is_of_head(name) ? name : std::string(family_of(config).prefix) + name;
}

}  // namespace tessera

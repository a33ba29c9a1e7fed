#include "adapter/adapter_modules.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "adapter/adapter_kind.h"
#include "adapter/path_pattern.h"
#include "gpt_config.h"
#include "published_parts.h"
#include "tessera/core/error.h"

// Which modules have adapters: the rules of PEFT's check_target_module_exists.
namespace tessera {
namespace {

constexpr std::string_view kWeight = ".weight";

bool ends_path(std::string_view path, std::string_view end) {
  return path == end || (path.ends_with(end) && path.size() > end.size() &&
                         path[path.size() - end.size() - 1] == '.');
}

/// "q_proj" for "model.layers.3.self_attn.q_proj".
std::string_view last_name(std::string_view path) { return path.substr(path.rfind('.') + 1); }

/// The linear modules: matrices whose name says so. Norms, embeddings and what makes logits are
/// none.
bool is_linear(const std::string& parameter) {
  static const std::set<std::string_view> kNames{
      "c_attn", "c_proj",       "c_fc",      "qkv_proj", "o_proj",    "q_proj", "k_proj",
      "v_proj", "gate_up_proj", "gate_proj", "up_proj",  "down_proj", "qkv",    "dense"};
  return parameter.ends_with(kWeight) &&
         kNames.contains(
             last_name(std::string_view(parameter).substr(0, parameter.size() - kWeight.size())));
}

constexpr std::string_view kHeadMatrix = "lm_head.weight";

/// The kind of module that has this matrix; none: it is of another.
std::optional<adapter::Module::Kind> kind_of_module(const GptConfig& config,
                                                    const std::string& parameter) {
  if (is_linear(parameter)) return adapter::Module::Kind::kLinear;
  if (is_encoder(config) || config.adapter.lora() == nullptr) return {};
  if (parameter == embedding_name(config)) return adapter::Module::Kind::kEmbedding;
  if (parameter == kHeadMatrix) return adapter::Module::Kind::kHead;
  return {};
}

std::optional<std::int64_t> number_of(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return {};
  return number;
}

/// Whether the targets name a module; a kind may still leave it out.
bool is_target(const AdapterConfig& config, const std::string& path, adapter::Module::Kind kind) {
  if (!config.excluded_pattern.empty() && PathPattern(config.excluded_pattern).matches(path)) {
    return false;
  }
  if (adapter::ends_with_one_of(path, config.excluded)) return false;
  for (const std::string& saved : config.saved_modules) {
    if (PathPattern("(.*\\.)?" + saved + "(\\..*)?").matches(path)) return false;
  }
  if (config.target_pattern == "all-linear") return kind == adapter::Module::Kind::kLinear;
  if (!config.target_pattern.empty()) return PathPattern(config.target_pattern).matches(path);
  return adapter::ends_with_one_of(path, config.targets);
}

std::string module_of(const std::string& parameter) {
  return parameter.substr(0, parameter.rfind('.'));
}

}  // namespace

namespace adapter {

bool ends_with_one_of(std::string_view path, const std::vector<std::string>& ends) {
  return std::ranges::any_of(ends, [&](const std::string& end) { return ends_path(path, end); });
}

std::optional<std::int64_t> block_of(std::string_view path,
                                     const std::vector<std::string>& patterns) {
  std::string_view before;  // the part before this one
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = path.find('.', begin);
    if (end == std::string_view::npos) return {};
    const std::string_view part = path.substr(begin, end - begin);
    const auto number = number_of(part);
    const bool fits = patterns.empty() ? begin > before.size() + 1
                                       : std::ranges::any_of(patterns, [&](const std::string& p) {
                                           return PathPattern(p).matches(before);
                                         });
    if (number && fits) return number;
    before = part;
    begin = end + 1;
  }
  return {};
}

std::vector<ModuleAdapter> module_adapters(const GptConfig& config, const ParameterSpec& matrix) {
  if (!config.adapter.is_set()) return {};
  const std::optional<Module::Kind> module_kind = kind_of_module(config, matrix.name);
  if (!module_kind) return {};
  const Kind& kind = row_of(config.adapter);
  if (kind.at == nullptr) return {};
  std::vector<ModuleAdapter> adapters;
  const auto parts = published_parts(config, matrix.name, matrix.shape[0]);
  for (const PublishedPart& part : parts) {
    const std::string name = module_of(part.name);
    const Module module{.name = name,
                        .path = published_name(config, name),
                        .first_row = part.first_row,
                        .rows = part.rows,
                        .inputs = matrix.shape[1],
                        .shares_input = parts.size() > 1,
                        .kind = *module_kind};
    if (!is_target(config.adapter, module.path, *module_kind)) continue;
    if (auto adapter = kind.at(config.adapter, module)) adapters.push_back(std::move(*adapter));
  }
  return adapters;
}

ParameterSpec head_matrix(const GptConfig& config) {
  ParameterSpec matrix;
  matrix.name = kHeadMatrix;
  matrix.shape = {config.vocab_size, config.width};
  return matrix;
}

bool is_saved(const GptConfig& config, const std::string& parameter) {
  // PEFT's task type SEQ_CLS saves it, whatever modules_to_save says.
  if (parameter == kScoreParameter || parameter.starts_with(kClassifier)) return true;
  const auto saves = [&](const PublishedPart& part) {
    const std::string path = published_name(config, module_of(part.name));
    return std::ranges::any_of(config.adapter.saved_modules,
                               [&](const std::string& end) { return path.ends_with(end); });
  };
  const std::vector<PublishedPart> parts = published_parts(config, parameter, 0);
  const auto saved = std::ranges::find_if(parts, saves);
  const auto left_out = std::ranges::find_if_not(parts, saves);
  if (saved == parts.end()) return false;
  if (left_out == parts.end()) return true;
  fail(ErrorCode::kConfig, "the adapter trains '", module_of(saved->name),
       "' itself (modules_to_save), which is one matrix here with '", module_of(left_out->name),
       "'; name all of them or none");
}

}  // namespace adapter

bool is_adapter_parameter(std::string_view name) {
  return name.find(".lora_") != std::string_view::npos || name.ends_with(".ia3_l") ||
         name == kPromptParameter || name.starts_with(kPromptEncoder) ||
         name.find(kPrefixParameter) != std::string_view::npos;
}

}  // namespace tessera

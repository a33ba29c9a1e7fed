#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>

#include "adapter/path_pattern.h"
#include "published_parts.h"
#include "tessera/core/error.h"
#include "tessera/model/gpt.h"
#include "tessera/model/gpt_family.h"
#include "tessera/model/lora.h"

// Which modules have adapters: the rules of PEFT's check_target_module_exists and get_pattern_key.
namespace tessera {
namespace {

constexpr std::string_view kWeight = ".weight";

bool ends_path(std::string_view path, std::string_view end) {
  return path == end || (path.ends_with(end) && path.size() > end.size() &&
                         path[path.size() - end.size() - 1] == '.');
}

bool ends_with_one_of(std::string_view path, const std::vector<std::string>& ends) {
  return std::ranges::any_of(ends, [&](const std::string& end) { return ends_path(path, end); });
}

/// "q_proj" for "model.layers.3.self_attn.q_proj".
std::string_view last_name(std::string_view path) { return path.substr(path.rfind('.') + 1); }

/// The linear modules of blocks: matrices whose name says so. Norms, embeddings and head are none.
bool is_linear(const std::string& parameter) {
  static const std::set<std::string_view> kNames{
      "c_attn", "c_proj", "c_fc",         "qkv_proj",  "o_proj",  "q_proj",
      "k_proj", "v_proj", "gate_up_proj", "gate_proj", "up_proj", "down_proj"};
  return parameter.ends_with(kWeight) &&
         kNames.contains(
             last_name(std::string_view(parameter).substr(0, parameter.size() - kWeight.size())));
}

std::optional<std::int64_t> number_of(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return {};
  return number;
}

/// The number of a module's block, as PEFT finds it: the first part of the path that is a number
/// with something before it, or behind one of `patterns`.
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

bool is_target(const LoraConfig& lora, const std::string& path) {
  if (!lora.excluded_pattern.empty() && PathPattern(lora.excluded_pattern).matches(path)) {
    return false;
  }
  if (ends_with_one_of(path, lora.excluded)) return false;
  for (const std::string& saved : lora.saved_modules) {
    if (PathPattern("(.*\\.)?" + saved + "(\\..*)?").matches(path)) return false;
  }
  if (lora.target_pattern == "all-linear") return true;
  if (!lora.target_pattern.empty()) return PathPattern(lora.target_pattern).matches(path);
  if (!ends_with_one_of(path, lora.targets)) return false;
  if (lora.layers.empty()) return true;
  const auto block = block_of(path, lora.layers_pattern);
  return block && std::ranges::find(lora.layers, *block) != lora.layers.end();
}

/// The first pattern's value that matches an end of the path; `fallback` if none does.
template <typename T>
T by_pattern(const std::map<std::string, T>& patterns, const std::string& path, T fallback) {
  for (const auto& [pattern, value] : patterns) {
    if (PathPattern("(.*\\.)?(" + pattern + ")").matches(path)) return value;
  }
  return fallback;
}

std::string module_of(const std::string& parameter) {
  return parameter.substr(0, parameter.rfind('.'));
}

}  // namespace

std::vector<LoraModule> lora_modules(const GptConfig& config, const std::string& parameter,
                                     std::int64_t rows) {
  const LoraConfig& lora = config.lora;
  if (!lora.is_set() || !is_linear(parameter)) return {};
  std::vector<LoraModule> modules;
  for (const PublishedPart& part : published_parts(config, parameter, rows)) {
    const std::string name = module_of(part.name);
    const std::string path = published_name(config, name);
    if (!is_target(lora, path)) continue;
    LoraModule module{.name = name, .first_row = part.first_row, .rows = part.rows};
    module.rank = by_pattern(lora.rank_pattern, path, lora.rank);
    const auto rank = static_cast<double>(module.rank);
    const double alpha = by_pattern(lora.alpha_pattern, path, lora.alpha);
    module.scale = static_cast<float>(alpha / (lora.rank_stabilized ? std::sqrt(rank) : rank));
    modules.push_back(std::move(module));
  }
  return modules;
}

bool is_saved(const GptConfig& config, const std::string& parameter) {
  const auto saves = [&](const PublishedPart& part) {
    const std::string path = published_name(config, module_of(part.name));
    return std::ranges::any_of(config.lora.saved_modules,
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

std::vector<std::string> default_lora_targets(const GptConfig& config) {
  std::vector<std::string> targets;
  for (const std::string_view name : family_of(config).lora_targets) {
    if (!name.empty()) targets.emplace_back(name);
  }
  return targets;
}

}  // namespace tessera

#include "tessera/sharding/parameter_groups.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "tessera/core/error.h"
#include "tessera/core/nearest_name.h"
#include "tessera/core/text.h"

namespace tessera {
namespace {

bool matches(const ParameterGroup& group, std::string_view name) {
  return fnmatch(group.pattern.c_str(), std::string(name).c_str(), 0) == 0;
}

/// The shortest text that is read as this number again.
std::string as_text(float value) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

float parse_rate(std::string_view text, std::string_view group) {
  float value = 0.0F;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  require(error == std::errc() && at == end, ErrorCode::kConfig, "'", group,
          "' is no group of parameters, like 'h.*.attn.*=0.1' (a pattern of names, and what the "
          "learning rate is multiplied by) or 'h.*.attn.*=0.1:0' (and its weight decay)");
  return value;
}

std::string joined_with_dots(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += concat(text.empty() ? "" : ".", part);
  return text;
}

/// A name as a pattern like `pattern`: its first parts, or its last if that begins with a star,
/// with stars where the pattern and where numbers of layers are.
std::string as_pattern(const std::string& name, const std::string& pattern) {
  std::vector<std::string> parts = split_text(name, '.');
  const std::vector<std::string> wanted = split_text(pattern, '.');
  if (parts.size() > wanted.size()) {
    const auto count = static_cast<std::ptrdiff_t>(wanted.size());
    parts = wanted.front() == "*" ? std::vector(parts.end() - count, parts.end())
                                  : std::vector(parts.begin(), parts.begin() + count);
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool is_number = parts[i].find_first_not_of("0123456789") == std::string::npos;
    if (is_number || (i < wanted.size() && wanted[i] == "*")) parts[i] = "*";
  }
  return joined_with_dots(parts);
}

/// The three patterns of parameters' names that are nearest to one that fits none.
std::string near_patterns(const std::string& pattern, const std::vector<std::string>& names) {
  std::vector<std::string> patterns;
  for (const std::string& name : names) {
    std::string one = as_pattern(name, pattern);
    if (std::ranges::find(patterns, one) == patterns.end()) patterns.push_back(std::move(one));
  }
  std::string near;
  for (const std::string& one : nearest_names(pattern, patterns, 3)) {
    near += concat(near.empty() ? "" : ", ", one);
  }
  return near;
}

void check_rate(const ParameterGroup& group, const char* what, float rate) {
  require(std::isfinite(rate) && rate >= 0.0F, ErrorCode::kConfig, "the ", what,
          " of the parameters '", group.pattern, "' is ", rate,
          ", expected a finite number from 0 on");
}

}  // namespace

const ParameterGroup* find_group(const std::vector<ParameterGroup>& groups, std::string_view name) {
  const auto found = std::ranges::find_if(
      groups, [&](const ParameterGroup& group) { return matches(group, name); });
  return found == groups.end() ? nullptr : &*found;
}

void check_groups(const std::vector<ParameterGroup>& groups, const Model& model) {
  std::vector<std::string> names;
  for (const auto& layer : model.layers) {
    for (const ParameterSpec& spec : layer->parameters()) {
      if (spec.trainable) names.push_back(spec.name);
    }
  }
  for (const ParameterGroup& group : groups) {
    check_rate(group, "learning rate factor", group.learning_rate_factor);
    if (group.weight_decay) check_rate(group, "weight decay", *group.weight_decay);
    const bool is_there =
        std::ranges::any_of(names, [&](const auto& name) { return matches(group, name); });
    require(is_there, ErrorCode::kConfig, "no parameter that is trained is called like '",
            group.pattern, "'; near names are ", near_patterns(group.pattern, names));
  }
}

std::string to_string(const std::vector<ParameterGroup>& groups) {
  std::string text;
  for (const ParameterGroup& group : groups) {
    text +=
        concat(text.empty() ? "" : ",", group.pattern, "=", as_text(group.learning_rate_factor));
    if (group.weight_decay) text += concat(":", as_text(*group.weight_decay));
  }
  return text;
}

std::vector<ParameterGroup> parse_groups(std::string_view text) {
  std::vector<ParameterGroup> groups;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view group = text.substr(0, comma);
    const std::size_t equals = std::min(group.rfind('='), group.size());
    const std::string_view rates = group.substr(std::min(equals + 1, group.size()));
    const std::size_t colon = std::min(rates.find(':'), rates.size());
    const float factor = parse_rate(equals == 0 ? "" : rates.substr(0, colon), group);
    groups.push_back(
        {.pattern = std::string(group.substr(0, equals)), .learning_rate_factor = factor});
    if (colon < rates.size())
      groups.back().weight_decay = parse_rate(rates.substr(colon + 1), group);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return groups;
}

}  // namespace tessera

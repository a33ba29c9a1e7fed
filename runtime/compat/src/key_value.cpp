#include "key_table.h"

#include <algorithm>
#include <functional>

#include "document.h"
#include "tessera/core/text.h"

namespace tessera::compat {
namespace {

/// The switch of a section: "true" or "false", which it is if it does not say; nothing if it says
/// something else.
std::optional<std::string> enabled(const Node& map) {
  const Node::Member* const member = map.find("enabled");
  if (member == nullptr) return "false";
  const auto flag = as_flag(member->value);
  if (!flag && !is_auto_text(member->value)) return std::nullopt;
  return flag == true ? "true" : "false";
}

/// Whether it has switches, at any depth, and none of them is on.
bool is_switched_off(const Node& node) {
  bool has_switch = false;
  const std::function<bool(const Node&)> any_on = [&](const Node& map) {
    return std::ranges::any_of(map.members, [&](const Node::Member& member) {
      const bool is_switch = member.key == "enabled";
      has_switch = has_switch || is_switch;
      return is_switch ? as_flag(member.value) != false : any_on(member.value);
    });
  };
  return !any_on(node) && has_switch;
}

}  // namespace

bool is_empty(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kScalar:
      return node.scalar.is_null() || node.text.empty();
    case Node::Kind::kList:
      return node.items.empty();
    case Node::Kind::kMap:
      return node.members.empty();
  }
  return true;
}

bool says_nothing(const KeyRule& rule, const Node& node) {
  if (node.is_null()) return true;
  if (!is_empty(node)) return false;
  switch (node.kind) {
    case Node::Kind::kScalar:
      return rule.type == KeyType::kText || rule.type == KeyType::kAny;
    case Node::Kind::kMap:
      if (rule.type == KeyType::kSection) return true;
      [[fallthrough]];
    case Node::Kind::kList:
      return rule.type == KeyType::kAny && rule.use != KeyUse::kUsed;
  }
  return false;
}

bool is_auto_text(const Node& node) {
  return node.kind == Node::Kind::kScalar && lowercase(node.text) == "auto";
}

std::vector<std::string> strings(const std::vector<const char*>& words) {
  return {words.begin(), words.end()};
}

std::string match(const std::string& shown, const std::vector<const char*>& allowed) {
  for (const char* word : allowed) {
    if (lowercase(word) == lowercase(shown)) return word;
  }
  return "";
}

std::string in_words(const KeyRule& rule) {
  std::string text;
  switch (rule.type) {
    case KeyType::kFlag:
      text = "true or false";
      break;
    case KeyType::kInteger:
      text = "an integer";
      break;
    case KeyType::kNumber:
      text = "a number";
      break;
    case KeyType::kText:
      text = "a text";
      break;
    case KeyType::kSection:
      text = rule.use == KeyUse::kUsed ? "a section of keys"
                                       : "a section that says whether it is \"enabled\"";
      break;
    case KeyType::kAny:
      text = "a value";
      break;
  }
  return rule.may_be_auto ? text + " or \"auto\"" : text;
}

bool is_comment(std::string_view key) {
  return key.starts_with("_") || key.starts_with("//") || key.starts_with("#") ||
         lowercase(key) == "comment" || lowercase(key) == "comments";
}

bool asks(const KeyRule& rule, const Node& node, const std::string& shown) {
  if (!match(shown, rule.harmless).empty()) return false;
  switch (rule.type) {
    case KeyType::kFlag:  // where true is harmless, false asks
      return rule.harmless.empty() ? shown == "true" : true;
    case KeyType::kSection:
      return shown == "true";
    case KeyType::kAny:
      if (node.kind == Node::Kind::kMap) return !is_switched_off(node);
      return !(node.kind == Node::Kind::kScalar && node.scalar == false);
    case KeyType::kInteger:
    case KeyType::kNumber:
    case KeyType::kText:
      return true;
  }
  return true;
}

std::optional<nlohmann::ordered_json> value_for_nothing(const KeyRule& rule) {
  if (rule.harmless.empty()) {
    return rule.type == KeyType::kFlag ? std::optional<nlohmann::ordered_json>(false)
                                       : std::nullopt;
  }
  const std::string text = rule.harmless.front();
  return rule.type == KeyType::kText || rule.type == KeyType::kAny
             ? nlohmann::ordered_json(text)
             : nlohmann::ordered_json::parse(text);
}

std::optional<std::string> canonical(const KeyRule& rule, const Node& node) {
  switch (rule.type) {
    case KeyType::kFlag: {
      const auto flag = as_flag(node);
      return flag ? std::optional<std::string>(*flag ? "true" : "false") : std::nullopt;
    }
    case KeyType::kInteger: {
      const auto integer = as_integer(node);
      return integer ? std::optional(std::to_string(*integer)) : std::nullopt;
    }
    case KeyType::kNumber: {
      const auto number = as_number(node);
      return number ? std::optional(nlohmann::json(*number).dump()) : std::nullopt;
    }
    case KeyType::kText: {
      if (node.kind != Node::Kind::kScalar) return std::nullopt;
      // YAML takes NO for a boolean: only where words are listed can it be one of them.
      const bool words = !(rule.allowed.empty() && rule.harmless.empty() && rule.asking.empty());
      return words || !node.scalar.is_boolean() ? std::optional(node.text) : std::nullopt;
    }
    case KeyType::kSection:
      if (rule.use != KeyUse::kUsed && as_flag(node) == false) return "false";
      if (node.kind != Node::Kind::kMap) return std::nullopt;
      return rule.use == KeyUse::kUsed ? "a section" : enabled(node);
    case KeyType::kAny:
      return node.kind == Node::Kind::kScalar ? node.text : node.json().dump();
  }
  return std::nullopt;
}

}  // namespace tessera::compat

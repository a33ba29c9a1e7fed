#include <algorithm>
#include <map>

#include "chat/jinja_functions.h"
#include "tessera/core/error.h"

namespace tessera::jinja {
namespace methods {

using Method = Value (*)(const Value& self, const Arguments& arguments);

const std::string& text(const Value& self) { return *self.string(); }

std::string mapped(std::string_view text, bool up) {
  std::string result;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) {
      throw Problem{"upper and lower case of letters beyond ASCII is not supported"};
    }
    const bool changes = up ? (c >= 'a' && c <= 'z') : (c >= 'A' && c <= 'Z');
    result += changes ? static_cast<char>(c ^ 0x20) : c;
  }
  return result;
}

Value pieces(std::vector<std::string> parts) {
  std::vector<Value> all;
  for (std::string& part : parts) all.emplace_back(std::move(part));
  return Value::list(std::move(all));
}

/// Between separators, `most` times at the most (below 0: always), from the left or the right.
std::vector<std::string> split_at(std::string_view text, std::string_view separator,
                                  std::int64_t most, bool from_right) {
  if (separator.empty()) throw Problem{"split takes no empty separator"};
  std::vector<std::string> parts;
  while (most < 0 || static_cast<std::int64_t>(parts.size()) < most) {
    const std::size_t at = from_right ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) break;
    const std::string_view after = text.substr(at + separator.size());
    parts.emplace_back(from_right ? after : text.substr(0, at));
    text = from_right ? text.substr(0, at) : after;
  }
  parts.emplace_back(text);
  if (from_right) std::ranges::reverse(parts);
  return parts;
}

/// Words between white space.
std::vector<std::string> split_words(const std::string& text, std::int64_t most) {
  std::vector<std::string> parts;
  std::string rest = strip(text, nullptr, true, false);
  while (!rest.empty()) {
    if (most >= 0 && static_cast<std::int64_t>(parts.size()) == most) {
      parts.push_back(strip(rest, nullptr, false, true));
      break;
    }
    std::string word;
    for (const std::string_view character : characters(rest)) {
      if (is_space(character)) break;
      word += character;
    }
    rest = strip(std::string_view(rest).substr(word.size()), nullptr, true, false);
    parts.push_back(std::move(word));
  }
  return parts;
}

Value split(const Value& self, const Arguments& arguments, bool from_right) {
  const Value* const separator = arguments.find(0, "sep");
  const std::int64_t most = integer_argument(arguments.find(1, "maxsplit"), "split", -1);
  if (separator != nullptr && !separator->is_none()) {
    return pieces(split_at(text(self), string_argument(separator, "split"), most, from_right));
  }
  if (from_right && most >= 0) throw Problem{"rsplit of words with maxsplit is not supported"};
  return pieces(split_words(text(self), most));
}

/// Whether the text begins, or ends, with the argument or with one of a tuple of them.
template <bool kBegin>
Value is_at_side(const Value& self, const Arguments& arguments) {
  const auto matches = [&](const Value& value) {
    const std::string& part = string_argument(&value, kBegin ? "startswith" : "endswith");
    return kBegin ? text(self).starts_with(part) : text(self).ends_with(part);
  };
  if (arguments.values.size() != 1) {
    throw Problem{concat(kBegin ? "startswith" : "endswith", " is supported with one argument")};
  }
  const Value& argument = arguments.values.front();
  if (argument.list() == nullptr) return matches(argument);
  return std::ranges::any_of(argument.list()->items, matches);
}

Value find_in(const Value& self, const Arguments& arguments, bool last) {
  if (arguments.values.size() != 1) throw Problem{"find is supported with one argument"};
  const std::string& part = string_argument(arguments.find(0, ""), "find");
  const std::size_t at = last ? text(self).rfind(part) : text(self).find(part);
  if (at == std::string::npos) return std::int64_t{-1};
  return static_cast<std::int64_t>(characters(std::string_view(text(self)).substr(0, at)).size());
}

Value join(const Value& self, const Arguments& arguments) {
  const Value* const list = arguments.find(0, "");
  if (list == nullptr) throw Problem{"join lacks an argument"};
  std::string all;
  bool first = true;
  for (const Value& item : items_of(*list)) {
    if (!first) all += text(self);
    all += string_argument(&item, "join of a string");
    first = false;
  }
  return all;
}

template <bool (*kIs)(char)>
Value all_are(const Value& self, const Arguments&) {
  const std::string& all = text(self);
  const auto ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (!std::ranges::all_of(all, ascii)) {
    throw Problem{"kinds of characters beyond ASCII are not supported"};
  }
  return !all.empty() && std::ranges::all_of(all, kIs);
}
bool is_digit_char(char c) { return c >= '0' && c <= '9'; }
bool is_letter_char(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_letter_or_digit(char c) { return is_digit_char(c) || is_letter_char(c); }

Value is_space_text(const Value& self, const Arguments&) {
  const auto all = characters(text(self));
  return !all.empty() && std::ranges::all_of(all, is_space);
}

Value count(const Value& self, const Arguments& arguments) {
  const std::string& part = string_argument(arguments.find(0, ""), "count");
  if (part.empty()) return static_cast<std::int64_t>(characters(text(self)).size() + 1);
  return static_cast<std::int64_t>(split_at(text(self), part, -1, false).size() - 1);
}

Value without_side(const Value& self, const Arguments& arguments, bool begin) {
  const std::string& part = string_argument(arguments.find(0, ""), "removeprefix");
  const std::string& all = text(self);
  if (begin ? !all.starts_with(part) : !all.ends_with(part)) return all;
  return begin ? all.substr(part.size()) : all.substr(0, all.size() - part.size());
}

const std::map<std::string, Method, std::less<>>& of_strings() {
  using A = const Arguments&;
  using V = const Value&;
  static const std::map<std::string, Method, std::less<>> methods{
      {"strip", [](V s, A a) -> Value { return strip(text(s), a.find(0, "chars"), true, true); }},
      {"lstrip", [](V s, A a) -> Value { return strip(text(s), a.find(0, "chars"), true, false); }},
      {"rstrip", [](V s, A a) -> Value { return strip(text(s), a.find(0, "chars"), false, true); }},
      {"split", [](V s, A a) { return split(s, a, false); }},
      {"rsplit", [](V s, A a) { return split(s, a, true); }},
      {"splitlines", [](V s, A) { return pieces(split_lines(text(s))); }},
      {"startswith", is_at_side<true>},
      {"endswith", is_at_side<false>},
      {"replace",
       [](V s, A a) -> Value {
         return replace(text(s), string_argument(a.find(0, "old"), "replace"),
                        string_argument(a.find(1, "new"), "replace"),
                        integer_argument(a.find(2, "count"), "replace", -1));
       }},
      {"upper", [](V s, A) -> Value { return upper(text(s)); }},
      {"lower", [](V s, A) -> Value { return lower(text(s)); }},
      {"capitalize", [](V s, A) -> Value { return capitalize(text(s)); }},
      {"find", [](V s, A a) { return find_in(s, a, false); }},
      {"rfind", [](V s, A a) { return find_in(s, a, true); }},
      {"count", count},
      {"join", join},
      {"isdigit", all_are<is_digit_char>},
      {"isalpha", all_are<is_letter_char>},
      {"isalnum", all_are<is_letter_or_digit>},
      {"isspace", is_space_text},
      {"removeprefix", [](V s, A a) { return without_side(s, a, true); }},
      {"removesuffix", [](V s, A a) { return without_side(s, a, false); }}};
  return methods;
}

Value get(const Value& self, const Arguments& arguments) {
  const Value* const key = arguments.find(0, "key");
  const Value* const fallback = arguments.find(1, "default");
  const Value* const found = self.dict()->find(string_argument(key, "get"));
  if (found != nullptr) return *found;
  return fallback == nullptr ? Value::none() : *fallback;
}

template <bool kKeys, bool kValues>
Value members(const Value& self, const Arguments&) {
  std::vector<Value> all;
  for (const auto& [key, value] : self.dict()->items) {
    if (kKeys && kValues) {
      all.push_back(Value::list({Value(key), value}, List::Kind::kTuple));
    } else {
      all.push_back(kKeys ? Value(key) : value);
    }
  }
  return Value::list(std::move(all));
}

const std::map<std::string, Method, std::less<>>& of_dicts() {
  static const std::map<std::string, Method, std::less<>> methods{{"get", get},
                                                                  {"items", members<true, true>},
                                                                  {"keys", members<true, false>},
                                                                  {"values", members<false, true>}};
  return methods;
}

Value refuse_change(const Value& self, const Arguments&) {
  throw Problem{concat("a ", self.type_name(),
                       " cannot be changed in a chat template (transformers refuses it as well); "
                       "add lists with +")};
}

Value count_items(const Value& self, const Arguments& arguments) {
  const Value* const item = arguments.find(0, "");
  if (item == nullptr) throw Problem{"count lacks an argument"};
  return static_cast<std::int64_t>(std::ranges::count(self.list()->items, *item));
}

const std::map<std::string, Method, std::less<>>& of_lists() {
  static const std::map<std::string, Method, std::less<>> methods{{"append", refuse_change},
                                                                  {"extend", refuse_change},
                                                                  {"insert", refuse_change},
                                                                  {"pop", refuse_change},
                                                                  {"count", count_items}};
  return methods;
}

}  // namespace methods

std::optional<Value> method_of(const Value& self, const std::string& name) {
  const std::map<std::string, methods::Method, std::less<>>* all = nullptr;
  if (self.string() != nullptr) all = &methods::of_strings();
  if (self.dict() != nullptr) all = &methods::of_dicts();
  if (self.list() != nullptr) all = &methods::of_lists();
  if (all == nullptr) return std::nullopt;
  const auto found = all->find(name);
  if (found == all->end()) return std::nullopt;
  return Value::function([self, method = found->second](const Arguments& arguments) {
    return method(self, arguments);
  });
}

std::string strip(std::string_view text, const Value* which, bool left, bool right) {
  const bool spaces = which == nullptr || which->is_none();
  const std::vector<std::string_view> stripped =
      spaces ? std::vector<std::string_view>{} : characters(string_argument(which, "strip"));
  const auto goes = [&](std::string_view character) {
    return spaces ? is_space(character) : std::ranges::find(stripped, character) != stripped.end();
  };
  const auto all = characters(text);
  std::size_t begin = 0, end = all.size();
  while (left && begin < end && goes(all[begin])) text.remove_prefix(all[begin++].size());
  while (right && begin < end && goes(all[end - 1])) text.remove_suffix(all[--end].size());
  return std::string(text);
}

std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    std::int64_t most) {
  std::string result;
  if (from.empty()) throw Problem{"replace takes no empty string"};
  for (std::size_t at = text.find(from); at != std::string_view::npos && most != 0;
       at = text.find(from), --most) {
    result.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  return result.append(text);
}

std::vector<std::string> split_lines(std::string_view text) {
  constexpr std::string_view kEnds[] = {"\n",   "\r",   "\v",     "\f",     "\x1c",
                                        "\x1d", "\x1e", "\u0085", "\u2028", "\u2029"};
  std::vector<std::string> lines;
  std::string line;
  const auto all = characters(text);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (std::ranges::find(kEnds, all[i]) == std::end(kEnds)) {
      line += all[i];
      continue;
    }
    if (all[i] == "\r" && i + 1 < all.size() && all[i + 1] == "\n") ++i;
    lines.push_back(std::exchange(line, ""));
  }
  if (!line.empty()) lines.push_back(line);
  return lines;
}

std::string upper(std::string_view text) { return methods::mapped(text, true); }
std::string lower(std::string_view text) { return methods::mapped(text, false); }

std::string capitalize(std::string_view text) {
  return text.empty() ? "" : upper(text.substr(0, 1)) + lower(text.substr(1));
}

/// Jinja2's filter: words begin behind white space and ( { [ < -.
std::string title(std::string_view text) {
  std::string result;
  bool begins = true;
  for (const char c : text) {
    result += begins ? upper({&c, 1}) : lower({&c, 1});
    begins = std::string_view(" \t\n\r\v\f-({[<").find(c) != std::string_view::npos;
  }
  return result;
}

}  // namespace tessera::jinja

#include <algorithm>
#include <charconv>
#include <map>

#include "chat/jinja_functions.h"
#include "tessera/core/error.h"

namespace tessera::jinja {
namespace filters {

using Filter = Value (*)(const Value& value, const Arguments& arguments);
using Test = bool (*)(const Value& value, const Arguments& arguments);
using A = const Arguments&;
using V = const Value&;

const Value& needed(const Value* argument, std::string_view what) {
  if (argument == nullptr) throw Problem{concat(what, " lacks an argument")};
  return *argument;
}

bool flag(const Value* argument, bool fallback) {
  return argument == nullptr ? fallback : argument->truth();
}

Value length(V value, A) {
  if (value.is_undefined()) return std::int64_t{0};
  if (value.string() != nullptr) {
    return static_cast<std::int64_t>(characters(*value.string()).size());
  }
  if (value.dict() != nullptr) return static_cast<std::int64_t>(value.dict()->items.size());
  if (value.list() == nullptr || value.list()->kind == List::Kind::kGenerator) {
    throw Problem{concat("a value of type ", value.type_name(), " has no length")};
  }
  return static_cast<std::int64_t>(value.list()->items.size());
}

Value fallback(V value, A arguments) {
  const Value* const other = arguments.find(0, "default_value");
  const bool replaces =
      value.is_undefined() || (flag(arguments.find(1, "boolean"), false) && !value.truth());
  if (!replaces) return value;
  return other == nullptr ? Value(std::string()) : *other;
}

/// By a path such as "function.name", or an index.
Value member_of(const Value& value, const Value& path) {
  if (path.is_integer()) return item_of(value, path);
  Value at = value;
  const std::string& names = string_argument(&path, "attribute");
  for (std::size_t begin = 0; begin <= names.size();) {
    const std::size_t end = std::min(names.find('.', begin), names.size());
    at = item_of(at, Value(names.substr(begin, end - begin)));
    begin = end + 1;
  }
  return at;
}

Value join(V value, A arguments) {
  const Value* const separator = arguments.find(0, "d");
  const Value* const attribute = arguments.find(1, "attribute");
  std::string all;
  bool first = true;
  for (const Value& item : items_of(value)) {
    if (!first && separator != nullptr) all += to_text(*separator);
    all += to_text(attribute == nullptr ? item : member_of(item, *attribute));
    first = false;
  }
  return all;
}

Value reverse(V value, A) {
  if (value.string() != nullptr) {
    std::string all;
    for (const std::string_view character : characters(*value.string())) {
      all.insert(0, character);
    }
    return all;
  }
  std::vector<Value> items = items_of(value);
  std::ranges::reverse(items);
  return Value::list(std::move(items), List::Kind::kGenerator);
}

Value end_of(V value, bool first) {
  const std::vector<Value> items = items_of(value);
  if (items.empty()) return Value::undefined(first ? "first" : "last");
  return first ? items.front() : items.back();
}

Value indent(V value, A arguments) {
  const Value* const width = arguments.find(0, "width");
  const bool first = flag(arguments.find(1, "first"), false);
  const bool blank = flag(arguments.find(2, "blank"), false);
  const bool named = width != nullptr && width->string() != nullptr;
  const std::string spaces =
      named ? *width->string()
            : std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(
                              integer_argument(width, "indent", 4), 0, 1 << 16)),
                          ' ');
  const std::vector<std::string> lines = split_lines(string_argument(&value, "indent") + "\n");
  std::string all = first ? spaces : "";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) all += "\n" + (blank || !lines[i].empty() ? spaces : "");
    all += lines[i];
  }
  return all;
}

Value to_integer(V value, A arguments) {
  const Value* const other = arguments.find(0, "default");
  if (value.is_integer()) return value.integer();
  if (const double* real = value.as<double>()) return static_cast<std::int64_t>(*real);
  if (value.string() != nullptr) {
    const std::string text = strip(*value.string(), nullptr, true, true);
    std::int64_t number = 0;
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, number);
    if (error == std::errc() && at == end && !text.empty()) return number;
    if (at != end && (*at == '.' || *at == 'e' || *at == '_' || *text.data() == '+')) {
      throw Problem{concat("int of '", text, "' is not supported")};
    }
  }
  return other == nullptr ? Value(std::int64_t{0}) : *other;
}

Value to_real(V value, A arguments) {
  const Value* const other = arguments.find(0, "default");
  if (value.is_number()) return value.number();
  if (value.string() != nullptr) {
    const std::string text = strip(*value.string(), nullptr, true, true);
    double number = 0;
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, number);
    if (error == std::errc() && at == end) return number;
  }
  return other == nullptr ? Value(0.0) : *other;
}

Value absolute(V value, A) {
  if (value.is_integer()) return std::abs(value.integer());
  if (!value.is_number()) throw Problem{"abs takes a number"};
  return std::abs(value.number());
}

Value to_json_text(V value, A arguments) {
  JsonStyle style;
  style.ensure_ascii = flag(arguments.find(0, "ensure_ascii"), false);
  if (const Value* indent = arguments.find(1, "indent"); indent != nullptr && !indent->is_none()) {
    style.indent = static_cast<int>(
        std::clamp<std::int64_t>(integer_argument(indent, "tojson", 0), 0, 1 << 10));
  }
  if (const Value* both = arguments.find(2, "separators"); both != nullptr && !both->is_none()) {
    const Value item = item_of(*both, Value(std::int64_t{0}));
    const Value key = item_of(*both, Value(std::int64_t{1}));
    style.item_separator = string_argument(&item, "separators of tojson");
    style.key_separator = string_argument(&key, "separators of tojson");
  }
  style.sort_keys = flag(arguments.find(3, "sort_keys"), false);
  return to_json(value, style);
}

/// The arguments behind the first `count`.
Arguments rest_of(A arguments, std::size_t count) {
  Arguments rest{.values = {}, .named = arguments.named};
  for (std::size_t i = count; i < arguments.values.size(); ++i) {
    rest.values.push_back(arguments.values[i]);
  }
  return rest;
}

Value map(V value, A arguments) {
  std::vector<Value> all;
  const Value* const attribute =
      arguments.values.empty() ? arguments.find(0, "attribute") : nullptr;
  const Value* const other = attribute == nullptr ? nullptr : arguments.find(9, "default");
  for (const Value& item : items_of(value)) {
    if (attribute != nullptr) {
      Value member = member_of(item, *attribute);
      all.push_back(member.is_undefined() && other != nullptr ? *other : std::move(member));
    } else {
      all.push_back(
          apply_filter(string_argument(arguments.find(0, ""), "map"), item, rest_of(arguments, 1)));
    }
  }
  return Value::list(std::move(all), List::Kind::kGenerator);
}

/// Items that pass a test, or do not, by themselves or by an attribute.
template <bool kWanted, bool kAttribute>
Value select(V value, A arguments) {
  std::vector<Value> all;
  constexpr std::size_t kTest = kAttribute ? 1 : 0;
  for (const Value& item : items_of(value)) {
    const Value tested =
        kAttribute ? member_of(item, needed(arguments.find(0, ""), "selectattr")) : item;
    const bool passes = arguments.values.size() > kTest
                            ? apply_test(string_argument(&arguments.values[kTest], "select"),
                                         tested, rest_of(arguments, kTest + 1))
                            : tested.truth();
    if (passes == kWanted) all.push_back(item);
  }
  return Value::list(std::move(all), List::Kind::kGenerator);
}

Value items(V value, A) {
  if (value.is_undefined()) return Value::list({}, List::Kind::kGenerator);
  if (value.dict() == nullptr) throw Problem{"items takes a mapping"};
  std::vector<Value> all;
  for (const auto& [key, member] : value.dict()->items) {
    all.push_back(Value::list({Value(key), member}, List::Kind::kTuple));
  }
  return Value::list(std::move(all), List::Kind::kGenerator);
}

const std::map<std::string, Filter, std::less<>>& all_filters() {
  static const std::map<std::string, Filter, std::less<>> all{
      {"trim", [](V v, A a) -> Value { return strip(to_text(v), a.find(0, "chars"), true, true); }},
      {"length", length},
      {"count", length},
      {"default", fallback},
      {"d", fallback},
      {"join", join},
      {"upper", [](V v, A) -> Value { return upper(to_text(v)); }},
      {"lower", [](V v, A) -> Value { return lower(to_text(v)); }},
      {"title", [](V v, A) -> Value { return title(to_text(v)); }},
      {"capitalize", [](V v, A) -> Value { return capitalize(to_text(v)); }},
      {"string", [](V v, A) -> Value { return to_text(v); }},
      {"safe", [](V v, A) -> Value { return to_text(v); }},
      {"list", [](V v, A) { return Value::list(items_of(v)); }},
      {"first", [](V v, A) { return end_of(v, true); }},
      {"last", [](V v, A) { return end_of(v, false); }},
      {"int", to_integer},
      {"float", to_real},
      {"abs", absolute},
      {"reverse", reverse},
      {"indent", indent},
      {"tojson", to_json_text},
      {"items", items},
      {"map", map},
      {"select", select<true, false>},
      {"reject", select<false, false>},
      {"selectattr", select<true, true>},
      {"rejectattr", select<false, true>},
      {"replace", [](V v, A a) -> Value {
         return replace(to_text(v), string_argument(a.find(0, "old"), "replace"),
                        string_argument(a.find(1, "new"), "replace"),
                        integer_argument(a.find(2, "count"), "replace", -1));
       }}};
  return all;
}

bool equals(V value, A arguments) { return value == needed(arguments.find(0, ""), "a test"); }
bool less(V value, A arguments) { return is_less(value, needed(arguments.find(0, ""), "a test")); }
bool greater(V value, A arguments) {
  return is_less(needed(arguments.find(0, ""), "a test"), value);
}

bool divides(V value, A arguments) {
  const Value rest = binary("%", value, needed(arguments.find(0, ""), "divisibleby"));
  return rest == Value(std::int64_t{0});
}

bool parity(V value, std::int64_t wanted) {
  return binary("%", value, Value(std::int64_t{2})) == Value(wanted);
}

bool is_sequence(V value, A) {
  return value.string() != nullptr || value.dict() != nullptr ||
         (value.list() != nullptr && value.list()->kind != List::Kind::kGenerator);
}

const std::map<std::string, Test, std::less<>>& all_tests() {
  static const std::map<std::string, Test, std::less<>> all{
      {"defined", [](V v, A) { return !v.is_undefined(); }},
      {"undefined", [](V v, A) { return v.is_undefined(); }},
      {"none", [](V v, A) { return v.is_none(); }},
      {"string", [](V v, A) { return v.string() != nullptr; }},
      {"boolean", [](V v, A) { return v.as<bool>() != nullptr; }},
      {"true", [](V v, A) { return v.as<bool>() != nullptr && *v.as<bool>(); }},
      {"false", [](V v, A) { return v.as<bool>() != nullptr && !*v.as<bool>(); }},
      {"number", [](V v, A) { return v.is_number(); }},
      {"integer", [](V v, A) { return v.as<std::int64_t>() != nullptr; }},
      {"float", [](V v, A) { return v.as<double>() != nullptr; }},
      {"mapping", [](V v, A) { return v.dict() != nullptr; }},
      {"sequence", is_sequence},
      {"iterable",
       [](V v, A a) { return is_sequence(v, a) || v.list() != nullptr || v.is_undefined(); }},
      {"callable", [](V v, A) { return v.function() != nullptr; }},
      {"odd", [](V v, A) { return parity(v, 1); }},
      {"even", [](V v, A) { return parity(v, 0); }},
      {"divisibleby", divides},
      {"in", [](V v, A a) { return contains(needed(a.find(0, ""), "in"), v); }},
      {"==", equals},
      {"eq", equals},
      {"equalto", equals},
      {"!=", [](V v, A a) { return !equals(v, a); }},
      {"ne", [](V v, A a) { return !equals(v, a); }},
      {"<", less},
      {"lt", less},
      {"lessthan", less},
      {">", greater},
      {"gt", greater},
      {"greaterthan", greater},
      {"<=", [](V v, A a) { return less(v, a) || equals(v, a); }},
      {"le", [](V v, A a) { return less(v, a) || equals(v, a); }},
      {">=", [](V v, A a) { return greater(v, a) || equals(v, a); }},
      {"ge", [](V v, A a) { return greater(v, a) || equals(v, a); }}};
  return all;
}

}  // namespace filters

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments) {
  const auto found = filters::all_filters().find(name);
  if (found == filters::all_filters().end()) {
    throw Problem{concat("the filter '", name, "' is not supported")};
  }
  return found->second(value, arguments);
}

bool apply_test(const std::string& name, const Value& value, const Arguments& arguments) {
  const auto found = filters::all_tests().find(name);
  if (found == filters::all_tests().end()) {
    throw Problem{concat("the test '", name, "' is not supported")};
  }
  return found->second(value, arguments);
}

}  // namespace tessera::jinja

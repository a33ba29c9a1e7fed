#include "chat/jinja_value.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/core/error.h"
#include "tokenizer/utf8.h"

namespace tessera::jinja {

const Value* Dict::find(std::string_view key) const {
  const auto found = std::ranges::find(items, key, [](const auto& item) { return item.first; });
  return found == items.end() ? nullptr : &found->second;
}

void Dict::set(const std::string& key, Value value) {
  const auto found = std::ranges::find(items, key, [](const auto& item) { return item.first; });
  if (found != items.end()) {
    found->second = std::move(value);
  } else {
    items.emplace_back(key, std::move(value));
  }
}

const Value* Arguments::find(std::size_t place, std::string_view name) const {
  if (place < values.size()) return &values[place];
  const auto found = std::ranges::find(named, name, [](const auto& item) { return item.first; });
  return found == named.end() ? nullptr : &found->second;
}

Value Value::list(std::vector<Value> items, List::Kind kind) {
  return Value(Content(std::make_shared<const List>(List{std::move(items), kind})));
}

Value Value::dict(Dict members) {
  return Value(Content(std::make_shared<const Dict>(std::move(members))));
}

Value Value::function(Function function) {
  return Value(Content(std::make_shared<const Function>(std::move(function))));
}

Value Value::undefined(std::string name) { return Value(Content(Undefined{std::move(name)})); }

Value Value::of_json(const nlohmann::ordered_json& json) {
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::null:
      return none();
    case nlohmann::ordered_json::value_t::boolean:
      return Value(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_unsigned:
      require(json.get<std::uint64_t>() <=
                  static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()),
              ErrorCode::kConfig, "the integer ", json.dump(), " has more than 64 bits");
      return Value(json.get<std::int64_t>());
    case nlohmann::ordered_json::value_t::number_integer:
      return Value(json.get<std::int64_t>());
    case nlohmann::ordered_json::value_t::number_float:
      return Value(json.get<double>());
    case nlohmann::ordered_json::value_t::array: {
      std::vector<Value> items;
      for (const auto& item : json) items.push_back(of_json(item));
      return list(std::move(items));
    }
    case nlohmann::ordered_json::value_t::object: {
      Dict members;
      for (const auto& [key, value] : json.items()) members.set(key, of_json(value));
      return dict(std::move(members));
    }
    default:
      return Value(json.get<std::string>());
  }
}

const List* Value::list() const {
  const auto* held = as<std::shared_ptr<const List>>();
  return held == nullptr ? nullptr : held->get();
}

const Dict* Value::dict() const {
  const auto* held = as<std::shared_ptr<const Dict>>();
  return held == nullptr ? nullptr : held->get();
}

Namespace* Value::mutable_members() const {
  const auto* held = as<std::shared_ptr<Namespace>>();
  return held == nullptr ? nullptr : held->get();
}

const Function* Value::function() const {
  const auto* held = as<std::shared_ptr<const Function>>();
  return held == nullptr ? nullptr : held->get();
}

bool Value::is_integer() const { return as<bool>() != nullptr || as<std::int64_t>() != nullptr; }

std::int64_t Value::integer() const {
  if (const bool* flag = as<bool>()) return *flag ? 1 : 0;
  return std::get<std::int64_t>(content_);
}

bool Value::is_number() const { return is_integer() || as<double>() != nullptr; }

double Value::number() const {
  if (const double* real = as<double>()) return *real;
  return static_cast<double>(integer());
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return number() != 0.0;
  if (const std::string* text = string()) return !text->empty();
  if (const List* items = list()) {
    return !items->items.empty() || items->kind == List::Kind::kGenerator;
  }
  if (const Dict* members = dict()) return !members->items.empty();
  return true;
}

std::string_view Value::type_name() const {
  constexpr std::string_view kNames[] = {"undefined", "None", "bool", "int",       "float",
                                         "str",       "list", "dict", "namespace", "function"};
  if (list() != nullptr && list()->kind == List::Kind::kTuple) return "tuple";
  if (list() != nullptr && list()->kind == List::Kind::kGenerator) return "generator";
  return kNames[content_.index()];
}

bool operator==(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return a.is_integer() && b.is_integer() ? a.integer() == b.integer() : a.number() == b.number();
  }
  if (a.string() != nullptr && b.string() != nullptr) return *a.string() == *b.string();
  if (a.list() != nullptr && b.list() != nullptr) {
    return a.list()->kind == b.list()->kind && a.list()->items == b.list()->items;
  }
  if (a.dict() != nullptr && b.dict() != nullptr) {
    const auto has_equal = [&](const auto& item) {
      const Value* other = b.dict()->find(item.first);
      return other != nullptr && *other == item.second;
    };
    return a.dict()->items.size() == b.dict()->items.size() &&
           std::ranges::all_of(a.dict()->items, has_equal);
  }
  if (a.mutable_members() != nullptr) return a.mutable_members() == b.mutable_members();
  if (a.function() != nullptr) return a.function() == b.function();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

namespace value {

/// Python's repr: the shortest digits that give the number again.
std::string real_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  return nlohmann::json(number).dump();
}

std::string quoted(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string result(1, quote);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    constexpr char kHex[] = "0123456789abcdef";
    if (c == quote || c == '\\') {
      result += {'\\', c};
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '\r') {
      result += "\\r";
    } else if (c == '\t') {
      result += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      result += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      result += c;
    }
  }
  return result + quote;
}

template <typename Items, typename Write>
std::string joined(const Items& items, std::string_view separator, const Write& write) {
  std::string text;
  for (const auto& item : items) {
    if (&item != &items.front()) text += separator;
    text += write(item);
  }
  return text;
}

std::string json_of(const Value& value, const JsonStyle& style, int depth) {
  if (value.is_none()) return "null";
  if (const bool* flag = value.as<bool>()) return *flag ? "true" : "false";
  if (value.is_integer()) return concat(value.integer());
  if (const double* real = value.as<double>()) return real_text(*real);
  if (const std::string* text = value.string()) {
    // Python escapes DEL in ASCII as it is; both leave "/" alone.
    return nlohmann::json(*text).dump(-1, ' ', style.ensure_ascii);
  }
  const bool lines = style.indent >= 0;
  const auto line = [&](int deep) {
    return "\n" + std::string(static_cast<std::size_t>(style.indent * deep), ' ');
  };
  const std::string separator =
      (style.item_separator.empty() ? (lines ? "," : ", ") : style.item_separator) +
      (lines ? line(depth + 1) : "");
  const auto wrapped = [&](char open, const std::string& inside, char close) {
    if (inside.empty() || !lines) return open + inside + close;
    return open + line(depth + 1) + inside + line(depth) + close;
  };
  if (const List* list = value.list()) {
    const auto write = [&](const Value& item) { return json_of(item, style, depth + 1); };
    return wrapped('[', joined(list->items, separator, write), ']');
  }
  if (const Dict* dict = value.dict()) {
    auto items = dict->items;
    if (style.sort_keys) {
      std::ranges::sort(items, {}, [](const auto& item) { return item.first; });
    }
    const auto write = [&](const auto& item) {
      return json_of(Value(item.first), style, depth) +
             (style.key_separator.empty() ? ": " : style.key_separator) +
             json_of(item.second, style, depth + 1);
    };
    return wrapped('{', joined(items, separator, write), '}');
  }
  throw Problem{concat("there is no JSON for a value of type ", value.type_name())};
}

}  // namespace value

std::string to_representation(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "None";
  if (const bool* flag = value.as<bool>()) return *flag ? "True" : "False";
  if (value.is_integer()) return concat(value.integer());
  if (const double* real = value.as<double>()) return value::real_text(*real);
  if (const std::string* text = value.string()) return value::quoted(*text);
  if (const List* list = value.list()) {
    const std::string inside = value::joined(list->items, ", ", to_representation);
    if (list->kind == List::Kind::kGenerator) throw Problem{"a generator has no text; use | list"};
    if (list->kind == List::Kind::kList) return "[" + inside + "]";
    return "(" + inside + (list->items.size() == 1 ? ",)" : ")");
  }
  if (const Dict* dict = value.dict()) {
    const auto write = [](const auto& item) {
      return value::quoted(item.first) + ": " + to_representation(item.second);
    };
    return "{" + value::joined(dict->items, ", ", write) + "}";
  }
  throw Problem{concat("a value of type ", value.type_name(), " has no text")};
}

std::string to_text(const Value& value) {
  if (value.is_undefined()) return "";
  if (const std::string* text = value.string()) return *text;
  return to_representation(value);
}

std::string to_json(const Value& value, const JsonStyle& style) {
  return value::json_of(value, style, 0);
}

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> all;
  while (!text.empty()) {
    const std::size_t bytes = data::first_character(text).bytes;
    all.push_back(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
  return all;
}

bool is_space(std::string_view character) {
  const char32_t code = data::code_point(character);
  return data::is_white_space(code) || (code >= 0x1c && code <= 0x1f);
}

}  // namespace tessera::jinja

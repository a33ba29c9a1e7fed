#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::jinja {

class Value;

/// A failure of a filter or a method; becomes an Error that names the template's line.
struct Problem {
  std::string what;
};

struct List {
  enum class Kind : std::uint8_t {
    kList,
    kTuple,
    kGenerator,  ///< of map, select, ...: true even if it is empty, and read once
  };
  std::vector<Value> items;
  Kind kind = Kind::kList;
  mutable bool is_read = false;  ///< a generator that has been
};

/// In the order of insertion, as Python's.
struct Dict {
  std::vector<std::pair<std::string, Value>> items;
  const Value* find(std::string_view key) const;
  void set(const std::string& key, Value value);
};

/// Made by namespace(): the one thing that templates change.
struct Namespace {
  Dict members;
};

struct Arguments {
  std::vector<Value> values{};
  std::vector<std::pair<std::string, Value>> named{};

  /// The argument at a place or of a name; null if it is not given.
  const Value* find(std::size_t place, std::string_view name) const;
};

using Function = std::function<Value(const Arguments&)>;

/// A value of Python, as far as templates have them. Copies share lists and dicts.
class Value {
 public:
  struct Undefined {
    std::string name;
  };
  struct None {};
  using Content = std::variant<Undefined, None, bool, std::int64_t, double, std::string,
                               std::shared_ptr<const List>, std::shared_ptr<const Dict>,
                               std::shared_ptr<Namespace>, std::shared_ptr<const Function>>;

  Value() = default;
  template <typename T>
  requires std::is_constructible_v<Content, T> Value(T content)
      : content_(std::move(content)) {}  // NOLINT: converts
  static Value list(std::vector<Value> items, List::Kind kind = List::Kind::kList);
  static Value dict(Dict members);
  static Value function(Function function);
  static Value none() { return Value(Content(None{})); }
  static Value undefined(std::string name);
  /// Throws Error{kConfig} on an integer beyond 64 bits.
  static Value of_json(const nlohmann::ordered_json& json);

  template <typename T>
  const T* as() const {
    return std::get_if<T>(&content_);
  }
  const std::string* string() const { return as<std::string>(); }
  const List* list() const;
  const Dict* dict() const;
  Namespace* mutable_members() const;
  const Function* function() const;

  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<None>() != nullptr; }
  bool is_number() const;  ///< booleans are numbers in Python
  double number() const;   ///< of such
  /// An integer or a boolean.
  bool is_integer() const;
  std::int64_t integer() const;

  /// Whether an `if` takes it.
  bool truth() const;
  /// Python's name of its type, for errors.
  std::string_view type_name() const;

 private:
  Content content_;
};

bool operator==(const Value& a, const Value& b);

/// The text of `{{ value }}`: str() of Python; an undefined value is empty. Throws a Problem on a
/// value that has no text.
std::string to_text(const Value& value);
/// repr() of Python.
std::string to_representation(const Value& value);

struct JsonStyle {
  int indent = -1;  ///< below 0: on one line
  bool ensure_ascii = false, sort_keys = false;
  std::string item_separator{}, key_separator{};  ///< empty: json.dumps's
};
/// json.dumps of Python. Throws a Problem on what is no JSON.
std::string to_json(const Value& value, const JsonStyle& style);

/// The characters of UTF-8 text.
std::vector<std::string_view> characters(std::string_view text);
/// White space as Python's str has it.
bool is_space(std::string_view character);

}  // namespace tessera::jinja

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/jinja_value.h"

// The functions of Jinja2 and Python: filters, tests, and the methods of strings and dicts. They
// throw a Problem on what they cannot do, and on what is not supported.
namespace tessera::jinja {

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments);
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments);

/// A method, ready to be called; none if the value's type has none of that name.
std::optional<Value> method_of(const Value& self, const std::string& name);

/// value.name and value[key], as Jinja2 looks them up; undefined if there is none.
Value attribute_of(const Value& value, const std::string& name);
Value item_of(const Value& value, const Value& key);
/// value[begin:end:step]; a null is left out.
Value slice_of(const Value& value, const Value* begin, const Value* end, const Value* step);

/// The items that a loop runs over: those of a list, keys of a dict, characters of a string.
std::vector<Value> items_of(const Value& value);
/// item in container.
bool contains(const Value& container, const Value& item);
/// a < b, of numbers or of strings.
bool is_less(const Value& a, const Value& b);
Value binary(std::string_view operation, const Value& a, const Value& b);

/// Without white space, or without the characters of `which`, on one side or both.
std::string strip(std::string_view text, const Value* which, bool left, bool right);
std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    std::int64_t most = -1);
std::vector<std::string> split_lines(std::string_view text);
/// Maps ASCII; throws a Problem if there are other letters.
std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string title(std::string_view text);
std::string capitalize(std::string_view text);

/// An argument of a type, or a Problem that names it.
const std::string& string_argument(const Value* value, std::string_view what);
std::int64_t integer_argument(const Value* value, std::string_view what, std::int64_t fallback);

}  // namespace tessera::jinja

#include <algorithm>
#include <cmath>
#include <limits>

#include "chat/jinja_functions.h"
#include "tessera/core/error.h"

namespace tessera::jinja {
namespace operators {

[[noreturn]] void refuse_undefined(const Value& value) {
  throw Problem{concat("'", value.as<Value::Undefined>()->name, "' is undefined")};
}

[[noreturn]] void refuse_types(std::string_view operation, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) refuse_undefined(*value);
  }
  throw Problem{concat("'", operation, "' takes no ", a.type_name(), " and ", b.type_name())};
}

std::int64_t floor_divided(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return quotient - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

Value of_integers(std::string_view operation, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflows = false;
  if (operation == "+") overflows = __builtin_add_overflow(a, b, &result);
  if (operation == "-") overflows = __builtin_sub_overflow(a, b, &result);
  if (operation == "*") overflows = __builtin_mul_overflow(a, b, &result);
  if (operation == "//" || operation == "%") {
    if (b == 0) throw Problem{"division by zero"};
    overflows = b == -1 && a == std::numeric_limits<std::int64_t>::min();
    if (!overflows) {
      const std::int64_t quotient = floor_divided(a, b);
      result = operation == "//" ? quotient : a - quotient * b;
    }
  }
  if (operation == "**") {
    if (b < 0) return std::pow(static_cast<double>(a), static_cast<double>(b));
    result = 1;
    const bool stays = a == 0 || a == 1 || a == -1;
    const std::int64_t times = stays ? (b == 0 ? 0 : 2 - b % 2) : b;
    for (std::int64_t i = 0; i < times && !overflows; ++i) {
      overflows = __builtin_mul_overflow(result, a, &result);
    }
  }
  if (overflows) throw Problem{concat("'", operation, "' gives more than 64 bits")};
  return result;
}

Value of_numbers(std::string_view operation, const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer() && operation != "/") {
    return of_integers(operation, a.integer(), b.integer());
  }
  const double x = a.number(), y = b.number();
  if (operation == "+") return x + y;
  if (operation == "-") return x - y;
  if (operation == "*") return x * y;
  if (operation == "**") return std::pow(x, y);
  if (y == 0.0) throw Problem{"division by zero"};
  if (operation == "/") return x / y;
  const double quotient = std::floor(x / y);
  return operation == "//" ? quotient : x - quotient * y;
}

Value repeated(const Value& value, std::int64_t times) {
  constexpr std::int64_t kMost = 1 << 24;
  times = std::max<std::int64_t>(times, 0);
  if (const std::string* text = value.string()) {
    if (times * static_cast<std::int64_t>(text->size()) > kMost)
      throw Problem{"'*' makes too much"};
    std::string all;
    for (std::int64_t i = 0; i < times; ++i) all += *text;
    return all;
  }
  std::vector<Value> all;
  const List& list = *value.list();
  if (times * static_cast<std::int64_t>(list.items.size()) > kMost) {
    throw Problem{"'*' makes too much"};
  }
  for (std::int64_t i = 0; i < times; ++i) {
    all.insert(all.end(), list.items.begin(), list.items.end());
  }
  return Value::list(std::move(all), list.kind);
}

/// An index as Python has it, from the end if it is negative; -1 if it is outside.
std::int64_t place_of(std::int64_t index, std::size_t size) {
  const auto all = static_cast<std::int64_t>(size);
  if (index < 0) index += all;
  return index >= 0 && index < all ? index : -1;
}

/// The indices of a slice over `size` items, by Python's rules.
std::vector<std::size_t> sliced(std::size_t size, const Value* begin, const Value* end,
                                const Value* step) {
  const auto given = [](const Value* value) { return value != nullptr && !value->is_none(); };
  const auto number = [&](const Value* value) { return integer_argument(value, "slice", 0); };
  const auto all = static_cast<std::int64_t>(size);
  const std::int64_t by = given(step) ? number(step) : 1;
  if (by == 0) throw Problem{"the step of a slice is 0"};
  const std::int64_t lowest = by > 0 ? 0 : -1, highest = by > 0 ? all : all - 1;
  const auto bound = [&](const Value* value, std::int64_t fallback) {
    if (!given(value)) return fallback;
    const std::int64_t at = number(value);
    return std::clamp(at < 0 ? at + all : at, lowest, highest);
  };
  const std::int64_t from = bound(begin, by > 0 ? lowest : highest);
  const std::int64_t to = bound(end, by > 0 ? highest : lowest);
  std::vector<std::size_t> indices;
  for (std::int64_t i = from; by > 0 ? i < to : i > to; i += by) {
    indices.push_back(static_cast<std::size_t>(i));
  }
  return indices;
}

}  // namespace operators

const std::string& string_argument(const Value* value, std::string_view what) {
  if (value == nullptr) throw Problem{concat(what, " lacks an argument")};
  if (value->is_undefined()) operators::refuse_undefined(*value);
  if (value->string() == nullptr) {
    throw Problem{concat(what, " takes a string, not a value of type ", value->type_name())};
  }
  return *value->string();
}

std::int64_t integer_argument(const Value* value, std::string_view what, std::int64_t fallback) {
  if (value == nullptr) return fallback;
  if (value->is_undefined()) operators::refuse_undefined(*value);
  if (!value->is_integer()) {
    throw Problem{concat(what, " takes an integer, not a value of type ", value->type_name())};
  }
  return value->integer();
}

Value attribute_of(const Value& value, const std::string& name) {
  if (value.is_undefined()) operators::refuse_undefined(value);
  if (std::optional<Value> method = method_of(value, name)) return *method;
  const Namespace* const members = value.mutable_members();
  const Dict* const dict = members != nullptr ? &members->members : value.dict();
  const Value* const found = dict == nullptr ? nullptr : dict->find(name);
  return found == nullptr ? Value::undefined(name) : *found;
}

Value item_of(const Value& value, const Value& key) {
  if (value.is_undefined()) operators::refuse_undefined(value);
  if (const std::string* name = key.string()) {
    const Value* const found = value.dict() == nullptr ? nullptr : value.dict()->find(*name);
    return found == nullptr ? attribute_of(value, *name) : *found;
  }
  if (!key.is_integer()) return Value::undefined(to_text(key));
  if (const List* list = value.list()) {
    const std::int64_t at = operators::place_of(key.integer(), list->items.size());
    if (at >= 0 && list->kind != List::Kind::kGenerator) {
      return list->items[static_cast<std::size_t>(at)];
    }
  } else if (const std::string* text = value.string()) {
    const auto all = characters(*text);
    const std::int64_t at = operators::place_of(key.integer(), all.size());
    if (at >= 0) return std::string(all[static_cast<std::size_t>(at)]);
  }
  return Value::undefined(to_text(key));
}

Value slice_of(const Value& value, const Value* begin, const Value* end, const Value* step) {
  if (value.is_undefined()) operators::refuse_undefined(value);
  if (const std::string* text = value.string()) {
    const auto all = characters(*text);
    std::string result;
    for (const std::size_t i : operators::sliced(all.size(), begin, end, step)) result += all[i];
    return result;
  }
  const List* list = value.list();
  if (list == nullptr || list->kind == List::Kind::kGenerator) {
    throw Problem{concat("a value of type ", value.type_name(), " has no slices")};
  }
  std::vector<Value> result;
  for (const std::size_t i : operators::sliced(list->items.size(), begin, end, step)) {
    result.push_back(list->items[i]);
  }
  return Value::list(std::move(result), list->kind);
}

std::vector<Value> items_of(const Value& value) {
  if (value.is_undefined()) return {};
  std::vector<Value> items;
  if (const List* list = value.list()) {
    const bool is_used = list->kind == List::Kind::kGenerator && list->is_read;
    list->is_read = true;
    return is_used ? items : list->items;
  }
  if (const Dict* dict = value.dict()) {
    for (const auto& [key, member] : dict->items) items.emplace_back(key);
    return items;
  }
  if (const std::string* text = value.string()) {
    for (const std::string_view character : characters(*text)) {
      items.emplace_back(std::string(character));
    }
    return items;
  }
  throw Problem{concat("a value of type ", value.type_name(), " cannot be iterated")};
}

bool contains(const Value& container, const Value& item) {
  if (const std::string* text = container.string()) {
    return text->find(string_argument(&item, "'in' of a string")) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) {
    return item.string() != nullptr && dict->find(*item.string()) != nullptr;
  }
  return std::ranges::count(items_of(container), item) > 0;
}

bool is_less(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.integer() < b.integer();
  if (a.is_number() && b.is_number()) return a.number() < b.number();
  if (a.string() != nullptr && b.string() != nullptr) return *a.string() < *b.string();
  operators::refuse_types("<", a, b);
}

Value binary(std::string_view operation, const Value& a, const Value& b) {
  if (operation == "~") return to_text(a) + to_text(b);
  if (a.is_number() && b.is_number()) return operators::of_numbers(operation, a, b);
  if (operation == "%" && a.string() != nullptr) {
    throw Problem{"formatting a string by % is not supported; use ~"};
  }
  const auto repeats = [](const Value& value) {
    return value.string() != nullptr ||
           (value.list() != nullptr && value.list()->kind != List::Kind::kGenerator);
  };
  if (operation == "*" && repeats(a) && b.is_integer()) return operators::repeated(a, b.integer());
  if (operation == "*" && a.is_integer() && repeats(b)) return operators::repeated(b, a.integer());
  if (operation == "+" && a.string() != nullptr && b.string() != nullptr) {
    return *a.string() + *b.string();
  }
  const List *x = a.list(), *y = b.list();
  if (operation == "+" && x != nullptr && y != nullptr && x->kind == y->kind && repeats(a)) {
    std::vector<Value> all = x->items;
    all.insert(all.end(), y->items.begin(), y->items.end());
    return Value::list(std::move(all), x->kind);
  }
  operators::refuse_types(operation, a, b);
}

}  // namespace tessera::jinja

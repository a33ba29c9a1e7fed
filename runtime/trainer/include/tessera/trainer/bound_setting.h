#pragma once

#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <concepts>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/core/error.h"
#include "tessera/trainer/settings.h"

namespace tessera {

/// A setting and the member of `Options` that holds it: one row is all that there is to add.
template <typename Options>
struct BoundSetting {
  Setting setting;
  std::function<nlohmann::json(const Options&)> read;
  std::function<void(Options&, const nlohmann::json&)> write;
  std::string field{};  ///< "policy.recompute", as messages of the library name it
};

namespace binding {

/// An enumeration is a text, one of its values' to_string: `array choices_of(E)` lists them.
template <typename E>
concept Listed = std::is_enum_v<E> && requires(E e) {
  choices_of(e);
};

template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

template <Listed E>
std::vector<std::string> names_of() {
  std::vector<std::string> names;
  for (const E value : choices_of(E{})) names.emplace_back(to_string(value));
  return names;
}

template <typename T>
constexpr SettingType type_of() {
  if constexpr (IsOptional<T>::value) return type_of<typename T::value_type>();
  if constexpr (std::same_as<T, bool>) return SettingType::kFlag;
  if constexpr (std::integral<T>) return SettingType::kInteger;
  if constexpr (std::floating_point<T> || std::same_as<T, std::chrono::milliseconds>) {
    return SettingType::kNumber;
  }
  return SettingType::kText;
}

/// The double of the shortest text for `value`: 0.9 and not 0.8999999761581421.
inline double as_written(float value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  double result = 0.0;
  std::from_chars(text.data(), end, result);
  return result;
}

template <typename T>
nlohmann::json json_of(const T& value) {
  if constexpr (IsOptional<T>::value) {
    return value ? json_of(*value) : nlohmann::json();
  } else if constexpr (std::same_as<T, float>) {
    return as_written(value);
  } else if constexpr (std::same_as<T, std::chrono::milliseconds>) {
    return std::chrono::duration<double>(value).count();
  } else if constexpr (std::is_arithmetic_v<T> || std::same_as<T, std::string>) {
    return value;
  } else {
    return std::string(to_string(value));
  }
}

/// Whether the values of a type are texts that parse_into() takes.
template <typename T>
constexpr bool is_parsed() {
  if constexpr (IsOptional<T>::value) return is_parsed<typename T::value_type>();
  return !std::is_arithmetic_v<T> && !std::same_as<T, std::string> && !Listed<T> &&
         !std::same_as<T, std::chrono::milliseconds>;
}

/// Other types than those below have `void parse_into(std::string_view, T&)` beside them.
template <typename T>
void take(const nlohmann::json& json, T& value) {
  if constexpr (IsOptional<T>::value) {
    value.reset();
    if (!json.is_null()) take(json, value.emplace());
  } else if constexpr (std::same_as<T, std::chrono::milliseconds>) {
    value = std::chrono::milliseconds(std::llround(json.get<double>() * 1e3));
  } else if constexpr (std::is_arithmetic_v<T> || std::same_as<T, std::string>) {
    value = json.get<T>();
  } else if constexpr (Listed<T>) {
    for (const T candidate : choices_of(T{})) {
      if (to_string(candidate) == json.get<std::string>()) value = candidate;
    }
  } else {
    parse_into(json.get<std::string>(), value);
  }
}

template <typename Object, typename Member, typename... Rest>
auto& member_of(Object& object, Member member, Rest... rest) {
  if constexpr (sizeof...(rest) == 0) {
    return object.*member;
  } else {
    return member_of(object.*member, rest...);
  }
}

template <typename Class, typename Member>
Class class_of(Member Class::*);

/// The name of a member, which compilers tell in that of a function.
template <auto kMember>
std::string member_name() {
  std::string_view text = __PRETTY_FUNCTION__;
  text.remove_prefix(text.find("kMember = "));
  text = text.substr(0, text.find_first_of(";]"));
  return std::string(text.substr(text.rfind(':') + 1));
}

/// Texts that no parse_into() takes are refused.
template <typename T>
void check_parsed(const nlohmann::json& json) {
  T value;
  take(json, value);
}

/// The part of bound() that is compiled once for all members of these options.
template <typename Options>
BoundSetting<Options> make_row(std::string name, std::string help, Setting more, SettingType type,
                               nlohmann::json (*read)(const Options&),
                               void (*write)(Options&, const nlohmann::json&), std::string field) {
  static const Options defaults;
  more.name = std::move(name);
  more.help = std::move(help);
  if (more.type == SettingType::kText) more.type = type;
  more.fallback = read(defaults);
  return {std::move(more), read, write, std::move(field)};
}

}  // namespace binding

/// A row for the member that `kPath` leads to, which tells its type, choices and default. `more`
/// has what else there is to say: limits, a check, whether processes must agree.
template <auto kFirst, auto... kPath>
auto bound(std::string name, std::string help, Setting more = {}) {
  using Options = decltype(binding::class_of(kFirst));
  using Member =
      std::remove_cvref_t<decltype(binding::member_of(std::declval<Options&>(), kFirst, kPath...))>;
  if constexpr (binding::Listed<Member>) more.choices = binding::names_of<Member>();
  if constexpr (binding::is_parsed<Member>()) {
    if (!more.check) more.check = binding::check_parsed<Member>;
  }
  return binding::make_row<Options>(
      std::move(name), std::move(help), std::move(more), binding::type_of<Member>(),
      [](const Options& options) {
        return binding::json_of(binding::member_of(options, kFirst, kPath...));
      },
      [](Options& options, const nlohmann::json& json) {
        binding::take(json, binding::member_of(options, kFirst, kPath...));
      },
      (binding::member_name<kFirst>() + ... + ("." + binding::member_name<kPath>())));
}

/// The settings of rows, under a heading of --help.
template <typename Options>
std::vector<Setting> settings_of(const std::vector<BoundSetting<Options>>& rows) {
  std::vector<Setting> all;
  for (const BoundSetting<Options>& row : rows) all.push_back(row.setting);
  return all;
}

/// The options that `settings` holds; what has no value keeps its default.
template <typename Options>
Options options_of(const std::vector<BoundSetting<Options>>& rows, const Settings& settings) {
  Options options;
  for (const BoundSetting<Options>& row : rows) {
    if (!settings.is_null(row.setting.name)) row.write(options, settings.value(row.setting.name));
  }
  return options;
}

}  // namespace tessera

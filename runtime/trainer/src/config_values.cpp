#include "config_values.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "foreign/key_table.h"
#include "tessera/core/error.h"
#include "tessera/core/nearest_name.h"
#include "tessera/trainer/byte_size.h"

namespace tessera {
namespace {

std::string in_words(const Setting& setting) {
  switch (setting.type) {
    case SettingType::kInteger:
      return "an integer";
    case SettingType::kNumber:
      return "a number";
    case SettingType::kFlag:
      return "true or false";
    case SettingType::kText:
      return "a text";
    case SettingType::kBytes:
      return "a number of bytes like 1500000 or \"4GiB\"";
  }
  return "a value";
}

/// "3" rather than "3.000000"; integers up to 2^53 are exact.
std::string show(double number) { return nlohmann::json(number).dump(); }
std::string show_bound(const Setting& setting, double bound) {
  if (setting.type == SettingType::kNumber) return show(bound);
  if (std::abs(bound) > 9e15) return show(bound);
  return std::to_string(static_cast<std::int64_t>(bound));
}

std::string allowed_range(const Setting& setting) {
  const bool low = std::isfinite(setting.minimum);
  const bool high = std::isfinite(setting.maximum);
  if (low && high) {
    return concat(show_bound(setting, setting.minimum), " to ",
                  show_bound(setting, setting.maximum));
  }
  return low ? concat("at least ", show_bound(setting, setting.minimum))
             : concat("at most ", show_bound(setting, setting.maximum));
}

/// The same of a number that not even an int64 holds.
std::string allowed_integers(const Setting& setting) {
  const double low = setting.minimum;
  const double high = setting.maximum;
  return concat(std::isfinite(low) ? show_bound(setting, low) : std::to_string(INT64_MIN), " to ",
                std::isfinite(high) ? show_bound(setting, high) : std::to_string(INT64_MAX));
}

void check_range(const Setting& setting, double number, const std::string& shown) {
  require(std::isfinite(number), ErrorCode::kConfig, shown, " is not a finite number");
  require(number >= setting.minimum && number <= setting.maximum, ErrorCode::kConfig, shown,
          " is out of range; allowed: ", allowed_range(setting));
}

std::string check_choice(const Setting& setting, const std::string& text) {
  if (setting.choices.empty()) return text;
  const bool known =
      std::find(setting.choices.begin(), setting.choices.end(), text) != setting.choices.end();
  if (known) return text;
  fail(ErrorCode::kConfig,
       foreign::unknown_value(text, nearest_name(text, setting.choices), setting.choices));
}

[[noreturn]] void fail_type(const Setting& setting, const nlohmann::json& value) {
  const bool number = setting.type == SettingType::kInteger || setting.type == SettingType::kNumber;
  const std::string text = number && value.is_string() ? value.get<std::string>() : "";
  fail(ErrorCode::kConfig, foreign::shortened(value.dump()), " is not ", in_words(setting),
       foreign::has_leading_zero(text) ? foreign::number_remedy({.text = text}) : "");
}

nlohmann::json convert(const Setting& setting, const nlohmann::json& value) {
  switch (setting.type) {
    case SettingType::kInteger: {
      if (!value.is_number_integer()) fail_type(setting, value);
      // Unsigned beyond int64 would wrap in get<std::int64_t>.
      check_range(setting, value.get<double>(), value.dump());
      require(!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX,
              ErrorCode::kConfig, value.dump(),
              " is out of range; allowed: ", allowed_integers(setting));
      return value.get<std::int64_t>();
    }
    case SettingType::kNumber:
      if (!value.is_number()) fail_type(setting, value);
      check_range(setting, value.get<double>(), value.dump());
      return value.get<double>();
    case SettingType::kFlag:
      if (!value.is_boolean()) fail_type(setting, value);
      return value;
    case SettingType::kText:
      if (!value.is_string()) fail_type(setting, value);
      return check_choice(setting, value.get<std::string>());
    case SettingType::kBytes: {
      if (!value.is_string() && !value.is_number_integer()) fail_type(setting, value);
      const std::int64_t bytes =
          parse_bytes(value.is_string() ? value.get<std::string>() : value.dump());
      check_range(setting, static_cast<double>(bytes), std::to_string(bytes));
      return bytes;
    }
  }
  return value;
}

template <typename T>
nlohmann::json parse_number(const Setting& setting, const std::string& text) {
  T number{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  constexpr const char* kFp64 = "allowed are numbers of fp64, about 2.2e-308 to 1.8e308";
  require(result.ec != std::errc::result_out_of_range, ErrorCode::kConfig, text,
          " is out of range; ",
          std::is_floating_point_v<T> ? kFp64 : "allowed: " + allowed_integers(setting));
  require(result.ec == std::errc() && result.ptr == end, ErrorCode::kConfig, "'", text, "' is not ",
          in_words(setting));
  // JSON has no nan or infinity: caught here, where the text is at hand.
  if constexpr (std::is_floating_point_v<T>) {
    require(std::isfinite(number), ErrorCode::kConfig, text, " is not a finite number");
  }
  return number;
}

}  // namespace

nlohmann::json checked_value(const Setting& setting, const nlohmann::json& value) {
  if (value.is_null() && setting.fallback.is_null()) return value;  // "unset" can be written out
  nlohmann::json result = convert(setting, value);
  if (setting.check) setting.check(result);
  return result;
}

nlohmann::json parse_value(const Setting& setting, const std::string& text) {
  switch (setting.type) {
    case SettingType::kInteger:
      return parse_number<std::int64_t>(setting, text);
    case SettingType::kNumber:
      return parse_number<double>(setting, text);
    case SettingType::kFlag:
      if (text == "true" || text == "on" || text == "yes" || text == "1") return true;
      if (text == "false" || text == "off" || text == "no" || text == "0") return false;
      fail(ErrorCode::kConfig, "'", text, "' is not true or false");
    case SettingType::kText:
    case SettingType::kBytes:
      return text;
  }
  return text;
}

}  // namespace tessera

#include "tessera/trainer/settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>

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

/// The allowed range, for a number that not even an int64 holds.
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
  for (const auto& [theirs, ours] : setting.other_spellings) {
    if (text == theirs) return ours;
  }
  fail(ErrorCode::kConfig,
       unknown_value(text, nearest_name(text, setting.choices), setting.choices));
}

[[noreturn]] void fail_type(const Setting& setting, const nlohmann::json& value) {
  const bool number = setting.type == SettingType::kInteger || setting.type == SettingType::kNumber;
  const std::string text = number && value.is_string() ? value.get<std::string>() : "";
  fail(ErrorCode::kConfig, shortened(value.dump()), " is not ", in_words(setting),
       has_leading_zero(text) ? kLeadingZeroRemedy : "");
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
      const std::int64_t bytes = parse_bytes(plain_text(value));
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

/// The value that a text on the command line stands for, not yet checked.
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

/// A message in which a text that is long stands with its beginning only.
std::string with_short(std::string message, const nlohmann::json& value) {
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  const std::string shown = shortened(text);
  if (shown == text) return message;
  for (std::size_t at = message.find(text); at != message.npos; at = message.find(text, at + 1)) {
    message.replace(at, text.size(), shown);
  }
  return message;
}

std::string with(std::string text, char other, char by) {
  std::ranges::replace(text, other, by);
  return text;
}

}  // namespace

Setting flag_setting(std::string name, std::string help, bool fallback) {
  return {.name = std::move(name),
          .type = SettingType::kFlag,
          .fallback = fallback,
          .help = std::move(help)};
}

std::vector<Setting> in_group(const std::string& group, std::vector<Setting> settings) {
  for (Setting& setting : settings) setting.group = group;
  return settings;
}

std::vector<Setting> in_group(const std::string& group, MustAgree agree,
                              std::vector<Setting> settings) {
  for (Setting& setting : settings) setting.must_agree = agree;
  return in_group(group, std::move(settings));
}

void check_path(const nlohmann::json& value) {
  require(!value.get<std::string>().empty(), ErrorCode::kConfig,
          "is empty; give a path, or leave it out");
}

const Setting* find_setting(const std::vector<Setting>& table, std::string_view name) {
  const auto found = std::ranges::find(table, name, &Setting::name);
  return found == table.end() ? nullptr : &*found;
}

std::vector<std::string> names_of(const std::vector<Setting>& table) {
  std::vector<std::string> names;
  for (const Setting& setting : table) names.push_back(setting.name);
  return names;
}

nlohmann::json checked_value(const Setting& setting, const nlohmann::json& value) {
  if (value.is_null() && setting.fallback.is_null()) return value;  // "unset" can be written out
  nlohmann::json result = convert(setting, value);
  if (setting.check) setting.check(result);
  return result;
}

std::string flag_name(std::string_view setting) {
  return "--" + with(std::string(setting), '_', '-');
}

std::string setting_name(std::string_view flag) {
  if (flag.starts_with("--")) flag.remove_prefix(2);
  return with(std::string(flag), '-', '_');
}

std::string joined(const std::vector<std::string>& words, std::string_view between) {
  std::string all;
  for (const std::string& word : words) all += concat(all.empty() ? "" : between, word);
  return all;
}

std::string shortened(const std::string& text, std::size_t longest) {
  if (text.size() <= longest) return text;
  std::size_t end = longest;  // not inside of a character
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80) --end;
  return concat(text.substr(0, end), "...");
}

std::string unknown_value(const std::string& word, const std::string& nearest,
                          const std::vector<std::string>& allowed) {
  return concat("unknown value '", shortened(word), "'; ",
                nearest.empty() ? "" : concat("did you mean '", nearest, "'? "),
                "allowed: ", joined(allowed));
}

std::string unknown_name(std::string_view kind, std::string_view word,
                         const std::vector<std::string>& candidates) {
  const std::string nearest = nearest_name(word, candidates);
  return concat(
      "unknown ", kind, " '", word, "'",
      nearest.empty() ? "; see `help` for all of them" : concat("; did you mean '", nearest, "'?"));
}

bool has_leading_zero(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  return text.size() > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9';
}

Settings::Settings(std::vector<Setting> table) : table_(std::move(table)) {
  for (const Setting& setting : table_) {
    require(!values_.contains(setting.name), ErrorCode::kInternal, "the setting '", setting.name,
            "' is in the table twice");
    values_[setting.name] = nullptr;
    if (setting.fallback.is_null()) continue;
    try {
      store(setting.name, setting.fallback, "default of " + setting.name, {});
    } catch (const Error& error) {
      fail(ErrorCode::kInternal, error.what());
    }
  }
}

const Setting& Settings::setting(std::string_view name) const {
  const Setting* const found = find_setting(table_, name);
  require(found != nullptr, ErrorCode::kInternal, "no setting is called '", name, "'");
  return *found;
}

const nlohmann::ordered_json& Settings::value(std::string_view name) const {
  return values_.at(setting(name).name);
}

const Settings::Origin& Settings::origin(std::string_view name) const {
  static const Origin kNone;
  const auto found = origins_.find(setting(name).name);
  return found == origins_.end() ? kNone : found->second;
}

void Settings::store(std::string_view name, const nlohmann::json& value, const std::string& label,
                     Origin origin) {
  const Setting& wanted = setting(name);
  nlohmann::json checked;
  try {
    checked = checked_value(wanted, value);
  } catch (const Error& error) {
    fail(ErrorCode::kConfig, label, ": ", with_short(error.what(), value));
  }
  Origin& before = origins_[wanted.name];
  if (origin.giver < before.giver) return;
  values_[wanted.name] = std::move(checked);
  before = std::move(origin);
}

void Settings::set_text(std::string_view name, const std::string& text) {
  nlohmann::json parsed;
  try {
    parsed = parse_value(setting(name), text);
  } catch (const Error& error) {
    fail(ErrorCode::kConfig, flag_name(name), ": ", error.what());
  }
  store(name, parsed, flag_name(name), {Giver::kCommandLine, "command line"});
}

void Settings::set_effective(std::string_view name, nlohmann::json value) {
  nlohmann::ordered_json& stored = values_[setting(name).name];
  if (stored == value) return;
  stored = std::move(value);
  Origin& origin = origins_[setting(name).name];
  if (origin.giver == Giver::kDefault) origin.text = "derived";
}

}  // namespace tessera

#include "pretrained/config_reader.h"

#include <algorithm>

#include "strict_json.h"
#include "tessera/core/error.h"

namespace tessera::pretrained {
namespace {

using nlohmann::json;

constexpr std::int64_t kMostConfigBytes = 16 << 20;
constexpr std::int64_t kMostOfAnything = 1 << 24;

}  // namespace

std::string shown(const json& value) {
  constexpr std::size_t kMost = 80;
  const std::string text = value.dump(-1, ' ', true);
  return text.size() > kMost ? text.substr(0, kMost) + "..." : text;
}

ConfigReader::ConfigReader(const std::string& path)
    : path_(path), object_(data::read_strict_json(path, kMostConfigBytes)) {
  require(object_.is_object(), ErrorCode::kConfig, "'", path, "' is no JSON object");
}

ConfigReader::ConfigReader(const std::string& path, std::string_view text)
    : path_(path), object_(data::parse_strict_json(text, path)) {
  require(object_.is_object(), ErrorCode::kConfig, "'", path, "' is no JSON object");
}

ConfigReader::ConfigReader(const ConfigReader& outer, const std::string& name)
    : path_(outer.path_), prefix_(outer.prefix_ + name + "."), object_(outer.value(name, nullptr)) {
  if (!object_.is_object()) outer.refuse(name, "must be an object");
}

json ConfigReader::value(const std::string& key, const json& fallback) const {
  return has(key) ? object_.at(key) : fallback;
}

void ConfigReader::refuse(const std::string& key, const std::string& what_must_be) const {
  fail(ErrorCode::kConfig, "'", path_, "': ", prefix_, key, " is ",
       has(key) ? shown(object_.at(key)) : "absent", ", and ", what_must_be);
}

std::int64_t ConfigReader::integer_from(std::int64_t least, const std::string& key) const {
  const json value = this->value(key, nullptr);
  if (!value.is_number_unsigned() ||
      value.get<std::uint64_t>() < static_cast<std::uint64_t>(least) ||
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(kMostOfAnything)) {
    refuse(key, concat("must be an integer from ", least, " to ", kMostOfAnything));
  }
  return value.get<std::int64_t>();
}

std::int64_t ConfigReader::size(const std::string& key, std::int64_t fallback) const {
  return !has(key) && fallback != 0 ? fallback : integer_from(1, key);
}

std::int64_t ConfigReader::count(const std::string& key, std::int64_t fallback) const {
  return has(key) ? integer_from(0, key) : fallback;
}

std::int64_t ConfigReader::optional_size(const std::string& key) const {
  return is_set(key) ? size(key) : 0;
}

double ConfigReader::number(const std::string& key) const {
  const json value = this->value(key, nullptr);
  if (!value.is_number() || !(value.get<double>() > 0.0)) refuse(key, "must be a number above 0");
  return value.get<double>();
}

double ConfigReader::number(const std::string& key, double fallback) const {
  return has(key) ? number(key) : fallback;
}

std::vector<double> ConfigReader::numbers(const std::string& key) const {
  const json value = this->value(key, nullptr);
  const auto is_number = [](const json& element) { return element.is_number(); };
  if (!value.is_array() || !std::ranges::all_of(value, is_number)) {
    refuse(key, "must be a list of numbers");
  }
  return value.get<std::vector<double>>();
}

bool ConfigReader::flag(const std::string& key, bool fallback) const {
  const json value = this->value(key, fallback);
  if (!value.is_boolean()) refuse(key, "must be true or false");
  return value.get<bool>();
}

void ConfigReader::require_value(const std::string& key, const std::vector<json>& values) const {
  const json value = this->value(key, values.front());
  if (std::ranges::find(values, value) != values.end()) return;
  refuse(key,
         concat("only ", shown(values.back()), " is computed here: this model cannot be read"));
}

void ConfigReader::require_known(const std::vector<std::string>& known) const {
  for (const auto& [key, value] : object_.items()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    refuse(key, "its meaning is not known here: this model cannot be read");
  }
}

}  // namespace tessera::pretrained

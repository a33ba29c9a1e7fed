#include "adapter/adapter_json.h"

#include <algorithm>
#include <utility>

#include "pretrained/config_reader.h"
#include "tessera/core/error.h"

namespace tessera::adapter {

using nlohmann::json;

namespace {

/// PEFT's values of what is not used.
bool is_unset(const json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty()) ||
         value == "";
}

}  // namespace

JsonReader::JsonReader(const json& object, std::string path)
    : object_(object), path_(std::move(path)) {
  require(object.is_object(), ErrorCode::kConfig, "'", path_, "' is no JSON object");
}

void JsonReader::refuse(std::string_view key, std::string_view what) const {
  fail(ErrorCode::kConfig, "'", path_, "': ", key, " is ", pretrained::shown(object_.at(key)), "; ",
       what);
}

void JsonReader::refuse_without(std::string_view key) const {
  fail(ErrorCode::kConfig, "'", path_, "': ", key, " is missing");
}

const json& JsonReader::value(std::string_view key) const {
  static const json kNull;
  seen_.insert(std::string(key));
  const auto found = object_.find(key);
  return found == object_.end() ? kNull : *found;
}

double JsonReader::number(std::string_view key, double fallback) const {
  const json& read = value(key);
  if (read.is_null()) return fallback;
  if (!read.is_number()) refuse(key, "it must be a number");
  return read.get<double>();
}

std::int64_t JsonReader::integer(std::string_view key, std::int64_t fallback) const {
  const json& read = value(key);
  if (read.is_null()) return fallback;
  if (!read.is_number_integer()) refuse(key, "it must be an integer");
  return read.get<std::int64_t>();
}

bool JsonReader::flag(std::string_view key, bool fallback) const {
  const json& read = value(key);
  if (read.is_null()) return fallback;
  if (!read.is_boolean()) refuse(key, "it must be true or false");
  return read.get<bool>();
}

std::vector<std::string> JsonReader::names(std::string_view key, std::string* pattern) const {
  const json& read = value(key);
  if (read.is_null()) return {};
  if (read.is_string()) {
    if (pattern == nullptr) return {read.get<std::string>()};
    *pattern = read.get<std::string>();
    return {};
  }
  const auto is_text = [](const json& name) { return name.is_string() && name != ""; };
  if (!read.is_array() || !std::ranges::all_of(read, is_text)) {
    refuse(key, "it must be a text or a list of texts");
  }
  auto all = read.get<std::vector<std::string>>();
  std::ranges::sort(all);  // PEFT writes sets, in any order
  return all;
}

void JsonReader::check_patterns(std::string_view key, bool of_integers) const {
  const json& read = value(key);
  const auto fits = [&](const json& number) {
    return of_integers ? number.is_number_integer() : number.is_number();
  };
  if (!read.is_null() && (!read.is_object() || !std::ranges::all_of(read, fits))) {
    refuse(key, "it must be an object of numbers");
  }
}

void JsonReader::finish(std::string_view kind, std::span<const std::string_view> ignored,
                        std::span<const std::string_view> refused) const {
  for (const auto& [key, read] : object_.items()) {
    if (seen_.contains(key) || is_unset(read)) continue;
    if (std::ranges::find(ignored, key) != ignored.end()) continue;
    const bool known = std::ranges::find(refused, key) != refused.end();
    refuse(key, known ? concat("Tessera's ", kind, " does not have it; train the adapter without")
                      : concat("Tessera does not know this key of ", kind,
                               ", so it may change what is computed"));
  }
}

json list_or_null(const std::vector<std::string>& list, const std::string& pattern) {
  if (!pattern.empty()) return pattern;
  return list.empty() ? json() : json(list);
}

}  // namespace tessera::adapter

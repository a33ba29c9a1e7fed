#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/core/nearest_name.h"

namespace tessera {

/// An object whose keys are all read: `finish` names one that was not.
class ObjectReader {
 public:
  ObjectReader(const nlohmann::ordered_json& object, std::string place)
      : object_(object), place_(std::move(place)) {
    require(object.is_object(), ErrorCode::kConfig, place_, " must be an object");
  }
  const nlohmann::ordered_json& take(const char* key) {
    require(object_.contains(key), ErrorCode::kConfig, place_, " has no '", key, "'; add it");
    taken_.insert(key);
    return object_.at(key);
  }
  std::string text(const char* key) {
    const nlohmann::ordered_json& value = take(key);
    require(value.is_string(), ErrorCode::kConfig, place_, ": '", key, "' must be a text");
    return value.get<std::string>();
  }
  double number(const char* key, bool may_be_zero = false) {
    const nlohmann::ordered_json& value = take(key);
    const double number = value.is_number() ? value.get<double>() : -1.0;
    require(std::isfinite(number) && (may_be_zero ? number >= 0.0 : number > 0.0),
            ErrorCode::kConfig, place_, ": '", key, "' must be a number ",
            may_be_zero ? "of at least 0" : "above 0", ", not ", value.dump());
    return number;
  }
  /// A whole number of at least 0.
  std::int64_t count(const char* key) {
    const nlohmann::ordered_json& value = take(key);
    const bool is_count = value.is_number_integer() &&
                          (value.is_number_unsigned() ? value.get<std::uint64_t>() <= INT64_MAX
                                                      : value.get<std::int64_t>() >= 0);
    require(is_count, ErrorCode::kConfig, place_, ": '", key,
            "' must be a whole number of at least 0, not ", value.dump());
    return value.get<std::int64_t>();
  }
  bool has(const char* key) const { return object_.contains(key); }
  std::string place_of(const char* key) const { return concat(place_, ", '", key, "'"); }
  void finish() const {
    for (const auto& [key, value] : object_.items()) {
      if (taken_.contains(key)) continue;
      const std::string near = nearest_name(key, {taken_.begin(), taken_.end()});
      fail(ErrorCode::kConfig, place_, " has an unknown key '", key, "'",
           near.empty() ? "; remove it" : concat("; did you mean '", near, "'?"));
    }
  }

 private:
  const nlohmann::ordered_json& object_;
  std::string place_;
  std::set<std::string> taken_;
};

}  // namespace tessera

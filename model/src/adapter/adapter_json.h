#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::adapter {

/// Reads the keys of an adapter_config.json, and knows which of them no one has asked for.
class JsonReader {
 public:
  /// Throws Error{kConfig} that names `path` unless it is an object.
  JsonReader(const nlohmann::json& object, std::string path);

  /// Throws Error{kConfig}: the key's value, and what is wrong with it; or that it is missing.
  [[noreturn]] void refuse(std::string_view key, std::string_view what) const;
  [[noreturn]] void refuse_without(std::string_view key) const;
  /// Null if there is none.
  const nlohmann::json& value(std::string_view key) const;
  double number(std::string_view key, double fallback) const;
  std::int64_t integer(std::string_view key, std::int64_t fallback) const;
  bool flag(std::string_view key, bool fallback) const;
  /// A list of texts, sorted, or one text alone, which goes to `pattern` if there is one.
  std::vector<std::string> names(std::string_view key, std::string* pattern = nullptr) const;
  template <typename T>
  std::map<std::string, T> patterns(std::string_view key) const {
    check_patterns(key, std::is_integral_v<T>);
    const nlohmann::json& read = value(key);
    if (read.is_null()) return {};
    return read.get<std::map<std::string, T>>();
  }
  /// Refuses keys that were not read, unless their values are those of keys that are not used.
  void finish(std::string_view kind, std::span<const std::string_view> ignored,
              std::span<const std::string_view> refused) const;

 private:
  void check_patterns(std::string_view key, bool of_integers) const;

  const nlohmann::json& object_;
  std::string path_;
  mutable std::set<std::string, std::less<>> seen_;
};

/// null for an empty list; the pattern, if that is not empty.
nlohmann::json list_or_null(const std::vector<std::string>& list, const std::string& pattern = "");

}  // namespace tessera::adapter

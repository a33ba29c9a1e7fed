#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::pretrained {

/// A value for an error's text, cut off where it is long.
std::string shown(const nlohmann::json& value);

/// A Hugging Face folder's config.json, key by key. Everything throws Error{kConfig} that names the
/// file and the key.
class ConfigReader {
 public:
  /// Also throws Error{kNotFound, kIo}.
  explicit ConfigReader(const std::string& path);
  /// Takes a file's text; `path` is for errors.
  ConfigReader(const std::string& path, std::string_view text);
  /// An object inside of it, called `name` in errors.
  ConfigReader(const ConfigReader& outer, const std::string& name);

  bool has(const std::string& key) const { return object_.contains(key); }
  /// Whether the key is there and not null.
  bool is_set(const std::string& key) const { return !value(key, nullptr).is_null(); }
  /// The value, or `fallback` where the key is absent.
  nlohmann::json value(const std::string& key, const nlohmann::json& fallback) const;
  /// An integer from 1 to 2^24. Without a fallback (0) the key must be there.
  std::int64_t size(const std::string& key, std::int64_t fallback = 0) const;
  /// An integer from 0 to 2^24, or `fallback` where the key is absent.
  std::int64_t count(const std::string& key, std::int64_t fallback) const;
  /// A size, where absent or null means 0.
  std::int64_t optional_size(const std::string& key) const;
  /// A positive number.
  double number(const std::string& key, double fallback) const;
  double number(const std::string& key) const;
  std::vector<double> numbers(const std::string& key) const;
  bool flag(const std::string& key, bool fallback) const;
  /// Refuses a key that changes what is computed unless it has one of `values`; absent is fine.
  void require_value(const std::string& key, const std::vector<nlohmann::json>& values) const;
  /// Refuses keys that are not among `known`.
  void require_known(const std::vector<std::string>& known) const;
  /// Throws, saying what the key is and what must be.
  [[noreturn]] void refuse(const std::string& key, const std::string& what_must_be) const;

 private:
  std::int64_t integer_from(std::int64_t least, const std::string& key) const;

  std::string path_;
  std::string prefix_;  ///< of keys in errors
  nlohmann::json object_;
};

}  // namespace tessera::pretrained
